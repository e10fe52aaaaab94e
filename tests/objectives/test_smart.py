from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from counterpoint.data.anchors import Anchors
from counterpoint.data.augment import Noise
from counterpoint.data.spec import Spec
from counterpoint.errors import BadInputError
from counterpoint.objectives.action_prediction import action_error
from counterpoint.objectives.smart import SMART, SMARTConfig, forward_prediction_loss, sample_masks
from tests.objectives.step_training import SIZE, fitted, small_encoder, two_spaces
from tests.objectives.steps import step_batch
from tests.reference import action_error as plain_actions
from tests.reference import smart as plain


def objective(*, context: int = 4, shift: int = 0, dropout: float = 0.0, ema: float = 0.1) -> SMART:
    config = SMARTConfig(context=context, layers=2, heads=2, width=32, dropout=dropout, shift=shift, ema=ema)
    return SMART(small_encoder(), 3, config)


def drawn(*shape: int, count: int = 2, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(count)]


def uniform(rows: int, context: int, seed: int = 0) -> Tensor:
    return torch.rand(rows, 2 * context - 1, generator=torch.Generator().manual_seed(seed))


def own(rows: int) -> Tensor:
    return torch.arange(3) < torch.tensor([[3], [2]]).repeat(rows, 1)[:rows]


def test_forward_plain_loop() -> None:
    predicted, following = (x.requires_grad_() for x in drawn(3, 4, 5))
    ours = forward_prediction_loss(predicted, following)
    oracle = plain.forward_prediction(predicted, following)
    torch.testing.assert_close(ours, oracle)
    torch.testing.assert_close(*(torch.autograd.grad(x, predicted)[0] for x in (ours, oracle)))
    loss = forward_prediction_loss(predicted, following)
    assert torch.autograd.grad(loss, following, allow_unused=True)[0] is None


def test_action_losses_plain_loop() -> None:
    predicted, actions = drawn(4, 5, 3)
    predicted.requires_grad_()
    masked, _ = sample_masks(uniform(4, 5))
    for ours, oracle in (
        (action_error(predicted, actions, mask=own(4)), plain_actions.action_error(predicted, actions, own(4))),
        (
            action_error(predicted, actions, scored=masked, mask=own(4)),
            plain_actions.action_error(predicted, actions, own(4), masked),
        ),
    ):
        torch.testing.assert_close(ours, oracle)
        torch.testing.assert_close(*(torch.autograd.grad(x, predicted)[0] for x in (ours, oracle)))


def test_hindsight_scores_masked_actions_alone() -> None:
    predicted, actions = drawn(4, 5, 3)
    masked, _ = sample_masks(uniform(4, 5), actions=0.5)
    wild = torch.where(masked[..., None], predicted, 1e6)
    torch.testing.assert_close(
        action_error(predicted, actions, scored=masked, mask=own(4)),
        action_error(wild, actions, scored=masked, mask=own(4)),
    )


def test_gradcheck() -> None:
    predicted, other = drawn(2, 3, 3)
    predicted.requires_grad_()
    masked, _ = sample_masks(uniform(2, 3))
    check = torch.autograd.gradcheck
    assert check(lambda x: forward_prediction_loss(x, other), (predicted,))
    assert check(lambda x: action_error(x, other, mask=own(2)), (predicted,))
    assert check(lambda x: action_error(x, other, scored=masked, mask=own(2)), (predicted,))


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 12), st.floats(0.01, 1), st.floats(0, 1), st.integers(0, 1000))
def test_masks(context: int, actions: float, observations: float, seed: int) -> None:
    masked, unseen = sample_masks(uniform(64, context, seed), actions=actions, observations=observations)
    assert masked.shape == unseen.shape == (64, context)
    count = masked.sum(1)
    assert count.min() >= 1
    assert count.max() <= max(1, int(actions * context))
    # As many observations as actions, as far as there are any to mask.
    most = min(int(observations * context), context - 2)
    torch.testing.assert_close(unseen.sum(1), count.clamp_max(most))
    assert not unseen[:, [0, -1]].any()


def test_masks_are_uniform() -> None:
    masked, unseen = sample_masks(uniform(20_000, 6))
    number = masked.sum(1).bincount(minlength=7)[1:] / 20_000
    torch.testing.assert_close(number, torch.full((6,), 1 / 6), atol=0.02, rtol=0)
    # (1 + ... + 6) / 6 actions of 6; (1 + 2 + 3 + 3 + 3 + 3) / 6 observations of the 4 inner ones
    torch.testing.assert_close(masked.float().mean(0), torch.full((6,), 3.5 / 6), atol=0.02, rtol=0)
    torch.testing.assert_close(unseen[:, 1:-1].float().mean(0), torch.full((4,), 2.5 / 4), atol=0.02, rtol=0)


