from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from counterpoint.errors import BadInputError
from counterpoint.objectives.c_learning import c_learning_loss, c_learning_pairwise_loss
from counterpoint.objectives.td_infonce import td_infonce_weights
from tests.reference import c_learning as plain
from tests.reference.occupancy import balanced_chain, minimise, operator

Loss = Callable[..., Tensor]
LOSSES = pytest.mark.parametrize("loss", [c_learning_loss, c_learning_pairwise_loss])
TWINS = pytest.mark.parametrize("twins", [0, 1, 2])
GAMMA = 0.9


def logits(loss: Loss, B: int = 4, twins: int = 2, seed: int = 0, size: float = 2.0) -> list[Tensor]:
    """Next, future and weight logits, as `loss` wants them."""
    generator = torch.Generator().manual_seed(seed)
    shape = [B] * (2 if loss is c_learning_pairwise_loss else 1) + ([twins] if twins else [])
    drawn = (size * torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(3))
    return [x.requires_grad_() for x in drawn]


def own(loss: Loss, x: Tensor) -> Tensor:
    """Of next logits, each situation's own: the diagonal, twins last."""
    return (
        x.diagonal().T
        if loss is c_learning_pairwise_loss and x.ndim == 3
        else (x.diagonal() if loss is c_learning_pairwise_loss else x)
    )


@LOSSES
@TWINS
@pytest.mark.parametrize("self_normalised", [False, True])
def test_plain_loop(loss: Loss, twins: int, self_normalised: bool) -> None:
    following, future, weight = logits(loss, twins=twins)
    w = plain.odds(weight.amin(-1) if twins else weight)
    if self_normalised:
        w = torch.stack([row / row.mean() for row in w.detach().view(-1, 4)]).view(w.shape)
    critics = range(twins) if twins else [...]
    oracle = torch.stack(
        [plain.c_learning(own(loss, following)[..., k], future[..., k], w, GAMMA) for k in critics]
    ).mean()
    ours = loss(following, future, weight, discount=GAMMA, self_normalised=self_normalised)
    torch.testing.assert_close(ours, oracle, rtol=1e-12, atol=1e-14)
    mine, theirs = (torch.autograd.grad(value, (following, future)) for value in (ours, oracle))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-14)


@LOSSES
@TWINS
def test_gradcheck_and_no_gradient_through_the_weights(loss: Loss, twins: int) -> None:
    following, future, weight = logits(loss, 3, twins)
    assert torch.autograd.gradcheck(lambda a, b: loss(a, b, weight.detach(), discount=GAMMA), (following, future))
    value = loss(following, future, weight, discount=GAMMA)
    (gradient,) = torch.autograd.grad(value, weight, allow_unused=True)
    assert gradient is None


@LOSSES
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), B=st.integers(1, 6), twins=st.integers(0, 2), normal=st.booleans())
def test_order_does_not_matter(loss: Loss, seed: int, B: int, twins: int, normal: bool) -> None:
    inputs = logits(loss, B, twins, seed)
    value = loss(*inputs, discount=GAMMA, self_normalised=normal)
    order = torch.randperm(B, generator=torch.Generator().manual_seed(seed))
    shuffled = [x[order][:, order] if loss is c_learning_pairwise_loss else x[order] for x in inputs]
    torch.testing.assert_close(loss(*shuffled, discount=GAMMA, self_normalised=normal), value)
    assert value >= 0


def test_only_the_pairs_of_next_logits_count() -> None:
    following, future, weight = logits(c_learning_pairwise_loss)
    beside = following + (1 - torch.eye(4, dtype=torch.float64))[..., None]
    torch.testing.assert_close(
        c_learning_pairwise_loss(beside, future, weight, discount=GAMMA),
        c_learning_pairwise_loss(following, future, weight, discount=GAMMA),
    )


def test_pairs_average_what_single_states_give() -> None:
    following, future, weight = logits(c_learning_pairwise_loss)
    rows = torch.arange(4)
    singles = []
    for shift in range(4):
        columns = (rows + shift) % 4
        singles.append(
            c_learning_loss(following.diagonal().T, future[rows, columns], weight[rows, columns], discount=GAMMA)
        )
    pairwise = c_learning_pairwise_loss(following, future, weight, discount=GAMMA)
    torch.testing.assert_close(pairwise, torch.stack(singles).mean())


