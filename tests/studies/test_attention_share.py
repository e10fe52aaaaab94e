from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoint.errors import BadInputError
from studies.icon.attention import attention_share, episode_means

ROBOT = np.array([[True, True, False, False], [False, False, False, True]])


def test_a_share_by_hand() -> None:
    found = attention_share(np.array([[0.1, 0.2, 0.05, 0.05], [0.0, 0.25, 0.25, 0.5]]), ROBOT)
    np.testing.assert_allclose(found.share, [0.75, 0.5])  # the first image's class token kept 0.6 to itself
    np.testing.assert_allclose(found.area, [0.5, 0.25])
    np.testing.assert_allclose(found.ratio, [1.5, 2.0])


def test_even_attention_gets_the_area() -> None:
    found = attention_share(np.full((2, 4), 0.2), ROBOT)
    np.testing.assert_allclose(found.share, found.area)


@given(st.integers(min_value=0, max_value=2**31))
def test_shares_of_the_robot_and_of_the_rest_make_one_and_order_does_not_matter(seed: int) -> None:
    rng = np.random.default_rng(seed)
    attention, robot = rng.random((3, 9)) + 1e-3, rng.random((3, 9)) < 0.5
    robot[:, 0], robot[:, 1] = True, False
    found = attention_share(attention, robot)
    np.testing.assert_allclose(found.share + attention_share(attention, ~robot).share, 1.0)
    order = rng.permutation(9)
    np.testing.assert_allclose(attention_share(7 * attention[:, order], robot[:, order]).share, found.share)


def test_images_without_a_robot_or_full_of_it_say_nothing() -> None:
    robot = np.array([[False] * 4, [True] * 4, [True, False, False, False]])
    found = attention_share(np.full((3, 4), 0.25), robot)
    np.testing.assert_allclose(found.share, [np.nan, np.nan, 0.25])
    np.testing.assert_allclose(found.area, [np.nan, np.nan, 0.25])


@pytest.mark.parametrize(
    ("attention", "message"),
    [
        (np.full((2, 5), 0.2), "token masks"),
        (np.array([[0.5, 0.5, -0.1, 0.1], [0.25] * 4]), "negative"),
        (np.array([[np.nan] * 4, [0.25] * 4]), "not finite"),
        (np.zeros((2, 4)), "zero throughout"),
    ],
)
def test_bad_attention_is_told(attention: np.ndarray[tuple[int, int], np.dtype[np.float64]], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        attention_share(attention, ROBOT)


def test_means_of_episodes_leave_out_what_is_not_defined() -> None:
    values = np.array([1.0, np.nan, 3.0, 4.0, np.nan])
    np.testing.assert_allclose(episode_means(values, [7, 2, 7, 5, 2]), [np.nan, 4.0, 2.0])
