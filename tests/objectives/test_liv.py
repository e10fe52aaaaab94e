from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from counterpoint.errors import BadInputError
from counterpoint.objectives.base import cosine, negative_distance, other_rows
from counterpoint.objectives.clip_goal import clip_goal_loss
from counterpoint.objectives.liv import liv_loss
from counterpoint.objectives.vip import dual_value_loss
from tests.golden.load import golden
from tests.reference import liv as reference


def _batch(B: int = 5, D: int = 6, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    frames = torch.randn(B, 5, D, generator=generator, dtype=torch.float64)
    text = torch.randn(B, D, generator=generator, dtype=torch.float64)
    return frames, text, -torch.randint(0, 2, (B,), generator=generator).double()


@pytest.mark.parametrize("N", [0, 2])
def test_liv_loss_equals_the_loop(N: int) -> None:
    frames, text, rewards = _batch()
    rows = other_rows(torch.arange(5), 2 * N)
    loss = liv_loss(frames, text, rewards, image_negatives=rows[:N], text_negatives=rows[N:], discount=0.9)
    expected = reference.liv_loss(
        frames.tolist(), text.tolist(), rewards.tolist(), rows[:N].tolist(), rows[N:].tolist(), 0.9
    )
    assert loss.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("N", [0, 3])
@pytest.mark.parametrize(("name", "similarity"), [("cos", cosine), ("l2", negative_distance)])
def test_liv_loss_equals_the_authors(name: str, similarity: Callable[[Tensor, Tensor], Tensor], N: int) -> None:
    arrays, _ = golden("liv_a")
    stored = {key.removeprefix(f"{name}_neg{N}_"): value for key, value in arrays.items()}
    frames = (arrays["emb"] * stored["input_scale"]).requires_grad_()
    text = (arrays["lang"] * stored["input_scale"]).requires_grad_()
    rewards, rows = arrays["reward"], stored["perms"].long()
    loss = liv_loss(
        frames, text, rewards, image_negatives=rows[:N], text_negatives=rows[N:], similarity=similarity, epsilon=1e-8
    )
    torch.testing.assert_close(loss, stored["full_loss"], rtol=1e-9, atol=0)
    grad_frames, grad_text = torch.autograd.grad(loss, [frames, text])
    torch.testing.assert_close(grad_frames, stored["grad_emb"], rtol=1e-7, atol=1e-12)
    torch.testing.assert_close(grad_text, stored["grad_lang"], rtol=1e-7, atol=1e-12)
    for weights, term in (((1, 0), "visual"), ((0, 1), "lang")):
        value = liv_loss(
            frames,
            text,
            rewards,
            image_negatives=rows[:N],
            text_negatives=rows[N:],
            image_weight=weights[0],
            text_weight=weights[1],
            clip_weight=0,
            similarity=similarity,
            epsilon=1e-8,
        )
        torch.testing.assert_close(value, stored[f"vip_loss_{term}"], rtol=1e-9, atol=0)


def test_weights_pick_the_terms() -> None:
    frames, text, rewards = _batch()
    clip = liv_loss(frames, text, rewards, image_weight=0, text_weight=0)
    image = liv_loss(frames, text, rewards, text_weight=0, clip_weight=0)
    torch.testing.assert_close(clip, clip_goal_loss(frames[:, 4], text, temperature=1.0))
    states, goal = frames[:, [0, 2, 3]], frames[:, 1]
    expected = dual_value_loss(states, goal, rewards, value=lambda s, g: 50 * cosine(s, g), discount=0.98)
    torch.testing.assert_close(image, expected)


def test_each_term_reaches_its_own_frames() -> None:
    frames, text, rewards = _batch()
    frames.requires_grad_()
    (clip,) = torch.autograd.grad(liv_loss(frames, text, rewards, image_weight=0, text_weight=0), frames)
    assert clip[:, :4].abs().sum() == 0
    (values,) = torch.autograd.grad(liv_loss(frames, text, rewards, clip_weight=0), frames)
    assert values[:, 4].abs().sum() == 0
    assert (values[:, :4].abs().sum((0, 2)) > 0).all()


def test_lengths_do_not_matter_to_cosines() -> None:
    frames, text, rewards = _batch()
    torch.testing.assert_close(liv_loss(3 * frames, text / 2, rewards), liv_loss(frames, text, rewards))


def test_labels_reach_the_clip_term() -> None:
    frames, text, rewards = _batch()
    text[1] = text[0]
    labelled = liv_loss(frames, text, rewards, labels=torch.tensor([0, 0, 1, 2, 3]))
    assert labelled < liv_loss(frames, text, rewards)


def test_shapes_that_do_not_pair_up_are_refused() -> None:
    frames, text, rewards = _batch()
    with pytest.raises(BadInputError, match="F >= 5"):
        liv_loss(frames[:, :4], text, rewards)
    with pytest.raises(BadInputError, match="shapes"):
        liv_loss(frames, text[1:], rewards)
