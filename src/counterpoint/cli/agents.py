"""`counterpoint train`, `evaluate` and `bench`: goal-reaching agents and the studies of their papers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional, arg

__all__ = ["bench", "evaluate", "train"]

bench = tyro.extras.SubcommandApp()


@bench.command(name="occupancy")
def bench_occupancy(*, out: Path, quick: bool = False, processes: int = 2) -> None:
    """Estimate occupancies on a 5x5 grid by four methods: TD InfoNCE, Fig. 3, 11 and 12. Interrupted, it continues.

    Args:
        out: Where results (JSON) and figures go.
        quick: A small version, in a minute.
        processes: How many run side by side; the results do not depend on it.
    """
    from counterpoint.bench.occupancy import OccupancyConfig, occupancy_study
    from counterpoint.config import validate

    config = OccupancyConfig.quick() if quick else OccupancyConfig()
    given = config.model_dump() | {"processes": processes}
    occupancy_study(validate(OccupancyConfig, given, "bench occupancy"), out)
    print(f"Wrote {out}")


@bench.command(name="stitching")
def bench_stitching(*, out: Path, quick: bool = False) -> None:
    """Join trajectories and find shortcuts on a grid: TD InfoNCE, Fig. 4, 5, 8 and 9. Interrupted, it continues.

    Args:
        out: Where results (JSON) and figures go.
        quick: A small version, in a minute.
    """
    from counterpoint.bench.stitching import StitchingConfig, stitching_study

    config = StitchingConfig.quick() if quick else StitchingConfig()
    stitching_study(config, out)
    print(f"Wrote {out}")


def train(
    agent: Positional[Annotated[str, arg(metavar="AGENT")]],
    overrides: Positional[Annotated[tuple[str, ...], arg(metavar="--KEY=VALUE...")]] = (),
    /,
    *,
    out: Path,
    env: Annotated[str | None, arg(metavar="ID")] = None,
    data: Annotated[str | None, arg(metavar="PATH")] = None,
) -> None:
    """Train a goal-reaching agent, online in an environment or offline on a data set. Run it again to continue.

    Args:
        agent: An agent (td_infonce, contrastive_rl, ...), a recipe (see `counterpoint recipes`) or a TOML file.
        overrides: Any key of the recipe: --online.steps=50000 --agent.discount=0.95
        out: The run's folder.
        env: A goal environment, such as FetchReach-v4: trained in, or evaluated in where there are data.
        data: A Minari data set (folder or id) or a LeRobot data set.
    """
    from counterpoint.agents.train import train_agent
    from counterpoint.config import parse_overrides

    print(f"Wrote {train_agent(agent, out, parse_overrides(overrides), env=env, data=data)}")


def evaluate(
    run: Positional[Path],
    /,
    *,
    env: Annotated[str | None, arg(metavar="ID")] = None,
    episodes: int = 50,
    envs: int = 2,
    seed: int = 0,
) -> None:
    """Run a trained agent and write RUN/evaluation.json: success with its interval, distance to the goal.

    Args:
        run: The run's folder.
        env: Another environment than the one it was trained for.
        episodes: How many.
        envs: Environments side by side; the result does not depend on it.
        seed: Of the episodes, which never meet those of training.
    """
    from counterpoint.agents.evaluate import evaluate_run

    print(f"Wrote {evaluate_run(run, env=env, episodes=episodes, envs=envs, seed=seed)}")
