from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from counterpoint.data.episode import Array
from counterpoint.envs.vector import VectorEnv
from counterpoint.errors import BadInputError, MissingExtraError
from counterpoint.evaluation.rollout import EpisodeResult, episode_seed, evaluation_seeds, means, report, rollout
from tests.agents.point_env import STEPS, PointEnv, Straight, make_dying, make_point
from tests.evaluation.counting_tasks import (
    AbsentTask,
    BrokenTask,
    CountingTask,
    DyingTask,
    FragileTask,
    UninstalledTask,
)


class Looking:
    """A policy without a memory that reads every observation."""

    def reset(self, rows: Sequence[int], seeds: Sequence[int] | None = None) -> None: ...

    def looks(self, rows: Sequence[int]) -> list[bool]:
        return [True] * len(rows)

    def act(self, observation: Mapping[str, Array], *, rows: Sequence[int], explore: bool = False) -> Array:
        return np.zeros((len(rows), 1), np.float32)


class Recorder(Looking):
    """Acts by its last three images and remembers how often each row has acted since its episode began."""

    def __init__(self) -> None:
        self.shown: dict[int, list[int]] = {}
        self.seen: dict[int, list[tuple[int, ...]]] = {}
        self.batches: list[int] = []

    def reset(self, rows: Sequence[int], seeds: Sequence[int] | None = None) -> None:
        self.shown |= {row: [] for row in rows}

    def act(self, observation: Mapping[str, Array], *, rows: Sequence[int], explore: bool = False) -> Array:
        images, state = observation["front"], observation["state"]
        assert images.dtype == np.uint8
        assert images.shape == (len(rows), 2, 2, 3)
        assert state.shape == (len(rows), 2)
        self.batches.append(len(rows))
        actions = []
        for row, image, numbers in zip(rows, images[:, 0, 0, 0].tolist(), state, strict=True):
            shown = self.shown[row]
            assert len(shown) == int(numbers[1])  # histories were reset with the episode
            shown.append(image)
            last = (*[shown[0]] * (3 - len(shown)), *shown[-3:])
            self.seen.setdefault(int(numbers[0]), []).append(last)
            actions.append([last[0] + 10 * last[1] + 100 * last[2]])
        return np.array(actions, np.float32)


def by_hand(seed: int, stop_at_success: bool) -> EpisodeResult:
    shown = [(seed % 16) * 16] * 3
    total, solved_after, step = 0.0, 0, 0
    while step < 6:
        total += shown[0] + 10 * shown[1] + 100 * shown[2]
        step += 1
        shown = [*shown[1:], (seed % 16) * 16 + step]
        solved_after = step if step == seed % 7 + 2 else solved_after
        if (stop_at_success and solved_after) or (seed >= 100 and step == 4):
            break
    return EpisodeResult(seed, solved_after > 0, solved_after == step, total, step, solved_after or None)


SEEDS = [3, 0, 12, 5, 101, 9, 3, 104, 1, 6, 2]


@pytest.mark.parametrize("stop_at_success", [True, False])
@pytest.mark.parametrize("envs", [1, 2, 4, 32])
def test_neither_order_nor_grouping_changes_an_episode(envs: int, stop_at_success: bool) -> None:
    expected = [by_hand(seed, stop_at_success) for seed in SEEDS]
    assert any(one.success for one in expected)
    assert not all(one.success for one in expected)
    assert rollout(Recorder(), CountingTask, SEEDS, envs=envs, stop_at_success=stop_at_success) == expected
    backwards = rollout(Recorder(), CountingTask, SEEDS[::-1], envs=envs, stop_at_success=stop_at_success)
    assert backwards == expected[::-1]


def test_the_first_frame_is_repeated_and_rows_are_refilled() -> None:
    policy = Recorder()
    rollout(policy, CountingTask, [1, 2, 3, 4, 5], envs=2)
    assert policy.seen[2][:4] == [(32, 32, 32), (32, 32, 33), (32, 33, 34), (33, 34, 35)]
    assert policy.batches == [2] * 12 + [1] * 6  # no row waits for another's episode to end


def test_simulations_stay_open_between_evaluations_and_are_closed_at_the_end() -> None:
    made: list[CountingTask] = []

    def make() -> CountingTask:
        made.append(CountingTask())
        return made[-1]

    before = CountingTask.closed
    with VectorEnv(make, 3) as envs:
        first = rollout(Recorder(), envs, [1, 2], stop_at_success=True)
        assert len(made) == 2  # no more than there are episodes
        assert rollout(Recorder(), envs, [1, 2, 3, 4, 5], stop_at_success=True)[:2] == first
        assert rollout(Recorder(), envs, []) == []
    assert len(made) == 3
    assert CountingTask.closed - before == 3


