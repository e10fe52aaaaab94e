"""How often robosuite's scripted experts succeed, on each task with each robot.

    python benchmarks/robosuite_experts.py [--tasks Lift Stack-IIWA ...] [--episodes 50] [--noise 0 0.1] [--workers 2]

An episode succeeds when robosuite's own test holds at any step within the task's horizon; it ends there. Seeds begin at
10,000. With noise, a normal number of that standard deviation is added to each number of each action, which is then
clipped to [-1, 1]. Intervals are Wilson's, of 95%. A cell measured again replaces the one in the
result file; the others stay.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from counterpoint.envs.robosuite.env import RobosuiteEnv, versions
from counterpoint.envs.robosuite.tasks import ROBOTS, resolve_robosuite, robosuite_name
from counterpoint.evaluation.statistics import wilson
from counterpoint.progress import ProgressBar
from counterpoint.provenance import provenance

FIRST_SEED = 10_000
TASKS = ("Lift", "Door", "Stack")
CHUNK = 25  # episodes of one call: making a task takes longer than one
OUT = Path(__file__).parent / "results" / "robosuite_experts.json"


def episodes(name: str, seeds: list[int], noise: float) -> list[dict[str, Any]]:
    """Each episode's seed, and after how many steps it succeeded, `None` where it did not."""
    task = RobosuiteEnv(name)
    return [{"seed": seed, "solved_after": solved_after(task, seed, noise)} for seed in seeds]


def solved_after(task: RobosuiteEnv, seed: int, noise: float) -> int | None:
    task.look = False
    task.reset(seed=seed)
    shaken = np.random.default_rng(seed)
    for step in range(task.horizon):
        action = task.expert() + noise * shaken.standard_normal(task.action_dim)
        *_, info = task.step(action.clip(-1.0, 1.0))
        if info["is_success"]:
            return step + 1
    return None


def entry(found: list[dict[str, Any]], noise: float) -> dict[str, Any]:
    steps = [one["solved_after"] for one in found if one["solved_after"] is not None]
    return {
        "noise": noise,
        "success": asdict(wilson(len(steps), len(found))),
        "steps_median": median(steps) if steps else None,
        "steps_most": max(steps, default=None),
        "episodes": sorted(found, key=lambda one: int(one["seed"])),
        "commit": provenance()["commit"],
    }


def written(out: Path, cells: dict[str, Any]) -> None:
    result = {
        "command": "python benchmarks/robosuite_experts.py",
        "first_seed": FIRST_SEED,
        "versions": versions(),
        "cells": dict(sorted(cells.items())),
        "provenance": provenance(),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")


def table(cells: dict[str, Any]) -> str:
    lines = ["task | noise | success | interval | median steps", "---|---|---|---|---"]
    for key, cell in sorted(cells.items()):
        found = cell["success"]
        rate = f"{round(found['value'] * found['n'])}/{found['n']}"
        steps, ends = cell["steps_median"], f"{found['low']:.2f} to {found['high']:.2f}"
        lines.append(f"{key.partition(' ')[0]} | {cell['noise']:g} | {rate} | {ends} | {steps}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    every = [robosuite_name(task, robot).partition("/")[2] for task in TASKS for robot in ROBOTS]
    parser.add_argument("--tasks", nargs="+", default=every)
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    names = [robosuite_name(*resolve_robosuite(task)).partition("/")[2] for task in arguments.tasks]
    seeds = [FIRST_SEED + number for number in range(arguments.episodes)]
    cells = json.loads(arguments.out.read_text())["cells"] if arguments.out.exists() else {}
    found: dict[tuple[str, float], list[dict[str, Any]]] = {}
    with (
        ProcessPoolExecutor(arguments.workers, multiprocessing.get_context("spawn")) as pool,
        ProgressBar("experts", len(names) * len(arguments.noise) * len(seeds), "episodes") as bar,
    ):
        asked = {
            pool.submit(episodes, name, seeds[first : first + CHUNK], noise): (name, noise)
            for noise in arguments.noise
            for name in names
            for first in range(0, len(seeds), CHUNK)
        }
        for done in as_completed(asked):
            name, noise = asked[done]
            cell = found.setdefault((name, noise), [])
            cell.extend(done.result())
            bar.advance(len(done.result()), note=name)
            if len(cell) == len(seeds):
                cells[f"{name} noise {noise:g}"] = entry(cell, noise)
                written(arguments.out, cells)
    print(table(cells))


if __name__ == "__main__":
    main()
