from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from counterpoint.agents.networks import GaussianActor, pairs
from counterpoint.agents.td_infonce import TDInfoNCE, TDInfoNCEConfig
from counterpoint.data.episode import Spaces
from tests.agents.point_world import point_batch, small_agent
from tests.golden.load import golden

GOLDEN_SPACES = Spaces(observation=(10,), goal=(10,), action=4)
TWINS = {"phi": ("sag_encoder", "sag_encoder2"), "psi": ("fs_encoder", "fs_encoder2")}
ACTOR = "actor.{}"


def golden_agent(arrays: Mapping[str, Tensor], **settings: object) -> TDInfoNCE:
    """The authors' networks in this agent's modules, in double precision."""
    config = TDInfoNCEConfig.model_validate({"hidden": (16, 16), "representation": 5, **settings})
    agent = TDInfoNCE(config, GOLDEN_SPACES)
    for module in agent.modules.values():
        module.double()
    with torch.no_grad():
        for prefix, critic in (("q", agent.critic), ("target", agent.target_critic)):
            for name, value in critic.named_parameters():
                value.copy_(critic_array(arrays, prefix, name))
        for name, value in agent.actor.named_parameters():
            value.copy_(actor_array(arrays, "pi", name))
    return agent


def critic_array(arrays: Mapping[str, Tensor], prefix: str, name: str) -> Tensor:
    """The authors' two arrays that make up one of our stacked parameters, `phi.weights.0` and so on."""
    encoder, kind, layer = name.split(".")
    parts = [arrays[f"{prefix}/{twin}/~/linear_{layer}/{kind[0]}"] for twin in TWINS[encoder]]
    stacked = torch.stack(parts)
    return stacked if kind == "weights" else stacked[:, None]


def actor_array(arrays: Mapping[str, Tensor], prefix: str, name: str) -> Tensor:
    part, kind, layer = name.split(".")
    if part == "body":
        found = arrays[f"{prefix}/mlp/~/linear_{layer}/{kind[0]}"]
    else:
        heads = ("linear", "linear_1")
        found = torch.cat([arrays[f"{prefix}/Normal/~/{head}/{kind[0]}"] for head in heads], dim=-1)
    return found[None] if kind == "weights" else found[None, None]


def golden_batch(arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        "observation": arrays["obs"],
        "action": arrays["action"],
        "next_observation": arrays["next_obs"],
        "next_goal": arrays["next_obs"],
        "random_goal": arrays["random_goal"],
        "future_goal": arrays["future_goal"],
    }


