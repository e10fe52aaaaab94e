from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from counterpoint.data.cache import resize
from counterpoint.data.episode import Array
from counterpoint.envs.base import ControlTask, Outcome
from counterpoint.envs.make import make_task
from counterpoint.envs.metaworld import env
from counterpoint.envs.metaworld.env import MetaWorldControl, MetaWorldTask
from counterpoint.errors import BadInputError

SIZE = 32


class Painting:
    """Stands in for Meta-World: draws noise at whatever size it is asked for."""

    name, instruction, action_dim, state_dim, horizon = "stub/painting", "paint", 2, 3, 9

    def __init__(self, task: str, *, camera: object, size: int, repeat: int) -> None:
        self.told = task, camera, size, repeat
        self.calls: list[str] = []

    def reset(self, seed: int) -> None:
        self.calls.append(f"reset {seed}")

    def draw(self) -> Array:
        size = self.told[2]
        return np.random.default_rng(size).integers(0, 256, (size, size, 3)).astype(np.uint8)

    def state(self) -> Array:
        return np.arange(3, dtype=np.float32)

    def step(self, action: Array) -> Outcome:
        self.calls.append(f"step {action.tolist()}")
        return Outcome(1.5, True)

    def close(self) -> None:
        self.calls.append("close")


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("atari/pong", {}, "suite 'atari'; expected one of metaworld, dmc, libero, robomimic"),
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
        make_task(name, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("size", "render"), [(24, 60), (24, 16), (24, None), (24, 24)])
