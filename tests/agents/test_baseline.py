from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from counterpoint.agents import make_agent
from counterpoint.agents.base import descend, soft_update
from tests.agents.baseline_batches import STATE, batch_of

SMALL: dict[str, dict[str, Any]] = {
    "gcbc": {},
    "ddpg_her": {},
    "qrl": {"latent": 16, "projector": 32, "components": 8, "component_width": 4},
    "td3_bc": {},
    "iql": {},
    "decision_transformer": {"context": 4, "width": 16, "layers": 1},
}


def test_a_step_takes_every_gradient_before_it_changes_anything() -> None:
    one, other = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    optimizers = {"one": torch.optim.SGD(one.parameters(), 0.1), "other": torch.optim.SGD(other.parameters(), 0.1)}
    before = one.weight.item(), other.weight.item()
    losses = {"one": (one.weight * other.weight.detach()).sum(), "other": (other.weight * one.weight.detach()).sum()}
    descend(losses, optimizers)
    assert one.weight.item() == pytest.approx(before[0] - 0.1 * before[1])
    assert other.weight.item() == pytest.approx(before[1] - 0.1 * before[0])
    descend({"one": 100 * one.weight.sum()}, optimizers, clip_norm=0.5)
    assert one.weight.item() == pytest.approx(before[0] - 0.1 * before[1] - 0.05, abs=1e-6)


def test_a_soft_update_moves_a_target() -> None:
    target, online = nn.Linear(2, 2), nn.Linear(2, 2)
    expected = 0.9 * target.weight + 0.1 * online.weight
    soft_update(target, online, 0.1)
    torch.testing.assert_close(target.weight, expected)


@pytest.mark.parametrize("name", list(SMALL))
def test_bfloat16_products_change_losses_a_little_and_parameters_stay_float32(name: str) -> None:
    sizes = {} if name == "decision_transformer" else {"hidden": [32, 32]}
    losses = []
    for bf16 in (False, True):
        agent = make_agent({"name": name, "bf16": bf16} | sizes | SMALL[name], STATE)
        batch = batch_of(STATE, K=agent.sampling().sequence)
        losses.append(agent.evaluate(batch)["loss"])
        assert agent.update(batch, 0)["loss"].dtype == torch.float32
        assert all(p.dtype == torch.float32 for module in agent.modules.values() for p in module.parameters())
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.03)
