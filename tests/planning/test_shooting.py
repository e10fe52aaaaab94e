from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from counterpoint.config import validate
from counterpoint.data.episode import Array
from counterpoint.errors import BadInputError
from counterpoint.planning import CEM, MPPI, CEMConfig, MPPIConfig

SECONDS, STEPS = 0.1, 30
# x' = A x + B u: position and velocity in two dimensions, an acceleration each.
A = np.kron([[1.0, SECONDS], [0.0, 1.0]], np.eye(2))
B = np.kron([[SECONDS**2 / 2], [SECONDS]], np.eye(2))
Q, R = np.diag([1.0, 1.0, 0.1, 0.1]), 0.5 * np.eye(2)
START = np.array([1.0, -0.5, 0.0, 0.3])


def costs(state: Array, plans: Array) -> Array:
    """Sum of x' Q x + u' R u over plans [N, H, 2]."""
    states, total = np.repeat(state[None], len(plans), 0), np.zeros(len(plans))
    for actions in plans.transpose(1, 0, 2):
        states = states @ A.T + actions @ B.T
        total += np.einsum("ni,ij,nj->n", states, Q, states) + np.einsum("ni,ij,nj->n", actions, R, actions)
    return total


def optimum(state: Array, steps: int) -> float:
    """The least cost of so many steps, by Riccati's recursion."""
    ahead = np.zeros((4, 4))
    for _ in range(steps):
        cost = Q + ahead
        gain = np.linalg.solve(R + B.T @ cost @ B, B.T @ cost @ A)
        ahead = A.T @ cost @ (A - B @ gain)
    return float(state @ ahead @ state)


def spent(planner: Any, chosen: list[Array]) -> float:
    return float(costs(START, np.array(chosen)[None])[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda score: MPPI(
            score, 2, MPPIConfig(horizon=STEPS, samples=128, rounds=12, knots=8, noise=0.3, temperature=0.03), -3, 3
        ),
        lambda score: CEM(score, 2, CEMConfig(horizon=STEPS, samples=256, rounds=8, elites=16, knots=8), -3, 3),
    ],
    ids=["mppi", "cem"],
)
def test_a_point_mass_is_brought_to_rest_at_nearly_the_least_cost(make: Any) -> None:
    state = START.copy()
    planner = make(lambda plans: -costs(state, plans))
    planner.reset(0)
    chosen = []
    for _ in range(STEPS):
        chosen.append(planner.act())
        state[:] = A @ state + B @ chosen[-1]
    assert optimum(START, STEPS) / spent(planner, chosen) > 0.95


PLANNERS = pytest.mark.parametrize(
    "make",
    [
        lambda score, **bounds: MPPI(score, 2, MPPIConfig(horizon=5, samples=8, knots=3), **bounds),
        lambda score, **bounds: CEM(score, 2, CEMConfig(horizon=5, samples=8, elites=3, knots=3, rounds=2), **bounds),
    ],
    ids=["mppi", "cem"],
)


@PLANNERS
def test_plans_keep_within_bounds_and_the_seed_decides_them(make: Any) -> None:
    seen: list[Array] = []

    def score(plans: Array) -> Array:
        seen.append(plans)
        total: Array = plans[:, :, 0].sum(1)
        return total

    planner = make(score, low=[-0.1, 2.0], high=[0.3, 2.5])
    first = [planner.act() for _ in range(3)]
    plans = np.concatenate(seen)
    assert (plans >= [-0.1, 2.0]).all()
    assert (plans <= [0.3, 2.5]).all()
    assert first[-1].dtype == np.float32
    assert first[-1][0] > 0.15  # towards what scores well
    planner.reset(0)
    np.testing.assert_array_equal(first, [planner.act() for _ in range(3)])
    planner.reset(1)
    assert not np.array_equal(first[0], planner.act())


@PLANNERS
def test_a_warm_start_is_the_first_plan_and_its_last_action_is_repeated(make: Any) -> None:
    seen: list[Array] = []

    def score(plans: Array) -> Array:
        seen.append(plans)
        return np.zeros(len(plans))

    planner = make(score)
    planner.reset(0, np.array([[0.1, 0.2], [0.3, 5.0]]))
    planner.act()
    np.testing.assert_array_equal(seen[0][0], [[0.1, 0.2], *[[0.3, 1.0]] * 4])  # 5.0 is out of bounds
    planner.reset(0, np.full((9, 2), 0.5))
    assert planner.plan.shape == (5, 2)
    planner.reset(0)
    np.testing.assert_array_equal(planner.plan, np.zeros((5, 2)))


@PLANNERS
def test_bad_input(make: Any) -> None:
    with pytest.raises(BadInputError, match="low: found 1, not below 1"):
        make(lambda plans: np.zeros(len(plans)), low=1, high=1)
    with pytest.raises(BadInputError, match="8 finite numbers"):
        make(lambda plans: np.zeros(3)).act()
    with pytest.raises(BadInputError, match="not finite"):
        make(lambda plans: np.full(len(plans), np.nan)).act()
    planner = make(lambda plans: np.zeros(len(plans)))
    for plan in (np.zeros((0, 2)), np.zeros((3, 4)), np.zeros(2)):
        with pytest.raises(BadInputError, match="give a plan of this action space"):
            planner.reset(0, plan)


def test_there_are_no_more_elites_than_samples() -> None:
    with pytest.raises(BadInputError, match="elites = 9 are more than the 8 samples"):
        validate(CEMConfig, {"samples": 8, "elites": 9}, "planner")
