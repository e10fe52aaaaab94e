"""How much of a ViT's attention lies on the robot: a number for the pictures of ICon's Figure 6.

A picture of attention convinces whoever chose it. Here the attention of the class token in the last block, averaged
over heads, is summed over the tokens that the robot fills (Eq. 2) and divided by its sum over all patch tokens. Next to
that share stands the share of the tokens that are the robot's, which attention spread evenly would get.

How well a linear probe tells a robot's tokens from its surroundings', block by block of a ViT.

ICon sets out to separate the two in the space of features (section 3). A logistic regression on standardised tokens of
training episodes is scored on tokens of episodes that neither the probe nor the policy has seen. Its score is balanced
accuracy, as most tokens are no robot's: 0.5 is chance. A robot is often in the same place, which position embeddings
give away, so that an untrained ViT scores far above chance; it is what trained ones are to be compared with.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from counterpoint.errors import BadInputError, import_extra

__all__ = ["AttentionShare", "attention_share", "episode_means", "layer_separability", "separability"]


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
            f"shape {robot.shape} beside attention of shape {attention.shape}",
            "one row an image and one column a patch token in both",
            "make the masks from pixel masks of the ViT's input size",
        )
    total = attention.sum(1)
    if not np.isfinite(attention).all() or (attention < 0).any() or (total <= 0).any():
        raise BadInputError(
            "attention",
            "weights that are negative, not finite, or zero throughout an image",
            "weights of a softmax",
            "look at the encoder: its weights may not be finite",
        )
    area = robot.mean(1)
    area[(area == 0) | (area == 1)] = np.nan
    share = (attention * robot).sum(1) / total
    return AttentionShare(np.where(np.isnan(area), np.nan, share), area)


def episode_means(values: Float[Array, " n"], episodes: Sequence[int] | NDArray[np.int64]) -> Float[Array, " episodes"]:
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


Tokens = Float[NDArray[np.float32], "n P D"]
Masks = Bool[NDArray[np.bool_], "n P"]

MOST_TOKENS = 4000
"""Tokens that a probe is fitted on, drawn at random, half of them a robot's where there are enough."""


def layer_separability(
    train: Sequence[Tokens],
    train_robot: Masks,
    test: Sequence[Tokens],
    test_robot: Masks,
    *,
    seed: int = 0,
    most: int = MOST_TOKENS,
) -> list[float]:
    """`separability` of each layer, on the same tokens for all.

    Args:
        train: Patch tokens of images of training episodes, one array a layer.
        train_robot: Which of them the robot fills.
        test: Of images of held-out episodes.
        test_robot: Which of them the robot fills.
        seed: Of the tokens that are drawn.
        most: Tokens to fit on at most.

    Raises:
        BadInputError: When shapes differ, or there are tokens of one kind alone.
    """
    if len(train) != len(test):
        raise BadInputError(
            "layers",
            f"{len(train)} to fit on and {len(test)} to score",
            "as many of both",
            "give the tokens of one ViT",
        )
    return [
        separability(fit, train_robot, scored, test_robot, seed=seed, most=most)
        for fit, scored in zip(train, test, strict=True)
    ]


def separability(
    train: Tokens, train_robot: Masks, test: Tokens, test_robot: Masks, *, seed: int = 0, most: int = MOST_TOKENS
) -> float:
    """Balanced accuracy, on `test`, of a linear probe fitted on `train`.

    Args:
        train: Patch tokens.
        train_robot: Which of them the robot fills.
        test: Patch tokens of other images.
        test_robot: Which of them the robot fills.
        seed: Of the tokens that are drawn.
        most: Tokens to fit on at most.

    Raises:
        BadInputError: When shapes differ, or there are tokens of one kind alone.
    """
    for name, tokens, robot in (("train", train, train_robot), ("test", test, test_robot)):
        _check(name, tokens, robot)
    linear, pipeline, scaling, metrics = (
        import_extra(f"sklearn.{name}", "report") for name in ("linear_model", "pipeline", "preprocessing", "metrics")
    )
    chosen = _drawn(train_robot.ravel(), seed, most)
    fitted = pipeline.make_pipeline(
        scaling.StandardScaler(), linear.LogisticRegression(class_weight="balanced", max_iter=500)
    )
    with warnings.catch_warnings():  # separable tokens have no optimum to converge to; the direction is found
        warnings.simplefilter("ignore", import_extra("sklearn.exceptions", "report").ConvergenceWarning)
        fitted.fit(train.reshape(-1, train.shape[-1])[chosen], train_robot.ravel()[chosen])
    guessed = fitted.predict(test.reshape(-1, test.shape[-1]))
    return float(metrics.balanced_accuracy_score(test_robot.ravel(), guessed))


def _drawn(robot: Bool[NDArray[np.bool_], " N"], seed: int, most: int) -> NDArray[np.int64]:
    """Places of at most `most` tokens, the rarer kind first, so that few robot tokens are not lost in the draw."""
    rng = np.random.default_rng(seed)
    kinds = sorted((np.flatnonzero(robot), np.flatnonzero(~robot)), key=len)
    rare = rng.permutation(kinds[0])[: max(1, most // 2)]
    common = rng.permutation(kinds[1])[: max(1, most - len(rare))]
    return np.sort(np.concatenate([rare, common]))


def _check(name: str, tokens: Tokens, robot: Masks) -> None:
    if tokens.ndim != 3 or tokens.shape[:2] != robot.shape:
        raise BadInputError(
            f"{name} tokens",
            f"shape {tokens.shape} with masks of shape {robot.shape}",
            "tokens [n, P, D] and masks [n, P]",
            "give the masks of the same images, one value a token",
        )
    if not np.isfinite(tokens).all():
        raise BadInputError(
            f"{name} tokens", "values that are not finite", "finite features", "look at the encoder's weights"
        )
    if robot.all() or not robot.any():
        raise BadInputError(
            f"{name} tokens",
            "the robot's alone" if robot.all() else "none of the robot's",
            "tokens of both kinds",
            "take more images, or a camera that sees the robot and its surroundings",
        )
