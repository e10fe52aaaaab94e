"""How much of a ViT's attention lies on the robot: a number for the pictures of ICon's Figure 6.

A picture of attention convinces whoever chose it. Here the attention of the class token in the last block, averaged
over heads, is summed over the tokens that the robot fills (Eq. 2) and divided by its sum over all patch tokens. Next to
that share stands the share of the tokens that are the robot's, which attention spread evenly would get.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from counterpoint.errors import BadInputError

__all__ = ["AttentionShare", "attention_share", "episode_means"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class AttentionShare:
    """Of each image; nan for an image of which no token, or every token, is the robot's.

    Attributes:
        share: Of the attention, on the robot's tokens.
        area: Of the tokens, the robot's: what attention spread evenly would give.
    """

    share: Float[Array, " n"]
    area: Float[Array, " n"]

    @property
    def ratio(self) -> Float[Array, " n"]:
        """How many times as much attention as its area a robot gets; 1 for attention spread evenly."""
        found: Array = self.share / self.area
        return found


def attention_share(attention: Float[Array, "n P"], robot: Bool[NDArray[np.bool_], "n P"]) -> AttentionShare:
    """Attention on the robot's tokens, as a share of the attention on all patch tokens.

    What the class token pays to itself and to registers is left out: that goes to no place in the image.

    Args:
        attention: Of each image's class token on its patch tokens, averaged over heads, not negative.
        robot: The token masks.

    Raises:
        BadInputError: When shapes differ, or attention is negative, not finite, or nothing at all in an image.
    """
    attention, robot = np.asarray(attention, np.float64), np.asarray(robot, bool)
    if attention.ndim != 2 or attention.shape != robot.shape:
        raise BadInputError(
            "token masks",
            found=f"shape {robot.shape} beside attention of shape {attention.shape}",
            expected="one row an image and one column a patch token in both",
            mend="make the masks from pixel masks of the ViT's input size",
        )
    total = attention.sum(1)
    if not np.isfinite(attention).all() or (attention < 0).any() or (total <= 0).any():
        raise BadInputError(
            "attention",
            found="weights that are negative, not finite, or zero throughout an image",
            expected="weights of a softmax",
            mend="look at the encoder: its weights may not be finite",
        )
    area = robot.mean(1)
    area[(area == 0) | (area == 1)] = np.nan
    share = (attention * robot).sum(1) / total
    return AttentionShare(np.where(np.isnan(area), np.nan, share), area)


def episode_means(
    values: Float[Array, " n"], episodes: Sequence[int] | NDArray[np.int64]
) -> Float[Array, " episodes"]:
    """The mean of each episode's images, episodes in order; an episode of nan alone is nan.

    Images of one episode are nearly alike, so that episodes are what an interval may count.

    Args:
        values: One an image; nan where it is not defined.
        episodes: Which episode each image is of.
    """
    numbers, place = np.unique(np.asarray(episodes), return_inverse=True)
    defined = ~np.isnan(values)
    sums = np.bincount(place, np.where(defined, values, 0.0), minlength=len(numbers))
    counts = np.bincount(place, defined, minlength=len(numbers))
    means: Array = np.divide(sums, counts, out=np.full(len(numbers), np.nan), where=counts > 0)
    return means
