from __future__ import annotations

from typing import Any

import pytest
import torch

from counterpoint.agents import SavedAgent, make_agent
from counterpoint.agents.contrastive import ContrastiveAgent
from counterpoint.envs.goal.env import EnvConfig, env_facts
from studies.goal_reaching import GoalReachingConfig, holding, summary
from studies.harness import load_preset


@pytest.mark.sim
@pytest.mark.parametrize("name", ["td_infonce", "contrastive_rl"])
def test_a_critic_that_ignores_actions_has_no_signal_for_holding(name: str) -> None:
    config = EnvConfig(name="FetchReach-v4")
    spaces, _ = env_facts(config)
    agent = make_agent({"name": name, "hidden": (16,)}, spaces)
    assert isinstance(agent, ContrastiveAgent)
    saved = SavedAgent(agent=agent, env=config.model_dump(mode="json"))
    found = holding(saved, episodes=1)
    assert abs(found["stay_nats"]) > 1e-6
    assert 0 < found["speed_at_goal"] < 3**0.5
    with torch.no_grad():
        agent.critic.phi.weights[0][:, 10:14] = 0
    blind = holding(saved, episodes=1)
    assert blind["stay_nats"] == pytest.approx(0, abs=1e-6)
    assert blind["toward_nats"] == pytest.approx(0, abs=1e-6)


def run(row: str, seed: int, curve: list[float]) -> dict[str, Any]:
    value = {"value": curve[-1]}
    return {
        "row": row,
        "seed": seed,
        "evaluation": {"success": value, "success_at_end": value, "closest_distance": {"value": 0.1}},
        "curve": [{"step": 1000 * step, "success": success} for step, success in enumerate(curve, 1)],
    }


def test_the_area_is_the_mean_of_a_seed_s_curve() -> None:
    found = summary([run("td", 0, [0.0, 0.5, 1.0]), run("td", 1, [1.0, 1.0, 1.0])])["rows"]["td"]
    assert found["area"]["values"] == [0.5, 1.0]
    assert found["area"]["mean"] == pytest.approx(0.75)


def test_matched_rows_differ_in_their_critics_loss_alone() -> None:
    preset = load_preset("goal_reaching", GoalReachingConfig, "fetch_reach_matched")
    assert isinstance(preset, GoalReachingConfig)

    def settings(row: str) -> dict[str, Any]:
        one = preset.rows[row]
        agent = {key.removeprefix("agent."): value for key, value in (preset.common | one.overrides).items()}
        agent = {key: value for key, value in agent.items() if "." not in key}
        kept = make_agent({"name": one.recipe, **agent}, env_facts(EnvConfig(name=preset.env))[0])
        return kept.config.model_dump(exclude={"logsumexp_penalty"})

    assert settings("TD, its own actor") == settings("MC, TD's actor")
    assert settings("TD, MC's actor") == settings("MC, its own actor")
