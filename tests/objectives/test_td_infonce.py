from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from counterpoint.errors import BadInputError
from counterpoint.objectives.td_infonce import (
    cloned_actor_loss,
    goal_reaching_loss,
    goal_reaching_rows,
    mc_infonce_loss,
    td_infonce_loss,
    td_infonce_weights,
)
from tests.golden.load import golden
from tests.reference import td_infonce as plain

GAMMA = 0.9
TWINS = pytest.mark.parametrize("twins", [0, 1, 2])
ONE_MATRIX: list[Callable[[Tensor], Tensor]] = [mc_infonce_loss, goal_reaching_loss, td_infonce_weights]


def logits(
    B: int = 5, twins: int = 2, seed: int = 0, count: int = 1, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Random logits [B, B] (twins 0) or [B, B, twins]."""
    generator = torch.Generator().manual_seed(seed)
    shape = (B, B, twins) if twins else (B, B)
    drawn = (3 * torch.randn(shape, dtype=dtype, generator=generator) for _ in range(count))
    return [x.requires_grad_() for x in drawn]


def critics(F: Tensor) -> list[Tensor]:
    return [F] if F.ndim == 2 else list(F.unbind(2))


@TWINS
@pytest.mark.parametrize("B", [1, 4])
def test_plain_loop(B: int, twins: int) -> None:
    F_next, F_future, F_w = logits(B, twins, count=3)
    ours = td_infonce_loss(F_next, F_future, F_w, discount=GAMMA)
    W = plain.weights(F_w if not twins else plain.least(F_w))
    pairs = zip(critics(F_next), critics(F_future), strict=True)
    oracle = torch.stack([plain.td_infonce(a, b, W, GAMMA) for a, b in pairs]).mean()
    torch.testing.assert_close(ours, oracle, rtol=1e-12, atol=1e-14)
    for mine, theirs in zip(
        torch.autograd.grad(ours, (F_next, F_future)), torch.autograd.grad(oracle, (F_next, F_future)), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(td_infonce_weights(F_w), W.detach())
    expected = torch.stack([plain.mc_infonce(F) for F in critics(F_next)]).mean()
    torch.testing.assert_close(mc_infonce_loss(F_next), expected)
    goal = plain.mc_infonce(plain.least(F_next) if twins else F_next)
    torch.testing.assert_close(goal_reaching_loss(F_next), goal)
    torch.testing.assert_close(goal_reaching_rows(F_next).mean(), goal)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_authors_numbers(dtype: torch.dtype) -> None:
    arrays, meta = golden("tdinfonce_logits_a")
    wide = dtype == torch.float64
    close: dict[str, Any] = (
        {"rtol": 1e-10, "atol": 1e-14} if wide else {"rtol": 1e-5, "atol": 1e-7, "check_dtype": False}
    )
    F = {name: arrays[f"logits_{name}"].to(dtype).requires_grad_() for name in ("next", "future", "goal", "target_w")}
    discount = meta["hyper"]["discount"]
    critic = td_infonce_loss(F["next"], F["future"], F["target_w"], discount=discount)
    torch.testing.assert_close(critic, arrays["critic_loss"].to(dtype), **close)
    grads = torch.autograd.grad(critic, [F["next"], F["future"]])
    torch.testing.assert_close(grads[0], arrays["grad_logits_next"].to(dtype), **close)
    torch.testing.assert_close(grads[1], arrays["grad_logits_future"].to(dtype), **close)
    # Their two terms by themselves.
    torch.testing.assert_close(mc_infonce_loss(F["next"]), arrays["loss1"].to(dtype), **close)
    second = td_infonce_loss(F["next"], F["future"], F["target_w"], discount=1.0)
    torch.testing.assert_close(second, arrays["loss2"].to(dtype), **close)
    actor = goal_reaching_loss(F["goal"])
    torch.testing.assert_close(actor, arrays["actor_loss"].to(dtype), **close)
    (grad,) = torch.autograd.grad(actor, F["goal"])
    torch.testing.assert_close(grad, arrays["grad_logits_goal"].to(dtype), **close)


def authors_logits(arrays: dict[str, Tensor], action: Tensor, goal: Tensor, columns: Tensor) -> Tensor:
    """[B, B, 2] of the authors' twin networks: situations (observation, action, goal) with `columns`."""

    def unit(x: Tensor, name: str) -> Tensor:
        x = layers(arrays, f"q/{name}/~/linear_", x, 3)
        length: Tensor = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        return x / (length + 1e-8)

    situation = torch.cat([arrays["obs"], action, goal], 1)
    twins = [unit(situation, f"sag_encoder{n}") @ unit(columns, f"fs_encoder{n}").T for n in ("", "2")]
    return torch.stack(twins, 2)


def layers(arrays: dict[str, Tensor], prefix: str, x: Tensor, count: int, *, last: bool = False) -> Tensor:
    for layer in range(count):
        x = x @ arrays[f"{prefix}{layer}/w"] + arrays[f"{prefix}{layer}/b"]
        x = x.relu() if last or layer < count - 1 else x
    return x


def test_authors_cloned_actor() -> None:
    arrays, _ = golden("tdinfonce_nets_a")
    F_next = authors_logits(arrays, arrays["action"], arrays["random_goal"], arrays["next_obs"])
    torch.testing.assert_close(F_next, arrays["F_next"], rtol=1e-8, atol=1e-12)
    goal = arrays["future_goal"]
    body = layers(arrays, "pi/mlp/~/linear_", torch.cat([arrays["obs"], goal], 1), 2, last=True)
    loc, spread = (
        body @ arrays[f"pi/Normal/~/{name}/w"] + arrays[f"pi/Normal/~/{name}/b"] for name in ("linear", "linear_1")
    )
    action = torch.tanh(loc + (functional.softplus(spread) + 1e-6) * arrays["eps_actor"])
    rows = goal_reaching_rows(authors_logits(arrays, action, goal, goal))
    loss = cloned_actor_loss(rows, action, arrays["action"], weight=0.2, mask=arrays["bc_train_mask"])
    torch.testing.assert_close(loss, arrays["actor_loss_randomgoals0.0_bc0.2"], rtol=1e-8, atol=0)


@TWINS
def test_no_gradient_through_the_weights(twins: int) -> None:
    F_next, F_future, F_w = logits(twins=twins, count=3)
    loss = td_infonce_loss(F_next, F_future, F_w, discount=GAMMA)
    (gradient,) = torch.autograd.grad(loss, F_w, allow_unused=True)
    assert gradient is None
    assert not td_infonce_weights(F_w).requires_grad
    # One matrix in two roles gets the gradient of the first alone.
    (shared,) = torch.autograd.grad(td_infonce_loss(F_next, F_future, F_future, discount=GAMMA), F_future)
    W = td_infonce_weights(F_future)
    probabilities = F_future.softmax(1)
    labels = W if not twins else W[..., None]
    torch.testing.assert_close(shared, GAMMA * (probabilities - labels).detach() / (5 * max(twins, 1)))


@TWINS
def test_gradcheck(twins: int) -> None:
    F_next, F_future, F_w = logits(3, twins, count=3)
    assert torch.autograd.gradcheck(
        lambda a, b: td_infonce_loss(a, b, F_w.detach(), discount=GAMMA), (F_next, F_future)
    )
    assert torch.autograd.gradcheck(goal_reaching_rows, (F_next,))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), B=st.integers(1, 7), twins=st.integers(0, 2))
