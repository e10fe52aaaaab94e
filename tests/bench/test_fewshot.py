from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from counterpoint.bench import fewshot, fewshot_cells, fewshot_data, fewshot_figures
from counterpoint.bench.fewshot import fewshot_benchmark
from counterpoint.bench.fewshot_config import Evaluations, FewshotConfig, FewshotData, Pretraining, Row
from counterpoint.bench.fewshot_presets import PRESETS, preset
from counterpoint.encoders.observation import ObservationConfig
from counterpoint.errors import BadInputError
from counterpoint.policies.clone import clone
from counterpoint.training.trainer import TrainConfig
from tests.bench.square_world import SIZE, make_square, record_squares

SEEN, UNSEEN = ("left", "right"), ("top", "low")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> FewshotConfig:
    root = tmp_path_factory.mktemp("squares")
    return FewshotConfig(
        title="squares",
        data=FewshotData(
            unseen_tasks=UNSEEN,
            demonstrations=3,
            pretraining_path=str(record_squares(root / "seen", SEEN, 6, noise=0.3)),
            demonstrations_path=str(record_squares(root / "unseen", UNSEEN, 6, seed=1)),
        ),
        encoder=ObservationConfig(size=SIZE, stack=2, width=4, embed_dim=8, centre=True),
        train=TrainConfig(steps=4, batch_size=8, trackers=(), log_every=2, eval_every=0),
        pretrainings={
            "premier_taco": Pretraining(objective={"name": "premier_taco", "hidden": 16, "shift": 1})
        },
        rows=(
            Row(name="premier_taco/frozen", pretraining="premier_taco"),
            Row(name="premier_taco/finetuned", pretraining="premier_taco", frozen=False),
            Row(name="scratch", frozen=False, clone={"lr": 3e-3}),
        ),
        clone={"steps": 30, "batch_size": 16, "lr": 1e-3, "cloning": {"hidden": 32, "shift": 0}},
        evaluation=Evaluations(every=12, episodes=5, envs=3),
        reference="premier_taco/frozen",
        resamples=50,
        processes=1,
        pretraining_processes=1,
    )


def use_squares(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fewshot_cells, "make_task", make_square)
    patch.setattr(fewshot_data, "make_task", make_square)


@pytest.fixture(autouse=True)
def _squares(monkeypatch: pytest.MonkeyPatch) -> None:
    use_squares(monkeypatch)


def without_times(result: dict[str, Any]) -> dict[str, Any]:
    kept = {
        key: value
        for key, value in result.items()
        if key not in ("seconds", "processor_seconds", "provenance")
    }
    runs = {name: {**run, "seconds": 0} for name, run in kept["pretraining"].items()}
    kept["pretraining"] = runs
    return kept


