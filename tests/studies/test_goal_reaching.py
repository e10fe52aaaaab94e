from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from counterpoint.agents import SavedAgent, make_agent
from counterpoint.agents.contrastive import ContrastiveAgent
from counterpoint.envs.goal.env import EnvConfig, env_facts
from counterpoint.errors import BadInputError
from counterpoint.training.recipe import load_recipe
from studies.goal_reaching import SIGNALS, GoalReachingConfig, Row, command, counterpoint, holding, summary
from studies.harness import load_preset, presets


@pytest.mark.slow
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
    assert found.keys() == SIGNALS.keys()
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


def test_seeds_of_a_search_are_its_own() -> None:
    search = load_preset("goal_reaching", GoalReachingConfig, "qrl_search")
    assert isinstance(search, GoalReachingConfig)
    others = load_preset("goal_reaching", GoalReachingConfig, "fetch_reach_corrupted")
    assert isinstance(others, GoalReachingConfig)
    assert search.first_seed >= others.first_seed + others.seeds


def test_matched_rows_differ_in_their_critics_loss_alone() -> None:
    preset = load_preset("goal_reaching", GoalReachingConfig, "fetch_reach_matched")
    assert isinstance(preset, GoalReachingConfig)

    def settings(row: str) -> dict[str, Any]:
        one = preset.rows[row]
        agent = {key.removeprefix("agent."): value for key, value in (preset.common | one.overrides).items()}
        agent = {key: value for key, value in agent.items() if "." not in key}
        kept = make_agent({"name": one.recipe, **agent}, env_facts(EnvConfig(name=preset.env))[0])
        return kept.config.model_dump(exclude={"logsumexp_penalty", "tau"})

    assert settings("TD, its own actor") == settings("MC, TD's actor")
    assert settings("TD, MC's actor") == settings("MC, its own actor")


GRID = {"agent.actor_goals": ("half", "random"), "agent.behaviour_cloning": (0.0, 0.5)}


def small(**changes: Any) -> GoalReachingConfig:
    rows = {"td": Row(recipe="td_infonce", overrides={"agent.tau": 0.1}), "mc": Row(recipe="contrastive_rl")}
    return GoalReachingConfig(env="PointMaze_UMaze-v3", rows=rows, episodes=4, **changes)


def test_a_grid_gives_every_row_every_setting() -> None:
    config = small(grid=GRID, data="DATA")
    assert list(config.agents) == [
        f"{row} {goals} {share}" for goals in ("half", "random") for share in (0.0, 0.5) for row in ("td", "mc")
    ]
    words = command(config, Path("RUN"), "td random 0.5", 7)
    assert words[:2] == ["train", "td_infonce"]
    for word in ("--agent.tau=0.1", "--agent.actor_goals=random", "--agent.behaviour_cloning=0.5", "--train.seed=7"):
        assert word in words
    assert list(small().agents) == ["td", "mc"]


def test_pairs_are_compared_seed_by_seed() -> None:
    def rows(name: str, values: list[float]) -> list[dict[str, Any]]:
        cells = {key: {"value": 0.0} for key in ("success_at_end", "closest_distance")}
        return [
            {"row": name, "seed": seed, "evaluation": {"success": {"value": value}, **cells}, "curve": []}
            for seed, value in enumerate(values)
        ]

    found = summary(
        rows("td", [1.0, 0.5, 0.75])[::-1] + rows("mc", [0.5, 0.5, 0.0]),
        {"config": {"pairs": {"td less mc": ("td", "mc")}}},
    )
    np.testing.assert_allclose(found["pairs"]["td less mc"], [0.5, 0.0, 0.75])
    assert found["rows"]["td"]["success"]["mean"] == 0.75


@pytest.mark.parametrize("name", presets("goal_reaching"))
def test_every_agent_of_a_preset_is_a_recipe(name: str) -> None:
    config = load_preset("goal_reaching", GoalReachingConfig, name)
    data = [config.data] if config.data else []
    for row in config.agents.values():
        found = load_recipe(row.recipe, config.common | row.overrides, data=data, env=config.env).model_dump()
        assert found["agent"]["name"] == row.recipe.partition("-")[0]


@pytest.mark.parametrize("name", [name for name in presets("goal_reaching") if "stitch" in name])
def test_presets_of_the_maze_choose_on_seeds_that_are_not_reported(name: str) -> None:
    config: Any = load_preset("goal_reaching", GoalReachingConfig, name)
    assert config.prepare.endswith(config.data)
    choosing = "gate" in name or "screen" in name
    assert (config.first_seed == 90) is choosing
    assert {row for pair in config.pairs.values() for row in pair} <= set(config.agents)
    assert choosing or config.seeds >= 4
    assert "gcbc" in config.agents or not config.pairs


def test_a_command_that_fails_is_one_message_with_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(
        BadInputError, match=r"exit code 2 \(.*no such agent or recipe.*expected a command that succeeds"
    ):
        counterpoint(["train", "no_such_recipe", "--out", str(tmp_path / "run")], tmp_path / "logs" / "train.log")
    counterpoint(["--version"], tmp_path / "logs" / "train.log")
    assert (tmp_path / "logs" / "train.log").read_text().splitlines()[-1].startswith("counterpoint ")