def test_symmetries(seed: int, B: int, twins: int) -> None:
    F_next, F_future, F_w = (x.detach() for x in logits(B, twins, seed, count=3))
    generator = torch.Generator().manual_seed(seed)
    value = td_infonce_loss(F_next, F_future, F_w, discount=GAMMA)

    # The order of situations does not matter; nor, in the future term, that of the drawn states by itself.
    rows, columns = torch.randperm(B, generator=generator), torch.randperm(B, generator=generator)
    shuffled = (F_next[rows][:, rows], F_future[rows][:, columns], F_w[rows][:, columns])
    torch.testing.assert_close(td_infonce_loss(*shuffled, discount=GAMMA), value)
    torch.testing.assert_close(mc_infonce_loss(shuffled[0]), mc_infonce_loss(F_next))
    torch.testing.assert_close(goal_reaching_rows(shuffled[0]), goal_reaching_rows(F_next)[rows])

    # A constant of the row says nothing (twins each have their own, where no minimum couples them).
    constants = torch.randn(B, 1, *F_next.shape[2:], dtype=torch.float64, generator=generator)
    shared = torch.randn(B, 1, *([1] * (F_next.ndim - 2)), dtype=torch.float64, generator=generator)
    moved = td_infonce_loss(F_next + constants, F_future + 2 * constants, F_w + shared, discount=GAMMA)
    torch.testing.assert_close(moved, value)
    torch.testing.assert_close(goal_reaching_rows(F_next + shared), goal_reaching_rows(F_next))

    W = td_infonce_weights(F_w)
    torch.testing.assert_close(W.sum(1), torch.ones(B, dtype=torch.float64))
    assert (W >= 0).all()
    assert value >= 0
    assert mc_infonce_loss(F_next) >= 0
    assert (goal_reaching_rows(F_next) >= 0).all()
    # The future term is a cross entropy: at least the entropy of its labels.
    entropy = -(W * W.clamp(min=1e-300).log()).sum(1).mean()
    assert td_infonce_loss(F_next, F_future, F_w, discount=1.0) >= entropy - 1e-12