@pytest.fixture(scope="module")
def whole(config: FewshotConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        use_squares(patch)
        return out, fewshot_benchmark(config, out)


def test_a_benchmark_holds_every_evaluation_of_every_cell(
    config: FewshotConfig, whole: tuple[Path, dict[str, Any]]
) -> None:
    out, result = whole
    assert json.loads((out / "fewshot.json").read_text()) == result
    for row in config.rows:
        for task in UNSEEN:
            runs = result["raw"][row.name][task]
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


def test_a_benchmark_writes_its_table_and_figures(whole: tuple[Path, dict[str, Any]]) -> None:
    out, result = whole
    for name in ("fewshot_curves.png", "fewshot_scores.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    table = (out / "fewshot.md").read_text()
    cell = result["table"]["scratch"]["top"]["last"]
    assert f"{cell['score']:.2f} [{cell['low']:.2f}, {cell['high']:.2f}]" in table
    assert "| method | top | low | mean | IQM |" in table


def test_one_that_was_interrupted_goes_on_to_the_same_result(
    config: FewshotConfig, whole: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloned: list[int] = []
    own = clone

    def interrupted(*arguments: Any, **options: Any) -> object:
        cloned.append(len(cloned))
        if len(cloned) == 6:
            raise KeyboardInterrupt
        return own(*arguments, **options)

    monkeypatch.setattr(fewshot_cells, "clone", interrupted)
    monkeypatch.setattr(fewshot_figures, "draw_all", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        fewshot_benchmark(config, tmp_path)
    assert not (tmp_path / "fewshot.json").exists()
    assert len(list((tmp_path / "cells").glob("adapt-*.json"))) == 5
    again = fewshot_benchmark(config, tmp_path)
    assert len(cloned) == 6 + 7
    assert without_times(again) == without_times(whole[1])


def test_workers_give_the_same_numbers(
    config: FewshotConfig, whole: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only parts that need no simulation: what this process patches, its workers do not see."""
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    for path in (tmp_path / "cells").glob("pretrain-*.json"):
        path.unlink()
    shutil.rmtree(tmp_path / "pretraining")
    monkeypatch.setattr(fewshot_figures, "draw_all", lambda *_: None)
    side_by_side = config.model_copy(update={"processes": 2, "pretraining_processes": 2})
    again = fewshot_benchmark(side_by_side, tmp_path)
    numbers = {name: run["metrics"] for name, run in again["pretraining"].items()}
    assert numbers == {name: run["metrics"] for name, run in whole[1]["pretraining"].items()}


def test_a_folder_of_another_benchmark_is_refused(
    config: FewshotConfig, whole: tuple[Path, dict[str, Any]]
) -> None:
    with pytest.raises(BadInputError, match="another configuration"):
        fewshot_benchmark(config.model_copy(update={"seeds": 3}), whole[0])


def test_a_task_of_the_pretraining_data_is_warned_of(config: FewshotConfig, tmp_path: Path) -> None:
    seen = str(record_squares(tmp_path / "both", (*SEEN, "top"), 2))
    data = config.data.model_copy(update={"pretraining_path": seen})
    assert fewshot._prepare(config.model_copy(update={"data": data}), tmp_path) == [
        "not unseen: the pretraining data hold episodes of 'push top'"
    ]


def test_too_few_demonstrations_are_told(config: FewshotConfig, tmp_path: Path) -> None:
    store = fewshot_data.open_demonstrations(config, tmp_path, SIZE, "top")
    with pytest.raises(BadInputError, match="as many as data"):
        fewshot_data.demonstrations_of(store, "push top", 0, 7)


def test_seeds_have_demonstrations_of_their_own(config: FewshotConfig, tmp_path: Path) -> None:
    store = fewshot_data.open_demonstrations(config, tmp_path, SIZE, "top")
    first, second, third = (fewshot_data.demonstrations_of(store, "push low", seed, 3) for seed in range(3))
    assert {info.instruction for info in first.episodes} == {"push low"}
    starts = [[one.frames(e, np.array([0])).tobytes() for e in range(3)] for one in (first, second, third)]
    assert not set(starts[0]) & set(starts[1])
    assert starts[0] == starts[2]  # there are two sets of three


def test_evaluation_seeds_are_shared_and_are_no_demonstrations(config: FewshotConfig) -> None:
    seeds = fewshot_data.evaluation_seeds(config, "metaworld/reach", [])
    assert len(set(seeds)) == 5
    others = fewshot_data.evaluation_seeds(config, "metaworld/reach", seeds[:2])
    assert others[:3] == seeds[2:]
    assert not set(others) & set(seeds[:2])
    assert fewshot_data.evaluation_seeds(config, "metaworld/push", []) != seeds


def test_returns_are_shares_of_the_experts(config: FewshotConfig, tmp_path: Path) -> None:
    found = fewshot_data.expert_returns(config, tmp_path)
    store = fewshot_data.open_demonstrations(config, tmp_path, SIZE, "top")
    rewards = [store.rewards(e) for e, info in enumerate(store.episodes) if info.instruction == "push top"]
    assert found["top"] == pytest.approx(np.mean([each.sum() for each in rewards if each is not None]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reference": "nobody"}, "reference"),
        ({"rows": [{"name": "a", "pretraining": "b"}], "reference": "a"}, "pretraining of a"),
        ({"rows": [{"name": "a"}, {"name": "a"}], "reference": "a"}, "names of their own"),
        ({"rows": [{"name": "a b"}], "reference": "a b"}, "letters"),
        ({"no_such": 1}, "no_such"),
    ],
)
def test_bad_configurations_are_told(config: FewshotConfig, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FewshotConfig.model_validate(config.model_dump() | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clone": {"no_such": 1}}, "clone of premier_taco/frozen"),
        ({"rows": (Row(name="a", encoder={"no_such": 1}),), "reference": "a"}, "encoder of a"),
    ],
)
def test_bad_settings_are_told_before_anything_runs(
    config: FewshotConfig, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInputError, match=message):
        fewshot_benchmark(config.model_copy(update=change), tmp_path / "new")
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
    about = fewshot._about({"metrics": {"train": {}, "val": metrics}, "seconds": 1.0}, 128)
    assert (note is None) == ("note" not in about)
    assert note is None or note in about["note"]


@pytest.mark.slow
@pytest.mark.sim
def test_the_quick_preset_runs_from_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the real tasks
    result = fewshot_benchmark(preset("quick"), tmp_path)
    assert set(result["table"]) == {"premier_taco/frozen", "scratch"}
    assert (tmp_path / "fewshot_scores.png").exists()
    assert not result["warnings"]


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_whole(name: str) -> None:
    config = preset(name)
    fewshot._check(config, *fewshot.parts(config))
    assert preset(name, {"seeds": 7}).seeds == 7


def test_an_unknown_preset_is_told() -> None:
    with pytest.raises(BadInputError, match="no such preset"):
        preset("huge")
