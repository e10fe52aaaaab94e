from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from counterpoint.evaluation.statistics import wilson
from studies.fewshot.summary import bootstrapped, score_titles, scores, single, summarise
from studies.harness import aggregates, improvements


def run(*evaluations: list[int]) -> list[dict[str, Any]]:
    return [
        {"step": 10 * (number + 1), "success": outcome, "return": [10.0 * one for one in outcome], "steps": [3] * 4}
        for number, outcome in enumerate(evaluations)
    ]


NONE, ONE, TWO, ALL = [0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]
CURVES = {
    "ours": {"a": [run(ONE, ALL, TWO, TWO), run(ALL, ALL, ALL, ONE)], "b": [run(NONE, ONE), run(TWO, ALL)]},
    "theirs": {"a": [run(NONE, NONE, ONE, NONE), run(NONE, NONE, NONE, NONE)], "b": [run(ONE, NONE), run(TWO, TWO)]},
}


def test_titles_say_among_how_many_the_best_were_chosen() -> None:
    assert score_titles(CURVES)["best3"] == "mean of the best three of 2 to 4 evaluations"
    few, one = ({"a": {"t": [run(*[ONE] * count)]}} for count in (2, 1))
    assert score_titles(few)["best3"] == "mean of all, at most three, of 2 evaluations"
    assert score_titles(one)["best3"] == "mean of all, at most three, of 1 evaluation"


def test_scores_by_hand() -> None:
    found = scores(summarise(CURVES)["table"])
    np.testing.assert_allclose(found["last"]["ours"], [[0.5, 0.25], [0.25, 1.0]])  # seeds down, tasks across
    np.testing.assert_allclose(found["best3"]["ours"], [[2 / 3, 0.125], [1.0, 0.75]])
    np.testing.assert_allclose(found["best3"]["theirs"], [[1 / 12, 0.125], [0, 0.5]])


def test_a_single_cell_pools_the_episodes_of_all_seeds() -> None:
    found = single(CURVES["ours"]["a"], "a")
    expected = wilson(3, 8)
    last = found["last"]
    assert (last["score"], last["low"], last["high"], last["n"]) == (0.375, expected.low, expected.high, 8)
    assert last["by_seed"] == [0.5, 0.25]
    best = found["best3"]
    assert best["by_seed"] == pytest.approx([2 / 3, 1.0])
    assert best["score"] == pytest.approx(5 / 6)
    # By episode, (ALL + TWO + TWO) / 3 and ALL: 1, 1, 1/3, 1/3 and four of 1: about 7 of 8.
    assert (best["low"], best["high"]) == (wilson(7, 8).low, wilson(7, 8).high)
    assert "pooled" in last["method"]


def test_returns_are_shares_of_the_experts() -> None:
    found = scores(summarise(CURVES, {"a": 20.0, "b": 40.0})["table"])
    np.testing.assert_allclose(found["last"]["ours"], [[0.25, 0.0625], [0.125, 0.25]])
    cell = single(CURVES["ours"]["a"], "a", {"a": 20.0})["last"]
    assert cell["score"] == pytest.approx(0.1875)
    assert cell["low"] < cell["score"] < cell["high"]
    assert "bootstrap" in cell["method"]


def test_the_interquartile_mean_leaves_a_quarter_out_at_either_end() -> None:
    ours = np.array([[0.0, 0.5], [0.7, 1.0]])
    found = aggregates({"ours": ours, "theirs": np.full((2, 2), 0.25)}, reps=200)
    assert found["ours"]["iqm"]["value"] == pytest.approx(0.6)
    assert found["ours"]["mean"]["value"] == pytest.approx(0.55)
    assert found["ours"]["iqm"]["low"] <= 0.6 <= found["ours"]["iqm"]["high"]
    # Tasks are strata: a run of one never stands in for a run of the other.
    assert found["ours"]["mean"]["low"] == pytest.approx(0.25)
    assert found["ours"]["mean"]["high"] == pytest.approx(0.85)
    assert found["theirs"]["iqm"] == {"value": 0.25, "low": 0.25, "high": 0.25}
    assert found == aggregates({"ours": ours, "theirs": np.full((2, 2), 0.25)}, reps=200)


def test_probability_of_improvement_by_hand() -> None:
    ours, theirs = np.array([[0.5, 0.3], [0.9, 0.3]]), np.array([[0.6, 0.3], [0.1, 0.3]])
    found = improvements({"ours": ours, "theirs": theirs}, "ours", reps=100)
    # Task 1: 3 of 4 pairs; task 2: ties throughout.
    assert found["theirs"]["probability"] == pytest.approx((0.75 + 0.5) / 2)
    assert found["theirs"]["low"] <= 0.625 <= found["theirs"]["high"]
    assert improvements({"ours": ours}, "ours") == {}


def test_intervals_do_not_depend_on_what_was_drawn_before() -> None:
    own = scores(summarise(CURVES)["table"])["last"]
    found = []
    for seed in (1, 2):
        np.random.seed(seed)
        before = np.random.get_state()[1].tolist()  # type: ignore[index]
        found.append((improvements(own, "ours", reps=50), aggregates(own, reps=50)))
        assert np.random.get_state()[1].tolist() == before  # type: ignore[index]
    assert found[0] == found[1]


def test_a_summary_has_a_place_for_everything() -> None:
    found = summarise(CURVES)
    found |= bootstrapped(found["table"], "ours", reps=20)
    assert found["curves"]["ours"]["b"] == [[[10, 0.0], [20, 0.25]], [[10, 0.5], [20, 1.0]]]
    assert set(found["aggregate"]) == set(found["improvement"]) == {"best3", "last"}
    assert found["table"]["theirs"]["b"]["last"]["score"] == 0.25
