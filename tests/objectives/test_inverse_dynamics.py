from __future__ import annotations

import pytest
import torch

from counterpoint.data.spec import Spec
from counterpoint.errors import BadInputError
from counterpoint.objectives.action_prediction import InverseDynamics, InverseDynamicsConfig, action_error
from tests.objectives.step_training import SIZE, fitted, small_encoder, two_spaces
from tests.objectives.steps import step_batch
from tests.reference import action_error as plain


def objective(*, horizon: int = 1, shift: int = 2, hidden: int = 32) -> InverseDynamics:
    config = InverseDynamicsConfig(horizon=horizon, shift=shift, hidden=hidden)
    return InverseDynamics(small_encoder(), 3, config)


def test_plain_loop() -> None:
    made = objective().double()
    batch = two_spaces(made)
    views, predicted = made.views(batch), []
    for i in range(8):
        z, later = (made.encoder(views[i, v : v + 1])[0] for v in range(2))
        predicted.append(made.inverse(torch.cat([z, later])))
    oracle = plain.action_error(torch.stack(predicted), batch["actions"][:, 0].double(), batch["action_mask"])
    output = made(batch)
    torch.testing.assert_close(output.loss, oracle)
    torch.testing.assert_close(output.metrics["action_error"], oracle.detach())


def test_gradcheck() -> None:
    generator = torch.Generator().manual_seed(0)
    predicted, actions = (torch.randn(4, 3, dtype=torch.float64, generator=generator) for _ in range(2))
    mask = torch.tensor([[True, True, False]]).repeat(4, 1)
    assert torch.autograd.gradcheck(lambda x: action_error(x, actions, mask=mask), (predicted.requires_grad_(),))


def test_sampling() -> None:
    assert objective(horizon=3).sampling() == Spec.steps((0, 3), 1, stack=2, shift=2)
    assert set(objective().exports()) == {"encoder"}


@pytest.mark.parametrize("horizon", [1, 2])
def test_learns(horizon: int) -> None:
    made = objective(horizon=horizon, shift=0)
    batch = step_batch(made.sampling(), batch=32, size=SIZE, action_dim=3)
    history, changed = fitted(made, batch, steps=60)
    assert history[-1]["loss"] < 0.5 * history[0]["loss"]
    assert history[-1]["action_error"] < 0.7 * history[-1]["action_error_constant"]
    assert changed == {name for name, _ in made.named_parameters()}


def test_padding_has_no_part() -> None:
    made = objective()
    batch = two_spaces(made)
    wild = batch | {"actions": torch.where(batch["action_mask"][:, None], batch["actions"], 7.0)}
    torch.testing.assert_close(made(batch).loss, made(wild).loss)


def test_actions_of_another_size() -> None:
    made = objective()
    batch = step_batch(made.sampling(), size=SIZE, action_dim=4)
    with pytest.raises(BadInputError, match="actions"):
        made(batch)
