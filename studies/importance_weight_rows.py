"""The effect of the factor N in TD InfoNCE's printed weights, by exact iteration on a random 25-state chain.

    python -m studies.importance_weight_rows --out runs/importance_weight_rows

Algorithm 1 and Eq. 17 print W = N softmax; the authors' code drops the N. With rows of W that sum to m, the loss
(1 - gamma) CE(F, s') + gamma CE(F, W) is minimal if softmax(F) is proportional to its labels. One exact step from the
occupancy C is therefore C <- ((1 - gamma) P + gamma m P C) / (1 - gamma + gamma m). For each m, this step is iterated
from the uniform distribution until nothing changes. The result is compared (mean absolute difference over all pairs of
states) with the true occupancy (1 - gamma) P (I - gamma P)^-1, and with the occupancy under the discount
gamma' = gamma m / (1 - gamma + gamma m).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from counterpoint.config import FrozenConfig
from studies.harness import Study, Tree, Trial, main

Array = NDArray[np.float64]


class ImportanceWeightRowsConfig(FrozenConfig):
    """Chains and row sums.

    Attributes:
        states: Number of states of a chain.
        row_sums: Sums m of the rows of W.
        discount: The discount, gamma.
        seeds: Number of chains.
        processes: Number of trials that run in parallel.
    """

    states: PositiveInt = 25
    row_sums: tuple[int, ...] = (1, 2, 16, 256)
    discount: float = Field(default=0.9, gt=0, lt=1)
    seeds: PositiveInt = 5
    processes: PositiveInt = 1


def importance_weight_rows_study(config: ImportanceWeightRowsConfig, out: Path) -> Tree:
    """Iterate with every row sum and write `importance_weight_rows.json` and `results.parquet`."""
    study = Study("rows of importance weights", out, config)
    study.run([Trial(f"{m}", partial(measure, config, m), about={"row_sum": m}) for m in config.row_sums])
    return study.finish("importance_weight_rows", {"rows": study.rows()})


def measure(config: ImportanceWeightRowsConfig, row_sum: int) -> Tree:
    """Return both errors, means over chains, and the effective discount."""
    discount, errors = config.discount, []
    effective = discount * row_sum / (1 - discount + discount * row_sum)
    for seed in range(config.seeds):
        moves = random_chain(config.states, seed)
        end = exact_iteration(moves, discount, row_sum)
        errors.append([np.abs(end - true_occupancy(moves, gamma)).mean() for gamma in (discount, effective)])
    of_true, of_effective = map(float, np.mean(errors, axis=0))
    errors_found = {"error": of_true, "error_to_occupancy_of_effective_discount": of_effective}
    return {"effective_discount": effective, **errors_found}


def random_chain(states: int, seed: int) -> Array:
    """Return transition probabilities whose rows are uneven: fourth powers of uniform numbers, normalised."""
    moves = np.random.default_rng(seed).random((states, states)) ** 4
    return np.asarray(moves / moves.sum(1, keepdims=True))


def true_occupancy(moves: Array, discount: float) -> Array:
    """Return the discounted occupancy in closed form."""
    return np.asarray((1 - discount) * moves @ np.linalg.inv(np.eye(len(moves)) - discount * moves))


def exact_iteration(moves: Array, discount: float, row_sum: float, *, tolerance: float = 1e-11) -> Array:
    """Return the fixed point of TD InfoNCE with rows of W that sum to `row_sum`.

    Args:
        moves: p(s' | s).
        discount: gamma.
        row_sum: m.
        tolerance: Maximum change of an entry at which iteration stops.
    """
    occupancy = np.full(moves.shape, 1 / len(moves))
    while True:
        labels = (1 - discount) * moves + discount * row_sum * moves @ occupancy
        moved = labels / labels.sum(1, keepdims=True)
        if np.abs(moved - occupancy).max() <= tolerance:
            return np.asarray(moved)
        occupancy = moved


if __name__ == "__main__":
    main("importance_weight_rows")
