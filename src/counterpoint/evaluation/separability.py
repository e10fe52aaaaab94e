"""How well a linear probe tells a robot's tokens from its surroundings', block by block of a ViT.

ICon sets out to separate the two in the space of features (section 3). A logistic regression on standardised tokens of
training episodes is scored on tokens of episodes that neither the probe nor the policy has seen. Its score is balanced
accuracy, as most tokens are no robot's: 0.5 is chance. A robot is often in the same place, which position embeddings
give away, so that an untrained ViT scores far above chance; it is what trained ones are to be compared with.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from counterpoint.errors import BadInputError
from counterpoint.rewards.extras import report_package

__all__ = ["layer_separability", "separability"]

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
            found=f"{len(train)} to fit on and {len(test)} to score",
            expected="as many of both",
            mend="give the tokens of one ViT",
        )
    return [
        separability(fit, train_robot, scored, test_robot, seed=seed, most=most)
        for fit, scored in zip(train, test, strict=True)
    ]


def separability(
    train: Tokens,
    train_robot: Masks,
    test: Tokens,
    test_robot: Masks,
    *,
    seed: int = 0,
    most: int = MOST_TOKENS,
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
        report_package(f"sklearn.{name}") for name in ("linear_model", "pipeline", "preprocessing", "metrics")
    )
    chosen = _drawn(train_robot.ravel(), seed, most)
    fitted = pipeline.make_pipeline(
        scaling.StandardScaler(), linear.LogisticRegression(class_weight="balanced", max_iter=500)
    )
    with warnings.catch_warnings():  # separable tokens have no optimum to converge to; the direction is found
        warnings.simplefilter("ignore", report_package("sklearn.exceptions").ConvergenceWarning)
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
            found=f"shape {tokens.shape} with masks of shape {robot.shape}",
            expected="tokens [n, P, D] and masks [n, P]",
            mend="give the masks of the same images, one value a token",
        )
    if not np.isfinite(tokens).all():
        raise BadInputError(
            f"{name} tokens",
            found="values that are not finite",
            expected="finite features",
            mend="look at the encoder's weights",
        )
    if robot.all() or not robot.any():
        raise BadInputError(
            f"{name} tokens",
            found="the robot's alone" if robot.all() else "none of the robot's",
            expected="tokens of both kinds",
            mend="take more images, or a camera that sees the robot and its surroundings",
        )
