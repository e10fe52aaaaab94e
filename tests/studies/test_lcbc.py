from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from counterpoint.config import validate
from counterpoint.errors import BadInputError
from counterpoint.evaluation.statistics import wilson
from studies.harness import load_preset, presets, read_rows
from studies.lcbc import trials
from studies.lcbc.config import ANOTHER_TASKS, Encoder, LcbcConfig
from studies.lcbc.run import lcbc_study, plan
from studies.lcbc.summary import summarise, tables, words
from studies.lcbc.trials import Cloning, Pretraining, cloning_recipe, pretraining_recipe

SMALL: dict[str, Any] = {
    "encoder.image": "convnet",
    "encoder.image_size": 32,
    "encoder.embed_dim": 8,
    "train.steps": 2,
    "train.batch_size": 4,
    "train.save_every": 2,
    "train.eval_every": 2,
}
NONE = {"encoder.kind": "none", "data.state": ["state", "environment_state"]}


def small(**changes: Any) -> LcbcConfig:
    tree: dict[str, Any] = {
        "title": "small",
        "tasks": ["kitchen/light_on"],
        "demonstrations": [1, 2],
        "videos": {"tasks": ["kitchen/light_on", "kitchen/sdoor_open"], "episodes": 2},
        "encoders": {
            "random": {"recipe": "decisionnce_t-demo", "untrained": "random"},
            "decisionnce_t": {"recipe": "decisionnce_t-demo"},
            "raw state": {"clone": NONE},
        },
        "overrides": SMALL,
        "clone": {"train": {"steps": 4, "eval_every": 2, "save_every": 4}},
        "size": 32,
        "seeds": 1,
        "episodes": 1,
        "reworded": True,
        "processes": 1,
    }
    return validate(LcbcConfig, tree | changes, "small")


@pytest.mark.release
@pytest.mark.sim
def test_encoders_are_pretrained_and_policies_cloned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gymnasium_robotics", reason="needs the extra `sim`")
    monkeypatch.setattr(
        trials, "reworded", lambda text: {"address": {"robot": f"robot, {text}"}, "none": {"same": text}}
    )
    tasks = ["kitchen/light_on", "kitchen/micro_open"]
    config = small(tasks=tasks, together=True, demonstrations=[2])
    found = lcbc_study(config, tmp_path)
    rows, about = read_rows(tmp_path / "results.parquet")
    policies = {row["encoder"]: row for row in rows if "curve" in row}
    assert policies.keys() == {"random", "decisionnce_t", "raw state"}
    assert all([one["step"] for one in row["curve"]] == [2, 4] for row in policies.values())
    for task, other in (tasks, tasks[::-1]):
        told = policies["decisionnce_t"]["words"][task]
        assert {kind: list(ways) for kind, ways in told.items()} == {
            "address": ["robot"],
            "none": [],
            ANOTHER_TASKS: [other],
        }
    assert policies["raw state"]["words"] == {}  # it reads no words here
    assert summarise(rows, about) == {
        key: found[key] for key in ("table", "lead", "gate", "words", "places", "evaluations")
    }
    assert about["split"]["cloning"] == tasks
    before = (tmp_path / "trials").stat().st_mtime_ns
    assert lcbc_study(config, tmp_path)["table"] == found["table"]
    assert (tmp_path / "trials").stat().st_mtime_ns == before


def row(name: str, seed: int, success: list[list[int]], demonstrations: int = 5) -> dict[str, Any]:
    curve = [{"step": at, "success": {"kitchen/light_on": outcome}} for at, outcome in enumerate(success)]
    own = {"encoder": name, "seed": seed, "demonstrations": demonstrations, "cameras": "left"}
    return {**own, "tasks": ["kitchen/light_on"], "curve": curve, "words": {}}


def test_last_best_and_the_mean_of_the_last_three() -> None:
    config = small(demonstrations=[5], seeds=2).model_dump(mode="json")
    rows = [
        row(name, seed, curve)
        for seed in range(2)
        for name, curve in {
            "random": [[0, 0], [0, 0], [0, 0], [0, 0]],
            "decisionnce_t": [[1, 1], [0, 0], [0, 1], [0, 1]],
            "raw state": [[1, 1], [1, 1], [1, 1], [1, 1]],
        }.items()
    ]
    found = summarise(rows, {"config": config})
    scores = found["table"]["5"]["decisionnce_t"]["mean"]
    assert [scores[key]["value"] for key in ("last", "last3", "best")] == pytest.approx([0.5, 1 / 3, 1.0])
    assert found["lead"]["5"]["decisionnce_t"]["value"] == 0.5
    low = found["table"]["5"]["raw state"]["kitchen/light_on"]["last"]["low"]
    assert low == pytest.approx(wilson(4, 4).low)  # seeds agree: their interval has no width
    assert found["gate"] == {"reached": {"kitchen/light_on": 1.0}, "passed": True}
    assert "| decisionnce_t | 0.50" in (text := tables({"config": config, **found}))
    assert "| mean, last three evaluations | mean, best evaluation |" in text
    assert "| CLIP, the paper's best | 0.08 |  |  | 0.08 |" in text


