"""`counterpoint evaluate`: how often a trained agent reaches its goals, with an interval."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from pydantic import Field

from counterpoint.agents import SavedAgent
from counterpoint.config import FrozenConfig, validate
from counterpoint.envs.goal.env import EnvConfig, env_spaces, goal_envs, in_another_env, matched
from counterpoint.errors import BadInputError
from counterpoint.evaluation.rollout import episode_seed, report, rollout
from counterpoint.files import write_atomically
from counterpoint.progress import ProgressBar
from counterpoint.provenance import provenance

__all__ = ["evaluate_run"]


class EvaluationConfig(FrozenConfig):
    """How an agent is evaluated: episodes, environments side by side, and the seed of the episodes."""

    episodes: int = Field(ge=1)
    envs: int = Field(ge=1)
    seed: int = Field(ge=0)


def evaluate_run(run: Path, *, env: str | None, episodes: int, envs: int, seed: int) -> Path:
    """Roll a trained agent out and write `run/evaluation.json`.

    Args:
        run: The run's folder, with `model/` in it.
        env: Another environment than the one the agent was trained for.
        episodes: How many.
        envs: Environments side by side; the result does not depend on it.
        seed: Of the episodes.

    Returns:
        The file written.

    Raises:
        BadInputError: When there is no agent, no environment, or one with other spaces.
    """
    asked = validate(EvaluationConfig, {"episodes": episodes, "envs": envs, "seed": seed}, "evaluate")
    saved = SavedAgent.from_pretrained(run)
    agent = saved.agent
    tree = dict(saved.env or {}) if env is None else in_another_env(saved.env or {}, env)
    if "name" not in tree:
        raise BadInputError(
            run, "an agent trained on data alone", "an environment to evaluate in", "name one with --env"
        )
    config = validate(EnvConfig, tree, f"{run}, [env]")
    matched(env_spaces(config), agent.spaces, str(run))
    seeds = [episode_seed(asked.seed, 2, number) for number in range(asked.episodes)]
    with goal_envs(config, asked.envs) as rows, ProgressBar("Evaluating", asked.episodes, "episodes") as bar:
        results = rollout(agent, rows, seeds, on_episode=lambda result: bar.advance())
    record = {
        "agent": agent.name,
        "env": config.model_dump(mode="json"),
        "seed": asked.seed,
        **report(results),
        "episodes": [asdict(result) for result in results],
        "provenance": provenance(),
    }
    write_atomically(run / "evaluation.json", json.dumps(record, indent=1))
    return run / "evaluation.json"
