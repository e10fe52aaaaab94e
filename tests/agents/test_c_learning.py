from __future__ import annotations

import math

import pytest
import torch

from counterpoint.agents.c_learning import CLearning
from counterpoint.agents.networks import GaussianActor
from tests.agents.point_world import point_batch, small_agent


@pytest.mark.parametrize(("limit", "self_normalised"), [(20.0, False), (1.05, False), (20.0, True)])
def test_critic_loss_is_the_papers_sum_over_rows(limit: float, self_normalised: bool) -> None:
    agent = small_agent("c_learning", discount=0.9, weight_limit=limit, self_normalised=self_normalised)
    assert isinstance(agent, CLearning)
    batch = point_batch(3, rows=5)
    noise = torch.randn(5, 2, generator=torch.Generator().manual_seed(1))
    found, _, _ = agent.critic_loss(agent.features(batch), batch | {"next_noise": noise})
    with torch.no_grad():
        assert isinstance(agent.actor, GaussianActor)
        goal = batch["random_goal"]
        after = agent.actor.sample(torch.cat([batch["next_observation"], goal], 1), noise)
        phi = agent.critic.encode_actions(batch["observation"], batch["action"])
        phi_after = agent.target_critic.encode_actions(batch["next_observation"], after)
        psi_next, psi = agent.critic.encode_futures(batch["next_goal"]), agent.critic.encode_futures(goal)
        psi_target = agent.target_critic.encode_futures(goal)

    def classifier(logit: float) -> float:
        return 1 / (1 + math.exp(-logit))

    weights = []
    for i in range(5):
        c = min(classifier(float(phi_after[q, i] @ psi_target[q, i])) for q in range(2))
        weights.append(min(c / (1 - c), limit))
    if self_normalised:
        weights = [w / (sum(weights) / 5) for w in weights]
    total = 0.0
    for i in range(5):
        for q in range(2):
            reached, drawn = (classifier(float(phi[q, i] @ other[q, i])) for other in (psi_next, psi))
            total -= 0.1 * math.log(reached) + 0.9 * weights[i] * math.log(drawn) + math.log(1 - drawn)
    assert float(found.detach()) == pytest.approx(total / 10, rel=1e-5)
