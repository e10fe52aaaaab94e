from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from counterpoint.errors import BadInputError
from counterpoint.objectives.tcn import NearAndFar, tcn_loss
from tests.reference import tcn as reference


def _batch(B: int = 4, N: int = 3, D: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    frames = torch.randn(B, 2 + N, D, generator=generator, dtype=torch.float64)
    return frames[:, 0], frames[:, 1], frames[:, 2:]


@pytest.mark.parametrize("N", [1, 3])
def test_tcn_loss_equals_the_loop(N: int) -> None:
    batch = _batch(N=N)
    expected = reference.tcn_loss(*(part.tolist() for part in batch))
    assert tcn_loss(*batch).item() == pytest.approx(expected, rel=1e-12)


def test_equal_distances_score_log_candidates() -> None:
    zero = torch.zeros(2, 3, dtype=torch.float64)
    assert tcn_loss(zero, zero, torch.zeros(2, 4, 3).double()).item() == pytest.approx(math.log(5))


def test_a_motion_of_the_whole_space_changes_nothing() -> None:
    anchor, positive, negatives = _batch()
    turn, _ = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    moved = [part @ turn + 3 for part in (anchor, positive, negatives)]
    torch.testing.assert_close(tcn_loss(*moved), tcn_loss(anchor, positive, negatives))


def test_descent_brings_the_positive_nearer() -> None:
    anchor, positive, negatives = _batch()
    positive.requires_grad_()
    (grad,) = torch.autograd.grad(tcn_loss(anchor, positive, negatives), positive)
    before = (anchor - positive).norm(dim=1)
    after = (anchor - (positive - 0.1 * grad)).norm(dim=1)
    assert (after < before).all()


def test_equal_frames_give_finite_gradients() -> None:
    frames = torch.ones(2, 5, 3, requires_grad=True)
    (grad,) = torch.autograd.grad(tcn_loss(frames[:, 0], frames[:, 1], frames[:, 2:]), frames)
    assert torch.isfinite(grad).all()


@given(length=st.integers(3, 40), window=st.integers(1, 50), negatives=st.integers(1, 6), seed=st.integers(0, 999))
@settings(max_examples=200, deadline=None)
def test_the_positive_is_nearer_than_every_negative(length: int, window: int, negatives: int, seed: int) -> None:
    pick = NearAndFar(window, negatives)
    drawn = pick(np.array([length, 40]), np.random.default_rng(seed))
    assert drawn.shape == (2, pick.count)
    assert drawn.min() >= 0
    assert drawn[0].max() < length
    distance = np.abs(drawn[0] - drawn[0, 0])
    assert 1 <= distance[1] <= window
    assert (distance[2:] > distance[1]).all()


def test_every_step_serves_as_anchor() -> None:
    rng = np.random.default_rng(0)
    assert set(NearAndFar()(np.full(200, 6), rng)[:, 0].tolist()) == set(range(6))
    assert set(NearAndFar()(np.full(50, 3), rng)[:, 0].tolist()) == {0, 2}


def test_shapes_that_do_not_pair_up_are_refused() -> None:
    anchor, positive, negatives = _batch()
    with pytest.raises(BadInputError, match="shapes"):
        tcn_loss(anchor, positive, negatives[:, 0])
    with pytest.raises(BadInputError, match="shapes"):
        tcn_loss(anchor, positive[1:], negatives)
