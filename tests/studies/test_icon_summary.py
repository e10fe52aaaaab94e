from __future__ import annotations

import math
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoint.evaluation.statistics import seeds_interval, wilson
from studies import harness
from studies.harness import estimate
from studies.icon import summary
from studies.icon.config import ComparisonConfig, IconData, Method
from studies.icon.summary import stability, success, summarise
from studies.icon.table import beside_paper, page
from studies.icon.table import success as success_table
from studies.icon.trials import PolicyTrial

TASK = "robosuite/Lift"
CONFIG = ComparisonConfig(
    data=IconData(tasks=(TASK,)), methods=(Method(name="Diff-C"), Method(name="ICon-Diff-C")), seeds=(0, 42)
)


def point(step: int, *solved: int) -> dict[str, Any]:
    return {"step": step, "success": list(solved), "steps": [9] * len(solved), "raised": {}}


def inside(share: list[float | None], *blocks: float) -> dict[str, Any]:
    area = [0.1, 0.2, None]
    return {"share": share, "area": area, "separability": list(blocks), "attention": [[0.5, 0.5]]}


def cell(method: str, seed: int, curve: list[dict[str, Any]], looks: dict[str, Any]) -> dict[str, Any]:
    return {**PolicyTrial(method, TASK, seed).about, "curve": curve, "inside": looks}


ROWS = [
    cell(
        "Diff-C",
        0,
        [point(5, 1, 0), point(10, 0, 0, 1, 1)],
        {"trained": inside([0.1, 0.3, None], 0.6, 0.7), "untrained": inside([0.1, 0.1, None], 0.5, 0.5)},
    ),
    cell(
        "Diff-C",
        42,
        [point(5, 0, 0), point(10, 0, 1, 0, 0)],
        {"trained": inside([0.3, 0.1, None], 0.8, 0.7), "untrained": inside([0.3, 0.3, None], 0.5, 0.6)},
    ),
    cell("ICon-Diff-C", 0, [point(5, 1, 1), point(10, 1, 0, 1, 1)], {"trained": inside([0.5, 0.6, None], 0.9, 0.9)}),
    cell("ICon-Diff-C", 42, [point(5, 0, 0), point(10, 1, 1, 1, 0)], {"trained": inside([0.6, 0.5, None], 0.9, 0.8)}),
]
ABOUT = {"config": CONFIG.model_dump(mode="json")}


@cache
def summarised() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("aggregates", "improvements"):  # fewer resamples; what is compared here does not come from them
            patch.setattr(summary, name, partial(getattr(harness, name), reps=20))
        return summarise(ROWS, ABOUT)


def test_success_pools_the_episodes_and_tells_the_seeds() -> None:
    found = success([np.array([1.0, 0, 1, 0]), np.array([1.0, 1, 1, 1])])
    assert found["rate"] == 0.75
    assert found["by_seed"] == [0.5, 1.0]
    assert found["deviation"] == 0.25
    expected = wilson(6, 8)
    assert (found["episodes"]["low"], found["episodes"]["high"]) == (expected.low, expected.high)
    assert (found["seeds"]["low"], found["seeds"]["high"]) == (0.0, 1.0)  # t of one degree of freedom, a share


def test_one_seed_has_no_interval_over_seeds() -> None:
    found = success([np.array([1.0, 0.0])])
    assert found["seeds"]["low"] is None
    assert estimate(found["seeds"]) == "0.50"


def test_stability_by_hand_on_the_conditions_that_all_checkpoints_met() -> None:
    curve = [
        point(number, *(1 if place < solved else 0 for place in range(4))) for number, solved in enumerate(range(5))
    ]
    curve[-1] = point(9, 1, 1, 1, 1, 0, 0)  # of its six conditions the first four count
    found = stability([curve, [point(number, 0, 0, 0, 0) for number in range(5)]])
    assert found["conditions"] == 4
    np.testing.assert_allclose(found["rates"], np.array([[0, 0.25, 0.5, 0.75, 1.0], [0.0] * 5]))
    assert found["best_of"] == 5
    assert found["maximum"]["value"] == 0.5
    assert found["mean_of_best"]["value"] == 0.25
    assert found["relative_drop"]["value"] == 0.5  # of the seed that ever succeeded
    assert found["relative_drop"]["n"] == 1


def test_of_more_than_ten_checkpoints_the_best_ten_count() -> None:
    rates = [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0]
    found = stability([[point(number, solved) for number, solved in enumerate(rates)]])
    assert found["mean_of_best"]["value"] == 1.0
    assert found["best_of"] == 10


def test_without_any_success_there_is_no_drop() -> None:
    found = stability([[point(1, 0), point(2, 0)]])
    assert found["relative_drop"]["value"] is None
    assert estimate(found["relative_drop"]) == "not defined"


@pytest.mark.slow
def test_a_summary_by_hand() -> None:
    found = summarised()
    told = found["success"][TASK]
    assert told["Diff-C"]["by_seed"] == [0.5, 0.25]
    assert told["ICon-Diff-C"]["rate"] == 0.75
    apart = told["ICon-Diff-C"]["difference"]
    assert apart["by_seed"] == [0.25, 0.5]
    assert apart["seeds"]["value"] == pytest.approx(0.375)
    assert apart["episodes"]["n"] == 4  # conditions, each averaged over the seeds
    assert "difference" not in told["Diff-C"]
    assert found["stability"][TASK]["Diff-C"]["rates"] == [[0.5, 0.0], [0.0, 0.5]]
    assert found["aggregate"]["ICon-Diff-C"]["mean"]["value"] == 0.75
    assert found["improvement"]["ICon-Diff-C"]["probability"] == 0.0  # that the reference is better


