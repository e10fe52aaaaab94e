from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from counterpoint.encoders.tokens import vit_parts
from counterpoint.errors import BadInputError
from studies.icon.attention import attention_maps, attention_share, episode_means, position_separability, separability
from tests.encoders.vits import PREFIX, open_clip_vit, timm_vit

ROBOT = np.array([[True, True, False, False], [False, False, False, True]])


def test_a_share_by_hand() -> None:
    share, area = attention_share(np.array([[0.1, 0.2, 0.05, 0.05], [0.0, 0.25, 0.25, 0.5]]), ROBOT)
    np.testing.assert_allclose(share, [0.75, 0.5])  # the first image's class token kept 0.6 to itself
    np.testing.assert_allclose(area, [0.5, 0.25])


def test_even_attention_gets_the_area() -> None:
    share, area = attention_share(np.full((2, 4), 0.2), ROBOT)
    np.testing.assert_allclose(share, area)


@given(st.integers(min_value=0, max_value=2**31))
def test_positions_alone_by_a_plain_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    train, test = rng.random((6, 5)) < rng.random(5), rng.random((4, 5)) < 0.5
    for robot in (train, test):
        robot[0, 0], robot[0, 1] = True, False
    right = {True: 0, False: 0}
    for image in test:
        for place, own in enumerate(image):
            guess = train[:, place].sum() / train.sum() > (~train)[:, place].sum() / (~train).sum()
            right[bool(own)] += guess == own
    expected = (right[True] / test.sum() + right[False] / (~test).sum()) / 2
    assert position_separability(train, test) == pytest.approx(expected)


def test_a_robot_at_one_location_is_known_by_position() -> None:
    still = np.tile([True, False, False, True], (3, 1))
    assert position_separability(still, still) == 1.0
    assert position_separability(still, ~still) == 0.0


@given(st.integers(min_value=0, max_value=2**31))
def test_shares_of_the_robot_and_of_the_rest_make_one_and_order_does_not_matter(seed: int) -> None:
    rng = np.random.default_rng(seed)
    attention, robot = rng.random((3, 9)) + 1e-3, rng.random((3, 9)) < 0.5
    robot[:, 0], robot[:, 1] = True, False
    share, _ = attention_share(attention, robot)
    np.testing.assert_allclose(share + attention_share(attention, ~robot)[0], 1.0)
    order = rng.permutation(9)
    np.testing.assert_allclose(attention_share(7 * attention[:, order], robot[:, order])[0], share)


def test_images_without_a_robot_or_full_of_it_say_nothing() -> None:
    robot = np.array([[False] * 4, [True] * 4, [True, False, False, False]])
    share, area = attention_share(np.full((3, 4), 0.25), robot)
    np.testing.assert_allclose(share, [np.nan, np.nan, 0.25])
    np.testing.assert_allclose(area, [np.nan, np.nan, 0.25])


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


def test_a_probe_repeats_and_shifted_tokens_come_apart() -> None:
    (near, own), (near_test, other) = drawn(5, 0.5), drawn(6, 0.5)
    far, far_test = near + 900 * own[..., None], near_test + 900 * other[..., None]
    assert separability(near, own, near_test, other) == separability(near, own, near_test, other) < 0.8
    assert separability(far, own, far_test, other) == 1.0


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


def images(size: int = 64) -> Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))


NAMES = [name for name in PREFIX if "dinov3" not in name]


def last_rows(vit: Any, x: Tensor) -> Tensor:
    """Attention [n, heads, N, N] that timm's own unfused path works out in the last block."""
    attention = vit.blocks[-1].attn
    attention.fused_attn = False
    seen: list[Tensor] = []
    hook = attention.attn_drop.register_forward_hook(lambda _, inputs, output: seen.append(output))
    with torch.no_grad():
        vit(x)
    hook.remove()
    attention.fused_attn = True
    return seen[0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("qk_norm", [False, True])
def test_is_what_the_model_attends_to(name: str, qk_norm: bool) -> None:
    size = 56 if "patch14" in name else 64
    vit = timm_vit(name, img_size=size, qk_norm=qk_norm).eval()
    x = images(size)
    rows = last_rows(vit, x)
    torch.testing.assert_close(rows.sum(-1), torch.ones(rows.shape[:-1]))
    prefix = PREFIX[name]
    expected = rows[:, :, 0] if vit.cls_token is not None else rows[:, :, prefix:].mean(2)
    found = attention_maps(vit, x)
    assert found.shape == (2, 3, 16)
    torch.testing.assert_close(found, expected[..., prefix:])
    assert (found.sum(-1) <= 1 + 1e-6).all()
    torch.testing.assert_close(found.sum(-1) + expected[..., :prefix].sum(-1), torch.ones(2, 3))


@pytest.mark.parametrize("batch_first", [True, False])
def test_the_attention_of_open_clip(batch_first: bool) -> None:
    vit = open_clip_vit(batch_first=batch_first)
    x = images(32)
    attention = vit.transformer.resblocks[-1].attn
    seen: list[Tensor] = []
    hook = attention.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        vit(x)
        _, rows = attention(seen[0], seen[0], seen[0], average_attn_weights=False)
    hook.remove()
    torch.testing.assert_close(attention_maps(vit, x), rows[:, :, 0, 1:])


def test_half_precision_and_autocast() -> None:
    vit = timm_vit("vit_small_patch16_224", img_size=64).eval()
    expected = attention_maps(vit, images(64))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = attention_maps(vit, images(64))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=5e-3, rtol=0)
    narrow = attention_maps(vit.bfloat16(), images(64).bfloat16())
    torch.testing.assert_close(narrow, expected, atol=5e-3, rtol=0)


def test_leaves_nothing_behind() -> None:
    vit = timm_vit("vit_small_patch16_224", img_size=64)
    attention_maps(vit, images(64))
    assert not vit_parts(vit).blocks[-1].attn._forward_pre_hooks  # type: ignore[union-attr]
    assert all(p.grad is None for p in vit.parameters())


@pytest.mark.parametrize("name", ["vit_small_patch16_dinov3", "beit_base_patch16_224"])
def test_other_kinds_of_attention_are_refused(name: str) -> None:
    with pytest.raises(BadInputError, match="last block"):
        attention_maps(timm_vit(name, img_size=64), images(64))
