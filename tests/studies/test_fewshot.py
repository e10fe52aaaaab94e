from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoint.errors import BadInputError, MissingExtraError
from counterpoint.training.settings import TrainConfig
from counterpoint.training.train import train
from studies.fewshot import figures, summary, trials
from studies.fewshot import run as study
from studies.fewshot.config import FewshotConfig, Pretraining, Row
from studies.fewshot.run import fewshot_study
from studies.harness import Study, read_result, read_rows
from tests.studies.fewshot_world import SEEN, UNSEEN, dmc, small_benchmark, use_squares
from tests.studies.square_world import SquareTask, record_squares


def unknown(objective: dict[str, Any]) -> dict[str, Pretraining]:
    return {"premier_taco": Pretraining(objective=objective)}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> FewshotConfig:
    return small_benchmark(tmp_path_factory.mktemp("squares"))


@pytest.fixture(autouse=True)
def _squares(monkeypatch: pytest.MonkeyPatch) -> None:
    use_squares(monkeypatch)


def without_times(result: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in result.items() if key not in ("seconds", "processor_seconds", "provenance")}
    runs = {name: {**run, "seconds": 0} for name, run in kept["pretraining"].items()}
    kept["pretraining"] = runs
    return kept


@pytest.fixture(scope="module")
def whole(config: FewshotConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        use_squares(patch)
        return out, fewshot_study(config, out)


@pytest.mark.release
def test_a_benchmark_holds_every_evaluation_of_every_cell(
    config: FewshotConfig, whole: tuple[Path, dict[str, Any]]
) -> None:
    out, result = whole
    assert json.loads((out / "fewshot.json").read_text()) == result
    rows, about = read_rows(out / "results.parquet")
    again = summary.result(rows, about)
    assert again == {key: result[key] for key in again}
    for row in config.rows:
        for task in UNSEEN:
            runs = [one["curve"] for one in rows if (one.get("row"), one.get("task")) == (row.name, task)]
            assert len(runs) == config.seeds
            for run in runs:
                assert [one["step"] for one in run] == [12, 24, 30]  # and after the last step
                assert all(len(one["success"]) == 5 for one in run)
            last = [success for run in runs for success in run[-1]["success"]]
            cell = result["table"][row.name][task]["last"]
            assert cell["score"] == pytest.approx(np.mean(last))
            assert cell["n"] == 10
    assert set(result["improvement"]["last"]) == {"premier_taco/finetuned", "scratch"}
    assert result["pretraining"]["premier_taco-0"]["window_accuracy"] is not None
    assert result["warnings"] == []
    assert result["provenance"]["packages"]


@pytest.mark.release
def test_a_benchmark_writes_its_table_and_figures(whole: tuple[Path, dict[str, Any]]) -> None:
    out, result = whole
    for name in ("fewshot_curves.png", "fewshot_scores.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    table = (out / "fewshot.md").read_text()
    cell = result["table"]["scratch"]["top"]["last"]
    assert f"{cell['score']:.2f} [{cell['low']:.2f}, {cell['high']:.2f}]" in table
    assert "| method | top | low | mean | IQM |" in table
    assert "Mean of all, at most three, of 3 evaluations:" in table
    assert (
        "Images are centred: those of scratch on their demonstrations; those of premier_taco/frozen, "
        "premier_taco/finetuned on the pretraining data's frames." in table
    )


@pytest.mark.release
def test_one_that_was_interrupted_goes_on_to_the_same_result(
    config: FewshotConfig, whole: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloned: list[int] = []
    own = train

    def interrupted(*arguments: Any, **options: Any) -> object:
        if "start_from" in options:
            cloned.append(len(cloned))
            if len(cloned) == 6:
                raise KeyboardInterrupt
        return own(*arguments, **options)

    monkeypatch.setattr(trials, "train", interrupted)
    monkeypatch.setattr(figures, "plot_all", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        fewshot_study(config, tmp_path)
    assert not (tmp_path / "fewshot.json").exists()
    assert len(list((tmp_path / "trials").glob("adapt-*.json"))) == 5
    again = fewshot_study(config, tmp_path)
    assert len(cloned) == 6 + 7
    assert without_times(again) == without_times(whole[1])


@pytest.mark.release
def test_workers_give_the_same_numbers(
    config: FewshotConfig, whole: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only parts that need no simulation: what this process patches, its workers do not see."""
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    for path in (tmp_path / "trials").glob("pretrain-*.json"):
        path.unlink()
    shutil.rmtree(tmp_path / "pretraining")
    monkeypatch.setattr(figures, "plot_all", lambda *_: None)
    side_by_side = config.model_copy(update={"processes": 2, "pretraining_processes": 2})
    again = fewshot_study(side_by_side, tmp_path)
    numbers = {name: run["metrics"] for name, run in again["pretraining"].items()}
    assert numbers == {name: run["metrics"] for name, run in whole[1]["pretraining"].items()}


@pytest.mark.release
def test_a_folder_of_another_benchmark_is_refused(config: FewshotConfig, whole: tuple[Path, dict[str, Any]]) -> None:
    with pytest.raises(BadInputError, match="another configuration"):
        fewshot_study(config.model_copy(update={"seeds": 3}), whole[0])


def test_a_task_of_the_pretraining_data_is_warned_of(config: FewshotConfig, tmp_path: Path) -> None:
    seen = str(record_squares(tmp_path / "both", (*SEEN, "top"), 2))
    data = config.data.model_copy(update={"pretraining_path": seen})
    assert study._prepare(config.model_copy(update={"data": data}), tmp_path) == [
        "not unseen: the pretraining data hold episodes of 'push top'"
    ]


def test_only_instructions_of_the_unseen_tasks_are_warned_of(config: FewshotConfig, tmp_path: Path) -> None:
    """Demonstrations may lie in a data set that holds pretraining tasks too."""
    both = str(record_squares(tmp_path / "both", (*UNSEEN, "left"), 3))
    data = config.data.model_copy(update={"demonstrations_path": both})
    assert study._prepare(config.model_copy(update={"data": data}), tmp_path) == []


def never(*_: object) -> None:
    raise AssertionError("training began")


def test_too_few_demonstrations_are_told_before_training(
    config: FewshotConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Study, "run", never)
    data = config.data.model_copy(update={"demonstrations": 7})
    with pytest.raises(BadInputError, match="'push top': found 6; expected 7, as many as data"):
        fewshot_study(config.model_copy(update={"data": data}), tmp_path / "out")


@pytest.mark.release
def test_cells_of_a_task_and_seed_share_their_episodes(
    config: FewshotConfig, whole: tuple[Path, dict[str, Any]]
) -> None:
    out, _ = whole
    for task in UNSEEN:
        met: set[int] = set()
        for seed in range(config.seeds):
            adaptations = [trials.Adaptation(row.name, task, seed) for row in config.rows]
            seeds = [read_result(out, one.name)["evaluation_seeds"] for one in adaptations]
            assert seeds == [seeds[0]] * len(adaptations)
            assert not met & set(seeds[0])
            met |= set(seeds[0])


def test_an_expert_that_loses_is_told_while_data_are_prepared(
    config: FewshotConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = SquareTask._advance

    def losing(task: SquareTask, action: Any) -> tuple[float, bool, bool]:
        reward, success, ended = own(task, action)
        return -reward, success, ended

    monkeypatch.setattr(SquareTask, "_advance", losing)
    path = str(record_squares(tmp_path / "losing", UNSEEN, 3))
    with pytest.raises(BadInputError, match="expert of top: found a return of -"):
        study._prepare(dmc(config, demonstrations_path=path), tmp_path)


@pytest.mark.release
@pytest.mark.parametrize("damage", ["", "{", "[]", '{"seconds": 1}'])
def test_a_damaged_result_is_told_before_anything_runs(
    config: FewshotConfig,
    whole: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: str,
) -> None:
    monkeypatch.setattr(Study, "run", never)
    shutil.copytree(whole[0] / "trials", tmp_path / "trials")
    shutil.copy(whole[0] / "config.json", tmp_path)
    (tmp_path / "trials" / "adapt-scratch-top-1.json").write_text(damage)
    with pytest.raises(BadInputError, match=r"adapt-scratch-top-1.json: found a damaged result"):
        fewshot_study(config, tmp_path)


def test_a_missing_extra_is_told_first(config: FewshotConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match="report"):
        fewshot_study(config, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clone": {"no_such": 1}}, "clone of premier_taco/frozen"),
        ({"rows": (Row(name="a", encoder={"no_such": 1}),), "reference": "a"}, "encoder of a"),
        ({"pretrainings": unknown({"name": "premier_tacos"})}, "premier_tacos"),
        ({"pretrainings": unknown({"name": "premier_taco", "no_such": 1})}, "no_such"),
        ({"train": TrainConfig(trackers=())}, "a number of steps"),
        ({"rows": (Row(name="a", initialize_from="no/where"),), "reference": "a"}, "no/where"),
    ],
)
def test_bad_settings_are_told_before_anything_runs(
    config: FewshotConfig, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInputError, match=message):
        fewshot_study(config.model_copy(update=change), tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("metrics", "note"),
    [
        ({"window_accuracy": 0.51}, "window accuracy 0.51"),
        ({"window_accuracy": 0.8}, None),
        ({"categorical_accuracy": 0.01}, "among 128 rows"),
        ({"categorical_accuracy": 0.3}, None),
        ({"action_error": 0.3}, None),
    ],
)
def test_a_pretraining_that_stayed_at_chance_is_noted(metrics: dict[str, float], note: str | None) -> None:
    about = summary.about_pretraining({"metrics": {"train": {}, "val": metrics}, "seconds": 1.0}, 128)
    assert (note is None) == ("note" not in about)
    assert note is None or note in about["note"]
