from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from counterpoint.errors import BadInputError, MissingExtraError
from counterpoint.evaluation.rollout import rollout
from counterpoint.evaluation.statistics import wilson
from counterpoint.policies.diffusion_policy import DiffusionPolicy
from counterpoint.training.train import train
from studies import harness
from studies.harness import Study, load_preset, read_result, read_rows
from studies.icon import data, training
from studies.icon.config import ComparisonConfig, nested
from studies.icon.data import evaluation_seeds, open_episodes
from studies.icon.run import icon_study, plan
from studies.icon.summary import summarise
from studies.icon.trials import PolicyTrial
from tests.studies.icon_world import SOURCE, TARGET, make_robot, record_robots, recorded_comparison

ALONE, MOVED = f"{TARGET} (alone)", f"{TARGET} (transferred)"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ComparisonConfig:
    return recorded_comparison(tmp_path_factory.mktemp("robots"))


bootstrap = harness._bootstrap


def few_resamples(given: Any, aggregate: Any, reps: int, seed: int) -> Any:
    """Draw 50 samples, not 2,000: how wide the intervals are is `test_icon_summary`'s affair."""
    return bootstrap(given, aggregate, 50, seed)


def make_small(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(data, "make_env", make_robot)
    patch.setattr(harness, "_bootstrap", few_resamples)


@pytest.fixture(autouse=True)
def _robots(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


@pytest.fixture(scope="module")
def whole(config: ComparisonConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        return out, icon_study(config, out)


def numbers(result: dict[str, Any]) -> dict[str, Any]:
    """What must not depend on when and how often a benchmark was interrupted."""
    return {key: value for key, value in result.items() if key not in ("seconds", "processor_seconds", "provenance")}


@pytest.mark.release
def test_a_comparison_holds_every_episode_of_every_cell(
    config: ComparisonConfig, whole: tuple[Path, dict[str, Any]]
) -> None:
    out, result = whole
    assert json.loads((out / "icon.json").read_text()) == result
    rows, about = read_rows(out / "results.parquet")
    again = summarise(rows, about)
    assert again == {key: result[key] for key in again}
    assert list(result["success"]) == [SOURCE, ALONE, MOVED]
    for column in result["success"]:
        for method in ("Diff-C", "ICon-Diff-C"):
            runs = [one for one in rows if (one["column"], one["method"]) == (column, method)]
            assert sorted(run["seed"] for run in runs) == [0, 42]
            for run in runs:
                assert [point["step"] for point in run["curve"]] == ([3, 6] if column == SOURCE else [2, 4])
                assert [len(point["success"]) for point in run["curve"]] == [3, 5]
            solved = [one for run in runs for one in run["curve"][-1]["success"]]
            told = result["success"][column][method]
            assert told["rate"] == pytest.approx(np.mean(solved))
            assert told["episodes"]["n"] == 10
            assert told["episodes"]["low"] == pytest.approx(wilson(sum(solved), 10).low)
    assert result["simulator_errors"] == {}
    assert result["provenance"]["packages"]


@pytest.mark.release
def test_encoders_are_looked_into_on_held_out_episodes(whole: tuple[Path, dict[str, Any]]) -> None:
    _, result = whole
    found = result["attention"][SOURCE]
    assert list(found["methods"]) == ["Diff-C", "ICon-Diff-C", "untrained"]
    assert 0 < found["area"]["value"] < 0.5
    assert found["area"]["n"] == 2  # episodes
    for own in found["methods"].values():
        assert len(own["by_seed"]) == 2
        assert 0 < own["seeds"]["value"] < 1
    blocks = result["separability"][SOURCE]["ICon-Diff-C"]
    assert len(blocks) == 2
    assert all(0 <= block["value"] <= 1 for block in blocks)
    assert "untrained" not in result["attention"][MOVED]["methods"]


@pytest.mark.release
def test_training_changed_the_encoder(whole: tuple[Path, dict[str, Any]]) -> None:
    inside = read_result(whole[0], "Diff-C-robosuite-left-0")["inside"]
    assert inside["trained"]["attention"] != inside["untrained"]["attention"]


@pytest.mark.release
def test_every_method_seed_and_start_meets_the_same_conditions(
    config: ComparisonConfig, whole: tuple[Path, dict[str, Any]]
) -> None:
    out, _ = whole
    for cells in plan(config):
        for cell in cells:
            own = read_result(out, cell.name)["evaluation_seeds"]
            assert own == evaluation_seeds(config, cell.task, ())
    assert evaluation_seeds(config, SOURCE, ()) != evaluation_seeds(config, TARGET, ())


def test_initial_conditions_are_no_recorded_ones_and_more_only_add(config: ComparisonConfig) -> None:
    five = evaluation_seeds(config, SOURCE, ())
    assert len(set(five)) == 5
    rest = evaluation_seeds(config, SOURCE, five[:2])
    assert rest[:3] == five[2:]
    assert not set(rest) & set(five[:2])
    more = config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"episodes": 9})})
    assert evaluation_seeds(more, SOURCE, ())[:5] == five
    assert evaluation_seeds(config.model_copy(update={"seeds": (7,)}), SOURCE, ()) == five


