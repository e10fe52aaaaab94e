from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from counterpoint.errors import BadInputError
from counterpoint.objectives.base import cosine, negative_distance, norm_penalty, other_rows
from counterpoint.objectives.r3m import (
    LanguageReward,
    language_candidates,
    r3m_language_loss,
    r3m_loss,
    r3m_time_contrastive_loss,
    time_candidates,
)
from tests.golden.load import golden
from tests.reference import r3m as reference


def _batch(B: int = 5, D: int = 6, L: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    frames = torch.randn(B, 5, D, generator=generator, dtype=torch.float64)
    return frames, torch.randn(B, L, generator=generator, dtype=torch.float64)


def _rows(B: int, N: int, groups: int) -> Tensor:
    return other_rows(torch.arange(B), N * groups).view(N, groups, B)


def _reward(seed: int = 0) -> LanguageReward:
    torch.manual_seed(seed)
    return LanguageReward(6, 4, hidden=8).double()


@pytest.mark.parametrize("N", [0, 2])
def test_time_contrast_equals_the_loop(N: int) -> None:
    frames, _ = _batch()
    ordered, rows = frames[:, 2:], _rows(5, N, 2)
    expected = reference.time_contrastive_loss(ordered.tolist(), rows.tolist())
    assert r3m_time_contrastive_loss(ordered, negatives=rows).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("N", [0, 2])
def test_language_contrast_equals_the_loop(N: int) -> None:
    frames, text = _batch()
    rows, reward = _rows(5, N, 3), _reward()
    has_text = torch.tensor([True, False, True, True, True])

    def scalar(first: object, current: object, words: object) -> float:
        parts = (torch.tensor(x, dtype=torch.float64) for x in (first, current, words))
        return float(reward(*parts).detach())

    expected = reference.language_loss(scalar, frames.tolist(), text.tolist(), rows.tolist(), has_text.tolist())
    loss = r3m_language_loss(reward, frames, text, negatives=rows, has_text=has_text)
    assert loss.item() == pytest.approx(expected, rel=1e-12)


def test_norms_equal_the_loop() -> None:
    frames, _ = _batch()
    for order in (1, 2):
        expected = reference.norms(frames.tolist(), order)
        assert norm_penalty(frames, order == 1, order == 2).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("name", "similarity"), [("l2", negative_distance), ("cos", cosine)])
def test_r3m_loss_equals_the_authors(name: str, similarity: Callable[[Tensor, Tensor], Tensor]) -> None:
    arrays, _ = golden("r3m_a")
    stored = {key.removeprefix(f"{name}_"): value for key, value in arrays.items()}
    reward = _authors_reward(arrays)
    frames, text = arrays["emb"].requires_grad_(), arrays["lang_emb"]
    has_text = arrays["lang_mask"].bool()
    language_rows = stored["perms"][:9].view(3, 3, 6)
    time_rows = stored["perms"][9:].view(3, 2, 6)
    loss = r3m_loss(
        reward.logit,
        frames,
        text,
        language_negatives=language_rows,
        time_negatives=time_rows,
        has_text=has_text,
        similarity=similarity,
        epsilon=1e-8,
    )
    torch.testing.assert_close(loss, stored["full_loss"], rtol=1e-9, atol=0)
    weights = dict(reward.named_parameters())
    grad_frames, *grad_weights = torch.autograd.grad(loss, [frames, *weights.values()])
    torch.testing.assert_close(grad_frames, stored["grad_emb"], rtol=1e-7, atol=1e-12)
    for key, grad in zip(weights, grad_weights, strict=True):
        golden_grad = stored.get("gradW." + key.replace("layers", "pred"))
        if name == "l2":
            assert golden_grad is not None
            torch.testing.assert_close(grad, golden_grad, rtol=1e-7, atol=1e-12)

    time = r3m_time_contrastive_loss(frames[:, 2:], negatives=time_rows, similarity=similarity, epsilon=1e-8)
    torch.testing.assert_close(time, stored["tcnloss"], rtol=1e-9, atol=0)
    language = r3m_language_loss(reward.logit, frames, text, negatives=language_rows, has_text=has_text, epsilon=1e-8)
    torch.testing.assert_close(language, stored["rewloss"], rtol=1e-9, atol=0)
    candidates = language_candidates(reward.logit, frames, text, language_rows)
    torch.testing.assert_close(candidates.permute(2, 0, 1).flatten(0, 1), stored["reward_calls"])
    for pair, found in enumerate((candidates[..., 0] > candidates[..., 1:].amax(-1)).double().mean(1), 1):
        torch.testing.assert_close(found, stored[f"rewacc{pair}"])
    late, early = time_candidates(frames[:, 2:], similarity=similarity)
    aligned = (late[:, 0] > late[:, 1]) & (early[:, 0] > early[:, 1])
    torch.testing.assert_close(aligned.double().mean(), stored["aligned"])