def fixed_noise(agent: TDInfoNCE, draws: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter(draws)
    monkeypatch.setattr(agent, "action_noise", lambda rows, generator: next(left))


def test_one_update_equals_the_authors(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays, _ = golden("tdinfonce_nets_a")
    agent = golden_agent(arrays)
    fixed_noise(agent, [arrays["eps_next_action"], arrays["eps_actor"]], monkeypatch)
    metrics = agent.update(golden_batch(arrays), 0)
    torch.testing.assert_close(metrics["critic/loss"], arrays["critic_loss"], rtol=1e-8, atol=0)
    torch.testing.assert_close(metrics["actor/loss"], arrays["actor_loss"], rtol=1e-8, atol=0)
    for name, value in agent.critic.named_parameters():
        assert value.grad is not None
        torch.testing.assert_close(value.grad, critic_array(arrays, "grad_q", name), rtol=1e-6, atol=1e-12)
        torch.testing.assert_close(value.detach(), critic_array(arrays, "new_q", name), rtol=0, atol=1e-9)
    for name, value in agent.actor.named_parameters():
        assert value.grad is not None
        torch.testing.assert_close(value.grad, actor_array(arrays, "grad_pi", name), rtol=1e-6, atol=1e-12)
        torch.testing.assert_close(value.detach(), actor_array(arrays, "new_pi", name), rtol=0, atol=1e-9)
    for name, value in agent.target_critic.named_parameters():
        torch.testing.assert_close(value, critic_array(arrays, "new_target", name), rtol=0, atol=1e-9)


def test_networks_equal_the_authors() -> None:
    arrays, _ = golden("tdinfonce_nets_a")
    agent = golden_agent(arrays)
    phi = agent.critic.encode_actions(arrays["obs"], arrays["action"], arrays["random_goal"])
    psi = agent.critic.encode_futures(arrays["next_obs"])
    for found, name in ((phi.permute(1, 2, 0), "sag_repr"), (psi.permute(1, 2, 0), "fs_repr")):
        torch.testing.assert_close(found.detach(), arrays[name], rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(pairs(phi, psi).detach(), arrays["F_next"], rtol=1e-8, atol=1e-12)
    assert isinstance(agent.actor, GaussianActor)
    loc, scale = agent.actor(torch.cat([arrays["obs"], arrays["random_goal"]], dim=1))
    torch.testing.assert_close(loc.detach(), arrays["policy_loc"], rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(scale.detach(), arrays["policy_scale"], rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "goals", "cloning"), [("randomgoals0.0_bc0.2", "future", 0.2), ("randomgoals0.5_bc0.0", "half", 0.0)]
)
def test_other_actor_losses_equal_the_authors(
    name: str, goals: str, cloning: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays, _ = golden("tdinfonce_nets_a")
    agent = golden_agent(arrays, actor_goals=goals, behaviour_cloning=cloning)
    noise = arrays["eps_actor"]
    draws = [arrays["eps_next_action"], noise if goals == "future" else torch.cat([noise, noise.flip(0)])]
    fixed_noise(agent, draws, monkeypatch)
    found = agent.evaluate(golden_batch(arrays))["actor/loss"]
    assert found == pytest.approx(float(arrays[f"actor_loss_{name}"]), rel=1e-8)


def test_critic_loss_is_the_papers_sum_over_rows_and_columns() -> None:
    agent = small_agent("td_infonce", discount=0.9)
    assert isinstance(agent, TDInfoNCE)
    batch = point_batch(3, rows=5)
    noise = torch.randn(5, 2, generator=torch.Generator().manual_seed(1))
    found, _, _ = agent.critic_loss(agent.features(batch), batch | {"next_noise": noise})
    s, a, g = batch["observation"], batch["action"], batch["random_goal"]
    with torch.no_grad():
        assert isinstance(agent.actor, GaussianActor)
        after = agent.actor.sample(torch.cat([batch["next_observation"], g], 1), noise)
        phi = agent.critic.encode_actions(s, a, g)
        phi_after = agent.target_critic.encode_actions(batch["next_observation"], after, g)
        psi_next = agent.critic.encode_futures(batch["next_goal"])
        psi, psi_target = agent.critic.encode_futures(g), agent.target_critic.encode_futures(g)
    total = 0.0
    for i in range(5):
        weights = [math.exp(min(float(phi_after[q, i] @ psi_target[q, j]) for q in range(2))) for j in range(5)]
        for q in range(2):
            near = [float(phi[q, i] @ psi_next[q, j]) for j in range(5)]
            far = [float(phi[q, i] @ psi[q, j]) for j in range(5)]
            near_total, far_total = (sum(math.exp(x) for x in row) for row in (near, far))
            first = -math.log(math.exp(near[i]) / near_total)
            second = -sum(
                w / sum(weights) * math.log(math.exp(x) / far_total) for w, x in zip(weights, far, strict=True)
            )
            total += (0.1 * first + 0.9 * second) / 10
    assert float(found.detach()) == pytest.approx(total, rel=1e-5)


def test_psi_of_random_goals_is_encoded_once_and_never_trained_by_the_actor() -> None:
    agent = small_agent("td_infonce")
    batch = point_batch(0)
    known = {"random_goal": agent.critic.encode_futures(batch["random_goal"])}
    loss = agent.actor_loss(agent.features(batch), batch | {"actor_noise": torch.zeros(32, 2)}, known)
    torch.autograd.backward([loss])
    assert all(value.grad is None for value in agent.critic.parameters())
    assert all(value.grad is not None for value in agent.actor.parameters())
