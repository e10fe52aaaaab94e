from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from counterpoint.data.spec import Spec
from counterpoint.errors import BadInputError
from counterpoint.objectives.action_prediction import (
    ActionPrediction,
    InverseDynamics,
    InverseDynamicsConfig,
    MultitaskCloning,
    MultitaskCloningConfig,
    absolute_action_error,
    action_error,
    constant_action_error,
)
from tests.objectives.step_training import SIZE, fitted, small_encoder, two_spaces
from tests.objectives.steps import step_batch
from tests.reference import action_error as plain


def drawn(*shape: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Predictions, actions, and a mask under which rows have 3, 1, 2, ... dimensions of their own."""
    generator = torch.Generator().manual_seed(seed)
    predicted, actions = (torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(2))
    own = torch.tensor([[3, 1, 2][row % 3] for row in range(shape[0])])
    mask = torch.arange(shape[-1]) < own[:, None]
    return predicted.requires_grad_(), actions, mask


def test_error_in_a_plain_loop() -> None:
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
        sum(abs(float(guess[entry] - actions[entry])) for entry in own) / len(own)
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


def inverse(*, horizon: int = 1, shift: int = 2) -> InverseDynamics:
    return InverseDynamics(small_encoder(), 3, InverseDynamicsConfig(horizon=horizon, shift=shift, hidden=32))


def cloning(*, tasks: int = 0, shift: int = 2) -> MultitaskCloning:
    config = MultitaskCloningConfig(shift=shift, hidden=32, tasks=tasks, task_dim=4)
    return MultitaskCloning(small_encoder(), 3, config)


BOTH = pytest.mark.parametrize("make", [inverse, cloning])


def test_inverse_dynamics_in_a_plain_loop() -> None:
    made = inverse().double()
    batch = two_spaces(made)
    views, predicted = made.views(batch), []
    for i in range(8):
        z, later = (made.encoder(views[i, v : v + 1])[0] for v in range(2))
        predicted.append(made.inverse(torch.cat([z, later])))
    oracle = plain.action_error(torch.stack(predicted), batch["actions"][:, 0].double(), batch["action_mask"])
    output = made(batch)
    torch.testing.assert_close(output.loss, oracle)
    torch.testing.assert_close(output.metrics["action_error"], oracle.detach())


@pytest.mark.parametrize("tasks", [0, 2])
def test_cloning_in_a_plain_loop(tasks: int) -> None:
    made = cloning(tasks=tasks).double()
    batch = two_spaces(made)
    views, predicted = made.views(batch), []
    for i in range(8):
        state = made.encoder(views[i])[0]
        if made.task is not None:
            state = torch.cat([state, made.task.weight[int(batch["task"][i])]])
        predicted.append(made.policy(state))
    oracle = plain.action_error(torch.stack(predicted), batch["actions"][:, 0].double(), batch["action_mask"])
    torch.testing.assert_close(made(batch).loss, oracle)


def test_sampling() -> None:
    assert inverse(horizon=3).sampling() == Spec.steps((0, 3), 1, stack=2, shift=2)
    assert cloning().sampling() == Spec.steps((0,), 1, stack=2, shift=2)
    assert set(inverse().exports()) == set(cloning().exports()) == {"encoder"}


def learns(made: ActionPrediction, batch: dict[str, Tensor]) -> None:
    history, changed = fitted(made, batch, steps=60)
    assert history[-1]["loss"] < 0.5 * history[0]["loss"]
    assert history[-1]["action_error"] < 0.7 * history[-1]["action_error_constant"]
    assert changed == {name for name, _ in made.named_parameters()}


@pytest.mark.slow
@pytest.mark.parametrize("horizon", [1, 2])
def test_inverse_dynamics_learns(horizon: int) -> None:
    made = inverse(horizon=horizon, shift=0)
    learns(made, step_batch(made.sampling(), batch=32, size=SIZE, action_dim=3))


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [0, 2])
def test_cloning_learns(tasks: int) -> None:
    made = cloning(tasks=tasks, shift=0)
    batch = step_batch(made.sampling(), batch=32, size=SIZE, action_dim=3)
    # An expert's actions: walk to the middle from the current location.
    square = batch["frames"][:, 0, -1, :, :, 0].float() - 60
    pixel = torch.arange(SIZE) + 0.5
    locations = torch.stack([(square.sum(dim) @ pixel) / square.sum((1, 2)) for dim in (1, 2)], 1)
    batch["actions"][:, 0, :2] = 1 - 2 * locations / SIZE
    batch["actions"][:, 0, 2] = 0.5 * (-1.0) ** batch["task"]
    learns(made, batch)


def test_cloning_reads_the_task_only_with_an_embedding() -> None:
    for tasks, read in ((0, False), (2, True)):
        made = cloning(tasks=tasks)
        batch = two_spaces(made)
        other = batch | {"task": 1 - batch["task"]}
        assert torch.equal(made(batch).loss, made(other).loss) != read


@BOTH
def test_padded_dimensions_have_no_part(make: Callable[[], ActionPrediction]) -> None:
    made = make()
    batch = two_spaces(made)
    wild = batch | {"actions": torch.where(batch["action_mask"][:, None], batch["actions"], 7.0)}
    torch.testing.assert_close(made(batch).loss, made(wild).loss)


@BOTH
def test_actions_of_another_size(make: Callable[[], ActionPrediction]) -> None:
    made = make()
    with pytest.raises(BadInputError, match="actions"):
        made(step_batch(made.sampling(), size=SIZE, action_dim=4))


def test_more_tasks_than_embeddings() -> None:
    made = cloning(tasks=1)
    with pytest.raises(BadInputError, match="tasks"):
        made(two_spaces(made))