def _authors_reward(arrays: dict[str, Tensor]) -> LanguageReward:
    reward = LanguageReward(12, 8, hidden=16).double()
    stored = {key[2:].replace("pred", "layers"): value for key, value in arrays.items() if key.startswith("W.")}
    reward.load_state_dict(stored)
    return reward


def test_language_reward_is_a_five_layer_perceptron_with_values_in_the_unit_interval() -> None:
    reward = LanguageReward(6, 4)
    linear = [layer for layer in reward.layers if isinstance(layer, nn.Linear)]
    assert [layer.in_features for layer in linear] == [16, 1024, 1024, 1024, 1024]
    frames, text = _batch()
    values = reward(frames[:, 0].float(), frames[:, 1].float(), text.float())
    assert values.shape == (5,)
    assert ((values > 0) & (values < 1)).all()


def test_language_reward_broadcasts_over_a_curve() -> None:
    frames, text = _batch()
    reward = _reward()
    curve = reward(frames[0, 0], frames[:, 1], text[0])
    assert curve.shape == (5,)
    torch.testing.assert_close(curve[3], reward(frames[0, 0], frames[3, 1], text[0]))


def test_a_sigmoid_in_the_softmax_has_the_floor_that_is_documented() -> None:
    frames, text = _batch()

    def perfect(first: Tensor, current: Tensor, words: Tensor) -> Tensor:
        value = torch.zeros(torch.broadcast_shapes(first.shape, current.shape)[:-1], dtype=first.dtype)  # type: ignore[no-untyped-call]
        value[..., 0] = 1
        return value

    loss = r3m_language_loss(perfect, frames, text, negatives=_rows(5, 3, 3))
    assert loss.item() == pytest.approx(math.log(1 + 4 / math.e))


def test_frames_in_order_on_a_line_score_better_than_shuffled() -> None:
    line = torch.tensor([[0.0], [1.0], [2.0]])[None].double()
    assert r3m_time_contrastive_loss(line) < r3m_time_contrastive_loss(line[:, [1, 0, 2]])


def test_far_embeddings_keep_their_gradient() -> None:
    frames, _ = _batch()
    scaled = (100 * frames).requires_grad_()
    for epsilon, alive in ((0.0, True), (1e-8, False)):
        loss = r3m_time_contrastive_loss(scaled[:, 2:], negatives=_rows(5, 2, 2), epsilon=epsilon)
        (grad,) = torch.autograd.grad(loss, scaled)
        assert torch.isfinite(grad).all()
        assert bool(grad.abs().sum() > 1e-3) is alive


def test_rows_without_text_have_no_language_gradient() -> None:
    frames, text = _batch()
    frames.requires_grad_()
    has_text = torch.tensor([False, True, True, True, True])
    (grad,) = torch.autograd.grad(r3m_language_loss(_reward(), frames, text, has_text=has_text), frames)
    assert grad[0].abs().sum() == 0
    assert (grad[1:].abs().sum((1, 2)) > 0).all()


def test_weights_pick_the_terms() -> None:
    frames, text = _batch()
    reward = _reward()

    def only(time: float, language: float, l1: float, l2: float) -> Tensor:
        return r3m_loss(reward, frames, text, time_weight=time, language_weight=language, l1_weight=l1, l2_weight=l2)

    torch.testing.assert_close(only(1, 0, 0, 0), r3m_time_contrastive_loss(frames[:, 2:]))
    torch.testing.assert_close(only(0, 1, 0, 0), r3m_language_loss(reward, frames, text))
    torch.testing.assert_close(only(0, 0, 1, 0), norm_penalty(frames, 1, 0))
    torch.testing.assert_close(only(0, 0, 0, 1), norm_penalty(frames, 0, 1))


def test_gradient_is_the_numerical_one() -> None:
    frames, text = _batch(3)
    frames.requires_grad_()
    reward = _reward()

    def loss(f: Tensor, t: Tensor) -> Tensor:
        return r3m_loss(reward, f, t, language_negatives=_rows(3, 1, 3), time_negatives=_rows(3, 1, 2), epsilon=1e-8)

    assert torch.autograd.gradcheck(loss, (frames, text.requires_grad_()))


def test_too_few_frames_are_refused() -> None:
    frames, text = _batch()
    with pytest.raises(BadInputError, match="F >= 3"):
        r3m_time_contrastive_loss(frames[:, :2])
    with pytest.raises(BadInputError, match="F >= 5"):
        r3m_language_loss(_reward(), frames[:, :4], text)