@TWINS
@pytest.mark.parametrize("B", [1, 8])
def test_constant_logits_cost_the_logarithm_of_the_batch(B: int, twins: int) -> None:
    (F,) = logits(B, twins)
    flat = torch.full_like(F, 1.7)
    for value in (mc_infonce_loss(flat), goal_reaching_loss(flat), td_infonce_loss(flat, flat, F, discount=GAMMA)):
        torch.testing.assert_close(value, torch.tensor(math.log(B), dtype=torch.float64))


def test_twins_are_the_mean_of_singles_under_one_set_of_weights() -> None:
    F_next, F_future, F_w = logits(count=3)
    one = F_w[..., 0]
    both = td_infonce_loss(F_next, F_future, torch.stack([one, one], 2), discount=GAMMA)
    singles = [td_infonce_loss(F_next[..., k], F_future[..., k], one, discount=GAMMA) for k in (0, 1)]
    torch.testing.assert_close(both, (singles[0] + singles[1]) / 2)


def test_the_minimum_comes_before_the_softmax() -> None:
    (F,) = logits()
    torch.testing.assert_close(td_infonce_weights(F), F.amin(2).softmax(1).detach())
    assert not torch.allclose(td_infonce_weights(F), F.softmax(1).amin(2))


def test_rolling_the_drawn_states_as_the_authors_do_changes_nothing() -> None:
    F_next, F_future, F_w = (x.detach() for x in logits(count=3))
    rolled = F_future.roll(-1, dims=1), F_w.roll(-1, dims=1)
    torch.testing.assert_close(
        td_infonce_loss(F_next, *rolled, discount=GAMMA), td_infonce_loss(F_next, F_future, F_w, discount=GAMMA)
    )


def test_memory_order_does_not_matter() -> None:
    F_next, F_future, F_w = (x.detach() for x in logits(count=3))
    value = td_infonce_loss(F_next, F_future, F_w, discount=GAMMA)
    twins_first = [x.permute(2, 0, 1).contiguous().permute(1, 2, 0) for x in (F_next, F_future, F_w)]
    torch.testing.assert_close(td_infonce_loss(*twins_first, discount=GAMMA), value)


