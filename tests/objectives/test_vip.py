from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from counterpoint.errors import BadInputError
from counterpoint.objectives.base import cosine, negative_distance, norm_penalty, other_rows
from counterpoint.objectives.vip import VIP, dual_value_loss, goal_rewards, vip_loss
from tests.golden.load import golden
from tests.reference import vip as reference


def _batch(B: int, F: int = 4, D: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    frames = torch.randn(B, F, D, generator=generator, dtype=torch.float64)
    return frames, -torch.randint(0, 2, (B,), generator=generator).double()


@pytest.mark.parametrize("N", [0, 1, 3])
def test_vip_loss_equals_the_loop(N: int) -> None:
    frames, rewards = _batch(5)
    negatives = other_rows(torch.arange(5), N)
    loss = vip_loss(frames, rewards, discount=0.9, negatives=negatives, l1_weight=0.1, l2_weight=0.2)
    expected = reference.vip_loss(frames.tolist(), rewards.tolist(), negatives.tolist(), 0.9, 0.1, 0.2)
    assert loss.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("N", [0, 3])
def test_vip_loss_equals_the_authors(N: int) -> None:
    arrays, _ = golden("vip_a")
    frames, rewards = arrays["emb"].requires_grad_(), arrays["reward"]
    negatives = arrays[f"neg{N}_perms"].long()
    loss = vip_loss(frames, rewards, negatives=negatives, epsilon=1e-8, l1_weight=1e-3, l2_weight=1e-3)
    (grad,) = torch.autograd.grad(loss, frames)
    plain = vip_loss(frames, rewards, negatives=negatives, epsilon=1e-8)
    torch.testing.assert_close(loss, arrays[f"neg{N}_full_loss"], rtol=1e-9, atol=0)
    torch.testing.assert_close(plain, arrays[f"neg{N}_vip_loss"], rtol=1e-9, atol=0)
    torch.testing.assert_close(grad, arrays[f"neg{N}_grad_emb"], rtol=1e-7, atol=1e-12)
    for order in (1, 2):
        torch.testing.assert_close(
            norm_penalty(frames, order == 1, order == 2), arrays[f"neg{N}_l{order}loss"], rtol=1e-9, atol=0
        )


def test_too_few_frames_are_refused() -> None:
    with pytest.raises(BadInputError, match=r"F >= 4"):
        vip_loss(torch.zeros(2, 3, 5), torch.zeros(2))
    with pytest.raises(BadInputError, match=r"F >= 4"):
        vip_loss(torch.zeros(2, 5), torch.zeros(2))


def test_frames_past_the_fourth_are_ignored() -> None:
    frames, rewards = _batch(4, F=5)
    assert torch.equal(vip_loss(frames, rewards), vip_loss(frames[:, :4], rewards))


def test_epsilon_is_a_small_correction() -> None:
    frames, rewards = _batch(4)
    exact, theirs = vip_loss(frames, rewards), vip_loss(frames, rewards, epsilon=1e-8)
    assert 0 < (theirs - exact).item() < 1e-7


def test_far_embeddings_stay_finite_with_gradients() -> None:
    frames, rewards = _batch(4)
    scaled = (frames * 1e4).requires_grad_()
    loss = vip_loss(scaled, rewards, negatives=other_rows(torch.arange(4), 2))
    (grad,) = torch.autograd.grad(loss, scaled)
    assert torch.isfinite(grad).all()
    assert grad[:, 2].abs().sum() > 0


def test_equal_frames_give_finite_gradients() -> None:
    frames = torch.ones(3, 4, 5, requires_grad=True)
    (grad,) = torch.autograd.grad(vip_loss(frames, torch.zeros(3)), frames)
    assert torch.isfinite(grad).all()


def test_loss_and_gradient_follow_a_relabelling_of_rows() -> None:
    frames, rewards = _batch(6)
    sample = torch.tensor([40, 7, 12, 99, 3, 18])
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    first = vip_loss(frames, rewards, negatives=other_rows(sample, 3))
    second = vip_loss(frames[order], rewards[order], negatives=other_rows(sample[order], 3))
    torch.testing.assert_close(first, second)


def test_gradient_is_the_numerical_one() -> None:
    frames, rewards = _batch(3)
    negatives = other_rows(torch.arange(3), 2)
    frames.requires_grad_()
    assert torch.autograd.gradcheck(lambda f: vip_loss(f, rewards, negatives=negatives, epsilon=1e-8), (frames,))


def test_a_common_shift_of_all_values_changes_nothing() -> None:
    # (1 - gamma)(-c) + (c - gamma c) = 0
    frames, rewards = _batch(5)
    states, goal = frames[:, [0, 2, 3]], frames[:, 1]

    def shifted(c: float) -> Tensor:
        return dual_value_loss(states, goal, rewards, value=lambda a, b: negative_distance(a, b) + c)

    torch.testing.assert_close(shifted(0.0), shifted(5.0))


def test_goal_rewards_are_zero_at_the_goal_alone() -> None:
    indices = torch.tensor([[0, 5, 5, 5, 9], [0, 5, 4, 5, 9], [2, 3, 2, 3, 9]])
    assert goal_rewards(indices).tolist() == [0.0, -1.0, -1.0]


@given(B=st.integers(2, 12), N=st.integers(0, 15), start=st.integers(0, 10**9), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_other_rows_are_other_and_distinct_and_follow_the_samples(B: int, N: int, start: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    sample = start + torch.randperm(3 * B, generator=generator)[:B]
    rows = other_rows(sample, N)
    assert rows.shape == (N, B)
    for row in rows:
        assert sorted(row.tolist()) == list(range(B))
        assert not (row == torch.arange(B)).any()
    for b in range(B):
        assert len(set(rows[:, b].tolist())) == min(N, B - 1)
    order = torch.randperm(B, generator=generator)
    moved = other_rows(sample[order], N)
    # Row i of the shuffled batch is row order[i] of the first one, and so are its negatives.
    assert torch.equal(order[moved], rows[:, order])


def test_other_rows_of_another_batch_are_another_order() -> None:
    draws = {tuple(other_rows(torch.rand(32), 1)[0].tolist()) for _ in range(8)}
    assert len(draws) == 8


def test_other_rows_need_another_row() -> None:
    with pytest.raises(BadInputError, match="raise batch_size"):
        other_rows(torch.tensor([4]), 1)
    assert other_rows(torch.tensor([4]), 0).shape == (0, 1)


def test_similarities() -> None:
    a, b = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])
    assert negative_distance(a, b).item() == -5
    assert cosine(a, b).item() == 0
    assert cosine(a, 2 * a).item() == pytest.approx(1)


def test_vip_says_that_language_is_not_defined() -> None:
    assert VIP.__doc__ is not None
    assert "not defined" in VIP.__doc__


@given(B=st.integers(2, 9), N=st.integers(1, 12), kinds=st.integers(2, 4), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_other_rows_may_have_other_labels(B: int, N: int, kinds: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    sample, labels = torch.randperm(B, generator=generator), torch.randint(0, kinds, (B,), generator=generator)
    rows = other_rows(sample, N, labels)
    assert rows.shape == (N, B)
    for row in range(B):
        free = {other for other in range(B) if labels[other] != labels[row]}
        found = rows[:, row].tolist()
        assert set(found) <= (free or {row})
        assert len(set(found)) == min(N, max(1, len(free)))  # distinct as far as there are any
    if len(set(labels.tolist())) == B:
        assert torch.equal(rows, other_rows(sample, N))