def test_pictures_are_drawn_large_and_resized_as_training_stores_are(
    size: int, render: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(env, "MetaWorldControl", Painting)
    task = make_task("metaworld/any", camera="corner", size=size, render=render, repeat=2)
    plain = Painting("any", camera="corner", size=render or size, repeat=2)
    seen = task.draw()
    assert seen.dtype == np.uint8
    assert seen.shape == (size, size, 3)
    np.testing.assert_array_equal(seen, resize(plain.draw()[None], size)[0])
    by_hand = Image.fromarray(plain.draw()).resize((size, size), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(seen, np.asarray(by_hand))


def test_a_resized_task_is_otherwise_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Painting] = []

    def paint(task: str, *, camera: object, size: int, repeat: int) -> Painting:
        made.append(Painting(task, camera=camera, size=size, repeat=repeat))
        return made[-1]

    monkeypatch.setattr(env, "MetaWorldControl", paint)
    task = make_task("metaworld/any", size=8, render=20, repeat=3)
    assert made[0].told == ("any", None, 20, 3)
    for name in ("name", "instruction", "action_dim", "state_dim", "horizon"):
        assert getattr(task, name) == getattr(Painting, name)
    task.reset(4)
    assert task.step(np.ones(2)) == Outcome(1.5, True)
    np.testing.assert_array_equal(task.state(), np.arange(3))
    task.close()
    assert made[0].calls == ["reset 4", "step [1.0, 1.0]", "close"]


@pytest.fixture(scope="module")
def press(simulator: None) -> Iterator[ControlTask]:
    task = make_task("metaworld/handle-press", size=SIZE)
    yield task
    task.close()


def play(task: ControlTask, seed: int, actions: Array) -> tuple[list[Outcome], Array, Array]:
    task.reset(seed)
    outcomes = [task.step(action) for action in actions]
    return outcomes, task.state(), task.draw()


def some_actions(count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, (count, 4)).astype(np.float32)


@pytest.mark.sim
def test_metaworld_has_the_face_of_a_control_task(press: ControlTask) -> None:
    assert press.name == "metaworld/handle-press"
    assert press.instruction == "press the handle down"
    assert (press.action_dim, press.state_dim, press.horizon) == (4, 4, 200)
    press.reset(0)
    picture, state = press.draw(), press.state()
    assert picture.dtype == np.uint8
    assert picture.shape == (SIZE, SIZE, 3)
    assert picture.std() > 5
    assert state.dtype == np.float32
    assert state.shape == (4,)
    named = make_task("metaworld/handle-press-v3", camera="corner", size=SIZE)
    named.reset(0)
    assert named.name == press.name
    assert not np.array_equal(named.draw(), picture)
    named.close()


@pytest.mark.sim
def test_seed_and_actions_alone_decide_what_follows(press: ControlTask) -> None:
    actions = some_actions(6)
    first = play(press, 3, actions)
    other = play(press, 4, actions)
    fresh = make_task("metaworld/handle-press", size=SIZE)
    for again in (play(press, 3, actions), play(fresh, 3, actions)):
        assert again[0] == first[0]
        np.testing.assert_array_equal(again[1], first[1])
        np.testing.assert_array_equal(again[2], first[2])
    fresh.close()
    assert other[0] != first[0]
    assert not np.array_equal(other[2], first[2])


@pytest.mark.sim
@pytest.mark.parametrize("repeat", [2, 3])
def test_repeating_sums_rewards_and_equals_stepping_by_hand(simulator: None, repeat: int) -> None:
    task = make_task("metaworld/handle-press", size=SIZE, repeat=repeat)
    assert task.horizon == -(-200 // repeat)
    simulation = MetaWorldTask("handle-press", cameras=("corner2",), size=SIZE)
    task.reset(5)
    observation = simulation.reset(5)
    solved_at = []
    for number in range(60 // repeat):
        action = simulation.expert(observation)
        outcome = task.step(action)
        total, success = 0.0, []
        for _ in range(repeat):
            observation, reward, solved = simulation.step(action)
            total += reward
            success.append(solved)
        assert outcome == Outcome(total, any(success))
        solved_at += [number] * outcome.success
        np.testing.assert_array_equal(task.state(), observation[:4].astype(np.float32))
    assert solved_at
    np.testing.assert_array_equal(task.draw(), simulation.draw()["corner2"])
    task.close()
    simulation.close()


@pytest.mark.sim
@pytest.mark.parametrize(("repeat", "lasts"), [(1, [1] * 10), (3, [3, 3, 3, 1])])
def test_an_episode_is_as_long_as_asked_for(simulator: None, repeat: int, lasts: list[int]) -> None:
    """Its last action is cut as in recorded data, where `repeat` does not divide its steps."""
    task = make_task("metaworld/handle-press", size=SIZE, repeat=repeat, steps=10)
    simulation = MetaWorldTask("handle-press", cameras=("corner2",), size=SIZE)
    assert task.horizon == len(lasts)
    for _ in range(2):
        task.reset(5)
        observation = simulation.reset(5)
        for action, control_steps in zip(some_actions(len(lasts)), lasts, strict=True):
            earned = 0.0
            for _ in range(control_steps):
                observation, reward, _ = simulation.step(action)
                earned += reward
            assert task.step(action).reward == earned
        np.testing.assert_array_equal(task.state(), observation[:4].astype(np.float32))
    task.close()
    simulation.close()


@pytest.mark.sim
@pytest.mark.usefixtures("simulator")
def test_dm_control_s_episodes_are_as_long_as_asked_for() -> None:
    pytest.importorskip("dm_control")
    task = make_task("dmc/reacher-hard", size=SIZE, render=2 * SIZE, steps=7)
    assert task.horizon == 7
    task.close()
    for steps in (0, 501):
        with pytest.raises(BadInputError, match=f"found {steps}; expected 1 to 500"):
            make_task("dmc/reacher-hard", size=SIZE, steps=steps)
        with pytest.raises(BadInputError, match=f"found {steps}; expected 1 to 500"):
            make_task("metaworld/handle-press", size=SIZE, steps=steps)


@pytest.mark.sim
def test_metaworld_drawn_large_is_resized_as_training_stores_are(press: ControlTask) -> None:
    large = make_task("metaworld/handle-press", size=2 * SIZE)
    small = make_task("metaworld/handle-press", size=SIZE, render=2 * SIZE)
    for task in (large, small, press):
        task.reset(1)
    np.testing.assert_array_equal(small.draw(), resize(large.draw()[None], SIZE)[0])
    assert not np.array_equal(small.draw(), press.draw())  # which is jagged
    large.close()
    small.close()


@pytest.mark.sim
@pytest.mark.usefixtures("simulator")
def test_a_task_that_is_not_there_is_one_message() -> None:
    with pytest.raises(BadInputError, match="handle-pres"):
        make_task("metaworld/handle-pres")
    with pytest.raises(BadInputError, match="'side'"):
        make_task("metaworld/handle-press", camera="side")
    for repeat in (0, -1):
        with pytest.raises(BadInputError, match=f"repeat: found {repeat}; expected 1 or more"):
            MetaWorldControl("handle-press", size=SIZE, repeat=repeat)
