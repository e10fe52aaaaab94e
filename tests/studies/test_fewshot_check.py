from __future__ import annotations

from typing import Any

import pytest

from counterpoint.envs.libero import SUITES
from counterpoint.errors import BadInputError
from studies.fewshot.check import LIBERO_TASKS, check_data, known_task
from studies.fewshot.config import FewshotConfig, FewshotData, Row
from studies.harness import load_preset, presets


def config(**data: Any) -> FewshotConfig:
    return FewshotConfig(
        data=FewshotData.model_validate({"unseen_tasks": ("hammer",), **data}),
        rows=(Row(name="scratch"),),
        reference="scratch",
    )


@pytest.mark.parametrize("name", presets("fewshot"))
def test_task_names_of_presets_are_the_suites(name: str) -> None:
    data = load_preset("fewshot", FewshotConfig, name).data
    for task in (*data.pretraining_tasks, *data.unseen_tasks):
        assert known_task(data.suite, task)


@pytest.mark.parametrize(
    ("suite", "task", "words"),
    [
        ("metaworld", "hamer", "hammer"),
        ("metaworld", "default", "several tasks"),
        ("dmc", "walker-wlak", "walker-walk"),
        ("dmc", "walker_walk", "say walker-walk"),
        ("dmc", "evaluation", "several tasks"),
        ("robosuite", "Lfit", "one of Lift"),
        ("robosuite", "Lift-UR5", "one of Panda"),
        ("libero", "0", "libero_10/0"),
        ("libero", "libero_10", "SUITE/NUMBER"),
        ("libero", "libero_10/10", "libero_10/10"),
        ("libero", "libero_11/0", "suites are"),
        ("libero", "libero_10/no_such_thing", "no_such_thing"),
        ("robomimic", "no/such.hdf5", "no file"),
    ],
)
def test_unknown_tasks_are_told(suite: str, task: str, words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        known_task(suite, task)


def test_a_task_has_one_name() -> None:
    assert known_task("metaworld", "hammer") == known_task("metaworld", "hammer-v3")
    long = "KITCHEN_SCENE3_turn_on_the_stove_and_put_the_moka_pot_on_it"
    assert known_task("libero", f"libero_10/{long}") == known_task("libero", "libero_10/2")
    assert known_task("robosuite", "Lift-Panda") == known_task("robosuite", "Lift") == "Lift"
    assert known_task("robomimic", "Lift") == "Lift"


def test_the_suites_of_libero_are_its_simulator_s() -> None:
    assert set(LIBERO_TASKS) == set(SUITES)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"unseen_tasks": ("hammer", "hammer-v3")}, "every task once"),
        ({"suite": "dmc", "unseen_tasks": ("walker-walk",), "repeat": 2}, "2 on dmc"),
        ({"camera": "side"}, "'side'"),
        ({"demonstration_camera": "side"}, "'side'"),
        ({"suite": "robomimic", "unseen_tasks": ("Lift",)}, "demonstrations_path"),
    ],
)
def test_what_a_suite_does_not_have_is_told(data: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        check_data(config(**data))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"pretraining_tasks": ("drawer-opne",)}, "drawer-open"),
        ({"pretraining_tasks": ("drawer-open",), "behaviour": "random"}, "random on Meta-World"),
        ({"suite": "dmc", "unseen_tasks": ("walker-walk",), "pretraining_tasks": ("pretraining",)}, "several tasks"),
    ],
)
def test_what_pretraining_cannot_record_is_told(data: dict[str, Any], words: str) -> None:
    tree = config(**data).model_dump() | {
        "pretrainings": {"a": {"objective": {"name": "curl"}}},
        "rows": [{"name": "scratch", "pretraining": "a"}],
    }
    with pytest.raises(BadInputError, match=words):
        check_data(FewshotConfig.model_validate(tree))


def test_cameras_recorded_together_are_different() -> None:
    tree = config().model_dump() | {"encoder": {"cameras": 2}}
    tree["data"]["camera"] = ("corner", "corner")
    with pytest.raises(BadInputError, match="each camera once"):
        check_data(FewshotConfig.model_validate(tree))
