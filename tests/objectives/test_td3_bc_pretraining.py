from __future__ import annotations

import copy
from typing import Any, Literal

import pytest
import torch
from accelerate import Accelerator
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from counterpoint.data.augment import Noise
from counterpoint.data.spec import Spec
from counterpoint.errors import BadInputError
from counterpoint.objectives.td3_bc_pretraining import (
    TD3BCPretraining,
    TD3BCPretrainingConfig,
    smoothed_action,
    td3_bc_actor_loss,
    td3_critic_loss,
    td3_target,
)
from counterpoint.training.learner import ObjectiveLearner, OptimizerConfig
from tests.objectives.step_training import SIZE, fitted, small_encoder, two_spaces
from tests.objectives.steps import step_batch
from tests.reference import td3_bc as plain

Source = Literal["critic", "both"]


def objective(
    *,
    learns_from: Source = "critic",
    actor_every: int = 2,
    discount: float = 0.9,
    ema: float = 0.1,
    alpha: float = 2.5,
    shift: int = 0,
    target_noise: float = 0.2,
) -> TD3BCPretraining:
    config = TD3BCPretrainingConfig(
        encoder_learns_from=learns_from,
        actor_every=actor_every,
        discount=discount,
        ema=ema,
        alpha=alpha,
        shift=shift,
        hidden=32,
        target_noise=target_noise,
    )
    return TD3BCPretraining(small_encoder(), 3, config)


