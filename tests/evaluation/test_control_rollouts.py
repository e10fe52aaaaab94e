from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from counterpoint.data.episode import Array
from counterpoint.envs.base import CameraEnv
from counterpoint.errors import BadInputError, MissingExtraError
from counterpoint.evaluation.rollout import ControlRollouts, EpisodeResult, roll_out


class CountingTask(CameraEnv):
    """Shows the seed and the step; solved at step `seed % 7 + 2`, over early at step 4 for seeds of 100 and more."""

    closed = 0

    def __init__(self) -> None:
        super().__init__(
            "stub/count", "count", cameras=("front",), size=2, action_dim=1, state_dim=2, control_hz=10, horizon=6
        )

    def _begin(self, seed: int) -> None:
        self._seed, self._step = seed, 0

    def _images(self) -> dict[str, Array]:
        return {"front": np.full((2, 2, 3), (self._seed % 16) * 16 + self._step, np.uint8)}

    def state(self) -> Array:
        return np.array([self._seed, self._step], np.float32)

    def _advance(self, action: Array) -> tuple[float, bool, bool]:
        self._step += 1
        solved = self._step == self._seed % 7 + 2
        return float(action[0]), solved, self._seed >= 100 and self._step == 4

    def close(self) -> None:
        type(self).closed += 1


class DyingTask(CountingTask):
    """Ends its process, as a simulator that crashes."""

    def _advance(self, action: Array) -> tuple[float, bool, bool]:
        os._exit(3)


class BrokenTask(CountingTask):
    """Refuses its actions."""

    def _advance(self, action: Array) -> tuple[float, bool, bool]:
        raise BadInputError("action", "any", "none", "rest")


class Recorder:
    """Acts by what it sees and remembers how often each row has acted since its episode began."""

    stack = 3

    def __init__(self) -> None:
        self.steps: dict[int, int] = {}
        self.seen: dict[int, list[tuple[int, ...]]] = {}
        self.batches: list[int] = []

    def reset(self, rows: Sequence[int], seeds: Sequence[int] | None = None) -> None:
        for row in rows:
            self.steps[row] = 0

    def looks(self, rows: Sequence[int]) -> list[bool]:
        return [True] * len(rows)

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
    assert roll_out(Recorder(), CountingTask, SEEDS[:5], envs=2, stop_at_success=True, processes=True) == expected


@pytest.mark.parametrize("apart", [False, True])
def test_pictures_are_drawn_where_they_are_looked_at(apart: bool) -> None:
    """The first of an episode always; results are those of drawing always."""

    class Glancing:
        """Looks at every third observation of an episode, and acts by what it saw last."""

        stack = 1

        def __init__(self, careful: bool) -> None:
            self.careful = careful
            self.step: dict[int, int] = {}
            self.saw: dict[int, float] = {}
            self.shown: list[tuple[bool, bool]] = []
            self.seeds: list[tuple[int, int]] = []

        def reset(self, rows: Sequence[int], seeds: Sequence[int] | None = None) -> None:
            assert seeds is not None
            self.seeds += zip(rows, seeds, strict=True)
            self.step |= dict.fromkeys(rows, 0)

        def looks(self, rows: Sequence[int]) -> list[bool]:
            return [self.careful or self.step[row] % 3 == 0 for row in rows]

        def act(self, frames: Array, state: Array, rows: Sequence[int]) -> Array:
            for row, picture, look in zip(rows, frames, self.looks(rows), strict=True):
                self.shown.append((look, bool(picture.any())))
                if self.step[row] % 3 == 0:
                    self.saw[row] = float(picture.mean())
                self.step[row] += 1
            assert np.isin(state[:, 0], SEEDS).all()  # proprioception is told at every step
            return np.array([[self.saw[row]] for row in rows], np.float32)

    found = {}
    for careful in (True, False):
        policy, there = Glancing(careful), apart and not careful
        with ControlRollouts(CountingTask, 1 if there else 2, processes=there) as rollouts:
            found[careful] = rollouts.run(policy, [3, 12, 5, 101, 9], stop_at_success=False)
        assert sorted(seed for _, seed in policy.seeds) == [3, 5, 9, 12, 101]
        assert all(look == drawn for look, drawn in policy.shown)  # no picture of these seeds is black
        assert any(not look for look, _ in policy.shown) is not careful
    assert found[True] == found[False]
    assert any(one.total_reward for one in found[True])


