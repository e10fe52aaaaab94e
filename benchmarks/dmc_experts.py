"""What the planners earn that stand in for experts of dm_control, beside uniformly random actions.

    python benchmarks/dmc_experts.py [--tasks cheetah-run ...] [--episodes 3] [--workers 2]

Whole episodes of 500 actions (1000 control steps; at most 1000 can be earned), each planner with its own settings.
Seeds are apart from those the settings were chosen on (900000 onwards) and from those of collected data. A task named
again is measured anew; the others in the result file stay. Seconds an action are wall-clock seconds of planning on one
thread.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import mean
from typing import Any

from counterpoint.envs.collect import episode_seed
from counterpoint.envs.dmc.collect import Actor
from counterpoint.envs.dmc.env import HORIZON, DMCEnv, dmc_versions
from counterpoint.envs.dmc.planner import planner_config
from counterpoint.envs.dmc.tasks import EVALUATION, PRETRAINING, resolve_dmc_tasks
from counterpoint.progress import ProgressBar
from counterpoint.provenance import provenance

RANDOM_EPISODES = 5
OUT = Path(__file__).parent / "results" / "dmc_experts.json"


def episode(name: str, number: int, steps: int) -> dict[str, Any]:
    """One episode of a task's expert."""
    task = DMCEnv(name)
    seed = episode_seed(1, name, "test", number)
    actor = Actor(task, "expert", number)
    started = time.perf_counter()
    earned = play(task, actor, seed, steps)
    spent = time.perf_counter() - started
    actor.close()
    return {"seed": seed, "return": round(earned, 2), "seconds_an_action": round(spent / steps, 4)}


def play(task: DMCEnv, actor: Actor, seed: int, steps: int) -> float:
    task.look = False
    task.reset(seed=seed)
    actor.reset(seed)
    return sum(task.step(actor.act())[1] for _ in range(steps))


def by_chance(name: str, steps: int) -> list[float]:
    task = DMCEnv(name)
    actor = Actor(task, "random", 0)
    seeds = [episode_seed(1, name, "test", number) for number in range(RANDOM_EPISODES)]
    return [round(play(task, actor, seed, steps), 2) for seed in seeds]


def entry(name: str, episodes: list[dict[str, Any]], steps: int) -> dict[str, Any]:
    chance = by_chance(name, steps)
    return {
        "planner": planner_config(name).model_dump(),
        "expert_return": round(mean(one["return"] for one in episodes), 2),
        "random_return": round(mean(chance), 2),
        "n": len(episodes),
        "episodes": sorted(episodes, key=lambda one: int(one["seed"])),
        "random_episodes": chance,
        "steps": steps,
        "commit": provenance()["commit"],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", nargs="+", default=[*PRETRAINING, *EVALUATION])
    parser.add_argument("--episodes", type=int, default=3)
    parser.add_argument("--steps", type=int, default=HORIZON)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    names = resolve_dmc_tasks(arguments.tasks)
    kept = json.loads(arguments.out.read_text())["tasks"] if arguments.out.exists() else {}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with (
        ProcessPoolExecutor(arguments.workers, multiprocessing.get_context("spawn")) as pool,
        ProgressBar("experts", len(names) * arguments.episodes, "episodes") as bar,
    ):
        asked = {
            pool.submit(episode, name, number, arguments.steps): name
            for name in names
            for number in range(arguments.episodes)
        }
        for done in as_completed(asked):
            name = asked[done]
            found[name].append(done.result())
            bar.advance(note=f"{name} {found[name][-1]['return']:.0f}")
            if len(found[name]) < arguments.episodes:
                continue
            kept[name] = entry(name, found[name], arguments.steps)
            result = {
                "command": "python benchmarks/dmc_experts.py",
                "highest_possible_return": 1000,
                "versions": dmc_versions(),
                "tasks": kept,
                "provenance": provenance(),
            }
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