def drawn(B: int = 5, A: int = 3, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    return {
        "values": normal(B, 2).requires_grad_(),
        "next_values": normal(B, 2),
        "rewards": normal(B),
        "value": normal(B).requires_grad_(),
        "action": normal(B, A).requires_grad_(),
        "data_action": normal(B, A),
        "noise": normal(B, A),
        "mask": torch.arange(A) < torch.tensor([[A], [1]]).repeat(B, 1)[:B],
    }


def gradients(output: Tensor, module: nn.Module) -> list[Tensor]:
    """Of every parameter; zeros where none arrives."""
    parameters = list(module.parameters())
    found = torch.autograd.grad(output, parameters, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def test_critic_plain_loop() -> None:
    x = drawn()
    targets = td3_target(x["rewards"], x["next_values"], discount=0.9)
    torch.testing.assert_close(targets, plain.target(x["rewards"], x["next_values"], 0.9))
    ours, oracle = td3_critic_loss(x["values"], targets), plain.critic_loss(x["values"], targets)
    torch.testing.assert_close(ours, oracle)
    torch.testing.assert_close(*(torch.autograd.grad(loss, x["values"])[0] for loss in (ours, oracle)))


def test_actor_plain_loop() -> None:
    x = drawn()
    inputs = x["value"], x["action"]
    ours = td3_bc_actor_loss(*inputs, x["data_action"], alpha=2.5, mask=x["mask"])
    oracle = plain.actor_loss(*inputs, x["data_action"], 2.5, x["mask"])
    torch.testing.assert_close(ours, oracle)
    for mine, theirs in zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(oracle, inputs), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_smoothing_plain_loop() -> None:
    x = drawn()
    for scale, limit in ((0.2, 0.5), (2.0, 0.5), (0.0, 0.5)):
        ours = smoothed_action(x["action"].detach(), x["noise"], scale=scale, limit=limit)
        torch.testing.assert_close(ours, plain.smoothed(x["action"].detach(), x["noise"], scale, limit))
        assert ours.abs().max() <= 1


def test_gradcheck() -> None:
    x = drawn(3)
    targets = x["rewards"]
    assert torch.autograd.gradcheck(lambda q: td3_critic_loss(q, targets), (x["values"],))
    # lambda has no gradient, so that the loss is checked in the action alone.
    assert torch.autograd.gradcheck(
        lambda a: td3_bc_actor_loss(x["value"].detach(), a, x["data_action"], alpha=2.5, mask=x["mask"]), (x["action"],)
    )


@settings(deadline=None, max_examples=25)
@given(st.floats(1e-3, 1e3), st.integers(0, 1000))
def test_scale_of_rewards_does_not_matter_to_the_actor(scale: float, seed: int) -> None:
    x = drawn(seed=seed)
    first, second = (
        td3_bc_actor_loss(x["value"] * s, x["action"], x["data_action"], alpha=2.5, mask=x["mask"])
        for s in (1.0, scale)
    )
    torch.testing.assert_close(first, second)


def test_targets_take_no_gradient() -> None:
    x = drawn()
    next_values = x["next_values"].requires_grad_()
    assert not td3_target(x["rewards"], next_values, discount=0.9).requires_grad
    targets = x["rewards"].requires_grad_()
    loss = td3_critic_loss(x["values"], targets)
    assert torch.autograd.grad(loss, targets, allow_unused=True)[0] is None


def test_shapes_that_do_not_pair_up() -> None:
    x = drawn()
    with pytest.raises(BadInputError, match="values"):
        td3_critic_loss(x["values"][:, 0], x["rewards"])
    with pytest.raises(BadInputError, match="mask"):
        td3_bc_actor_loss(x["value"], x["action"], x["data_action"], alpha=1, mask=x["mask"][:, :1])


def test_sampling() -> None:
    expected = Spec.steps((0, 1), 1, rewards=True, stack=2, shift=4).with_transform("noise", Noise((3,)))
    assert objective(shift=4).sampling() == expected
    assert set(objective().exports()) == {"encoder"}


def test_objective_plain_loop() -> None:
    made = objective(actor_every=1, target_noise=0).double()
    for module in (made.target_actor, made.target_critic):  # as after some steps
        for parameter in module.parameters():
            parameter.data.mul_(1.1)
    batch = two_spaces(made)
    values, targets, policies, judged = [], [], [], []
    for i in range(8):
        z, later = (made.encoder(batch["frames"][i, v : v + 1])[0] for v in range(2))
        own = batch["action_mask"][i].double()

        def both(critic: nn.Module, state: Tensor, action: Tensor) -> Tensor:
            value: Tensor = critic(state[None], action[None])[0]
            return value

        values.append(both(made.critic, z, batch["actions"][i, 0].double()))
        ahead = both(made.target_critic, later, made.target_actor(later) * own)
        targets.append(batch["rewards"][i, 0].double() + 0.9 * torch.minimum(ahead[0], ahead[1]))
        policies.append(made.actor(z) * own)
        judged.append(both(made.critic, z, policies[-1])[0])
    critic = plain.critic_loss(torch.stack(values), torch.stack(targets).detach())
    actions, mask = batch["actions"][:, 0].double(), batch["action_mask"]
    actor = plain.actor_loss(torch.stack(judged), torch.stack(policies), actions, 2.5, mask)
    output = made(batch)
    torch.testing.assert_close(output.loss, critic + actor)
    torch.testing.assert_close(output.metrics["critic_loss"], critic.detach())
    torch.testing.assert_close(output.metrics["actor_loss"], actor.detach())


@pytest.mark.parametrize("learns_from", ["critic", "both"])
def test_who_learns_from_what(learns_from: Source) -> None:
    made = objective(actor_every=1, learns_from=learns_from)
    batch = two_spaces(made)
    features = made.encode(batch)
    rows, loss = features.rows, made.loss(features, batch).loss
    critic = td3_critic_loss(rows["values"], rows["targets"])
    # Q learns from its own errors alone, the policy from its own loss alone.
    torch.testing.assert_close(gradients(loss, made.critic), gradients(critic, made.critic))
    assert not any(g.any() for g in gradients(critic, made.actor))
    assert all(g.any() for g in gradients(loss, made.actor))
    same = all(
        torch.allclose(a, b)
        for a, b in zip(gradients(loss, made.encoder), gradients(critic, made.encoder), strict=True)
    )
    assert same == (learns_from == "critic")
    # The value of the policy's actions reaches the encoder through the policy only.
    for module in (made.target_actor, made.target_critic):
        assert not any(p.requires_grad for p in module.parameters())


def test_the_policy_takes_every_second_step() -> None:
    made = objective(actor_every=2)
    batch = two_spaces(made)
    moved = []
    for _ in range(4):
        before = copy.deepcopy(made.state_dict())
        fitted(made, batch, steps=1)
        after = made.state_dict()
        moved.append({name.split(".")[0] for name in after if not torch.equal(before[name], after[name])} - {"updates"})
    resting, acting = {"encoder", "critic"}, {"encoder", "critic", "actor", "target_actor", "target_critic"}
    assert moved == [resting, acting, resting, acting]
    assert int(made.updates) == 4


def test_moving_averages_follow() -> None:
    made = objective(actor_every=1, ema=0.25)
    old = copy.deepcopy(made.target_critic)
    fitted(made, two_spaces(made), steps=1)
    for first, now, online in zip(
        old.parameters(), made.target_critic.parameters(), made.critic.parameters(), strict=True
    ):
        torch.testing.assert_close(now, 0.75 * first + 0.25 * online.detach())


@pytest.mark.slow
@pytest.mark.parametrize("learns_from", ["critic", "both"])
def test_learns(learns_from: Source) -> None:
    made = objective(learns_from=learns_from, alpha=0.1)
    batch = step_batch(made.sampling(), batch=32, size=SIZE, action_dim=3)
    if learns_from == "both":  # actions told by the place, which Q needs no image for then
        batch["actions"] = (1 - 2 * batch["rewards"])[..., None].repeat(1, 1, 3)
    history, changed = fitted(made, batch, steps=60)
    first, last = history[0], history[-1]
    assert last["critic_loss"] < 0.2 * first["critic_loss"]
    assert last["critic_loss"] < 0.5 * last["critic_loss_constant"]
    assert last["loss"] < first["loss"]
    if learns_from == "both":
        assert last["action_error"] < 0.5 * last["action_error_constant"]
    assert changed == {name for name, _ in made.named_parameters()}


@pytest.mark.slow
def test_value_of_a_constant_reward() -> None:
    """Q = r / (1 - gamma), whatever the policy, in episodes without end."""
    made = objective(discount=0.5, ema=0.5, actor_every=1)
    batch = two_spaces(made)
    batch["rewards"] = torch.full_like(batch["rewards"], 1.5)
    history, _ = fitted(made, batch, steps=100)
    assert history[-1]["value"] == pytest.approx(3.0, abs=0.1)


def test_padding_has_no_part() -> None:
    made = objective(actor_every=1).eval()
    batch = two_spaces(made)
    wild = batch | {"actions": torch.where(batch["action_mask"][:, None], batch["actions"], 7.0)}
    torch.testing.assert_close(made(batch).loss, made(wild).loss)
    policy = made.encode(batch).rows["policy"]
    assert not policy[~batch["action_mask"]].any()


def test_noise() -> None:
    made = objective()
    batch = two_spaces(made)
    state = torch.get_rng_state()
    targets = [made.encode(own).rows["targets"] for own in (batch, batch, batch | {"noise": -batch["noise"]})]
    assert torch.equal(*targets[:2])
    assert not torch.equal(*targets[1:])
    assert torch.equal(state, torch.get_rng_state())


def test_a_resumed_run_repeats() -> None:
    def learner() -> ObjectiveLearner:
        return ObjectiveLearner(
            objective(), OptimizerConfig(lr=1e-3), total_steps=10, accelerator=Accelerator(cpu=True)
        )

    def run(some: ObjectiveLearner, steps: range) -> list[dict[str, float]]:
        return [some.update(batch, step) for step in steps]

    first, second = learner(), learner()
    batch: dict[str, Any] = two_spaces(objective())
    run(first, range(3))  # an odd number: the delay of the policy must be saved too
    saved = copy.deepcopy(first.state())
    rest = run(first, range(3, 6))
    second.load_state(saved)
    assert run(second, range(3, 6)) == rest


def test_several_ranks_need_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    made = objective(actor_every=2)
    with pytest.raises(BadInputError, match="actor_every"):
        made.encode(two_spaces(made))
    one = objective(actor_every=1)
    one.encode(two_spaces(one))


def test_actions_of_another_size() -> None:
    made = objective()
    with pytest.raises(BadInputError, match="actions"):
        made(step_batch(made.sampling(), size=SIZE, action_dim=4))
