"""Every suite is a `gymnasium.Env` with a camera: the adapters of absent simulators on made-up ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import RecordVideo

from counterpoint.envs.base import CameraEnv
from counterpoint.envs.make import make_env
from tests.envs.filming import in_place_of_moviepy
from tests.envs.played import images
from tests.envs.rlbench_made import rlbench_simulated
from tests.envs.robosuite_made import make_libero, make_robosuite

INSTALLED = (
    "metaworld/handle-press@corner2,topview",
    "metaworld/shared/door-open@left,topview",
    "dmc/reacher-hard",
    "robosuite/Lift",
    "robosuite/OpenBox-IIWA",
)
MADE = ("libero/libero_10/2@agentview,robot0_eye_in_hand", "robomimic/Lift", "rlbench/close_drawer")


@pytest.fixture(
    params=[
        *(pytest.param(name, marks=pytest.mark.sim) for name in INSTALLED[:-1]),
        pytest.param(INSTALLED[-1], marks=[pytest.mark.sim, pytest.mark.slow]),
        *MADE,
    ]
)
def env(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[CameraEnv]:
    name, suite = request.param, request.param.partition("/")[0]
    if name in INSTALLED:
        pytest.importorskip({"dmc": "dm_control"}.get(suite, suite))
    if suite == "libero":
        make_libero(monkeypatch, tmp_path / "libero")
    elif suite == "robomimic":
        make_robosuite(monkeypatch)
    with rlbench_simulated():
        made = make_env(name, 24, steps=5)
        yield made
        made.close()


@pytest.mark.filterwarnings("ignore:.*A Box observation space", "ignore:.*render modes", "ignore:.*Overwriting")
def test_a_suite_passes_the_checker_and_is_filmed(
    env: CameraEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_env(env)
    clip = in_place_of_moviepy(monkeypatch)
    filmed = RecordVideo(env, str(tmp_path / "videos"), disable_logger=True)
    observation, info = filmed.reset(seed=3)
    surroundings = ["environment_state"] if env.environment_dim else []
    assert list(observation) == [*env.cameras, "state", *surroundings]
    truncated = False
    while not truncated:
        action = np.zeros(env.action_dim, np.float32)
        observation, _, _, truncated, info = filmed.step(action)
        assert observation in env.observation_space
        assert ("is_success" in info) == env.has_success
    filmed.close()  # type: ignore[no-untyped-call]
    ((_, fps, frames),) = clip.written
    assert fps == env.metadata["render_fps"] == round(env.control_hz)
    assert frames.shape == (6, 24, 24, 3)
    np.testing.assert_array_equal(frames[-1], observation[env.cameras[0]])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*A Box observation space")
def test_not_looking_changes_nothing_but_the_images(env: CameraEnv) -> None:
    seen = []
    for look in (True, False):
        env.look = look
        steps = [env.reset(seed=5)[0]["state"]]
        for number in range(3):
            observation, reward, *_ = env.step(np.full(env.action_dim, number / 4, np.float32))
            steps.append(np.append(observation["state"], reward))
        assert any(observation[camera].any() for camera in env.cameras) == look
        seen.append((np.concatenate(steps), images(env)))
    np.testing.assert_array_equal(seen[0][0], seen[1][0])
    np.testing.assert_array_equal(seen[0][1], seen[1][1])


@pytest.mark.slow
@pytest.mark.sim
@pytest.mark.parametrize(
    ("name", "cameras", "render"),
    [
        pytest.param("metaworld/drawer-open", ("corner2", "gripperPOV"), 64, marks=pytest.mark.slow),
        pytest.param("metaworld/drawer-open", ("corner2", "gripperPOV"), None, marks=pytest.mark.release),
        ("dmc/walker-walk", ("back", "side"), None),
    ],
)
def test_several_cameras_keep_the_order_given(name: str, cameras: tuple[str, ...], render: int | None) -> None:
    pytest.importorskip("dm_control" if name.startswith("dmc") else "metaworld")
    rendered = []
    for camera in (cameras, *cameras, cameras[:1]):
        task = make_env(name, 32, cameras=camera, render=render)
        task.reset(seed=3)
        task.step(np.zeros(task.action_dim, np.float32))
        rendered.append(images(task))
        task.close()
    both, first, second, one = rendered
    assert both.shape == (2, 32, 32, 3)
    np.testing.assert_array_equal(both, np.concatenate([first, second]))
    np.testing.assert_array_equal(one, first)
    assert not np.array_equal(first, second)