def test_sampling() -> None:
    spec = objective(context=5, shift=4).sampling()
    expected = Spec.steps((0, 1, 2, 3, 4), 5, stack=2, shift=4)
    assert spec == expected.with_transform("noise", Noise((9,), "uniform"))
    assert isinstance(spec.index, Anchors)
    assert spec.index.min_length == 5
    assert set(objective().exports()) == {"encoder"}


def test_objective_plain_loop() -> None:
    made = objective().double().eval()
    for parameter in made.target.parameters():  # as after some steps
        parameter.data.mul_(1.1)
    batch = two_spaces(made)
    batch["actions"] = batch["actions"].double()
    actions, mask = batch["actions"], batch["action_mask"]
    masked, unseen = sample_masks(batch["noise"])
    told: dict[str, list[Tensor]] = {name: [] for name in ("next", "following", "inverse", "hindsight")}
    for i in range(8):
        z = torch.stack([made.encoder(batch["frames"][i, v : v + 1])[0] for v in range(4)])[None]
        told["following"].append(torch.stack([made.target(batch["frames"][i, v : v + 1])[0] for v in range(1, 4)]))
        following, between = made.transformer.dynamics(z, actions[i : i + 1])
        told["next"].append(following[0])
        told["inverse"].append(between[0])
        hindsight = made.transformer.hindsight(
            z, actions[i : i + 1], masked_observations=unseen[i : i + 1], masked_actions=masked[i : i + 1]
        )
        told["hindsight"].append(hindsight[0])
    rows = {name: torch.stack(values) for name, values in told.items()}
    expected = {
        "forward_error": plain.forward_prediction(rows["next"], rows["following"]),
        "action_error": plain_actions.action_error(rows["inverse"], actions[:, :-1], mask),
        "hindsight_error": plain_actions.action_error(rows["hindsight"], actions, mask, masked),
    }
    output = made(batch)
    for name, value in expected.items():
        torch.testing.assert_close(output.metrics[name], value.detach())
    torch.testing.assert_close(output.loss, torch.stack(list(expected.values())).sum())


@pytest.mark.slow
def test_learns() -> None:
    made = objective()
    batch = step_batch(made.sampling(), batch=16, size=SIZE, action_dim=3)
    batch["action_mask"][:, 2] = False  # which no image tells
    history, changed = fitted(made, batch, steps=80)
    first, last = history[0], history[-1]
    assert last["loss"] < 0.5 * first["loss"]
    for name in ("forward", "action", "hindsight"):
        assert last[f"{name}_error"] < last[f"{name}_error_constant"], name
    assert changed == {name for name, _ in made.named_parameters()}


def test_the_average_follows() -> None:
    made = objective(ema=0.25)
    old = copy.deepcopy(made.target)
    fitted(made, two_spaces(made), steps=1)
    for first, now, online in zip(old.parameters(), made.target.parameters(), made.encoder.parameters(), strict=True):
        torch.testing.assert_close(now, 0.75 * first + 0.25 * online.detach())
    assert not any(p.requires_grad for p in made.target.parameters())


def test_padding_has_no_part() -> None:
    made = objective().eval()
    batch = two_spaces(made)
    wild = batch | {"actions": torch.where(batch["action_mask"][:, None], batch["actions"], 7.0)}
    torch.testing.assert_close(made(batch).loss, made(wild).loss)


def test_draws() -> None:
    made = objective(dropout=0.1)
    batch = two_spaces(made)
    torch.manual_seed(3)
    first, second = made(batch).loss, made(batch).loss
    torch.manual_seed(3)
    assert torch.equal(made(batch).loss, first)
    assert not torch.equal(first, second)  # dropout
    made.eval()
    state = torch.get_rng_state()
    assert torch.equal(made(batch).loss, made(batch).loss)
    assert torch.equal(state, torch.get_rng_state())


def test_bad_input() -> None:
    made = objective()
    with pytest.raises(BadInputError, match="actions"):
        made(step_batch(made.sampling(), size=SIZE, action_dim=4))
    with pytest.raises(BadInputError, match="following"):
        forward_prediction_loss(*[x[:, i:] for i, x in enumerate(drawn(3, 4, 5))])
    with pytest.raises(ValidationError, match="heads divide"):
        SMARTConfig(width=30, heads=4)
