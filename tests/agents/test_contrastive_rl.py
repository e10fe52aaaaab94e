from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from counterpoint.agents.networks import pairs
from counterpoint.objectives.contrastive_rl import contrastive_nce_loss
from tests.agents.point_world import point_batch, small_agent
from tests.golden.load import golden


def ogbench_encoder(arrays: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    """Dense, GELU (tanh form) and layer normalisation, for two members [2, B, D]."""
    prefix = f"p/modules_critic/{name}"
    x = x.expand(2, -1, -1)
    for layer in range(3):
        dense = f"{prefix}/Dense_{layer}"
        x = x @ arrays[f"{dense}/kernel"] + arrays[f"{dense}/bias"][:, None]
        if layer < 2:
            x = functional.gelu(x, approximate="tanh")
            x = functional.layer_norm(x, x.shape[-1:], eps=1e-6)
            norm = f"{prefix}/LayerNorm_{layer}"
            x = x * arrays[f"{norm}/scale"][:, None] + arrays[f"{norm}/bias"][:, None]
    return x


def test_the_nce_loss_trains_ogbenchs_critic_as_ogbench_does() -> None:
    arrays, _ = golden("crl_ogbench_nets_a")
    names = [key for key in arrays if key.startswith("p/modules_critic/")]
    for name in names:
        arrays[name].requires_grad_()
    phi = ogbench_encoder(arrays, "phi", torch.cat([arrays["observations"], arrays["actions"]], 1))
    psi = ogbench_encoder(arrays, "psi", arrays["value_goals"])
    torch.testing.assert_close(phi.detach(), arrays["phi"], rtol=1e-8, atol=1e-12)
    loss = contrastive_nce_loss(pairs(phi, psi) / phi.shape[-1] ** 0.5)  # OGBench divides products by sqrt(D)
    torch.testing.assert_close(loss.detach(), arrays["critic_loss"], rtol=1e-8, atol=0)
    for name, found in zip(names, torch.autograd.grad(loss, [arrays[name] for name in names]), strict=True):
        torch.testing.assert_close(found, arrays[f"grad{name[1:]}"], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", ["contrastive_rl", "contrastive_rl_nce"])
def test_losses_are_their_sums_over_pairs(name: str) -> None:
    agent = small_agent(name)
    batch = point_batch(2, rows=5)
    found, metrics, _ = agent.critic_loss(agent.features(batch), batch | {"next_noise": torch.zeros(5, 2)})
    with torch.no_grad():
        phi = agent.critic.encode_actions(batch["observation"], batch["action"])
        psi = agent.critic.encode_futures(batch["future_goal"])
    total, hits = 0.0, 0
    for q in range(2):
        for i in range(5):
            row = [float(phi[q, i] @ psi[q, j]) for j in range(5)]
            hits += max(row) == row[i]
            if name == "contrastive_rl":
                normaliser = math.log(sum(math.exp(x) for x in row))
                total += (normaliser - row[i] + 0.01 * normaliser**2) / 10
            else:
                for j, x in enumerate(row):
                    total += -math.log(1 / (1 + math.exp(-x if i == j else x))) / 50
    assert float(found.detach()) == pytest.approx(total, rel=1e-5)
    assert float(metrics["categorical_accuracy"]) == pytest.approx(hits / 10)


def test_the_actor_loss_is_the_lesser_twins_logit_at_the_commanded_goal() -> None:
    agent = small_agent("contrastive_rl", actor_goals="random")
    batch = point_batch(2, rows=4)
    found = agent.actor_loss(agent.features(batch), batch | {"actor_noise": torch.zeros(4, 2)}, {})
    with torch.no_grad():
        action = agent.actor.mode(torch.cat([batch["observation"], batch["random_goal"]], 1))
        phi = agent.critic.encode_actions(batch["observation"], action)
        psi = agent.critic.encode_futures(batch["random_goal"])
    expected = -sum(min(float(phi[q, i] @ psi[q, i]) for q in range(2)) for i in range(4)) / 4
    assert float(found.detach()) == pytest.approx(expected, rel=1e-5)