def test_processes_give_the_same_episodes() -> None:
    expected = [by_hand(seed, True) for seed in SEEDS[:5]]
    assert rollout(Recorder(), CountingTask, SEEDS[:5], envs=2, stop_at_success=True, processes=True) == expected


@pytest.mark.parametrize("apart", [False, True])
def test_images_are_rendered_where_the_policy_reads_them(apart: bool) -> None:
    """The first of an episode always; results are those of rendering always."""

    class Glancing:
        """Reads every third observation of an episode, and acts by what it saw last."""

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

        def act(self, observation: Mapping[str, Array], *, rows: Sequence[int], explore: bool = False) -> Array:
            frames, state = observation["front"], observation["state"]
            for row, image, look in zip(rows, frames, self.looks(rows), strict=True):
                self.shown.append((look, bool(image.any())))
                if self.step[row] % 3 == 0:
                    self.saw[row] = float(image.mean())
                self.step[row] += 1
            assert np.isin(state[:, 0], SEEDS).all()  # proprioception comes at every step
            return np.array([[self.saw[row]] for row in rows], np.float32)

    found = {}
    for careful in (True, False):
        policy, there = Glancing(careful), apart and not careful
        seeds = [3, 12, 5, 101, 9]
        found[careful] = rollout(policy, CountingTask, seeds, envs=1 if there else 2, processes=there)
        assert sorted(seed for _, seed in policy.seeds) == [3, 5, 9, 12, 101]
        assert all(look == rendered for look, rendered in policy.shown)  # no image of these seeds is black
        assert any(not look for look, _ in policy.shown) is not careful
    assert found[True] == found[False]
    assert any(one.total_reward for one in found[True])


def test_images_that_no_policy_reads_are_not_rendered() -> None:
    class Blind(Looking):
        def looks(self, rows: Sequence[int]) -> list[bool]:
            return [False] * len(rows)

    class Counted(CountingTask):
        rendered = 0

        def _images(self) -> dict[str, Array]:
            type(self).rendered += 1
            return super()._images()

    rollout(Blind(), Counted, [1, 2, 3], envs=2)
    assert Counted.rendered == 3


@pytest.mark.parametrize(("envs", "apart"), [(1, False), (3, False), (1, True)])
def test_an_episode_whose_simulator_raises_has_failed_and_the_others_go_on(
    envs: int, apart: bool, caplog: pytest.LogCaptureFixture
) -> None:
    seeds = [3, 13, 12, 5, 101, 9, 3, 7, 104, 1, *range(20, 31)]
    found = rollout(Recorder(), FragileTask, seeds, envs=envs, stop_at_success=True, processes=apart)
    expected = [by_hand(seed, True) for seed in seeds]
    tally = by_hand(13, False)
    broken = {
        13: EpisodeResult(13, False, False, found[1].total_reward, 2, None, error="FloatingPointError: unstable"),
        7: EpisodeResult(7, False, False, 0.0, 0, None, error="FloatingPointError: unstable from the start"),
    }
    assert 0 < found[1].total_reward < tally.total_reward
    assert found == [broken.get(one.seed, one) for one in expected]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "seed 13: FloatingPointError: unstable" in caplog.text


def test_simulators_that_raise_often_end_the_rollouts() -> None:
    with pytest.raises(BadInputError, match=r"2 of 19 episodes .* the first: .*unstable.*expected 1 at most"):
        rollout(Recorder(), FragileTask, [13, 7, *range(20, 37)], envs=2)


