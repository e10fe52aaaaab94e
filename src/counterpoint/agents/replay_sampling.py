"""One batch: which transitions, futures and random states, and their rows gathered."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoint.agents.replay_episodes import EpisodeTable
from counterpoint.agents.replay_storage import Rows
from counterpoint.data.goals import GoalDraws, GoalSpec, future_offsets
from counterpoint.data.sampling import sample_rng

__all__ = ["batch_rng", "draw_batch"]

Integers = NDArray[np.int64]


def batch_rng(seed: int, step: int) -> np.random.Generator:
    """The random stream of batch number `step`: a pure function of both arguments."""
    return sample_rng(seed, step, "replay batch")


def draw_batch(
    rows: Rows,
    table: EpisodeTable,
    draws: GoalDraws,
    goal: str,
    batch_size: int,
    rng: np.random.Generator,
    spec: GoalSpec,
) -> dict[str, Tensor]:
    """Draw and gather what `spec` asks for.

    Args:
        rows: What is stored; an episode lies there as `counterpoint.agents.replay` draws it.
        table: The episodes that may be drawn from.
        draws: Draws over their lengths.
        goal: The column that holds goal coordinates.
        batch_size: B.
        rng: Where every random number comes from.
        spec: The keys and the distribution of futures.
    """
    start, keys = table["start"], spec.keys
    episode, step = draws.transitions(batch_size, rng, discount=spec.discount, tail=spec.tail)
    length = draws.lengths[episode]
    row = start[episode] + step
    places: dict[str, tuple[str, Integers]] = {
        "observation": ("observation", row),
        "action": ("action", row),
        "next_observation": ("observation", row + 1),
        "next_goal": (goal, row + 1),
        "goal": (goal, start[episode] + length + 1),
        "reward": ("reward", row),
    }
    batch: dict[str, NDArray[Any]] = {}
    if keys & {"future_goal", "future_offset"}:
        batch["future_offset"] = future_offsets(length - step, spec.discount, spec.tail, rng)
        places["future_goal"] = (goal, row + batch["future_offset"])
    if "random_goal" in keys:
        other, at = draws.states(batch_size, rng)
        places["random_goal"] = (goal, start[other] + at)
    if "terminated" in keys:
        batch["terminated"] = (table["terminated"][episode] == 1) & (step == length - 1)
    batch |= {key: rows.gather(*place) for key, place in places.items() if key in keys}
    batch = {key: value for key, value in batch.items() if key in keys}
    if spec.sequence:
        batch |= _sequences(rows, row, step, spec.sequence)
    return {key: torch.from_numpy(value) for key, value in batch.items()}


def _sequences(rows: Rows, row: Integers, step: Integers, length: int) -> dict[str, NDArray[Any]]:
    """The `length` steps that end at each transition; on the left step 0 is repeated."""
    wanted = step[:, None] - np.arange(length - 1, -1, -1)
    steps = np.maximum(wanted, 0)
    places = (row - step)[:, None] + steps
    return {
        "sequence_observation": rows.gather("observation", places),
        "sequence_action": rows.gather("action", places),
        "sequence_return": rows.gather("return", places),
        "sequence_step": steps,
        "sequence_valid": wanted >= 0,
    }
