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


@bench.command(name="fewshot")
def bench_fewshot(
    overrides: Positional[Annotated[tuple[str, ...], arg(metavar="--KEY=VALUE...")]] = (),
    /,
    *,
    out: Path,
    preset: Annotated[str, arg(metavar="PRESET")] = "cpu",
) -> None:
    """Pretrain encoders, clone unseen tasks from a few demonstrations, and put all methods in one table.

    Interrupted, it continues.

    Args:
        overrides: Any key of the preset: --data.demonstrations=10 --evaluation.episodes=40
        out: Where results (JSON), the table and figures go.
        preset: cpu, gpu, quick, or an experiment of the Premier-TACO paper (docs/studies/fewshot.md has them all).
    """
    from counterpoint.bench.fewshot import fewshot_benchmark
    from counterpoint.bench.fewshot_presets import preset as named
    from counterpoint.config import parse_overrides

    fewshot_benchmark(named(preset, parse_overrides(overrides)), out)
    print(f"Wrote {out}")


@bench.command(name="icon")
def bench_icon(
    overrides: Positional[Annotated[tuple[str, ...], arg(metavar="--KEY=VALUE...")]] = (),
    /,
    *,
    out: Path,
    preset: Annotated[str, arg(metavar="PRESET")] = "cpu",
) -> None:
    """Train diffusion policies with and without ICon, roll them out, and look at what their encoders attend to.

    Interrupted, it continues.

    Args:
        overrides: Any key of the preset: --data.demonstrations=20 --evaluation.episodes=20
        out: Where results (JSON), tables, figures and the page go.
        preset: cpu, gpu, quick, or an experiment of the ICon paper (docs/studies/icon.md has them all).
    """
    from counterpoint.bench.icon import icon_benchmark
    from counterpoint.bench.icon_presets import preset as named
    from counterpoint.config import parse_overrides

    icon_benchmark(named(preset, parse_overrides(overrides)), out)
    print(f"Wrote {out}")


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
    from counterpoint.policies.command import is_cloning, train_policy
    from counterpoint.policies.train_imitation import is_imitation, train_imitation

    if is_imitation(agent):
        print(f"Wrote {train_imitation(agent, data, out, parse_overrides(overrides), start_from=policy)}")
        return
    if is_cloning(agent):
        print(f"Wrote {train_policy(agent, data, out, parse_overrides(overrides), encoder=encoder)}")
        return
    from counterpoint.agents.train import train_agent

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
    """Run a trained agent or policy and write RUN/evaluation.json: success with its interval.

    Args:
        run: The run's folder.
        env: Another environment than the one it was trained for; SUITE/TASK for a policy trained on demonstrations.
        episodes: How many.
        envs: Environments side by side; the result does not depend on it.
        seed: Of the episodes, which never meet those of training.
    """
    if (run / "policy").is_dir():
        from counterpoint.policies.evaluate import evaluate_policy

        print(f"Wrote {evaluate_policy(run, env=env, episodes=episodes, envs=envs, seed=seed)}")
        return
    from counterpoint.agents.evaluate import evaluate_run

    print(f"Wrote {evaluate_run(run, env=env, episodes=episodes, envs=envs, seed=seed)}")
