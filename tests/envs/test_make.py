from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from PIL import Image

from counterpoint.data.episode import Array
from counterpoint.data.resize import resize
from counterpoint.envs.base import CameraEnv
from counterpoint.envs.make import as_maker, make_env
from counterpoint.envs.metaworld import shared
from counterpoint.envs.metaworld.env import MetaWorldEnv
from counterpoint.errors import BadInputError
from tests.envs.played import Outcome, act

SIZE = 32


class Painting(CameraEnv):
    """Stands in for Meta-World: noise at whatever size it is rendered."""

    def __init__(
        self, task: str, *, cameras: tuple[str, ...] | None, size: int, render: int | None, **told: Any
    ) -> None:
        super().__init__(
            f"stub/{task}",
            "paint",
            cameras=cameras or ("corner2",),
            size=size,
            render=render,
            action_dim=2,
            state_dim=3,
            control_hz=10,
            horizon=told.get("steps", 9),
        )
        self.told = told

    def _begin(self, seed: int) -> None:
        self.seed = seed

    def state(self) -> Array:
        return np.arange(3, dtype=np.float32)

    def _advance(self, action: Array) -> tuple[float, bool, bool]:
        return 1.5, True, False

    def _images(self) -> dict[str, Array]:
        size = self._rendered_size
        return {
            camera: np.random.default_rng([size, len(camera)]).integers(0, 256, (size, size, 3)).astype(np.uint8)
            for camera in self.cameras
        }


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("atari/pong", {}, "suite 'atari'; expected one of metaworld, dmc, kitchen, libero, robomimic"),
        ("atari/pong", {"repeat": 2}, "suite 'atari'"),
        ("atari/pong", {"render": 96}, "suite 'atari'"),
        ("bin-picking", {}, "suite 'bin-picking'"),
        ("dmc/walker-walk", {"repeat": 2}, "2 on dmc; expected 1"),
        ("libero/libero_10/0", {"repeat": 4}, "4 on libero"),
        ("robomimic/Lift", {"repeat": 0}, "0 on robomimic"),
    ],
)
def test_what_cannot_be_had_is_one_message(name: str, settings: dict[str, int], words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        make_env(name, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("size", "render"), [(24, 60), (24, 16), (24, None), (24, 24)])
def test_images_are_rendered_large_and_resized_as_training_stores_are(
    size: int, render: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "MetaWorldEnv", Painting)
    task = make_env("metaworld/any@corner", size, render=render, repeat=2)
    assert task.told == {"repeat": 2, "steps": None}  # type: ignore[attr-defined]
    plain = Painting("any", cameras=("corner",), size=render or size, render=None).render()
    observation, _ = task.reset(seed=0)
    for seen in (observation["corner"], task.render()):
        assert seen.dtype == np.uint8
        assert seen.shape == (size, size, 3)
        np.testing.assert_array_equal(seen, resize(plain[None], size)[0])
        by_hand = Image.fromarray(plain).resize((size, size), Image.Resampling.BICUBIC)
        np.testing.assert_array_equal(seen, np.asarray(by_hand))


def test_the_face(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "MetaWorldEnv", Painting)
    task = make_env("metaworld/any@corner,corner2", size=8, steps=2)
    check_env(task)
    assert (task.name, task.instruction, task.horizon, task.cameras) == ("stub/any", "paint", 2, ("corner", "corner2"))
    assert (task.action_dim, task.state_dim, task.metadata["render_fps"]) == (2, 3, 10)
    observation, info = task.reset(seed=4)
    assert task.seed == 4  # type: ignore[attr-defined]
    assert info == {"is_success": False}
    assert list(observation) == ["corner", "corner2", "state"]
    np.testing.assert_array_equal(observation["state"], np.arange(3))
    observation, reward, ended, truncated, info = task.step(np.ones(2))
    assert (reward, ended, truncated, info) == (1.5, False, False, {"is_success": True})
    assert observation["corner"].any()
    task.look = False
    observation, _, ended, truncated, _ = task.step(np.ones(2))
    assert (ended, truncated) == (False, True)
    assert not observation["corner"].any()
    np.testing.assert_array_equal(task.render(), task.images()["corner"])
    assert task.render().any()
    seeds = []
    for _ in range(2):
        task.reset(seed=7)
        for _ in range(3):
            task.reset()
            seeds.append(task.seed)  # type: ignore[attr-defined]
    assert seeds[:3] == seeds[3:]
    assert len(set(seeds)) == 3
    for action in (np.ones(3), np.array([0.0, np.nan])):
        with pytest.raises(BadInputError, match=r"stub/any: action.*2 finite numbers in \[-1, 1\]"):
            task.step(action)


@pytest.fixture(scope="module")
def press(simulator: None) -> Iterator[CameraEnv]:
    task = make_env("metaworld/handle-press", size=SIZE)
    yield task
    task.close()


def play(task: CameraEnv, seed: int, actions: Array) -> tuple[list[Outcome], Array, Array]:
    task.reset(seed=seed)
    outcomes = [act(task, action) for action in actions]
    return outcomes, task.state(), task.render()


def some_actions(count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, (count, 4)).astype(np.float32)


@pytest.mark.slow
@pytest.mark.sim
def test_metaworld_has_the_face_of_a_control_task(press: CameraEnv) -> None:
    assert press.name == "metaworld/handle-press"
    assert press.instruction == "press the handle down"
    assert (press.action_dim, press.state_dim, press.horizon) == (4, 4, 200)
    press.reset(seed=0)
    image, state = press.render(), press.state()
    assert image.dtype == np.uint8
    assert image.shape == (SIZE, SIZE, 3)
    assert image.std() > 5
    assert state.dtype == np.float32
    assert state.shape == (4,)
    named = make_env("metaworld/handle-press-v3", cameras="corner", size=SIZE)
    named.reset(seed=0)
    assert named.name == press.name
    assert not np.array_equal(named.render(), image)
    named.close()


@pytest.mark.slow
@pytest.mark.sim
def test_seed_and_actions_alone_decide_what_follows(press: CameraEnv) -> None:
    actions = some_actions(6)
    first = play(press, 3, actions)
    other = play(press, 4, actions)
    fresh = make_env("metaworld/handle-press", size=SIZE)
    for again in (play(press, 3, actions), play(fresh, 3, actions)):
        assert again[0] == first[0]
        np.testing.assert_array_equal(again[1], first[1])
        np.testing.assert_array_equal(again[2], first[2])
    fresh.close()
    assert other[0] != first[0]
    assert not np.array_equal(other[2], first[2])


@pytest.mark.slow
@pytest.mark.sim
@pytest.mark.parametrize("repeat", [2, 3])
def test_repeating_sums_rewards_and_equals_stepping_by_hand(simulator: None, repeat: int) -> None:
    task = make_env("metaworld/handle-press", size=SIZE, repeat=repeat)
    assert task.horizon == -(-200 // repeat)
    simulation = MetaWorldEnv("handle-press", size=SIZE)
    task.reset(seed=5)
    simulation.reset(seed=5)
    solved_at = []
    for number in range(60 // repeat):
        action = simulation.expert()
        outcome = act(task, action)
        total, success = 0.0, []
        for _ in range(repeat):
            one = act(simulation, action)
            total += one.reward
            success.append(one.success)
        assert outcome == Outcome(total, any(success))
        solved_at += [number] * outcome.success
        np.testing.assert_array_equal(task.state(), simulation.state())
    assert solved_at
    np.testing.assert_array_equal(task.render(), simulation.render())
    task.close()
    simulation.close()


@pytest.mark.slow
@pytest.mark.sim
@pytest.mark.parametrize(("repeat", "lasts"), [pytest.param(1, [1] * 10, marks=pytest.mark.slow), (3, [3, 3, 3, 1])])
def test_an_episode_is_as_long_as_asked_for(simulator: None, repeat: int, lasts: list[int]) -> None:
    """Its last action is cut as in recorded data, where `repeat` does not divide its steps."""
    task = make_env("metaworld/handle-press", size=SIZE, repeat=repeat, steps=10)
    simulation = MetaWorldEnv("handle-press", size=SIZE)
    assert task.horizon == len(lasts)
    for _ in range(2):
        task.reset(seed=5)
        simulation.reset(seed=5)
        for action, control_steps in zip(some_actions(len(lasts)), lasts, strict=True):
            earned = 0.0
            for _ in range(control_steps):
                earned += act(simulation, action).reward
            assert act(task, action).reward == earned
        np.testing.assert_array_equal(task.state(), simulation.state())
    task.close()
    simulation.close()


@pytest.mark.sim
@pytest.mark.usefixtures("simulator")
def test_dm_control_s_episodes_are_as_long_as_asked_for() -> None:
    pytest.importorskip("dm_control")
    task = make_env("dmc/reacher-hard", size=SIZE, render=2 * SIZE, steps=7)
    assert task.horizon == 7
    task.close()
    for steps in (0, 501):
        with pytest.raises(BadInputError, match=f"found {steps}; expected 1 to 500"):
            make_env("dmc/reacher-hard", size=SIZE, steps=steps)
        with pytest.raises(BadInputError, match=f"found {steps}; expected 1 to 500"):
            make_env("metaworld/handle-press", size=SIZE, steps=steps)


@pytest.mark.slow
@pytest.mark.sim
def test_metaworld_drawn_large_is_resized_as_training_stores_are(press: CameraEnv) -> None:
    large = make_env("metaworld/handle-press", size=2 * SIZE)
    small = make_env("metaworld/handle-press", size=SIZE, render=2 * SIZE)
    for task in (large, small, press):
        task.reset(seed=1)
    np.testing.assert_array_equal(small.render(), resize(large.render()[None], SIZE)[0])
    assert not np.array_equal(small.render(), press.render())  # which is jagged
    large.close()
    small.close()


@pytest.mark.sim
@pytest.mark.usefixtures("simulator")
def test_a_task_that_is_not_there_is_one_message() -> None:
    with pytest.raises(BadInputError, match="handle-pres"):
        make_env("metaworld/handle-pres")
    with pytest.raises(BadInputError, match="'side'"):
        make_env("metaworld/handle-press", cameras="side")
    for repeat in (0, -1):
        with pytest.raises(BadInputError, match=f"repeat: found {repeat}; expected 1 or more"):
            MetaWorldEnv("handle-press", size=SIZE, repeat=repeat)


def test_makers_of_instances_functions_and_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "MetaWorldEnv", Painting)
    painting = Painting("any", cameras=("corner",), size=8, render=None)
    make, count = as_maker(painting)
    assert (make(), count) == (painting, 1)
    assert as_maker(lambda: painting)[0]() is painting
    make, count = as_maker("metaworld/any@corner")
    assert isinstance(make(), Painting)
    assert count > 1_000
    make, _ = as_maker("PointMaze_UMaze-v3")
    goal = make()
    assert set(goal.reset(seed=0)[0]) == {"observation", "achieved_goal", "desired_goal"}
    goal.close()
