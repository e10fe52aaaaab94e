"""What a batch must hold, as plain data: a `Spec` names draws (which steps) and keys (what to read there).

An objective returns a `Spec`; the loader serves it. Specs merge, so that a policy with an auxiliary loss asks for
both. Random numbers are keyed on (seed, global sample index, draw name): neither workers, ranks nor a merge change
a draw.

What a transition batch must hold, as plain data: observations at offsets from a step, actions, near negatives.

Premier-TACO, TACO, ATC, SPR, inverse dynamics and cloning all ask for the same thing: an anchor step t of an episode,
observations at t + offset, the actions a_t ... a_{t+K-1}, and perhaps negatives from a window around s_{t+K}.
`NStepSpec` says it; `counterpoint.data.sampler.NStepLoader` serves it, a whole batch at a time.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from counterpoint.errors import BadInputError

__all__ = ["Augment", "Draw", "Drawn", "Key", "NStepSpec", "NearNegatives", "Spec", "epoch_order", "sample_rng"]


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
                    f"key {name!r}", f"draw {key.draw!r}", f"one of {sorted(self.draws)}", "name a draw of the spec"
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
                        f"{theirs[name]} beside {mine[name]}",
                        "one meaning a name",
                        "rename one of the two",
                    )
        if self.augment and other.augment and self.augment != other.augment:
            raise BadInputError(
                "spec augment", f"{other.augment} beside {self.augment}", "one augmentation", "make the two equal"
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


@dataclass(frozen=True)
class NearNegatives:
    """Negatives from the window around the positive s_{t+K} (Premier-TACO, section 3, Figure 3).

    The candidates are s_{t+K-W} ... s_{t+K+W} without s_{t+K}, as far as the episode reaches: the window is cut at
    its ends and never wraps (the authors' code takes early negatives from the episode's end).

    Attributes:
        window: W, in steps.
        exclude_anchor: Leave s_t out of the candidates. With K <= W the printed window contains it.
        every: Take all candidates (Appendix D, "sampling all") instead of one, uniformly.
    """

    window: int = 5
    exclude_anchor: bool = False
    every: bool = False

    @property
    def count(self) -> int:
        """N, negatives a sample."""
        return 2 * self.window if self.every else 1


@dataclass(frozen=True)
class NStepSpec:
    """What an objective needs of each sample.

    Attributes:
        offsets: Observations at t + offset, in order. A repeated offset is the same observation with a random shift
            of its own. Below the episode's first step the first is repeated and marked invalid.
        actions: K actions a_t ... a_{t+K-1}; 0 for none.
        near: Negatives around the observation at the last offset, appended to the observations.
        stack: S frames an observation, the steps before the first repeating it.
        shift: Random shift of each observation by up to so many pixels either way, with replicated edges; 0 for none.
        shift_together: One shift for all observations of a sample, instead of one each.
        crop: Side of a window cut out of each picture, in pixels; 0 for none. Its corner is uniform, one for each
            observation and camera, and the same for the picture's mask.
        masks: Also the robot's mask of each picture (`counterpoint.data.masks.robot`).
        first_action: Where the actions begin: a_{t+first_action}, of which there are K.
        past_end: How many steps the actions may reach past the episode's last one, which is then repeated and marked
            invalid. Before its first step the first action is.
        rewards: Also the rewards r_t ... r_{t+K-1}.
        state: Also the proprioception at each offset.
    """

    offsets: tuple[int, ...]
    actions: int
    near: NearNegatives | None = None
    stack: int = 3
    shift: int = 0
    shift_together: bool = False
    crop: int = 0
    masks: bool = False
    first_action: int = 0
    past_end: int = 0
    rewards: bool = False
    state: bool = False

    def __post_init__(self) -> None:
        if not self.offsets or self.stack < 1 or min(self.shift, self.actions, self.crop, self.past_end) < 0:
            raise BadInputError(
                "sampling",
                f"{self}",
                "at least one offset, one frame a stack, and no negative numbers",
                "correct the objective's settings",
            )
        if self.first_action and self.rewards:
            raise BadInputError(
                "sampling",
                f"rewards with actions that begin at t {self.first_action:+d}",
                "rewards r_t, r_{t+1}, ... beside actions a_t, a_{t+1}, ...",
                "ask for rewards in a spec of their own",
            )
        if self.near is not None and self.near.window < 1:
            raise BadInputError("window", f"{self.near.window}", "1 or more", "5 is the paper's")
        if self.near is not None and self.offsets[-1] < 0:
            raise BadInputError(
                "offsets",
                f"{self.offsets}, whose last lies before the anchor",
                "a last offset of 0 or more, around which negatives are taken",
                "put the positive's offset last",
            )

    @property
    def reach(self) -> int:
        """How many steps after t must exist."""
        last_action = self.first_action + self.actions - 1 - self.past_end if self.actions else 0
        return max(*self.offsets, last_action, 0)

    @property
    def min_length(self) -> int:
        """The shortest episode that has one anchor, and a negative for it where negatives are asked for."""
        if self.near is None:
            return self.reach + 1
        # One step back from the positive there always is, unless it is the anchor and that is left out.
        alone = self.near.exclude_anchor and self.offsets[-1] <= 1
        return max(self.reach + 1, self.offsets[-1] + (2 if alone else 1), 2)

    def anchors(self, lengths: Int[NDArray[np.int64], " E"]) -> Int[NDArray[np.int64], " E"]:
        """How many anchors episodes of these lengths have: t = 0, 1, ... up to the last that can be served."""
        # With W = 1 around s_{t+1} and s_t left out, the last step has no candidate behind it.
        near = self.near
        lonely = near is not None and near.exclude_anchor and near.window == 1 and self.offsets[-1] == 1
        counts = lengths - self.reach - lonely
        return np.where(lengths >= self.min_length, np.maximum(counts, 0), 0)

    @property
    def views(self) -> int:
        """V, observations a sample: one an offset, then the negatives."""
        return len(self.offsets) + (self.near.count if self.near else 0)
