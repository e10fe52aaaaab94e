from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from counterpoint.data.spec import Spec
from counterpoint.errors import BadInputError
from counterpoint.objectives.base import infonce
from counterpoint.objectives.premier_taco import PremierTACO, PremierTACOConfig
from counterpoint.objectives.taco import TACO, TACOConfig
from tests.objectives.steps import assert_ranks_agree, small_encoder, step_batch, train
from tests.reference import bilinear


def small(*, centred: bool = False, size: int = 24, **settings: Any) -> TACO:
    config = TACOConfig.model_validate({"hidden": 64, "shift": 2, **settings})
    return TACO(small_encoder(size=size, centred=centred), 3, config)


def test_plain_loop() -> None:
    q, W, k = (torch.randn(n, 4, dtype=torch.float64).requires_grad_() for n in (5, 4, 5))
    ours, oracle = infonce(q @ W @ k.T), bilinear.infonce(q, W, k)
    torch.testing.assert_close(ours, oracle, rtol=1e-12, atol=1e-14)
    for mine, theirs in zip(torch.autograd.grad(ours, (q, W, k)), torch.autograd.grad(oracle, (q, W, k)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-14)


def test_loss_s_properties() -> None:
    F = torch.randn(6, 6, dtype=torch.float64, requires_grad=True)
    loss = infonce(F)
    assert torch.autograd.gradcheck(infonce, F)
    torch.testing.assert_close(loss, functional.cross_entropy(F, torch.arange(6)))
    assert infonce(torch.zeros(6, 6)).item() == pytest.approx(math.log(6))
    assert infonce(torch.ones(1, 1)) == 0
    # As the authors' subtraction of each row's maximum shows: what a row has in common does nothing.
    torch.testing.assert_close(infonce(F - F.amax(1, keepdim=True)), loss)
    order = torch.randperm(6)
    torch.testing.assert_close(infonce(F[order][:, order]), loss)
    with pytest.raises(BadInputError, match="logits"):
        infonce(F[:5])


@pytest.mark.parametrize("heads", ["paper", "released"])
def test_rows_one_at_a_time(heads: str) -> None:
    """Encoders and heads applied row by row as the paper writes them, then the plain loop."""
    objective = small(heads=heads, rewards=True)
    batch = step_batch(objective.sampling(), batch=4, size=24)
    views, encoder, parts = objective.views(batch), objective.encoder, objective.heads

    def joined(row: int) -> Tensor:
        z = encoder(views[row, :1])
        if heads == "released":
            return torch.cat([parts.H(z), parts.psi(batch["actions"][row : row + 1])], 1)
        actions = [parts.psi[0](action[None, None])[0] for action in batch["actions"][row]]
        return torch.cat([z, *actions], 1)

    g = torch.cat([parts.G(joined(row)) for row in range(4)])
    anchor, again, future = (
        torch.cat([parts.H(encoder(views[row, v : v + 1])) for row in range(4)]) for v in (0, 1, 2)
    )
    output = objective(batch)
    torch.testing.assert_close(
        output.metrics["taco"], bilinear.infonce(g, objective.W, future).detach(), rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(
        output.metrics["curl"], bilinear.infonce(anchor, objective.W, again).detach(), rtol=1e-4, atol=1e-5
    )
    assert objective.R is not None
    errors = [(objective.R(joined(row)).sum() - batch["rewards"][row].sum()) ** 2 for row in range(4)]
    torch.testing.assert_close(output.metrics["reward"], torch.stack(errors).mean().detach())
    parts_sum = sum(output.metrics[name] for name in ("taco", "curl", "reward"))
    torch.testing.assert_close(output.loss.detach(), parts_sum)
    assert_ranks_agree(objective, batch)


def test_asks_for_what_it_reads() -> None:
    stack, shift = small().encoder.config.stack, small().sampling().shift
    assert small().sampling() == Spec.steps((0, 0, 3), 3, stack=stack, shift=shift)
    spec = small(curl=False, rewards=True, steps=2).sampling()
    assert spec == Spec.steps((0, 2), 2, stack=stack, shift=shift, rewards=True)


def test_heads_are_premier_taco_s() -> None:
    premier = PremierTACO(small_encoder(), 3, PremierTACOConfig()).heads
    taco = TACO(small_encoder(), 3, TACOConfig()).heads
    shapes = [{name: p.shape for name, p in heads.named_parameters()} for heads in (premier, taco)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("heads", ["paper", "released"])
@pytest.mark.parametrize("stop", [True, False])
def test_where_gradients_stop(heads: str, stop: bool) -> None:
    objective = small(heads=heads, stop_gradient=stop, rewards=True)
    batch = step_batch(objective.sampling(), size=24)
    features = objective.encode(batch).rows
    for name in ("future", "again"):
        if stop and heads == "released":
            assert not features[name].requires_grad
        else:
            reached = torch.autograd.grad(
                features[name].sum(), list(objective.encoder.parameters()), retain_graph=True, allow_unused=True
            )
            assert all((gradient is None) == stop for gradient in reached)
    torch.autograd.backward([objective(batch).loss])
    assert all(p.grad is not None for p in objective.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("curl", [True, False])
def test_training(curl: bool) -> None:
    objective = small(centred=True, curl=curl)
    before = [p.detach().clone() for p in objective.parameters()]
    outputs = train(objective, steps=60, size=24)
    assert all((p != old).any() for p, old in zip(objective.parameters(), before, strict=True))
    assert sum(output.loss.item() for output in outputs[-8:]) / 8 < 0.85 * outputs[0].loss.item()
