from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from counterpoint.errors import BadInputError
from studies.icon.attention import layer_separability, separability

Float = NDArray[np.float32]
Mask = NDArray[np.bool_]
Change = Callable[[Float, Mask], tuple[Float, Mask]]


def drawn(seed: int, apart: float, images: int = 12, tokens: int = 25, width: int = 8) -> tuple[Float, Mask]:
    """Tokens of two kinds, `apart` standard deviations from each other along one direction; a fifth is the robot's."""
    rng = np.random.default_rng(seed)
    robot = rng.random((images, tokens)) < 0.2
    found = rng.standard_normal((images, tokens, width)).astype(np.float32)
    found[..., 3] += apart * robot
    return 50 * found - 7, robot  # standardised before the probe sees them


def test_tokens_far_apart_are_told_apart_and_tokens_alike_are_not() -> None:
    for apart, low, high in ((20.0, 0.99, 1.0), (0.0, 0.35, 0.65)):
        (train, own), (test, other) = drawn(0, apart), drawn(1, apart)
        assert low <= separability(train, own, test, other) <= high


def test_the_score_is_that_of_the_best_line_for_two_known_clouds() -> None:
    """Two Gaussians at distance d: the best line is right with probability Phi(d / 2), whatever their numbers."""
    (train, own), (test, other) = drawn(2, 2.0, images=200), drawn(3, 2.0, images=200)
    assert separability(train, own, test, other) == pytest.approx(0.841, abs=0.02)


def test_a_rule_that_only_a_curve_can_draw_is_not_found() -> None:
    rng = np.random.default_rng(4)
    tokens = rng.standard_normal((20, 50, 2)).astype(np.float32)
    inside = (tokens**2).sum(-1) < 1.0
    assert separability(tokens[:10], inside[:10], tokens[10:], inside[10:]) < 0.65


def test_layers_are_probed_one_by_one_and_repeat() -> None:
    (near, own), (near_test, other) = drawn(5, 0.5), drawn(6, 0.5)
    far, far_test = near + 900 * own[..., None], near_test + 900 * other[..., None]
    found = layer_separability([near, far], own, [near_test, far_test], other)
    assert found == layer_separability([near, far], own, [near_test, far_test], other)
    assert found[0] < 0.8 < found[1] == 1.0


def test_few_robot_tokens_are_all_fitted_on() -> None:
    (train, own), (test, other) = drawn(7, 20.0, images=40), drawn(8, 20.0)
    own[:, 1:] = False
    own[:, 0] = True
    train[..., 3] = 100 * own
    test[..., 3] = 100 * other
    assert separability(train, own, test, other, most=60) > 0.95


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tokens, robot: (tokens[:, :-1], robot), "masks of shape"),
        (lambda tokens, robot: (tokens * np.nan, robot), "not finite"),
        (lambda tokens, robot: (tokens, robot & False), "none of the robot's"),
        (lambda tokens, robot: (tokens, robot | True), "the robot's alone"),
    ],
)
def test_bad_tokens_are_told(change: Change, message: str) -> None:
    tokens, robot = drawn(0, 1.0)
    broken, shown = change(tokens, robot)
    with pytest.raises(BadInputError, match=message):
        separability(broken, shown, tokens, robot)
    with pytest.raises(BadInputError, match=message):
        separability(tokens, robot, broken, shown)


def test_as_many_layers_to_score_as_to_fit_on() -> None:
    tokens, robot = drawn(0, 1.0)
    with pytest.raises(BadInputError, match="2 to fit on and 1 to score"):
        layer_separability([tokens, tokens], robot, [tokens], robot)