def test_what_is_not_looked_at_is_not_drawn() -> None:
    class Blind(Recorder):
        stack = 1

        def looks(self, rows: Sequence[int]) -> list[bool]:
            return [False] * len(rows)

        def act(self, frames: Array, state: Array, rows: Sequence[int]) -> Array:
            return np.zeros((len(rows), 1), np.float32)

    class Counted(CountingTask):
        drawn = 0

        def _images(self) -> dict[str, Array]:
            type(self).drawn += 1
            return super()._images()

    roll_out(Blind(), Counted, [1, 2, 3], envs=2, stop_at_success=False)
    assert Counted.drawn == 3


class FragileTask(CountingTask):
    """Raises in the episodes of some seeds: at the third step, or before the first."""

    def _begin(self, seed: int) -> None:
        super()._begin(seed)
        if seed == 7:
            raise FloatingPointError("unstable from the start")

    def _advance(self, action: Array) -> tuple[float, bool, bool]:
        if self._seed == 13 and self._step == 2:
            raise FloatingPointError("unstable")
        return super()._advance(action)


@pytest.mark.parametrize(("envs", "apart"), [(1, False), (3, False), (1, True)])
def test_an_episode_whose_simulator_raises_has_failed_and_the_others_go_on(
    envs: int, apart: bool, caplog: pytest.LogCaptureFixture
) -> None:
    seeds = [3, 13, 12, 5, 101, 9, 3, 7, 104, 1, *range(20, 31)]
    found = roll_out(Recorder(), FragileTask, seeds, envs=envs, stop_at_success=True, processes=apart)
    expected = [by_hand(seed, True) for seed in seeds]
    tally = by_hand(13, False)
    broken = {
        13: EpisodeResult(13, False, found[1].total_reward, 2, "FloatingPointError: unstable"),
        7: EpisodeResult(7, False, 0.0, 0, "FloatingPointError: unstable from the start"),
    }
    assert 0 < found[1].total_reward < tally.total_reward
    assert found == [broken.get(one.seed, one) for one in expected]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "seed 13: FloatingPointError: unstable" in caplog.text


def test_simulators_that_raise_often_end_the_rollouts() -> None:
    with pytest.raises(BadInputError, match=r"2 of 19 episodes .* the first: .*unstable.*expected 1 at most"):
        roll_out(Recorder(), FragileTask, [13, 7, *range(20, 37)], envs=2, stop_at_success=False)


class AbsentTask(CountingTask):
    """Cannot be built."""

    def __init__(self) -> None:
        raise BadInputError("camera", "nobody", "somebody", "look")


class UninstalledTask(CountingTask):
    """Lacks its simulator."""

    def __init__(self) -> None:
        raise MissingExtraError("simulator", "sim")


@pytest.mark.parametrize(
    ("task", "apart", "error", "message"),
    [
        (AbsentTask, False, BadInputError, "camera: found nobody"),
        (AbsentTask, True, BadInputError, "camera: found nobody"),
        (UninstalledTask, False, MissingExtraError, r"counterpoint\[sim\]"),
        (UninstalledTask, True, RuntimeError, r"counterpoint\[sim\]"),
    ],
)
def test_what_cannot_be_built_is_no_failed_episode(
    task: type[CountingTask], apart: bool, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        roll_out(Recorder(), task, [1], stop_at_success=True, processes=apart)


@pytest.mark.parametrize(("task", "message"), [(DyingTask, "process died"), (BrokenTask, "Hint: rest")])
def test_what_goes_wrong_in_a_process_is_told(task: type[CountingTask], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        roll_out(Recorder(), task, [1], envs=1, stop_at_success=True, processes=True)


def test_no_environment_is_refused() -> None:
    with pytest.raises(BadInputError, match="1 or more"):
        ControlRollouts(CountingTask, 0)


@pytest.mark.sim
def test_meta_world_episodes_do_not_depend_on_their_neighbours() -> None:
    from counterpoint.envs.make import make_env

    class ByPicture:
        stack = 2

        def reset(self, rows: Sequence[int], seeds: Sequence[int] | None = None) -> None: ...

        def looks(self, rows: Sequence[int]) -> list[bool]:
            return [True] * len(rows)

        def act(self, frames: Array, state: Array, rows: Sequence[int]) -> Array:
            means = frames.reshape(len(rows), -1, 4).mean(1) / 255
            return np.asarray(2 * means - 1, np.float32)

    make = partial(make_env, "metaworld/reach", size=24)
    alone = roll_out(ByPicture(), make, [11, 12, 13], envs=1, stop_at_success=True)
    together = roll_out(ByPicture(), make, [13, 11, 12], envs=3, stop_at_success=True)
    assert sorted(together, key=lambda one: one.seed) == alone
