from __future__ import annotations

import pytest
import torch

from counterpoint.data.spec import Spec
from counterpoint.errors import BadInputError
from counterpoint.objectives.spr import SPR, SPRConfig, spr_loss
from tests.objectives.steps import assert_ranks_agree, small_encoder, step_batch, train
from tests.reference import spr as plain


def small(*, centred: bool = False, ema: float = 0.01) -> SPR:
    config = SPRConfig(shift=2, hidden=32, projected=16, ema=ema)
    return SPR(small_encoder(size=24, centred=centred), 3, config)


def test_plain_loop() -> None:
    guess, truth = (torch.randn(3, 5, 4, dtype=torch.float64).requires_grad_() for _ in range(2))
    ours, oracle = spr_loss(guess, truth), plain.spr(guess, truth)
    torch.testing.assert_close(ours, oracle, rtol=1e-12, atol=1e-14)
    for mine, theirs in zip(
        torch.autograd.grad(ours, (guess, truth)), torch.autograd.grad(oracle, (guess, truth)), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-14)


def test_loss_s_properties() -> None:
    guess, truth = (torch.randn(2, 5, 3, dtype=torch.float64).requires_grad_() for _ in range(2))
    assert torch.autograd.gradcheck(spr_loss, (guess, truth))
    torch.testing.assert_close(spr_loss(guess, truth), spr_loss(truth, guess))
    torch.testing.assert_close(spr_loss(7 * guess, truth / 3), spr_loss(guess, truth))
    assert spr_loss(guess, 2 * guess).item() == pytest.approx(-5)
    assert spr_loss(guess, -guess).item() == pytest.approx(5)
    zero = torch.zeros(2, 5, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(spr_loss(zero, torch.ones(2, 5, 3)), zero)
    assert gradient.isfinite().all()
    with pytest.raises(BadInputError, match="predicted, target"):
        spr_loss(guess, truth[:, :4])


def test_rows_one_at_a_time() -> None:
    """The latent model rolled out row by row, targets encoded one observation at a time."""
    objective = small()
    batch = step_batch(objective.sampling(), batch=3, size=24)
    views = objective.views(batch)
    guesses, truths = [], []
    for row in range(3):
        z, rolled = objective.encoder(views[row, :1]), []
        for action in batch["actions"][row]:
            z = objective.transition(torch.cat([z, action[None]], 1))
            rolled.append(objective.predict(objective.project(z))[0])
        guesses.append(torch.stack(rolled))
        truths.append(torch.stack([objective.target(views[row, j : j + 1])[0] for j in range(1, 6)]))
    expected = plain.spr(torch.stack(guesses), torch.stack(truths))
    torch.testing.assert_close(objective(batch).loss, expected, rtol=1e-4, atol=1e-5)
    assert_ranks_agree(objective, batch)


def test_asks_for_every_step_on_the_way() -> None:
    objective = small()
    stack = objective.encoder.config.stack
    assert objective.sampling() == Spec.steps((0, 1, 2, 3, 4, 5), 5, stack=stack, shift=2)


def test_actions_of_another_width_are_refused() -> None:
    objective = SPR(small_encoder(size=24), 4, SPRConfig(shift=2))
    with pytest.raises(BadInputError, match=r"\[B, 5, 4\]"):
        objective(step_batch(objective.sampling(), action_dim=3, size=24))


@pytest.mark.slow
def test_training() -> None:
    objective = small(centred=True)
    before = [p.detach().clone() for p in objective.parameters()]
    outputs = train(objective, steps=40, size=24)
    assert all((p != old).any() for p, old in zip(objective.parameters(), before, strict=True))
    assert outputs[-1].loss < outputs[0].loss - 2
