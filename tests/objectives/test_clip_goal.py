from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from counterpoint.errors import BadInputError
from counterpoint.objectives.clip_goal import clip_goal_loss
from tests.golden.load import golden
from tests.reference import clip_goal as reference


def _pairs(B: int = 5, D: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    frames, text = torch.randn(2, B, D, generator=generator, dtype=torch.float64)
    return frames, text


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_clip_goal_loss_equals_the_loop(temperature: float) -> None:
    frames, text = _pairs()
    expected = reference.clip_goal_loss(frames.tolist(), text.tolist(), temperature)
    assert clip_goal_loss(frames, text, temperature=temperature).item() == pytest.approx(expected, rel=1e-12)


def test_clip_goal_loss_equals_the_clip_term_of_the_authors_of_liv() -> None:
    arrays, _ = golden("liv_a")
    loss = clip_goal_loss(arrays["emb"][:, 4], arrays["lang"], temperature=1.0)
    torch.testing.assert_close(loss, arrays["cos_neg0_clip_loss"], rtol=1e-9, atol=0)


def test_aligned_pairs_score_zero_and_random_ones_about_log_batch() -> None:
    same = torch.eye(4)
    assert clip_goal_loss(same, same).item() == pytest.approx(0, abs=1e-6)
    assert clip_goal_loss(same, torch.ones(4, 4)).item() == pytest.approx(math.log(4), rel=1e-5)


def test_lengths_and_a_common_order_change_nothing() -> None:
    frames, text = _pairs()
    loss = clip_goal_loss(frames, text)
    order = torch.tensor([4, 2, 0, 1, 3])
    torch.testing.assert_close(clip_goal_loss(7 * frames, text / 3), loss)
    torch.testing.assert_close(clip_goal_loss(frames[order], text[order]), loss)
    torch.testing.assert_close(clip_goal_loss(text, frames), loss)


def test_labels_lift_false_negatives() -> None:
    frames, text = _pairs(4)
    text[1] = text[0]
    with_labels = clip_goal_loss(frames, text, labels=torch.tensor([0, 0, 1, 2]))
    assert with_labels < clip_goal_loss(frames, text)
    distinct = clip_goal_loss(frames, text, labels=torch.arange(4))
    torch.testing.assert_close(distinct, clip_goal_loss(frames, text))


def test_zero_embeddings_give_finite_gradients() -> None:
    frames = torch.zeros(3, 4, requires_grad=True)
    (grad,) = torch.autograd.grad(clip_goal_loss(frames, torch.ones(3, 4)), frames)
    assert torch.isfinite(grad).all()


def test_shapes_that_do_not_pair_up_are_refused() -> None:
    with pytest.raises(BadInputError, match="shapes"):
        clip_goal_loss(torch.zeros(3, 4), torch.zeros(2, 4))
