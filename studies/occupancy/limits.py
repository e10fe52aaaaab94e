"""Errors of the tables to which the methods converge on a data set, in closed form.

- Monte Carlo's table is the empirical share of each s+ among the draws that start at (s, a), under the rule for
  the end of an episode (`studies.occupancy.data`).
- Every temporal difference method, including the successor representation, converges to the fixed point of the
  empirical chain: M = (1 - gamma) T' + gamma T M. T[(s, a), (s', a')] is the empirical share of each (s', a') after
  (s, a), and T' its sum over a'. This is SARSA's fixed point: if the known policy replaced the data's actions, a
  deterministic grid would leave no error.

A pair (s, a) that is not in the data gets the marginal of states.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from studies.occupancy.data import TAILS, Counted, conditional

LIMITS = ("temporal_difference", *(f"monte_carlo_{tail}" for tail in TAILS))

Reals = NDArray[np.float64]


def monte_carlo_limit(data: Counted, tail: str) -> Float[Reals, "P S"]:
    """Return the occupancy of all Monte Carlo draws of a data set, under a rule for the end of an episode."""
    return conditional(data.futures[tail], data.marginal())


def temporal_difference_limit(data: Counted, discount: float) -> Float[Reals, "P S"]:
    """Return the fixed point of the empirical chain of pairs."""
    P = data.pairs
    seen = data.successors.sum(axis=1) > 0
    T = conditional(data.successors.astype(np.float64), np.zeros(P))
    reached = T @ np.eye(data.states)[data.pair_states]
    # A pair never seen is no step of the chain: its row is held at the marginal instead.
    constant = np.where(seen[:, None], (1 - discount) * reached, data.marginal())
    return np.asarray(np.linalg.solve(np.eye(P) - discount * T, constant), dtype=np.float64)


def limit_errors(data: Counted, truth: Float[Reals, "P S"], discount: float) -> dict[str, float]:
    """Return the mean |p_hat - p| of each limit, keyed by the names in `LIMITS`."""
    found = {"temporal_difference": temporal_difference_limit(data, discount)}
    for tail in TAILS:
        found[f"monte_carlo_{tail}"] = monte_carlo_limit(data, tail)
    return {name: float(np.abs(table - truth).mean()) for name, table in found.items()}
