"""What a batch must hold, as plain data: a `Spec` names draws (which steps) and keys (what to read there).

An objective returns a `Spec`; the loader serves it. Specs merge, so that a policy with an auxiliary loss asks for
both. Random numbers are keyed on (seed, global sample index, draw name): neither workers, ranks nor a merge change
a draw.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from counterpoint.errors import BadInputError

__all__ = ["Augment", "Draw", "Drawn", "Key", "Spec", "epoch_order", "sample_rng"]

Source = Literal["frames", "timestamps", "actions", "state"]


@dataclass(frozen=True)
class Drawn:
    """Steps drawn from one episode.

    Attributes:
        indices: int64 [F], each in [0, T-1].
        valid: bool [F]; False marks padding, whose index repeats a valid step.
    """

    indices: NDArray[np.int64]
    valid: NDArray[np.bool_]

    @classmethod
    def all_valid(cls, indices: NDArray[np.int64]) -> Drawn:
        """Steps without padding."""
        return cls(indices, np.ones(len(indices), dtype=np.bool_))


class Draw(Protocol):
    """A rule that picks F steps of an episode. Implementations are frozen dataclasses: plain data that compares."""

    @property
    def count(self) -> int:
        """F, how many steps each draw gives."""

    @property
    def min_length(self) -> int:
        """The shortest episode the rule is defined on."""

    def __call__(self, length: int, rng: np.random.Generator) -> Drawn:
        """Pick F steps of an episode of `length` steps."""


@dataclass(frozen=True)
class Key:
    """One tensor of the batch: `source` read at the steps of `draw`."""

    source: Source
    draw: str


@dataclass(frozen=True)
class Augment:
    """Random crop-and-resize, one crop a clip, and colour jitter, one a frame (0 switches it off).

    Attributes:
        scale: Least and greatest share of the image's area that the crop keeps.
        ratio: Least and greatest width / height of the crop.
        jitter: Strength of brightness, contrast and saturation changes, and a fifth of it as hue change.
    """

    scale: tuple[float, float] = (0.2, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    jitter: float = 0.0


@dataclass(frozen=True)
class Spec:
    """What an objective needs of each sample.

    Attributes:
        draws: Draw name -> rule.
        keys: Batch key -> what to read.
        unique_instructions: Take one clip of each distinct instruction an epoch, as the authors of DecisionNCE do.
        augment: Image augmentation of every `frames` key, or `None`.
    """

    draws: Mapping[str, Draw]
    keys: Mapping[str, Key]
    unique_instructions: bool = False
    augment: Augment | None = None

    def __post_init__(self) -> None:
        for name, key in self.keys.items():
            if key.draw not in self.draws:
                raise BadInputError(
                    f"key {name!r}",
                    found=f"draw {key.draw!r}",
                    expected=f"one of {sorted(self.draws)}",
                    mend="name a draw of the spec",
                )

    @property
    def min_length(self) -> int:
        """The shortest episode every draw is defined on."""
        return max((draw.min_length for draw in self.draws.values()), default=1)

    def merge(self, other: Spec) -> Spec:
        """Ask for both; the same name must mean the same thing in each.

        Raises:
            BadInputError: When a name stands for two different draws, keys or augmentations.
        """
        for mine, theirs in ((self.draws, other.draws), (self.keys, other.keys)):
            for name in mine.keys() & theirs.keys():
                if mine[name] != theirs[name]:
                    raise BadInputError(
                        f"spec name {name!r}",
                        found=f"{theirs[name]} beside {mine[name]}",
                        expected="one meaning a name",
                        mend="rename one of the two",
                    )
        if self.augment and other.augment and self.augment != other.augment:
            raise BadInputError(
                "spec augment",
                found=f"{other.augment} beside {self.augment}",
                expected="one augmentation",
                mend="make the two equal",
            )
        return Spec(
            draws={**self.draws, **other.draws},
            keys={**self.keys, **other.keys},
            unique_instructions=self.unique_instructions or other.unique_instructions,
            augment=self.augment or other.augment,
        )


def sample_rng(seed: int, sample: int, name: str) -> np.random.Generator:
    """The random stream of one draw of one sample: a pure function of its three arguments."""
    key = np.array([np.uint64(seed), np.uint64(sample)], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, zlib.crc32(name.encode())]))


def epoch_order(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The one global order of an epoch: a permutation of `count` items, a pure function of (seed, epoch)."""
    return sample_rng(seed, epoch, "epoch order").permutation(count)
