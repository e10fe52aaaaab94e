from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from pydantic import ValidationError

from counterpoint.bench import fewshot, fewshot_cells, fewshot_data, fewshot_figures
from counterpoint.bench.fewshot import fewshot_benchmark
from counterpoint.bench.fewshot_config import Evaluations, FewshotConfig, FewshotData, Pretraining, Row
from counterpoint.bench.fewshot_presets import PRESETS, preset
from counterpoint.encoders.observation import ObservationConfig
from counterpoint.envs.control import Outcome
from counterpoint.errors import BadInputError, MissingExtraError
from counterpoint.policies.clone import clone
from counterpoint.training.trainer import TrainConfig
from tests.bench.square_world import SIZE, SquareTask, make_square, record_squares

SEEN, UNSEEN = ("left", "right"), ("top", "low")
CURL: dict[str, Any] = {"objective": {"name": "curl"}}
PRETRAINED = {"name": "p", "pretraining": "premier_taco"}


def unknown(objective: dict[str, Any]) -> dict[str, Pretraining]:
    return {"premier_taco": Pretraining(objective=objective)}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> FewshotConfig:
    root = tmp_path_factory.mktemp("squares")
    return FewshotConfig(
        title="squares",
        data=FewshotData(
            suite="robomimic",  # whose tasks have no list of names to keep to
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
    assert "Mean of all, at most three, of 3 evaluations:" in table
    assert (
        "Pictures are centred: those of scratch on their demonstrations; those of premier_taco/frozen, "
        "premier_taco/finetuned on the pretraining data's frames." in table
    )


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


def test_only_instructions_of_the_unseen_tasks_are_warned_of(config: FewshotConfig, tmp_path: Path) -> None:
    """Demonstrations may lie in a data set that holds pretraining tasks too."""
    both = str(record_squares(tmp_path / "both", (*UNSEEN, "left"), 3))
    data = config.data.model_copy(update={"demonstrations_path": both})
    assert fewshot._prepare(config.model_copy(update={"data": data}), tmp_path) == []


def never(*_: object) -> None:
    raise AssertionError("training began")


def test_too_few_demonstrations_are_told_before_training(
    config: FewshotConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fewshot, "_run", never)
    data = config.data.model_copy(update={"demonstrations": 7})
    with pytest.raises(BadInputError, match="'push top': found 6; expected 7, as many as data"):
        fewshot_benchmark(config.model_copy(update={"data": data}), tmp_path / "out")


def test_seeds_have_demonstrations_of_their_own(config: FewshotConfig, tmp_path: Path) -> None:
    store = fewshot_data.open_demonstrations(config, tmp_path, SIZE, "top")
    first, second, third = (fewshot_data.demonstrations_of(store, "push low", seed, 3) for seed in range(3))
    assert {info.instruction for info in first.episodes} == {"push low"}
    starts = [[one.frames(e, np.array([0])).tobytes() for e in range(3)] for one in (first, second, third)]
    assert not set(starts[0]) & set(starts[1])
    assert starts[0] == starts[2]  # there are two sets of three


def test_evaluation_seeds_are_a_seed_s_own_and_are_no_demonstrations(config: FewshotConfig) -> None:
    first, second = (fewshot_data.evaluation_seeds(config, "metaworld/reach", [], seed) for seed in range(2))
    assert len(first) == len(second) == 5
    assert len({*first, *second}) == 10  # so that episodes pooled over seeds begin differently
    others = fewshot_data.evaluation_seeds(config, "metaworld/reach", first[:2], 0)
    assert others == [*first[2:], *second[:2]]
    assert fewshot_data.evaluation_seeds(config, "metaworld/push", [], 0) != first
    more = config.model_copy(update={"seeds": 7})  # more seeds leave those there are as they are
    assert fewshot_data.evaluation_seeds(more, "metaworld/reach", [], 1) == second


def test_libero_counts_through_its_initial_states(config: FewshotConfig) -> None:
    libero = config.model_copy(update={"data": config.data.model_copy(update={"suite": "libero"})})
    found = [fewshot_data.evaluation_seeds(libero, "libero/libero_10/0", [], seed) for seed in range(2)]
    assert found == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_cells_of_a_task_and_seed_share_their_episodes(
    config: FewshotConfig, whole: tuple[Path, dict[str, Any]]
) -> None:
    out, result = whole
    for task in UNSEEN:
        for seed in range(config.seeds):
            cells = [fewshot_cells.Adaptation(row.name, task, seed) for row in config.rows]
            seeds = [fewshot_cells.read_part(cell, out)["evaluation_seeds"] for cell in cells]
            assert seeds == [result["evaluation_seeds"][task][seed]] * len(cells)
        first, second = result["evaluation_seeds"][task]
        assert not set(first) & set(second)


def dmc(config: FewshotConfig, **data: Any) -> FewshotConfig:
    """As if the squares' rewards were dm_control's."""
    own = config.data.model_copy(update={"suite": "dmc", "steps": 10, **data})
    return config.model_copy(update={"data": own})


def earned(config: FewshotConfig, out: Path, steps: int) -> float:
    store = fewshot_data.open_demonstrations(config, out, SIZE, "top")
    rewards = [store.rewards(e) for e, info in enumerate(store.episodes) if info.instruction == "push top"]
    return float(np.mean([each[:steps].sum() for each in rewards if each is not None]))


def test_returns_are_shares_of_the_experts_over_as_many_steps(config: FewshotConfig, tmp_path: Path) -> None:
    whole, part = (fewshot_data.expert_returns(dmc(config, steps=steps), tmp_path) for steps in (10, 4))
    assert whole["top"] == pytest.approx(earned(config, tmp_path, 10))
    assert part["top"] == pytest.approx(earned(config, tmp_path, 4))
    assert part["top"] < whole["top"]
    with pytest.raises(BadInputError, match="demonstrations of 10 steps; expected 12"):
        fewshot_data.expert_returns(dmc(config, steps=12), tmp_path)


def test_an_expert_that_loses_is_told_while_data_are_prepared(
    config: FewshotConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = SquareTask.step

    def losing(task: SquareTask, action: Any) -> Outcome:
        outcome = own(task, action)
        return Outcome(-outcome.reward, outcome.success)

    monkeypatch.setattr(SquareTask, "step", losing)
    path = str(record_squares(tmp_path / "losing", UNSEEN, 3))
    with pytest.raises(BadInputError, match="expert of top: found a return of -"):
        fewshot._prepare(dmc(config, demonstrations_path=path), tmp_path)


def test_rollouts_are_as_long_as_the_data(config: FewshotConfig, tmp_path: Path) -> None:
    own = dmc(config, steps=4).model_copy(update={"pretrainings": {}, "rows": (Row(name="scratch"),)})
    cell = fewshot_cells.Adaptation("scratch", "top", 0)
    cell.path(tmp_path).parent.mkdir()
    fewshot_cells.adapt(own, tmp_path, cell, lambda _: None)
    for evaluation in fewshot_cells.read_part(cell, tmp_path)["curve"]:
        assert evaluation["steps"] == [4] * 5  # dm_control has no success to stop at


def test_steps_are_the_suite_s_by_default() -> None:
    suites = get_args(FewshotData.model_fields["suite"].annotation)
    limits = {suite: FewshotData(suite=suite, unseen_tasks=("a",)).limit for suite in suites}
    assert limits == {"metaworld": 200, "dmc": 500, "libero": None, "robomimic": None}


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"seconds": 1}'])
def test_a_damaged_result_is_told_before_anything_runs(
    config: FewshotConfig,
    whole: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: str,
) -> None:
    monkeypatch.setattr(fewshot, "_run", never)
    shutil.copytree(whole[0] / "cells", tmp_path / "cells")
    shutil.copy(whole[0] / "config.json", tmp_path)
    (tmp_path / "cells" / "adapt-scratch-top-1.json").write_text(damage)
    with pytest.raises(BadInputError, match=r"adapt-scratch-top-1.json: found a damaged result"):
        fewshot_benchmark(config, tmp_path)


def test_a_file_and_a_foreign_folder_are_told(config: FewshotConfig, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(BadInputError, match="found a file"):
        fewshot_benchmark(config, tmp_path / "file")
    for text in ("not JSON", "[1]", '{"model_type": "bert"}'):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(BadInputError, match=r"a config.json of something else"):
            fewshot_benchmark(config, tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {"file", "config.json"}


def test_a_missing_extra_is_told_first(
    config: FewshotConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match="report"):
        fewshot_benchmark(config, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_folders_of_some_tasks_alone_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert fewshot_data._folders(tmp_path, ("a",)) == [tmp_path / "a"]
    assert fewshot_data._folders(tmp_path, ("b", "c")) == [tmp_path]
    with pytest.raises(BadInputError, match="no folder of b"):
        fewshot_data._folders(tmp_path, ("a", "b"))


def test_pictures_of_dm_control_s_recorder_are_found_whichever_camera_took_them(
    config: FewshotConfig, tmp_path: Path
) -> None:
    named = dmc(config, camera="1")
    assert fewshot_data.open_demonstrations(named, tmp_path, SIZE, "top").cameras == ("front",)
    other = config.model_copy(update={"data": config.data.model_copy(update={"camera": "1"})})
    with pytest.raises(BadInputError, match="camera"):
        fewshot_data.open_demonstrations(other, tmp_path, SIZE, "top")


def test_pretraining_may_balance_tasks(config: FewshotConfig) -> None:
    pretrainings = {"a": Pretraining(objective={"name": "curl"}, data={"balance": "tasks"})}
    own = config.model_copy(update={"pretrainings": pretrainings})
    assert fewshot_cells.pretraining_config(own, fewshot_cells.PretrainingRun("a", 0)).data.balance == "tasks"
    with pytest.raises(ValidationError, match="balance alone, not camera"):
        Pretraining(objective={"name": "curl"}, data={"camera": "corner"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reference": "nobody"}, "reference"),
        ({"rows": [{"name": "a", "pretraining": "b"}], "reference": "a"}, "pretraining of a"),
        ({"rows": [{"name": "a"}, {"name": "a"}], "reference": "a"}, "names of their own"),
        ({"rows": [{"name": "a b"}], "reference": "a b"}, "letters"),
        ({"rows": [{"name": "a-b"}, {"name": "a/b"}], "reference": "a-b"}, "would both be a-b-top"),
        (
            {"pretrainings": {"a/b": CURL, "a-b": CURL}, "rows": [{"name": "a"}], "reference": "a"},
            "would both",
        ),
        ({"rows": [PRETRAINED | {"encoder": {"width": 8}}], "reference": "p"}, "belong to its pretraining"),
        ({"rows": [PRETRAINED | {"initialize_from": "x"}], "reference": "p"}, "belong to its pretraining"),
        ({"rows": [{"name": "a", "clone": {"cloning.freeze": True}}], "reference": "a"}, "cloning.freeze"),
        (
            {"rows": [{"name": "a", "clone": {"cloning": {"freeze": True}}}], "reference": "a"},
            "cloning.freeze",
        ),
        ({"clone": {"cloning": {"freeze": True}}}, "cloning.freeze"),
        ({"rows": [{"name": "a", "clone": {"seed": 3}}], "reference": "a"}, "seed"),
        ({"pretrainings": {"premier_taco": CURL | {"train": {"seed": 3}}}}, "seed"),
        ({"data": {"unseen_tasks": ["a"], "more_demonstrations": {"b": 9}}}, "unseen_tasks only, not of b"),
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
        ({"pretrainings": unknown({"name": "premier_tacos"})}, "premier_tacos"),
        ({"pretrainings": unknown({"name": "premier_taco", "no_such": 1})}, "no_such"),
        ({"train": TrainConfig(trackers=())}, "one of the two"),
        ({"rows": (Row(name="a", initialize_from="no/where"),), "reference": "a"}, "no/where"),
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