def test_twins_are_the_mean_of_singles_under_one_set_of_weights() -> None:
    following, future, weight = logits(c_learning_loss)
    least = weight.amin(1)
    both = c_learning_loss(following, future, weight, discount=GAMMA)
    singles = [c_learning_loss(following[:, k], future[:, k], least, discount=GAMMA) for k in (0, 1)]
    torch.testing.assert_close(both, (singles[0] + singles[1]) / 2)


def test_self_normalised_weights_are_those_of_td_infonce() -> None:
    following, future, weight = logits(c_learning_pairwise_loss, twins=0)
    zero = torch.zeros_like(future).requires_grad_()
    value = c_learning_pairwise_loss(following, zero, weight, discount=1.0, self_normalised=True)
    (gradient,) = torch.autograd.grad(value, zero)
    # At f = 0, d/df of -w log C - log(1 - C) is (1 - w) / 2.
    torch.testing.assert_close(1 - 2 * 16 * gradient, 4 * td_infonce_weights(weight))


@LOSSES
def test_clip(loss: Loss) -> None:
    following, future, weight = logits(loss, size=5)
    low = loss(following, future, weight.clamp(max=0.5), discount=GAMMA)
    clip = torch.tensor(0.5, dtype=torch.float64).exp().item()
    torch.testing.assert_close(loss(following, future, weight, discount=GAMMA, clip=clip), low)
    assert loss(following, future, weight, discount=GAMMA) > low


@LOSSES
def test_large_logits_in_single_precision(loss: Loss) -> None:
    following, future, weight = (x.detach().float() * 1e6 for x in logits(loss))
    assert loss(following, future, weight, discount=GAMMA, clip=20.0).isfinite()
    assert loss(following, future, weight, discount=GAMMA, self_normalised=True).isfinite()


@LOSSES
def test_wrong_shapes_are_refused(loss: Loss) -> None:
    following, future, weight = logits(loss)
    for inputs in ((following, future[:3], weight), (following, future, weight[..., 0])):
        with pytest.raises(BadInputError, match="logits"):
            loss(*inputs, discount=GAMMA)
    with pytest.raises(BadInputError):
        loss(torch.zeros(2, 3, 3, 2), torch.zeros(2, 3, 3, 2), torch.zeros(2, 3, 3, 2), discount=GAMMA)


# The tabular fixed point: p(s+ | s, a) = p(s+) C / (1 - C). S = 6 states, A = 2 actions, p(s+) uniform.


def exact_loss(loss: Loss, f: Tensor, target: Tensor, maps: list[Tensor], shares: Tensor) -> Tensor:
    """The expectation of `loss` over next states, next actions and drawn states; a row a pair (s, a)."""
    S, A = f.shape[1], len(f) // f.shape[1]
    rows, every = torch.arange(S * A), torch.arange(S).repeat(A)
    total = torch.zeros((), dtype=f.dtype)
    for share, to in zip(shares, maps, strict=True):
        for a in range(A):
            following, after = f[:, to], target[to * A + a]
            if loss is c_learning_pairwise_loss:
                value = loss(following, f[:, every], after[:, every], discount=GAMMA)
            else:
                drawn = [(every + shift) % S for shift in range(S)]
                value = torch.stack(
                    [loss(following.diagonal(), f[rows, s], after[rows, s], discount=GAMMA) for s in drawn]
                ).mean()
            total = total + share * value / A
    return total


@LOSSES
def test_minimising_is_one_step_of_the_operator(loss: Loss) -> None:
    chain, maps, shares = balanced_chain(6, 2)
    target = torch.randn(12, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    f = torch.zeros(12, 6, dtype=torch.float64, requires_grad=True)
    minimise(f, lambda: exact_loss(loss, f, target, maps, shares))
    occupancy, before = (plain.odds(x.detach()) / 6 for x in (f, target))
    torch.testing.assert_close(occupancy, operator(chain, before, GAMMA), rtol=0, atol=1e-6)


@LOSSES
def test_the_fixed_point_is_the_occupancy(loss: Loss) -> None:
    chain, maps, shares = balanced_chain(6, 2)
    best = (6 * chain.occupancy(GAMMA)).log().requires_grad_()  # C / (1 - C) = p(s+ | s, a) / p(s+)
    (gradient,) = torch.autograd.grad(exact_loss(loss, best, best, maps, shares), best)
    assert gradient.abs().max() < 1e-14
    other = (best.detach() + 0.1).requires_grad_()  # unlike InfoNCE, C-learning leaves no constant free
    (gradient,) = torch.autograd.grad(exact_loss(loss, other, other, maps, shares), other)
    assert gradient.abs().max() > 1e-4