@pytest.mark.parametrize(
    ("task", "apart", "error", "message"),
    [
        (AbsentTask, False, BadInputError, "camera: found nobody"),
        (AbsentTask, True, BadInputError, "camera: found nobody"),
        (UninstalledTask, False, MissingExtraError, r"\[sim\]"),
        (UninstalledTask, True, RuntimeError, r"\[sim\]"),
    ],
)
def test_an_environment_that_cannot_be_built_is_no_failed_episode(
    task: type[CountingTask], apart: bool, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        rollout(Recorder(), task, [1], stop_at_success=True, processes=apart)


@pytest.mark.parametrize(("task", "message"), [(DyingTask, "process died"), (BrokenTask, "Hint: rest")])
def test_an_error_in_a_process_is_reported(task: type[CountingTask], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        rollout(Recorder(), task, [1], envs=1, stop_at_success=True, processes=True)


def test_no_environment_is_refused() -> None:
    with pytest.raises(BadInputError, match="1 or more"):
        rollout(Recorder(), CountingTask, [1], envs=0)


@pytest.mark.slow
@pytest.mark.sim
def test_meta_world_episodes_do_not_depend_on_their_neighbours() -> None:
    from counterpoint.envs.make import make_env

    class ByImage(Looking):
        def act(self, observation: Mapping[str, Array], *, rows: Sequence[int], explore: bool = False) -> Array:
            means = observation["corner2"].reshape(len(rows), -1, 4).mean(1) / 255
            return np.asarray(2 * means - 1, np.float32)

    make = partial(make_env, "metaworld/reach", size=24)
    alone = rollout(ByImage(), make, [11, 12, 13], envs=1, stop_at_success=True)
    together = rollout(ByImage(), make, [13, 11, 12], envs=3, stop_at_success=True)
    assert sorted(together, key=lambda one: one.seed) == alone


def test_instances_functions_and_names_are_taken() -> None:
    expected = rollout(Recorder(), CountingTask, [3, 12, 5])
    assert rollout(Recorder(), CountingTask(), [3, 12, 5]) == expected  # one at a time
    assert rollout(Recorder(), lambda: CountingTask(), [3, 12, 5], envs=2, processes=True) == expected


class RewardsAlone(CountingTask):
    has_success = False


def test_an_environment_that_does_not_judge_has_no_success() -> None:
    results = rollout(Recorder(), RewardsAlone, [3, 12])
    assert [(one.success, one.held, one.steps) for one in results] == [(None, None, 6)] * 2
    found = report(results)
    assert found["success"] is found["success_at_end"] is found["closest_distance"] is None
    assert found["return"]["value"] == means(results)["return"] == np.mean([one.total_reward for one in results])
    assert "success" not in means(results)


GOAL_SEEDS = [episode_seed(3, 2, number) for number in range(6)]


class Still(Straight):
    """Stays where it is."""

    def act(self, observation: Mapping[str, Array], *, rows: Sequence[int], explore: bool = False) -> Array:
        return np.zeros_like(observation["desired_goal"])


def _run(actor: Straight, count: int, episodes: int = 6) -> list[EpisodeResult]:
    return rollout(actor, make_point, GOAL_SEEDS[:episodes], envs=count, processes=count > 1)


def test_an_agent_that_goes_straight_arrives_and_stays() -> None:
    for result in _run(Straight(), 1):
        assert result.success
        assert result.held
        assert result.closest_distance is not None
        assert result.closest_distance < 1e-6
        assert result.steps_to_success is not None
        assert result.steps_to_success < result.steps == STEPS
        assert result.total_reward == 1 - result.steps_to_success  # -1 a step until it is there, and it stays


def test_an_agent_that_stays_keeps_the_first_distance() -> None:
    results = _run(Still(), 1)
    for result in results:
        assert result.closest_distance == result.last_distance
        assert result.success == (result.steps_to_success is not None)
    assert means(results)["success"] == np.mean([bool(result.success) for result in results])


def test_episodes_do_not_depend_on_the_number_of_environments() -> None:
    one, two = _run(Still(), 1, 5), _run(Still(), 2, 5)
    assert one == two
    assert [result.seed for result in one] == GOAL_SEEDS[:5]


def test_the_report_carries_intervals_within_0_and_1() -> None:
    found = report(_run(Straight(), 2, 4))
    assert found["success"] == found["success_at_end"]
    assert (found["success"]["n"], found["success"]["method"]) == (4, "Wilson")
    assert 0 < found["success"]["low"] < 1 == found["success"]["high"]
    assert found["closest_distance"]["low"] <= found["closest_distance"]["value"] <= found["closest_distance"]["high"]


def test_an_episode_whose_process_dies_has_failed() -> None:
    """One in ten may; the others are what they are."""
    doomed = GOAL_SEEDS[2]

    class Doomed(PointEnv):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
            self._lose = "refuse" if seed == doomed else ""
            return super().reset(seed=seed)

    seeds = [episode_seed(3, 2, number) for number in range(10)]
    found, expected = rollout(Straight(), Doomed, seeds, envs=3), rollout(Straight(), make_point, seeds, envs=3)
    assert [one for one in found if one.seed != doomed] == [one for one in expected if one.seed != doomed]
    assert (found[2].success, found[2].held, found[2].steps) == (False, False, 2)
    assert "expected finite numbers" in str(found[2].error)
    assert report(found)["simulator_errors"] == 1


def test_simulators_that_often_die_end_the_rollout() -> None:
    with pytest.raises(BadInputError, match=r"1 of 4 episodes in which .* failed; the first: its process died"):
        rollout(Straight(), make_dying, GOAL_SEEDS[:4], envs=2, processes=True)


def test_tasks_take_turns_in_the_seeds_of_an_evaluation() -> None:
    seeds = evaluation_seeds(3, 2, 12, tasks=5)
    assert [seed % 5 for seed in seeds] == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
    assert len(set(seeds)) == 12
    assert evaluation_seeds(3, 2, 12) == [episode_seed(3, 2, number) for number in range(12)]


def test_streams_of_seeds_never_meet() -> None:
    seeds = {
        episode_seed(seed, stream, number, row)
        for seed in range(3)
        for stream in range(3)
        for number in range(20)
        for row in range(4)
    }
    assert len(seeds) == 3 * 3 * 20 * 4
