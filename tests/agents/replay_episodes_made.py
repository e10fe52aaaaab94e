"""Episodes whose every number tells where it comes from, and a plain-list model of the ring."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoint.data.draws import BATCH_KEYS, GoalSpec, Spaces, Tail
from counterpoint.data.replay import ReplayBuffer

SPACES = Spaces(observation=(3,), goal=(2,), action=2)
GENEROUS = GoalSpec(frozenset(BATCH_KEYS), discount=0.7)


def spec(tail: Tail = "renormalise", sequence: int = 0, discount: float = 0.7) -> GoalSpec:
    return GoalSpec(frozenset(BATCH_KEYS), discount=discount, tail=tail, sequence=sequence)


def arrays(number: int, T: int) -> dict[str, NDArray[Any]]:
    """observation (number, step, -step); goal (number, step); action (step / 1000, number / 1000); reward step + 1."""
    steps = np.arange(T + 1, dtype=np.float32)
    episode = np.full(T + 1, number, np.float32)
    return {
        "observations": np.stack([episode, steps, -steps], 1),
        "goals": np.stack([episode, steps], 1),
        "actions": np.stack([steps[:-1], episode[:-1]], 1) / 1000,
        "commanded": np.array([number, -1], np.float32),
        "rewards": steps[1:],
    }


def add(buffer: ReplayBuffer, number: int, T: int) -> None:
    """Episode `number`; those of odd number are terminated."""
    made = arrays(number, T)
    buffer.add_episode(
        made["observations"],
        made["actions"],
        made["goals"],
        commanded=made["commanded"],
        rewards=made["rewards"],
        terminated=number % 2 == 1,
    )


def batches(buffer: ReplayBuffer, count: int = 5, **kind: Any) -> list[dict[str, NDArray[Any]]]:
    rng = np.random.default_rng(7)
    return [{key: value.numpy() for key, value in buffer.sample(64, rng, spec(**kind)).items()} for _ in range(count)]


def same(a: list[dict[str, NDArray[Any]]], b: list[dict[str, NDArray[Any]]]) -> bool:
    return all(
        x.keys() == y.keys() and all(np.array_equal(x[key], y[key]) for key in x) for x, y in zip(a, b, strict=True)
    )
