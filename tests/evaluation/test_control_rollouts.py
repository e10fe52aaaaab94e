from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from counterpoint.data.episode import Array
from counterpoint.envs.control import Outcome
from counterpoint.errors import BadInputError
from counterpoint.evaluation.control_rollouts import ControlRollouts, EpisodeResult, roll_out


class CountingTask:
    """Shows the seed and the step; solved at step `seed % 7 + 2`, over early at step 4 for seeds of 100 and more."""

    name, instruction, action_dim, state_dim, horizon = "stub/count", "count", 1, 2, 6
    closed = 0

    def reset(self, seed: int) -> None:
        self._seed, self._step = seed, 0

    def draw(self) -> Array:
        return np.full((2, 2, 3), (self._seed % 16) * 16 + self._step, np.uint8)

    def state(self) -> Array:
        return np.array([self._seed, self._step], np.float32)

    def step(self, action: Array) -> Outcome:
        self._step += 1
        solved = self._step == self._seed % 7 + 2
        return Outcome(float(action[0]), solved, ended=self._seed >= 100 and self._step == 4)

    def close(self) -> None:
        type(self).closed += 1


class DyingTask(CountingTask):
    """Ends its process, as a simulator that crashes."""

    def step(self, action: Array) -> Outcome:
        os._exit(3)


class BrokenTask(CountingTask):
    """Refuses its actions."""

    def step(self, action: Array) -> Outcome:
        raise BadInputError("action", found="any", expected="none", mend="rest")


class Recorder:
    """Acts by what it sees and remembers how often each row has acted since its episode began."""

    stack = 3

    def __init__(self) -> None:
        self.steps: dict[int, int] = {}
        self.seen: dict[int, list[tuple[int, ...]]] = {}
        self.batches: list[int] = []

    def reset(self, rows: Sequence[int]) -> None:
        for row in rows:
            self.steps[row] = 0

    def act(self, frames: Array, state: Array, rows: Sequence[int]) -> Array:
        assert frames.dtype == np.uint8
        assert frames.shape == (len(rows), 3, 2, 2, 3)
        assert state.shape == (len(rows), 2)
        self.batches.append(len(rows))
        for row, stack, numbers in zip(rows, frames[:, :, 0, 0, 0].tolist(), state, strict=True):
            assert self.steps[row] == int(numbers[1])  # histories were reset with the episode
            self.steps[row] += 1
            self.seen.setdefault(int(numbers[0]), []).append(tuple(stack))
        weights = np.array([1.0, 10.0, 100.0])
        return np.asarray((frames[:, :, 0, 0, 0] * weights).sum(1, keepdims=True), np.float32)


def by_hand(seed: int, stop_at_success: bool) -> EpisodeResult:
    shown = [(seed % 16) * 16] * 3
    total, success, step = 0.0, False, 0
    while step < 6:
        total += shown[0] + 10 * shown[1] + 100 * shown[2]
        step += 1
        shown = [*shown[1:], (seed % 16) * 16 + step]
        success |= step == seed % 7 + 2
        if (stop_at_success and success) or (seed >= 100 and step == 4):
            break
    return EpisodeResult(seed, success, total, step)


SEEDS = [3, 0, 12, 5, 101, 9, 3, 104, 1, 6, 2]


@pytest.mark.parametrize("stop_at_success", [True, False])
@pytest.mark.parametrize("envs", [1, 2, 4, 32])
def test_neither_order_nor_grouping_changes_an_episode(envs: int, stop_at_success: bool) -> None:
    expected = [by_hand(seed, stop_at_success) for seed in SEEDS]
    assert any(one.success for one in expected)
    assert not all(one.success for one in expected)
    assert roll_out(Recorder(), CountingTask, SEEDS, envs=envs, stop_at_success=stop_at_success) == expected
    backwards = roll_out(Recorder(), CountingTask, SEEDS[::-1], envs=envs, stop_at_success=stop_at_success)
    assert backwards == expected[::-1]


def test_the_first_frame_is_repeated_and_rows_are_refilled() -> None:
    policy = Recorder()
    roll_out(policy, CountingTask, [1, 2, 3, 4, 5], envs=2, stop_at_success=False)
    assert policy.seen[2][:4] == [(32, 32, 32), (32, 32, 33), (32, 33, 34), (33, 34, 35)]
    assert policy.batches == [2] * 12 + [1] * 6  # no row waits for another's episode to end


def test_simulations_stay_open_between_evaluations_and_are_closed_at_the_end() -> None:
    made: list[CountingTask] = []

    def make() -> CountingTask:
        made.append(CountingTask())
        return made[-1]

    before = CountingTask.closed
    with ControlRollouts(make, 3) as rollouts:
        first = rollouts.run(Recorder(), [1, 2], stop_at_success=True)
        assert len(made) == 2  # no more than there are episodes
        assert rollouts.run(Recorder(), [1, 2, 3, 4, 5], stop_at_success=True)[:2] == first
        assert rollouts.run(Recorder(), [], stop_at_success=True) == []
    assert len(made) == 3
    assert CountingTask.closed - before == 3


def test_processes_give_the_same_episodes() -> None:
    expected = [by_hand(seed, True) for seed in SEEDS[:5]]
    assert (
        roll_out(Recorder(), CountingTask, SEEDS[:5], envs=2, stop_at_success=True, processes=True)
        == expected
    )


@pytest.mark.parametrize(("task", "message"), [(DyingTask, "process died"), (BrokenTask, "Mend: rest")])
def test_what_goes_wrong_in_a_process_is_told(task: type[CountingTask], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        roll_out(Recorder(), task, [1], envs=1, stop_at_success=True, processes=True)


def test_no_environment_is_refused() -> None:
    with pytest.raises(BadInputError, match="1 or more"):
        ControlRollouts(CountingTask, 0)


@pytest.mark.sim
def test_meta_world_episodes_do_not_depend_on_their_neighbours() -> None:
    from counterpoint.envs.control import make_task

    class ByPicture:
        stack = 2

        def reset(self, rows: Sequence[int]) -> None: ...

        def act(self, frames: Array, state: Array, rows: Sequence[int]) -> Array:
            means = frames.reshape(len(rows), -1, 4).mean(1) / 255
            return np.asarray(2 * means - 1, np.float32)

    make = partial(make_task, "metaworld/reach", size=24)
    alone = roll_out(ByPicture(), make, [11, 12, 13], envs=1, stop_at_success=True)
    together = roll_out(ByPicture(), make, [13, 11, 12], envs=3, stop_at_success=True)
    assert sorted(together, key=lambda one: one.seed) == alone
