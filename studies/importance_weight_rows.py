"""What the factor N of TD InfoNCE's printed weights does, by exact iteration on a random 25-state chain.

    python -m studies.importance_weight_rows [--out studies/results/importance_weight_rows.json]

Algorithm 1 and Eq. 17 print W = N softmax; the authors' code drops the N. With rows of W that sum to m, the loss
(1 - gamma) CE(F, s') + gamma CE(F, W) is least where softmax(F) is proportional to its labels, so that one exact step
from the occupancy C is C <- ((1 - gamma) P + gamma m P C) / (1 - gamma + gamma m). Each m is iterated from uniform
until it stands still, and compared (mean absolute difference over all pairs of states) with the true occupancy
(1 - gamma) P (I - gamma P)^-1 and with that of gamma' = gamma m / (1 - gamma + gamma m).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoint.provenance import provenance
from studies.harness import RESULTS

Array = NDArray[np.float64]
STATES, ROW_SUMS = 25, (1, 2, 16, 256)


def random_chain(states: int, seed: int) -> Array:
    """Transition probabilities with rows of uneven, fourth-power uniform entries."""
    moves = np.random.default_rng(seed).random((states, states)) ** 4
    return np.asarray(moves / moves.sum(1, keepdims=True))


def true_occupancy(moves: Array, discount: float) -> Array:
    """Closed form."""
    return np.asarray((1 - discount) * moves @ np.linalg.inv(np.eye(len(moves)) - discount * moves))


def exact_iteration(moves: Array, discount: float, row_sum: float, *, tolerance: float = 1e-11) -> Array:
    """Where TD InfoNCE with rows of W summing to `row_sum` ends.

    Args:
        moves: p(s' | s).
        discount: gamma.
        row_sum: m.
        tolerance: Greatest change of an entry that counts as standing still.
    """
    occupancy = np.full(moves.shape, 1 / len(moves))
    while True:
        labels = (1 - discount) * moves + discount * row_sum * moves @ occupancy
        moved = labels / labels.sum(1, keepdims=True)
        if np.abs(moved - occupancy).max() <= tolerance:
            return np.asarray(moved)
        occupancy = moved


def study(seeds: int, discount: float) -> list[dict[str, Any]]:
    """One entry a row sum: both errors, mean over chains, and the effective discount."""
    found = []
    for row_sum in ROW_SUMS:
        effective = discount * row_sum / (1 - discount + discount * row_sum)
        errors = []
        for seed in range(seeds):
            moves = random_chain(STATES, seed)
            end = exact_iteration(moves, discount, row_sum)
            errors.append([np.abs(end - true_occupancy(moves, gamma)).mean() for gamma in (discount, effective)])
        of_true, of_effective = np.mean(errors, axis=0)
        found.append(
            {
                "row_sum": row_sum,
                "effective_discount": effective,
                "error": float(of_true),
                "error_to_occupancy_of_effective_discount": float(of_effective),
            }
        )
    return found


def main() -> None:
    """Iterate, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--discount", type=float, default=0.9)
    parser.add_argument("--out", type=Path, default=RESULTS / "importance_weight_rows.json")
    arguments = parser.parse_args()
    found = {
        "command": "python -m studies.importance_weight_rows",
        "states": STATES,
        "discount": arguments.discount,
        "seeds": arguments.seeds,
        "rows": study(arguments.seeds, arguments.discount),
    }
    arguments.out.write_text(json.dumps(found | {"provenance": provenance()}, indent=1) + "\n")
    for row in found["rows"]:
        print({name: float(f"{value:.3g}") for name, value in row.items()})


if __name__ == "__main__":
    main()
