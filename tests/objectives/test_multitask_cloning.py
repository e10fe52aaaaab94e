from __future__ import annotations

import pytest
import torch

from counterpoint.data.spec import Spec
from counterpoint.errors import BadInputError
from counterpoint.objectives.action_prediction import MultitaskCloning, MultitaskCloningConfig, action_error
from tests.objectives.step_training import SIZE, fitted, small_encoder, two_spaces
from tests.objectives.steps import step_batch
from tests.reference import action_error as plain


def objective(*, tasks: int = 0, shift: int = 2) -> MultitaskCloning:
    config = MultitaskCloningConfig(shift=shift, hidden=32, tasks=tasks, task_dim=4)
    return MultitaskCloning(small_encoder(), 3, config)


@pytest.mark.parametrize("tasks", [0, 2])
def test_plain_loop(tasks: int) -> None:
    made = objective(tasks=tasks).double()
    batch = two_spaces(made)
    views, predicted = made.views(batch), []
    for i in range(8):
        state = made.encoder(views[i])[0]
        if made.task is not None:
            state = torch.cat([state, made.task.weight[int(batch["task"][i])]])
        predicted.append(made.policy(state))
    oracle = plain.action_error(torch.stack(predicted), batch["actions"][:, 0].double(), batch["action_mask"])
    torch.testing.assert_close(made(batch).loss, oracle)


def test_gradcheck() -> None:
    generator = torch.Generator().manual_seed(0)
    predicted, actions = (torch.randn(4, 3, dtype=torch.float64, generator=generator) for _ in range(2))
    mask = torch.tensor([[True, True, False]]).repeat(4, 1)
    assert torch.autograd.gradcheck(lambda x: action_error(x, actions, mask=mask), (predicted.requires_grad_(),))


def test_sampling() -> None:
    assert objective().sampling() == Spec.steps((0,), 1, stack=2, shift=2)
    assert set(objective().exports()) == {"encoder"}


@pytest.mark.parametrize("tasks", [0, 2])
def test_learns(tasks: int) -> None:
    made = objective(tasks=tasks, shift=0)
    batch = step_batch(made.sampling(), batch=32, size=SIZE, action_dim=3)
    # What an expert would do: walk to the middle, from where it is.
    picture = batch["frames"][:, 0, -1, :, :, 0].float() - 60
    pixel = torch.arange(SIZE) + 0.5
    places = torch.stack([(picture.sum(dim) @ pixel) / picture.sum((1, 2)) for dim in (1, 2)], 1)
    batch["actions"][:, 0, :2] = 1 - 2 * places / SIZE
    batch["actions"][:, 0, 2] = 0.5 * (-1.0) ** batch["task"]
    history, changed = fitted(made, batch, steps=60)
    assert history[-1]["loss"] < 0.5 * history[0]["loss"]
    assert history[-1]["action_error"] < 0.7 * history[-1]["action_error_constant"]
    assert changed == {name for name, _ in made.named_parameters()}


def test_the_task_is_told_only_where_asked() -> None:
    for tasks, told in ((0, False), (2, True)):
        made = objective(tasks=tasks)
        batch = two_spaces(made)
        other = batch | {"task": 1 - batch["task"]}
        assert torch.equal(made(batch).loss, made(other).loss) != told


def test_padding_has_no_part() -> None:
    made = objective()
    batch = two_spaces(made)
    wild = batch | {"actions": torch.where(batch["action_mask"][:, None], batch["actions"], 7.0)}
    torch.testing.assert_close(made(batch).loss, made(wild).loss)


def test_bad_input() -> None:
    made = objective(tasks=1)
    with pytest.raises(BadInputError, match="tasks"):
        made(two_spaces(made))
    with pytest.raises(BadInputError, match="actions"):
        made(step_batch(made.sampling(), size=SIZE, action_dim=4))
