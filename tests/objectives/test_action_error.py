from __future__ import annotations

import pytest
import torch
from torch import Tensor

from counterpoint.errors import BadInputError
from counterpoint.objectives.action_prediction import absolute_action_error, action_error, constant_action_error
from tests.reference import action_error as plain


def drawn(*shape: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Predictions, actions, and a mask under which rows have 3, 1, 2, ... dimensions of their own."""
    generator = torch.Generator().manual_seed(seed)
    predicted, actions = (torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(2))
    own = torch.tensor([[3, 1, 2][row % 3] for row in range(shape[0])])
    mask = torch.arange(shape[-1]) < own[:, None]
    return predicted.requires_grad_(), actions, mask


def test_plain_loop() -> None:
    predicted, actions, mask = drawn(5, 3)
    ours, oracle = action_error(predicted, actions, mask=mask), plain.action_error(predicted, actions, mask)
    torch.testing.assert_close(ours, oracle)
    torch.testing.assert_close(*(torch.autograd.grad(x, predicted)[0] for x in (ours, oracle)))
    constant = plain.mean_action(actions, mask).expand(5, 3)
    expected = plain.action_error(constant, actions, mask)
    torch.testing.assert_close(constant_action_error(actions, mask=mask), expected)


def test_plain_loop_of_sequences() -> None:
    predicted, actions, mask = drawn(5, 4, 3)
    scored = torch.rand(5, 4, generator=torch.Generator().manual_seed(1)) < 0.5
    ours = action_error(predicted, actions, mask=mask, scored=scored)
    oracle = plain.action_error(predicted, actions, mask, scored)
    torch.testing.assert_close(ours, oracle)
    torch.testing.assert_close(*(torch.autograd.grad(x, predicted)[0] for x in (ours, oracle)))
    everything = torch.ones(5, 4, dtype=torch.bool)
    torch.testing.assert_close(
        action_error(predicted, actions, mask=mask), action_error(predicted, actions, mask=mask, scored=everything)
    )


def test_plain_loop_of_absolute_errors() -> None:
    predicted, actions, mask = drawn(5, 3)
    own = [(row, column) for row in range(5) for column in range(3) if mask[row, column]]
    mean = plain.mean_action(actions, mask)
    expected = [
        sum(abs(float(guess[place] - actions[place])) for place in own) / len(own)
        for guess in (predicted.detach(), mean.expand(5, 3))
    ]
    found = absolute_action_error(predicted, actions, mask=mask)
    assert [float(value) for value in found] == pytest.approx(expected)


def test_gradcheck() -> None:
    predicted, actions, mask = drawn(4, 2, 3)
    assert torch.autograd.gradcheck(lambda x: action_error(x, actions, mask=mask), (predicted,))


def test_padding_has_no_part() -> None:
    predicted, actions, mask = drawn(5, 3)
    wild = torch.where(mask, actions, 1e6)
    torch.testing.assert_close(action_error(predicted, wild, mask=mask), action_error(predicted, actions, mask=mask))
    torch.testing.assert_close(constant_action_error(wild, mask=mask), constant_action_error(actions, mask=mask))
    (gradient,) = torch.autograd.grad(action_error(predicted, actions, mask=mask), predicted)
    assert not gradient[~mask].any()
    assert gradient[mask].all()


def test_of_one_space_it_is_the_mean_squared_error() -> None:
    predicted, actions, _ = drawn(5, 3)
    mask = torch.ones(5, 3, dtype=torch.bool)
    torch.testing.assert_close(
        action_error(predicted, actions, mask=mask), torch.nn.functional.mse_loss(predicted, actions)
    )
    torch.testing.assert_close(constant_action_error(actions, mask=mask), actions.var(0, correction=0).mean())


def test_nothing_to_compare_is_zero() -> None:
    predicted, actions, _ = drawn(5, 3)
    none = torch.zeros(5, 3, dtype=torch.bool)
    loss = action_error(predicted, actions, mask=none)
    assert loss.item() == 0
    assert not torch.autograd.grad(loss, predicted)[0].any()
    assert float(constant_action_error(actions, mask=none)) == 0


def test_shapes_that_do_not_pair_up() -> None:
    predicted, actions, mask = drawn(5, 3)
    with pytest.raises(BadInputError, match="predicted"):
        action_error(predicted[:, :2], actions, mask=mask)
    with pytest.raises(BadInputError, match="mask"):
        action_error(predicted, actions, mask=mask[:4])
    with pytest.raises(BadInputError, match="scored"):
        action_error(predicted[:, None], actions[:, None], mask=mask, scored=mask)
