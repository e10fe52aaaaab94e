"""`counterpoint evaluate`: how often a trained agent reaches its goals, with an interval."""

from __future__ import annotations

import json
from pathlib import Path

from counterpoint.agents.offline import matched
from counterpoint.agents.saved import load_agent
from counterpoint.agents.train import env_spaces
from counterpoint.config import validate
from counterpoint.envs.goal_env import EnvConfig
from counterpoint.envs.workers import EnvWorkers, WorkerLostError
from counterpoint.errors import BadInputError
from counterpoint.evaluation.rollouts import roll_out
from counterpoint.progress import ProgressBar
from counterpoint.provenance import provenance
from counterpoint.training.checkpoint import write_atomically

__all__ = ["evaluate_run"]


def evaluate_run(run: Path, *, env: str | None, episodes: int, envs: int, seed: int) -> Path:
    """Roll a trained agent out and write `run/evaluation.json`.

    Args:
        run: The run's folder, with `agent/` in it.
        env: Another environment than the one the agent was trained for.
        episodes: How many.
        envs: Environments side by side; the result does not depend on it.
        seed: Of the episodes.

    Returns:
        The file written.

    Raises:
        BadInputError: When there is no agent, no environment, or one with other spaces.
    """
    agent, trained_in = load_agent(run)
    tree = dict(trained_in or {}) | ({"name": env} if env is not None else {})
    if "name" not in tree:
        raise BadInputError(
            run,
            found="an agent trained on data alone",
            expected="an environment to evaluate in",
            mend="name one with --env",
        )
    config = validate(EnvConfig, tree, f"{run}, [env]")
    matched(env_spaces(config), agent.spaces, str(run))
    with EnvWorkers(config, envs) as workers, ProgressBar("Evaluating", episodes, "episodes") as progress:
        done = 0

        def advance(now: int) -> None:
            nonlocal done
            progress.advance(now - done)
            done = now

        try:
            rollouts = roll_out(agent, workers, episodes=episodes, seed=seed, on_round=advance)
        except WorkerLostError as error:
            raise BadInputError(
                f"environment {config.name}",
                found=str(error),
                expected="workers that live",
                mend="look for memory running out or a simulator that crashes",
            ) from None
    record = {
        "agent": agent.name,
        "env": config.model_dump(mode="json"),
        "seed": seed,
        **rollouts.report(),
        "provenance": provenance(),
    }
    write_atomically(run / "evaluation.json", json.dumps(record, indent=1))
    return run / "evaluation.json"