@pytest.mark.slow
def test_intervals_of_shares_and_of_their_differences_stay_in_bounds() -> None:
    found = summarised()
    apart = found["success"][TASK]["ICon-Diff-C"]["difference"]["seeds"]
    assert (apart["low"], apart["high"]) == (-1.0, 1.0)  # Student's of two seeds would be -1.2 to 2.0
    shares = [one["seeds"] for one in found["attention"][TASK]["methods"].values()]
    shares += [block for blocks in found["separability"][TASK].values() for block in blocks]
    shares += [one[key] for one in found["stability"][TASK].values() for key in ("maximum", "mean_of_best")]
    assert all(0 <= one["low"] <= one["value"] <= one["high"] <= 1 for one in shares)


@pytest.mark.slow
def test_a_task_tells_methods_apart_where_the_reference_is_in_the_band() -> None:
    assert summarised()["in_band"] == {TASK: True}  # 3 of 8
    unlearned = [
        {**row, "curve": [point(10, 0, 0, 0, 1)]} if row["method"] == "Diff-C" else row | {"curve": row["curve"][1:]}
        for row in ROWS
    ]
    found = summarise(unlearned, summarised() | ABOUT)  # of which the bootstraps are kept
    assert found["in_band"] == {TASK: False}
    table = success_table(found | ABOUT)
    assert "no verdict: the reference is outside 0.3 to 0.9" in table
    assert "0.50 [" not in table.splitlines()[-1].split("|")[6]


def test_the_checkpoint_of_least_validation_error() -> None:
    curve = [point(1, 1, 0), point(2, 1, 1), point(3, 0, 0)]
    found = stability(
        [curve, curve], [[{"action_error": error} for error in errors] for errors in ((3, 2, 1), (3, 1, 2))]
    )
    assert found["least_validation_error"]["value"] == 0.5
    assert "least_validation_error" not in stability([curve], [None])


def test_attention_by_hand() -> None:
    found = summarised()["attention"][TASK]
    assert found["area"]["value"] == pytest.approx(0.15)
    assert found["area"]["n"] == 2  # the third episode says nothing
    own = found["methods"]["ICon-Diff-C"]
    assert own["by_seed"] == pytest.approx([0.55, 0.55])
    assert own["episodes"]["n"] == 2
    assert own["ratio"]["value"] == pytest.approx(np.mean([(5 + 3) / 2, (6 + 2.5) / 2]))
    np.testing.assert_allclose(own["difference"]["by_seed"], [0.35, 0.35])
    expected = seeds_interval(np.array([0.35, 0.35]))
    assert own["difference"]["seeds"]["low"] == pytest.approx(expected.low)
    assert found["methods"]["untrained"]["seeds"]["value"] == pytest.approx(0.2)


def test_separability_by_hand() -> None:
    found = summarised()["separability"][TASK]
    assert [round(block["value"], 3) for block in found["Diff-C"]] == [0.7, 0.7]
    assert [round(block["value"], 3) for block in found["untrained"]] == [0.5, 0.55]
    assert all(block["n"] == 2 for block in found["ICon-Diff-C"])


def result() -> dict[str, Any]:
    errors = {"Diff-C-robosuite-Lift-0": {"7": "QACC"}}
    return {**ABOUT, **summarised(), "pace": None, "simulator_errors": errors}


def test_the_table_says_what_was_not_run() -> None:
    head, _, lift, *others = beside_paper(result()).splitlines()
    assert head == "| task | Diff-C | ICon-Diff-C | Diff-T | Crossway-Diff-C | ICon-Diff-T |"
    assert lift.startswith(f"| {TASK} | 0.38 [0.14, 0.69] ± 0.12<br>paper 0.527 ± 0.104 (Table 2) |")
    assert lift.split(" | ")[3] == "not run"
    assert "not run<br>paper 0.993 ± 0.009 (Table 1)" in others[0]


def test_parts_that_were_computed_before_are_kept() -> None:
    kept = {"aggregate": {"Diff-C": 1}, "separability": {TASK: {}}}
    found = summarise(ROWS, ABOUT | kept)
    assert {key: found[key] for key in kept} == kept
    assert found["attention"] == summarised()["attention"]


def test_the_page_in_markdown_tells_errors_and_has_whole_tables() -> None:
    text = page(result(), {"maps:robosuite/Lift": Path("icon_maps-robosuite-Lift.png")})
    assert "counted as failed" in text
    assert "QACC" in text
    blocks = [block for block in text.split("\n\n") if block.startswith("|")]
    assert len(blocks) == 5
    assert "![maps of robosuite/Lift](icon_maps-robosuite-Lift.png)" in text
    for table in blocks:
        assert len({line.count("|") for line in table.splitlines()}) == 1
    assert "nan" not in text
    assert not math.isnan(result()["attention"][TASK]["area"]["value"])
