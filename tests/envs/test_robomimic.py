"""The adapter against a made-up robosuite, and against the real one where it is installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from counterpoint.envs.make import make_env
from counterpoint.envs.robomimic import RobomimicEnv
from counterpoint.errors import BadInputError, MissingExtraError
from counterpoint.formats import open_dataset
from tests.envs.played import act, images
from tests.envs.robosuite_made import MadeEnv, make_robosuite
from tests.formats.hdf5.made import ENV_ARGS, write_libero, write_robomimic


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[MadeEnv]:
    return make_robosuite(monkeypatch)


def test_a_named_environment(made: list[MadeEnv]) -> None:
    task = make_env("robomimic/Lift", size=16)
    assert (task.name, task.instruction, task.horizon) == ("robomimic/Lift", "lift the cube", 400)
    assert (task.action_dim, task.state_dim) == (7, 9)
    assert made[0].arguments["robots"] == ["Panda"]
    assert make_env("robomimic/ToolHang").horizon == 700
    make_env("robomimic/TwoArmLift")
    assert made[-1].arguments["robots"] == ["Panda", "Panda"]


def test_images_are_upright_and_of_the_camera_asked_for(made: list[MadeEnv]) -> None:
    for camera, number in ((None, 1), ("robot0_eye_in_hand", 2)):
        image = make_env("robomimic/Lift", cameras=camera, size=16).render()
        assert image.shape == (16, 16, 3)
        assert image[-1, 0].tolist() == [255, 0, 0]  # the floor is at the bottom
        assert (image[:-1] == number).all()
        assert image.flags.c_contiguous
    with pytest.raises(BadInputError, match="found 'side'; expected one of frontview, agentview"):
        make_env("robomimic/Lift", cameras="side")
    names = ("agentview_image", "robot0_eye_in_hand")  # the data's name, and the simulator's
    both = make_env("robomimic/Lift", cameras=names, size=16)
    assert images(both)[:, 0, 0].tolist() == [[1, 1, 1], [2, 2, 2]]


def test_the_seed_decides_and_nobody_elses_generator_is_touched(made: list[MadeEnv]) -> None:
    task = make_env("robomimic/Lift")
    np.random.seed(7)
    before = np.random.get_state()[1].copy()  # type: ignore[index]
    places = []
    for seed in (1, 2, 1):
        task.reset(seed=seed)
        places.append(made[0].place.tolist())
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # type: ignore[index]
    assert places[0] == places[2] != places[1]


def test_steps(made: list[MadeEnv]) -> None:
    task = make_env("robomimic/Lift")
    task.reset(seed=0)
    outcomes = [act(task, np.full(7, 2.0, np.float32)) for _ in range(3)]
    assert [(o.reward, o.success, o.ended) for o in outcomes] == [
        (0, False, False),
        (0, False, False),
        (1, True, False),
    ]
    assert made[0].actions[0].tolist() == [1.0] * 7  # beyond [-1, 1] nothing is asked for
    state = task.state()
    assert state.dtype == np.float32
    assert state[:3].tolist() == [6.0] * 3
    assert state[-2:].tolist() == [5.0] * 2
    task.close()
    assert made[0].closed


def test_a_data_set_tells_its_environment(tmp_path: Path, made: list[MadeEnv]) -> None:
    kwargs = {**ENV_ARGS["env_kwargs"], "control_freq": 10, "has_renderer": True, "render_gpu_device_id": 3}  # type: ignore[dict-item]
    path = write_robomimic(tmp_path / "image.hdf5", env_args={**ENV_ARGS, "env_kwargs": kwargs})
    task = RobomimicEnv(str(path))
    assert task.name == "robomimic/Lift"
    assert task.instruction == open_dataset(path).episodes[0].instruction
    assert task.versions == {"installed": "1.5.1", "recorded": "1.5.1"}
    told = made[0].arguments
    assert told["control_freq"] == 10
    assert (told["has_renderer"], told["has_offscreen_renderer"], told["use_camera_obs"]) == (False, True, False)
    assert not {"camera_names", "render_gpu_device_id"} & told.keys()
    state = open_dataset(path).state(0)
    assert state is not None
    assert state.shape[1] == task.state_dim
    assert make_env(f"robomimic/{path}").name == "robomimic/Lift"


def test_the_controller_of_an_older_data_set(
    tmp_path: Path, made: list[MadeEnv], monkeypatch: pytest.MonkeyPatch
) -> None:
    factory: Any = ModuleType("robosuite.controllers.composite.composite_controller_factory")
    factory.refactor_composite_controller_config = lambda *told: told
    composite: Any = ModuleType("robosuite.controllers.composite")
    composite.composite_controller_factory = factory
    monkeypatch.setitem(sys.modules, "robosuite.controllers", ModuleType("robosuite.controllers"))
    monkeypatch.setitem(sys.modules, "robosuite.controllers.composite", composite)
    arm = {"type": "OSC_POSE", "control_delta": False}
    kwargs = {"robots": ["Panda"], "controller_configs": arm}
    path = write_robomimic(tmp_path / "image.hdf5", env_args={**ENV_ARGS, "env_kwargs": kwargs})
    RobomimicEnv(str(path))
    expected = ({"input_type": "absolute", **arm}, "Panda", ["right"])
    assert made[0].arguments["controller_configs"] == expected
    monkeypatch.setattr(sys.modules["robosuite"], "__version__", "1.4.1")
    RobomimicEnv(str(path))
    assert made[1].arguments["controller_configs"] == arm


def test_what_cannot_be_made(tmp_path: Path, made: list[MadeEnv]) -> None:
    with pytest.raises(BadInputError, match="environment 'Fly'; expected a data set, or one of Lift"):
        make_env("robomimic/Fly")
    with pytest.raises(BadInputError, match="no file"):
        make_env(f"robomimic/{tmp_path}/nowhere.hdf5")
    with pytest.raises(BadInputError, match="env_args: found nothing"):
        make_env(f"robomimic/{write_robomimic(tmp_path / 'image.hdf5', env_args=None)}")
    libero, _ = write_libero(tmp_path / "stove_demo.hdf5")
    with pytest.raises(BadInputError, match="environment 'Libero_Kitchen"):
        make_env(f"robomimic/{libero}")


def test_without_robosuite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "robosuite", None)
    with pytest.raises(MissingExtraError, match=r"pip install -e '\.\[robosuite\]'"):
        make_env("robomimic/Lift")


@pytest.mark.sim
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("robosuite") is None, reason="robosuite is not installed")
def test_the_real_one_repeats_itself_beside_others() -> None:
    """robosuite renders, and frees, in whichever graphics context is current."""
    other = make_env("robosuite/Lift", size=32)
    task, second = (make_env("robomimic/Lift", size=32) for _ in range(2))
    alone, others = task.render(), other.render()
    np.testing.assert_array_equal(second.render(), alone)
    runs = []
    for seed in (3, 4, 3):
        task.reset(seed=seed)
        outcome = act(task, np.full(7, 0.3, np.float32))
        runs.append((task.render(), task.state(), outcome))
    np.testing.assert_array_equal(runs[0][0], runs[2][0])
    np.testing.assert_array_equal(runs[0][1], runs[2][1])
    assert (runs[0][0] != runs[1][0]).any()
    np.testing.assert_array_equal(second.render(), alone)
    other.render()
    task.close()
    np.testing.assert_array_equal(other.render(), others)
    np.testing.assert_array_equal(second.render(), alone)
    assert min(alone.std(), others.std()) > 0
    second.close()
    other.close()