@pytest.mark.parametrize("size", [1e3, 1e30])
def test_large_logits_in_single_precision(size: float) -> None:
    F_next, F_future, F_w = logits(count=3, dtype=torch.float32)
    inputs = (F_next * size, F_future * size)
    loss = td_infonce_loss(*inputs, F_w * size, discount=GAMMA)
    assert loss.isfinite()
    for gradient in torch.autograd.grad(loss, inputs):
        assert gradient.isfinite().all()
        assert gradient.abs().max() <= 1


def test_half_precision_and_autocast() -> None:
    F_next, F_future, F_w = logits(count=3, dtype=torch.float32)
    expected = td_infonce_loss(F_next, F_future, F_w, discount=GAMMA)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(td_infonce_loss(F_next, F_future, F_w, discount=GAMMA), expected)
    half = td_infonce_loss(F_next.bfloat16(), F_future.bfloat16(), F_w.bfloat16(), discount=GAMMA)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, expected, rtol=3e-2, atol=3e-2)


@pytest.mark.slow
def test_compiles_as_one_graph() -> None:
    inputs = logits(count=3)

    def loss(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return td_infonce_loss(a, b, c, discount=GAMMA) + goal_reaching_loss(c)

    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*inputs), loss(*inputs))


def test_makes_nothing_on_another_device() -> None:
    F_next, F_future, F_w = (x.to("meta") for x in logits(count=3))
    assert td_infonce_loss(F_next, F_future, F_w, discount=GAMMA).is_meta
    assert goal_reaching_loss(F_next).is_meta


@pytest.mark.parametrize("loss", ONE_MATRIX)
@pytest.mark.parametrize("shape", [(3,), (3, 4), (2, 3, 3), (3, 3, 2, 1)])
def test_wrong_shapes_are_refused(loss: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> None:
    with pytest.raises(BadInputError, match="logits: found shape"):
        loss(torch.zeros(shape))


def test_matrices_that_do_not_pair_up_are_refused() -> None:
    three, four = torch.zeros(3, 3, 2), torch.zeros(4, 4, 2)
    with pytest.raises(BadInputError, match="future_logits"):
        td_infonce_loss(three, four, three, discount=GAMMA)
    with pytest.raises(BadInputError, match="weight_logits: found 4 rows"):
        td_infonce_loss(three, three, four, discount=GAMMA)


# The cloned actor.


def actor_inputs(B: int = 6, A: int = 4) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    rows = torch.rand(B, dtype=torch.float64, generator=generator)
    actions, data = (torch.rand(B, A, dtype=torch.float64, generator=generator) for _ in range(2))
    return rows.requires_grad_(), actions.requires_grad_(), data, (torch.arange(B) % 3 != 0)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("weight", [0.0, 0.1, 1.0])
def test_cloned_actor_plain_loop(weight: float, masked: bool) -> None:
    rows, actions, data, mask = actor_inputs()
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(rows)):
        apart = torch.stack([(actions[i, d] - data[i, d]) ** 2 for d in range(4)]).mean()
        share = float(mask[i]) if masked else 1.0
        total = total + weight * share * apart + (1 - weight) * rows[i]
    ours = cloned_actor_loss(rows, actions, data, weight=weight, mask=mask if masked else None)
    torch.testing.assert_close(ours, total / len(rows))


def test_cloning_pulls_towards_the_data() -> None:
    rows, actions, data, _ = actor_inputs()
    (pull,) = torch.autograd.grad(cloned_actor_loss(rows, actions, data, weight=0.5), actions)
    assert ((actions - data) * pull >= 0).all()


def test_cloned_actor_refuses_shapes_that_do_not_pair_up() -> None:
    rows, actions, data, _ = actor_inputs()
    with pytest.raises(BadInputError, match=r"\[B\], \[B, A\] and \[B, A\]"):
        cloned_actor_loss(rows[:3], actions, data, weight=0.5)
    with pytest.raises(BadInputError, match="goal_rows"):
        cloned_actor_loss(rows, actions, data[:, :2], weight=0.5)