def test_other_words_stand_beside_the_papers() -> None:
    """Two cameras make one scene's success; policies of fewer demonstrations are left out."""
    config = small(demonstrations=[2, 5], seeds=1).model_dump(mode="json")

    def told(please: list[int], helped: list[int]) -> dict[str, Any]:
        kinds = {"the paper's": {"please": please, "help": helped}, "typos": {"letter": [0, 0]}, ANOTHER_TASKS: {}}
        return {"words": {"kitchen/light_on": kinds}}

    rows = [
        {**row("decisionnce_t", 0, [[1, 1]], 2), **told([0, 0], [0, 0])},
        {**row("decisionnce_t", 0, [[1, 1]]), **told([0, 1], [1, 1])},
        {**row("decisionnce_t", 0, [[1, 1]]), **told([1, 1], [1, 1]), "cameras": "right"},
    ]
    found = summarise(rows, {"config": config})
    cells = found["words"]["decisionnce_t"]["kitchen/light_on"]
    values = {kind: cell["value"] for kind, cell in cells.items()}
    assert values == pytest.approx({"the paper's": -0.125, "typos": -1.0, "worst": -1.0})
    assert all(
        -1 <= cells[kind]["low"] <= values[kind] <= cells[kind]["high"] <= 1 for kind in ("the paper's", "typos")
    )
    text = words({"config": config, **found})
    assert "| task | encoder | success | AcTOL's two rewordings | typos | worst wording |" in text
    assert "| kitchen/light_on | decisionnce_t | 1.00 [0.34, 1.00] | -0.12 [" in text
    assert "| kitchen/light_on | LIV in AcTOL's paper |  | -0.12 |" in text


def test_recipes_have_the_papers_numbers() -> None:
    """DecisionNCE, Table 7 and Appendix E.5; AcTOL, Table 5 and Appendix C.2."""
    stated = {"lcbc-decisionnce": (1e-4, 16, 20_000, 2_000, 25), "lcbc-actol": (1e-3, 32, 10_000, 1_000, 50)}
    for name, numbers in stated.items():
        config = small(recipe=name, clone={})
        recipe = cloning_recipe(config, Cloning("random", config.tasks, ("left",), 5, 0), "model")
        train = recipe.train
        found = (recipe.optimizer.lr, train.batch_size, train.steps, train.eval_every, recipe.evaluation.episodes)
        assert found == numbers
        assert (recipe.cloning.freeze, recipe.cloning.hidden, recipe.cloning.use_state) == (True, 256, True)
        assert recipe.optimizer.name == "adam"


@pytest.mark.parametrize("name", presets("lcbc"))
def test_presets_are_whole(name: str) -> None:
    config = load_preset("lcbc", LcbcConfig, name)
    runs, policies = plan(config)
    for run in {run.encoder: run for run in runs}.values():
        pretraining_recipe(config, run)
    for policy in {(policy.encoder, len(policy.cameras)): policy for policy in policies}.values():
        cloning_recipe(config, policy, "model")
    assert len({policy.name for policy in policies}) == len(policies)
    assert {Pretraining(row, 0).name for row, own in config.encoders.items() if own.recipe} == {
        run.name for run in runs if run.seed == 0
    }


def test_one_policy_for_all_tasks_and_several_views() -> None:
    tasks = ["kitchen/light_on", "kitchen/knob1_on", "metaworld/hammer"]
    config = small(tasks=tasks, together=True, cameras={"kitchen": ["left", "right"], "metaworld": ["corner2"]})
    groups = {(policy.tasks, policy.cameras) for policy in plan(config)[1]}
    assert groups == {(tuple(tasks[:2]), (view,)) for view in ("left", "right")} | {
        (("metaworld/hammer",), ("corner2",))
    }
    both = small(views=2, cameras={"kitchen": ["left", "right"], "metaworld": ["corner2"]})
    assert {policy.cameras for policy in plan(both)[1]} == {("left", "right")}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": ["hammer"]}, "SUITE/TASK"),
        ({"tasks": ["metaworld/hammer"], "videos": {"tasks": ["metaworld/hammer"]}}, "metaworld/hammer too"),
        ({"tasks": ["metaworld/hammer-v3"], "videos": {"tasks": ["metaworld/hammer"]}}, "hammer-v3 too|hammer too"),
        ({"cameras": {"metaworld": ["corner2"]}}, "cameras must name 1 or more of kitchen"),
        ({"views": 2}, "cameras must name 2 or more of kitchen"),
        ({"gate": "state"}, "gate must be one of the encoders"),
        ({"clone": {"train.seed": 3}}, "seeds counts them"),
    ],
)
def test_bad_configurations_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        small(**changes)


def test_a_task_that_does_not_exist_is_refused_before_recording(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium_robotics", reason="needs the extra `sim`")
    with pytest.raises(BadInputError, match="'light_on'"):
        lcbc_study(small(tasks=["kitchen/light-onn"]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_row_has_one_source() -> None:
    with pytest.raises(ValueError, match="not both"):
        Encoder(recipe="decisionnce_t-demo", checkpoint="model")
    with pytest.raises(ValueError, match="which says the encoder"):
        Encoder(untrained="random")
    assert json.loads(Encoder(clone={"train": {"steps": 3}}).model_dump_json())["clone"] == {"train.steps": 3}
