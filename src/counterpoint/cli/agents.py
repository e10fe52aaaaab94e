"""`counterpoint train` and `evaluate`: agents and policies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

__all__ = ["evaluate", "train"]


def train(
    agent: Positional[Annotated[str, arg(metavar="AGENT")]],
    overrides: Positional[Annotated[tuple[str, ...], arg(metavar="--KEY=VALUE...")]] = (),
    /,
    *,
    out: Path,
    env: Annotated[str | None, arg(metavar="ID")] = None,
    data: Annotated[str | None, arg(metavar="PATH")] = None,
    encoder: Annotated[str | None, arg(metavar="RUN")] = None,
    policy: Annotated[str | None, arg(metavar="RUN")] = None,
) -> None:
    """Train a goal-reaching agent, online or on a data set, or a policy on demonstrations. Run it again to continue.

    Args:
        agent: An agent (td_infonce, contrastive_rl, ...), `cloning`, a recipe (see `counterpoint recipes`; those of
            diffusion policies are diff_c-robosuite, icon_diff_c-robosuite, ...) or a TOML file.
        overrides: Any key of the recipe: --online.steps=50000 --agent.discount=0.95
        out: The run's folder.
        env: A goal environment, such as FetchReach-v4: trained in, or evaluated in where there are data.
        data: A Minari data set (folder or id) or a LeRobot data set; demonstrations of any format for policies.
        encoder: A pretraining run that cloning starts from; random weights without.
        policy: A run whose diffusion policy is fine-tuned; random weights without.
    """
    from counterpoint.config import parse_overrides
    from counterpoint.training.clone_command import is_cloning, train_policy
    from counterpoint.training.imitate import is_imitation, train_imitation

    if is_imitation(agent):
        print(f"Wrote {train_imitation(agent, data, out, parse_overrides(overrides), start_from=policy)}")
        return
    if is_cloning(agent):
        print(f"Wrote {train_policy(agent, data, out, parse_overrides(overrides), encoder=encoder)}")
        return
    from counterpoint.training.train_agent import train_agent

    print(f"Wrote {train_agent(agent, out, parse_overrides(overrides), env=env, data=data)}")


def evaluate(
    run: Positional[Path],
    /,
    *,
    env: Annotated[str | None, arg(metavar="ID")] = None,
    episodes: int = 50,
    envs: int = 2,
    seed: int = 0,
    video: int = 0,
    device: Annotated[str | None, arg(metavar="DEVICE")] = None,
) -> None:
    """Run a trained agent or policy and write RUN/evaluation.json: success with its interval.

    Args:
        run: The run's folder.
        env: Another environment than the one it was trained for; SUITE/TASK for a policy trained on demonstrations.
        episodes: Number of episodes.
        envs: Environments side by side; the result does not depend on it.
        seed: Random seed of the episodes, which never meet those of training.
        video: Number of episodes that are written as RUN/videos/episode-NUMBER.mp4.
        device: Device of the networks; a GPU where there is one.
    """
    from counterpoint.evaluation.evaluate import evaluate as written

    print(f"Wrote {written(run, env, episodes=episodes, envs=envs, seed=seed, video=video, device=device)}")