@pytest.mark.release
def test_a_comparison_writes_its_tables_and_figures(whole: tuple[Path, dict[str, Any]]) -> None:
    out, result = whole
    for name in ("attention", "separability", "success", "curves", "maps-robosuite-left"):
        assert (out / f"icon_{name}.png").read_bytes().startswith(b"\x89PNG")
    text = (out / "icon.md").read_text()
    told = result["success"][SOURCE]["Diff-C"]["episodes"]
    assert f"{told['value']:.2f} [{told['low']:.2f}, {told['high']:.2f}]" in text
    assert "not run<br>paper 0.860 ± 0.028 (Table 2)" in text
    images = re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
    assert sorted(images) == sorted(path.name for path in out.glob("icon_*.png"))
    assert len(images) == 4 + 3


@pytest.mark.release
def test_transferred_policies_begin_with_the_source_s(
    config: ComparisonConfig, whole: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    starts: list[Any] = []

    def watched(*arguments: Any, **options: Any) -> Any:
        starts.append(options["start_from"])
        return train(*arguments, **options)

    monkeypatch.setattr(training, "run_training", watched)
    for cell in (PolicyTrial("Diff-C", TARGET, 42, "alone"), PolicyTrial("Diff-C", TARGET, 42, "transferred")):
        (tmp_path / "trials" / f"{cell.name}.json").unlink()
        shutil.rmtree(cell.run(tmp_path))
    icon_study(config, tmp_path)
    assert starts[0] is None
    source = DiffusionPolicy.from_pretrained(PolicyTrial("Diff-C", SOURCE, 42).run(tmp_path))
    start = DiffusionPolicy.from_pretrained(starts[1])
    for own, theirs in zip(start.parameters(), source.parameters(), strict=True):
        assert torch.equal(own, theirs)


@pytest.mark.release
def test_one_that_was_interrupted_goes_on_to_the_same_result(
    config: ComparisonConfig, whole: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two parts and in the middle of one."""
    evaluated = 0

    def interrupted(*arguments: Any, **options: Any) -> Any:
        nonlocal evaluated
        evaluated += 1
        if evaluated in (4, 9):  # the last checkpoint of a training, then the first one of another
            raise KeyboardInterrupt
        return rollout(*arguments, **options)

    monkeypatch.setattr(training, "rollout", interrupted)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            icon_study(config, tmp_path)
    assert not (tmp_path / "icon.json").exists()
    assert numbers(icon_study(config, tmp_path)) == numbers(whole[1])
    assert evaluated == 2 * 12 + 2  # nothing that was finished ran again


def test_seeds_come_one_after_another_and_methods_side_by_side(config: ComparisonConfig) -> None:
    first, transferred = plan(config)
    assert [(cell.seed, cell.method) for cell in first if cell.start == "scratch"] == [
        (0, "Diff-C"), (0, "ICon-Diff-C"), (42, "Diff-C"), (42, "ICon-Diff-C"),
    ]  # fmt: skip
    assert {cell.start for cell in transferred} == {"transferred"}
    names = [cell.name for cell in (*first, *transferred)]
    assert len(set(names)) == len(names) == 12


@pytest.mark.release
def test_a_folder_of_another_comparison_is_refused(
    config: ComparisonConfig, whole: tuple[Path, dict[str, Any]]
) -> None:
    with pytest.raises(BadInputError, match="another configuration"):
        icon_study(config.model_copy(update={"seeds": (1,)}), whole[0])


@pytest.mark.release
def test_the_number_of_processes_may_differ(config: ComparisonConfig, whole: tuple[Path, dict[str, Any]]) -> None:
    more = config.model_copy(update={"processes": 2})
    assert numbers(icon_study(more, whole[0])) == numbers(whole[1]) | {"config": more.model_dump(mode="json")}


def never(*_: object) -> None:
    raise AssertionError("training began")


@pytest.mark.release
@pytest.mark.parametrize("damage", ["", "[]", '{"seconds": 1}'])
def test_a_damaged_result_is_told_before_anything_runs(
    config: ComparisonConfig,
    whole: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: str,
) -> None:
    monkeypatch.setattr(Study, "run", never)
    shutil.copytree(whole[0] / "trials", tmp_path / "trials")
    shutil.copy(whole[0] / "config.json", tmp_path)
    (tmp_path / "trials" / "Diff-C-robosuite-left-42.json").write_text(damage)
    with pytest.raises(BadInputError, match=r"Diff-C-robosuite-left-42.json: found a damaged result"):
        icon_study(config, tmp_path)


def test_a_missing_extra_is_told_first(
    config: ComparisonConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(MissingExtraError, match="report"):
        icon_study(config, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"demonstrations": 7}, "found 6 demonstrations; expected 7"),
        ({"validation": 3}, "found 2 episodes to keep back; expected 3"),
        ({"path": "no/where"}, "a data set of robosuite/left"),
    ],
)
def test_data_that_are_not_there_are_told(
    config: ComparisonConfig, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    own = config.model_copy(update={"data": config.data.model_copy(update=change)})
    with pytest.raises(BadInputError, match=message):
        open_episodes(own, tmp_path, SOURCE)


def test_data_without_masks_are_told(config: ComparisonConfig, tmp_path: Path) -> None:
    record_robots(tmp_path, SOURCE, 6, masks=False)
    own = config.model_copy(update={"data": config.data.model_copy(update={"path": str(tmp_path)})})
    with pytest.raises(BadInputError, match="no mask of agentview"):
        open_episodes(own, tmp_path, SOURCE)


def test_a_task_that_cannot_be_recorded_needs_data(config: ComparisonConfig, tmp_path: Path) -> None:
    data = {"tasks": ("rlbench/open_box",), "path": None}
    own = config.model_copy(update={"data": config.data.model_copy(update=data), "transfer": None})
    with pytest.raises(BadInputError, match=r"data.path: found none, with rlbench/open_box"):
        icon_study(own, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reference": "nobody"}, "reference"),
        ({"seeds": (1, 1)}, "seeds must differ"),
        ({"methods": ({"name": "a"}, {"name": "a"}), "reference": "a"}, "methods must differ"),
        ({"methods": ({"name": "a/b"}, {"name": "a-b"}), "reference": "a-b"}, "differ as files"),
        ({"methods": ({"name": "a b"},), "reference": "a b"}, "letters"),
        ({"data": {"tasks": ("Lift",)}, "transfer": None}, "SUITE/TASK"),
        ({"measures": {"camera": "wrist"}}, "one of data.cameras"),
        ({"transfer": {"targets": {"robosuite/other": (TARGET,)}}}, "not at robosuite/other"),
        ({"training": {"train": {"seed": 3}}}, "cannot say train.seed: seeds names them"),
        ({"training": {"train.seed": 3}}, "cannot say train.seed"),
        ({"training": {"frame": 3}}, "cannot say frame"),
        ({"methods": ({"name": "a", "training": {"train.eval_every": 3}},), "reference": "a"}, "checkpoints is that"),
        ({"no_such": 1}, "no_such"),
    ],
)
def test_bad_configurations_are_told(config: ComparisonConfig, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ComparisonConfig.model_validate(config.model_dump() | change)


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"no_such": 1}, "training of Diff-C: found unknown key 'no_such'"),
        ({"encoder.cameras": 2}, "as many as data.cameras"),
    ],
)
def test_bad_settings_are_told_before_anything_runs(
    config: ComparisonConfig, tmp_path: Path, training: dict[str, Any], message: str
) -> None:
    own = config.model_copy(update={"training": nested(training, config.training)})
    with pytest.raises(BadInputError, match=message):
        icon_study(own, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.release
@pytest.mark.sim
def test_the_quick_preset_runs_from_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the real tasks
    result = icon_study(load_preset("icon", ComparisonConfig, "quick"), tmp_path)
    assert set(result["success"]["robosuite/Lift"]) == {"Diff-C", "ICon-Diff-C"}
    taken = data.demonstration_seeds(load_preset("icon", ComparisonConfig, "quick"), tmp_path, "robosuite/Lift")
    assert len(taken) == 5
    assert not any(set(taken) & set(row["evaluation_seeds"]) for row in read_rows(tmp_path / "results.parquet")[0])
    assert (tmp_path / "icon.md").exists()
