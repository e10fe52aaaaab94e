"""The samplers' draws, to the bit: these digests change only with a line in the CHANGELOG."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from counterpoint.data.anchors import NearNegatives
from counterpoint.data.augment import Jitter, ResizedCrop, Transform
from counterpoint.data.draws import GoalTransition, Pick, R3MFrames, SortedFrames, SortedUniform, StartGoal
from counterpoint.data.replay import ReplayBuffer
from counterpoint.data.spec import TRANSITION_READS, Spec
from counterpoint.data.transitions import Tail
from tests.data.numbered import numbered_store
from tests.data.replay_made import SPACES, add
from tests.data.sampling import sampler

STORE = numbered_store([3, 5, 9, 30, 4, 12, 7])


def digest(batches: Iterable[Mapping[str, Any]]) -> str:
    found = hashlib.sha256()
    for batch in batches:
        for key in sorted(batch):
            value = batch[key]
            found.update(key.encode())
            if isinstance(value, torch.Tensor):
                array = np.ascontiguousarray(value.numpy())
                found.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
            else:
                found.update(repr(list(value)).encode())
    return found.hexdigest()[:16]


@pytest.mark.parametrize(
    ("pick", "transforms", "unique", "expected"),
    [
        (StartGoal(), {}, False, "96a499d48a64ec2a"),
        (StartGoal(3), {"frames.crop": ResizedCrop(), "frames.jitter": Jitter(0.3)}, True, "075d7d4416042c4b"),
        (SortedUniform(2), {}, False, "d3e4da44c06263c0"),
        (SortedFrames(10), {}, False, "a50246a528c72a99"),
        (GoalTransition(), {}, False, "ad081dadb938e425"),
        (R3MFrames(), {}, False, "16363eb106671ccf"),
    ],
)
def test_clips(pick: Pick, transforms: dict[str, Transform], unique: bool, expected: str) -> None:
    spec = Spec.clips(pick, per_instruction=unique, transforms=transforms)
    loader = sampler(STORE, spec, batch_size=4, seed=3)
    assert digest(loader[step] for step in range(6)) == expected


@pytest.mark.parametrize(
    ("spec", "balance", "expected"),
    [
        (
            Spec.steps((0, 3), 3, NearNegatives(5), stack=1, shift=4, rewards=True, state=True),
            "steps",
            "c753e4b156030c08",
        ),
        (Spec.steps((0, 1), 1, NearNegatives(1), stack=1), "steps", "68e8b238d6b56d6b"),
        (
            Spec.steps((-1, 0), 16, past_end=14, first_action=-1, stack=1, crop=2, state=True),
            "steps",
            "61cad213d57420bf",
        ),
        (Spec.steps((0, 2), 2, NearNegatives(5), shift=1, shift_together=True), "tasks", "b5487ca560745d07"),
    ],
)
def test_steps(spec: Spec, balance: Any, expected: str) -> None:
    loader = sampler(STORE, spec.with_index(balance=balance), batch_size=8, seed=3)
    assert digest(loader[step] for step in range(6)) == expected


@pytest.mark.parametrize(
    ("tail", "discount", "sequence", "expected"),
    [
        ("renormalise", 0.9, 0, "28f439226e2866b3"),
        ("clip", 0.9, 0, "d9922b4fa843bd73"),
        ("reject", 0.9, 0, "fd882ab4de6b25ec"),
        ("renormalise", 0.9, 4, "0c750a0bed4347c0"),
    ],
)
def test_goals(tail: Tail, discount: float, sequence: int, expected: str) -> None:
    buffer = ReplayBuffer(SPACES, capacity=100)
    for number, length in enumerate([1, 2, 5, 6, 30]):
        add(buffer, number, length)
    spec = Spec.transitions(TRANSITION_READS, discount=discount, tail=tail, sequence=sequence)
    drawn = (sampler(buffer, spec, batch_size=16, seed=3)[step] for step in range(6))
    assert digest(drawn) == expected
