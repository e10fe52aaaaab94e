"""Episodes whose every number tells where it comes from, and a plain-list model of the ring."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from counterpoint.data.episode import GoalEpisode, Spaces
from counterpoint.data.replay import ReplayBuffer
from counterpoint.data.spec import TRANSITION_READS, Spec
from counterpoint.data.transitions import Tail
from tests.data.sampling import sampler

SPACES = Spaces(observation=(3,), goal=(2,), action=2)
GENEROUS = Spec.transitions(TRANSITION_READS, discount=0.7)


def spec(tail: Tail = "renormalise", sequence: int = 0, discount: float = 0.7) -> Spec:
    return Spec.transitions(TRANSITION_READS, discount=discount, tail=tail, sequence=sequence)


def made(number: int, T: int, **changes: Any) -> GoalEpisode:
    """observation (number, step, -step); goal (number, step); action (step / 1000, number / 1000); reward step + 1."""
    steps = np.arange(T + 1, dtype=np.float32)
    episode = np.full(T + 1, number, np.float32)
    parts: dict[str, Any] = {
        "observations": np.stack([episode, steps, -steps], 1),
        "achieved": np.stack([episode, steps], 1),
        "commanded": np.array([number, -1], np.float32),
        "actions": np.stack([steps[:-1], episode[:-1]], 1) / 1000,
        "rewards": steps[1:],
    }
    return GoalEpisode(**parts | changes, terminated=number % 2 == 1)


def add(buffer: ReplayBuffer, number: int, T: int) -> None:
    """Episode `number`; those of odd number are terminated."""
    buffer.append(made(number, T))


def sample(buffer: ReplayBuffer, spec: Spec = GENEROUS, count: int = 64, step: int = 0) -> dict[str, Tensor]:
    return sampler(buffer, spec, batch_size=count, seed=7)[step]


def batches(buffer: ReplayBuffer, count: int = 5, **kind: Any) -> list[dict[str, NDArray[Any]]]:
    steps = (sample(buffer, spec(**kind), step=step) for step in range(count))
    return [{key: value.numpy() for key, value in batch.items()} for batch in steps]


def same(a: list[dict[str, NDArray[Any]]], b: list[dict[str, NDArray[Any]]]) -> bool:
    return all(
        x.keys() == y.keys() and all(np.array_equal(x[key], y[key]) for key in x) for x, y in zip(a, b, strict=True)
    )
