"""What the three loaders draw, to the bit: these digests change only with a line in the CHANGELOG."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from counterpoint.data.draws import (
    BATCH_KEYS,
    GoalSpec,
    GoalTransition,
    R3MFrames,
    SortedFrames,
    SortedUniform,
    StartGoal,
    Tail,
)
from counterpoint.data.replay import ReplayBuffer, batch_rng
from counterpoint.data.sampler import Loader, NStepLoader
from counterpoint.data.spec import Augment, Draw, Key, NearNegatives, NStepSpec, Spec
from tests.agents.replay_episodes_made import SPACES, add
from tests.data.numbered import numbered_store

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
    ("draw", "augment", "unique", "expected"),
    [
        (StartGoal(), None, False, "e281688f0b906b4a"),
        (StartGoal(3), Augment(jitter=0.3), True, "19ad0a2ced81f423"),
        (SortedUniform(2), None, False, "7eb41cca1c9f7ab6"),
        (SortedFrames(10), None, False, "040e23e892c752be"),
        (GoalTransition(), None, False, "6662f34a304d2e08"),
        (R3MFrames(), None, False, "31288926500142dd"),
    ],
)
def test_clips(draw: Draw, augment: Augment | None, unique: bool, expected: str) -> None:
    spec = Spec({"clip": draw}, {"frames": Key("frames", "clip")}, unique, augment)
    loader = Loader(STORE, spec, batch_size=4, seed=3)
    assert digest(loader[step] for step in range(6)) == expected


@pytest.mark.parametrize(
    ("spec", "balance", "expected"),
    [
        (
            NStepSpec((0, 3), 3, NearNegatives(5), stack=1, shift=4, rewards=True, state=True),
            "steps",
            "c753e4b156030c08",
        ),
        (NStepSpec((0, 1), 1, NearNegatives(1), stack=1), "steps", "68e8b238d6b56d6b"),
        (
            NStepSpec((-1, 0), 16, past_end=14, first_action=-1, stack=1, crop=2, state=True),
            "steps",
            "61cad213d57420bf",
        ),
        (NStepSpec((0, 2), 2, NearNegatives(5), shift=1, shift_together=True), "tasks", "b5487ca560745d07"),
    ],
)
def test_steps(spec: NStepSpec, balance: Any, expected: str) -> None:
    loader = NStepLoader(STORE, spec, batch_size=8, seed=3, balance=balance)
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
    spec = GoalSpec(frozenset(BATCH_KEYS), discount=discount, tail=tail, sequence=sequence)
    drawn = (buffer.sample(16, batch_rng(3, step), spec) for step in range(6))
    assert digest(drawn) == expected
