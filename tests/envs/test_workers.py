from __future__ import annotations

import numpy as np
import pytest

from counterpoint.envs.vector import EnvWorkers, WorkerLostError
from counterpoint.errors import BadInputError
from tests.agents.point_env import (
    CONFIG,
    make_dead_on_arrival,
    make_dying,
    make_hanging,
    make_point,
    make_refusing,
    make_speechless,
)

RIGHT = np.tile(np.array([1.0, 0.0], np.float32), (2, 1))


def _three_steps(workers: EnvWorkers) -> None:
    for _ in range(3):
        workers.begin(RIGHT)
        workers.finish()


def _reset_and_three_steps(workers: EnvWorkers) -> None:
    workers.reset([0, 1])
    _three_steps(workers)


def test_one_here_and_two_in_workers_see_the_same() -> None:
    with EnvWorkers(CONFIG, 1, make=make_point) as one, EnvWorkers(CONFIG, 2, make=make_point) as two:
        first, second = one.reset([7]), two.reset([7, 8])
        np.testing.assert_array_equal(first["observation"][0], second["observation"][0])
        one.begin(RIGHT[:1])
        two.begin(RIGHT)
        a, b = one.finish(), two.finish()
    np.testing.assert_array_equal(a.observations["observation"][0], b.observations["observation"][0])
    assert a.distance[0] == b.distance[0]
    assert b.observations["observation"].shape == (2, 2)
    assert not b.truncated.any()


def test_a_dead_worker_is_told_and_can_be_started_again() -> None:
    with EnvWorkers(CONFIG, 2, make=make_dying) as workers:
        for _ in range(2):
            workers.reset([0, 1])
            with pytest.raises(WorkerLostError, match=r"environment worker \d died"):
                _three_steps(workers)


def test_a_hanging_worker_is_told_and_can_be_started_again() -> None:
    with EnvWorkers(CONFIG, 2, make=make_hanging) as workers:
        patience = workers._timeout
        for _ in range(2):
            workers._timeout = patience
            workers.reset([0, 1])
            workers._timeout = 1.5  # of steps alone: how long a worker takes to start is the machine's affair
            with pytest.raises(WorkerLostError, match="did not answer"):
                _three_steps(workers)


def test_a_worker_whose_death_is_not_known_yet_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pipe closes a moment before the system says that it has ended."""
    monkeypatch.setattr(EnvWorkers, "_dead", lambda self, patience: [])
    with EnvWorkers(CONFIG, 2, make=make_dying) as workers:
        workers.reset([0, 1])
        with pytest.raises(WorkerLostError, match="an environment worker died"):
            _three_steps(workers)


def test_what_a_worker_raises_arrives_as_it_was_raised() -> None:
    with EnvWorkers(CONFIG, 2, make=make_refusing) as workers:
        workers.reset([0, 1])
        with pytest.raises(BadInputError, match="expected finite numbers"):
            _three_steps(workers)


@pytest.mark.parametrize("make", [make_dead_on_arrival, make_speechless])
def test_a_worker_that_dies_at_birth_or_cannot_say_why_is_told(make: object) -> None:
    with (
        EnvWorkers(CONFIG, 2, make=make) as workers,  # type: ignore[arg-type]
        pytest.raises(WorkerLostError),
    ):
        _reset_and_three_steps(workers)
