from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from counterpoint.envs.vector import Failed, Step, VectorEnv, stacked
from counterpoint.errors import BadInputError
from tests.agents.point_env import (
    PointEnv,
    make_dead_on_arrival,
    make_dying,
    make_hanging,
    make_point,
    make_refusing,
    make_speechless,
)
from tests.marks import quick

RIGHT = np.array([1.0, 0.0], np.float32)


def answers(envs: VectorEnv, rows: list[int], seeds: list[int], steps: int = 3) -> list[dict[int, Step | Failed]]:
    """What follows a reset and some steps to the right."""
    envs.reset(rows, seeds)
    found = [envs.receive()]
    for _ in range(steps):
        envs.send(rows, np.tile(RIGHT, (len(rows), 1)))
        found.append(envs.receive())
    return found


def numbers(answer: Step | Failed) -> tuple[Any, ...]:
    assert isinstance(answer, Step)
    seen = tuple(tuple(value.tolist()) for value in answer.observation.values())
    return (*seen, answer.reward, answer.terminated, answer.truncated, dict(answer.info))


def test_rows_here_and_apart_answer_alike_to_the_bit() -> None:
    with VectorEnv(make_point, 1) as one, VectorEnv(make_point, 2, processes=True) as two:
        here, apart = answers(one, [0], [7], 10), answers(two, [0, 1], [8, 7], 10)
    for alone, both in zip(here, apart, strict=True):
        assert numbers(alone[0]) == numbers(both[1]) != numbers(both[0])
    last = here[-1][0]
    assert isinstance(last, Step)
    assert (last.over, last.terminated, last.truncated) == (True, False, True)


@pytest.mark.parametrize("processes", quick([False], [False, True]))
def test_rows_reset_and_step_alone(processes: bool) -> None:
    with VectorEnv(make_point, 3, processes=processes) as envs:
        first = answers(envs, [2], [5])
        both = answers(envs, [0, 2], [5, 6])
        envs.reset([1], [5])
        envs.send([0], RIGHT[None])
        mixed = envs.receive()
    assert [numbers(answer[2]) for answer in first] == [numbers(answer[0]) for answer in both]
    assert sorted(mixed) == [0, 1]
    assert numbers(mixed[1]) == numbers(first[0][2])
    assert envs.receive() == {}


def test_observations_are_stacked_by_key() -> None:
    with VectorEnv(make_point, 2) as envs:
        steps = [answer for answer in answers(envs, [0, 1], [1, 2])[-1].values() if isinstance(answer, Step)]
    found = stacked(steps)
    assert {key: value.shape for key, value in found.items()} == dict.fromkeys(steps[0].observation, (2, 2))
    np.testing.assert_array_equal(found["achieved_goal"][1], steps[1].observation["achieved_goal"])


@pytest.mark.parametrize(
    ("make", "processes", "reason"),
    [
        (make_dying, True, "its process died"),
        pytest.param(make_refusing, True, "action: found NaN; expected finite numbers", marks=pytest.mark.slow),
        (make_refusing, False, "action: found NaN; expected finite numbers"),
        pytest.param(make_speechless, True, "SpeechlessError", marks=pytest.mark.slow),  # which cannot be pickled
        pytest.param(make_hanging, True, "did not answer in time", marks=pytest.mark.slow),
    ],
)
def test_a_row_that_fails_says_so_and_begins_again(make: Callable[[], PointEnv], processes: bool, reason: str) -> None:
    with VectorEnv(make, 2, processes=processes) as envs:
        for _ in range(2):
            envs.timeout = 60.0
            envs.reset([0, 1], [0, 1])
            assert all(isinstance(answer, Step) for answer in envs.receive().values())
            envs.timeout = 1.5  # of steps alone: how long a process takes to start is the machine's affair
            for _ in range(2):
                envs.send([0, 1], np.tile(RIGHT, (2, 1)))
                assert all(isinstance(answer, Step) for answer in envs.receive().values())
            envs.send([1], RIGHT[None])
            (failed,) = envs.receive().values()
            assert isinstance(failed, Failed)
            assert reason in failed.reason


@pytest.mark.slow
def test_a_failed_row_leaves_its_neighbours_alone() -> None:
    with VectorEnv(make_dying, 2, processes=True) as envs:
        answers(envs, [0, 1], [0, 1], 2)
        envs.send([0], RIGHT[None])
        assert isinstance(envs.receive()[0], Failed)
        envs.reset([0], [0])
        assert isinstance(envs.receive()[0], Step)
        envs.send([0], RIGHT[None])
        assert isinstance(envs.receive()[0], Step)


def test_a_process_that_dies_at_birth_has_failed() -> None:
    with VectorEnv(make_dead_on_arrival, 1, processes=True) as envs:
        envs.reset([0], [0])
        assert isinstance(envs.receive()[0], Failed)


@pytest.mark.parametrize(
    ("error", "apart"), [(BadInputError("it", "a", "b", "c"), BadInputError), (OSError("no"), RuntimeError)]
)
def test_what_cannot_be_built_raises(error: Exception, apart: type[Exception]) -> None:
    def refuse() -> PointEnv:
        raise error

    with VectorEnv(refuse, 1) as envs, pytest.raises(type(error)):
        envs.reset([0], [0])
    with VectorEnv(refuse, 1, processes=True) as envs:
        envs.reset([0], [0])
        with pytest.raises(apart, match=str(error)):
            envs.receive()


def test_images_that_nobody_looks_at_are_not_rendered() -> None:
    class Looked(PointEnv):
        look = True
        looks: tuple[bool, ...] = ()

        def _seen(self) -> dict[str, Any]:
            Looked.looks = (*Looked.looks, self.look)
            return super()._seen()

    with VectorEnv(Looked, 1) as envs:
        envs.reset([0], [0])
        envs.receive()
        for look in (True, False, False):
            envs.send([0], RIGHT[None], [look])
            envs.receive()
        envs.reset([0], [0])
        envs.receive()
    assert Looked.looks == (True, True, False, False, True)


def test_no_environment_is_refused() -> None:
    with pytest.raises(BadInputError, match="1 or more"):
        VectorEnv(make_point, 0)
