"""Goal-reaching agents side by side, through the command line, several seeds each, with intervals over seeds.

    python benchmarks/goal_reaching.py fetch_reach
    python benchmarks/goal_reaching.py point_maze
    python benchmarks/goal_reaching.py sensitivity
    python benchmarks/goal_reaching.py push             # wants a graphics card; push_stochastic too

Each study of `STUDIES` is a list of rows, each row a `counterpoint train` command. A run whose evaluation exists is not
repeated, one that was interrupted goes on; `--rows`, `--seeds` and `--workers` choose. The result goes to
`benchmarks/results/goal_reaching_STUDY.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.evaluation.statistics import seeds_interval
from counterpoint.provenance import provenance

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Study:
    """Rows that are compared in one environment.

    Attributes:
        env: The environment's id.
        rows: Row name -> agent and that row's own overrides.
        common: Overrides of every row.
        data: The data set, for an offline study.
        seeds: How many.
        episodes: Of the final evaluation.
        prepare: The `counterpoint` command that records the data set.
    """

    env: str
    rows: dict[str, tuple[str, dict[str, Any]]]
    common: dict[str, Any]
    data: str | None = None
    seeds: int = 3
    episodes: int = 50
    prepare: tuple[str, ...] = ()


def recorded(out: str, overlap: int) -> tuple[str, ...]:
    """The command that records a maze in two parts with 2 `overlap` + 1 cells in common."""
    line = f"collect pointmaze --maze UMaze --suite stitch --overlap {overlap} --episodes 200 --val-episodes 20"
    return (*line.split(), "--out", out)


# Smaller networks and one update every four environment steps: what two CPU cores can do in minutes. Adam's rate is
# 3e-4 everywhere, since 12,000 updates are too few for the smaller rates of the papers' policies.
SMALL_ONLINE = {
    "agent.hidden": [256, 256],
    "online.steps": 30_000,
    "online.envs": 4,
    "online.warmup": 2_000,
    "online.updates_per_step": 0.25,
    "online.capacity": 60_000,
    "online.eval_every": 5_000,
    "online.eval_episodes": 20,
    "online.save_every": 25_000,
    "online.trackers": [],
}
SMALL_OFFLINE = {
    "agent.hidden": [256, 256],
    "train.steps": 8_000,
    "train.eval_every": 2_000,
    "train.save_every": 4_000,
    "train.trackers": [],
}
CLONED = {"agent.actor_goals": "future", "agent.behaviour_cloning": 0.1}
FAST = {"agent.actor_lr": 3e-4}
SMALL_QRL = FAST | {
    "agent.critic_lr": 3e-4,
    "agent.critics": 1,
    "agent.latent": 64,
    "agent.projector": 128,
    "agent.components": 8,
    "agent.component_width": 8,
    "agent.initial_multiplier": 1.0,  # short runs do not wait for it to grow from 0.01
}
# Table 2, as many environment steps as ten minutes of a graphics card allow.
FULL_ONLINE = {"agent.compile": True, "online.steps": 200_000, "online.envs": 16, "online.trackers": []}
SHORT = {"online.steps": 15_000, "online.eval_every": 3_000, "online.save_every": 15_000}

STUDIES = {
    "fetch_reach": Study(
        "FetchReach-v4",
        {
            "td_infonce": ("td_infonce", FAST),
            "contrastive_rl": ("contrastive_rl", FAST),
            "qrl": ("qrl", SMALL_QRL),
            "gcbc": ("gcbc", {}),
        },
        SMALL_ONLINE,
    ),
    "point_maze": Study(
        "PointMaze_UMaze-v3",
        {
            "td_infonce": ("td_infonce", FAST | CLONED),
            "contrastive_rl": ("contrastive_rl", FAST | CLONED),
            "gcbc": ("gcbc", {}),
        },
        SMALL_OFFLINE,
        data="runs/umaze-stitch-0",
        prepare=recorded("runs/umaze-stitch-0", overlap=0),
    ),
    # Table 3 has future goals: no policy is asked, near the start, for goals of the far part. Here it is.
    "point_maze_random": Study(
        "PointMaze_UMaze-v3",
        {
            "td_infonce": ("td_infonce", FAST | {"agent.actor_goals": "random"}),
            "contrastive_rl": ("contrastive_rl", FAST | {"agent.actor_goals": "random"}),
        },
        SMALL_OFFLINE,
        data="runs/umaze-stitch-0",
        prepare=recorded("runs/umaze-stitch-0", overlap=0),
        seeds=1,
    ),
    # Appendix E.1 without the figure's numbers: each line changes one thing of the first.
    "sensitivity": Study(
        "FetchReach-v4",
        {
            "as in fetch_reach": ("td_infonce", FAST | SHORT),
            "actor rate 5e-5": ("td_infonce", SHORT | {"agent.actor_lr": 5e-5}),
            "actor rate 1e-3": ("td_infonce", SHORT | {"agent.actor_lr": 1e-3}),
            "critic rate 1e-4": ("td_infonce", FAST | SHORT | {"agent.critic_lr": 1e-4}),
            "not normalised": ("td_infonce", FAST | SHORT | {"agent.normalise": False}),
            "hidden 128, 128": ("td_infonce", FAST | SHORT | {"agent.hidden": [128, 128]}),
            "d = 4": ("td_infonce", FAST | SHORT | {"agent.representation": 4}),
            "d = 64": ("td_infonce", FAST | SHORT | {"agent.representation": 64}),
            "discount 0.9": ("td_infonce", FAST | SHORT | {"agent.discount": 0.9}),
        },
        SMALL_ONLINE,
        seeds=1,
    ),
    "push": Study(
        "FetchPush-v4",
        {"td_infonce": ("td_infonce", {}), "contrastive_rl": ("contrastive_rl", {})},
        FULL_ONLINE,
        seeds=1,
    ),
    "push_stochastic": Study(
        "FetchPush-v4",
        {"td_infonce": ("td_infonce", {}), "qrl": ("qrl", {"agent.compile": False})},
        FULL_ONLINE | {"env.corruption": 0.1},
        seeds=1,
    ),
}


def command(study: Study, row: str, seed: int, out: Path) -> list[str]:
    """The `counterpoint train` command of one run."""
    agent, own = study.rows[row]
    section = "train" if study.data else "online"
    keys = study.common | own | {f"{section}.seed": seed}
    line = ["counterpoint", "train", agent, "--out", str(out)]
    # The recorder of a data set says where to evaluate, cells included.
    line += ["--data", study.data] if study.data else ["--env", study.env]
    return line + [f"--{key}={json.dumps(value)}" for key, value in keys.items()]


def run(study: Study, row: str, seed: int, out: Path) -> dict[str, Any]:
    """Train and evaluate one seed of one row."""
    line = command(study, row, seed, out)
    if not (out / "seconds.json").exists():
        out.mkdir(parents=True, exist_ok=True)
        begun = time.perf_counter()
        for part in (line, evaluation(study, out)):
            with (out / "log.txt").open("a") as log:
                subprocess.run(
                    [sys.executable, "-m", *part],
                    check=True,
                    stdout=log,
                    stderr=log,
                    env=os.environ | {"OMP_NUM_THREADS": "1"},
                )
        (out / "seconds.json").write_text(json.dumps(time.perf_counter() - begun))
    lines = [json.loads(text) for text in (out / "metrics.jsonl").read_text().splitlines()]
    return {
        "command": " ".join(line),
        "seed": seed,
        "evaluation": json.loads((out / "evaluation.json").read_text()),
        "curve": [
            {key: entry[key] for key in ("step", "success", "closest_distance")}
            for entry in lines
            if entry["split"] == "eval"
        ],
        "seconds": json.loads((out / "seconds.json").read_text()),
    }


def evaluation(study: Study, out: Path) -> list[str]:
    """The `counterpoint evaluate` command of one run; its episodes are the same for every row and seed."""
    return ["counterpoint", "evaluate", str(out), "--episodes", str(study.episodes)]


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean over seeds with its interval, beside every seed's value."""
    found: dict[str, Any] = {}
    for name in ("success", "success_at_end", "closest_distance"):
        values = [run["evaluation"][name]["value"] for run in runs]
        estimate = seeds_interval(np.array(values)) if len(values) > 1 else None
        found[name] = {
            "mean": sum(values) / len(values),
            "low": estimate.low if estimate else None,
            "high": estimate.high if estimate else None,
            "values": values,
        }
    return found | {"runs": runs}


def main() -> None:
    """Run a study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--rows", nargs="*")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/goal_reaching"))
    arguments = parser.parse_args()
    study = STUDIES[arguments.study]
    rows = arguments.rows or list(study.rows)
    seeds = range(arguments.seeds or study.seeds)
    if study.prepare:
        subprocess.run([sys.executable, "-m", "counterpoint", *study.prepare], check=True)
    jobs = [(row, seed) for seed in seeds for row in rows]
    with ThreadPoolExecutor(arguments.workers) as pool:
        futures = {
            (row, seed): pool.submit(
                run, study, row, seed, arguments.out / arguments.study / row.replace(" ", "_") / str(seed)
            )
            for row, seed in jobs
        }
        done = {job: future.result() for job, future in futures.items()}
    record = {
        "command": f"python benchmarks/goal_reaching.py {arguments.study}",
        "env": study.env,
        "seeds": list(seeds),
        "episodes": study.episodes,
        "rows": {row: summary([done[row, seed] for seed in seeds]) for row in rows},
        "provenance": provenance(),
    }
    path = RESULTS / f"goal_reaching_{arguments.study}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"Wrote {path}")


if __name__ == "__main__":
    main()
