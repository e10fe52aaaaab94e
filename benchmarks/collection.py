"""Frames per second of `counterpoint collect metaworld` and of gymnasium's own `render()`, on one machine in one run.

    python benchmarks/collection.py [--rounds 3] [--out benchmarks/results/collection.json]

Every round measures, one after the other and each in fresh processes:

- default: Meta-World as in its manual, `step` and `render()` at 112 x 112 from corner2; nothing is written.
- render: only rendering, with the fast renderer.
- one worker, two workers: the whole of `collect_metaworld`, from the call to the finished data set: starting the
  processes, making the simulation, simulating, rendering, encoding, writing.

Rates are given per second of wall-clock time and per second of processor time of all processes and threads; the latter
is valid on a busy machine too. Ratios are computed within a round.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from measuring import parser, write

TASK, SIZE = "drawer-open-v3", 112
Measured = dict[str, float]


def default(frames: int) -> Measured:
    os.environ["MUJOCO_GL"] = "egl"
    import gymnasium
    import metaworld  # noqa: F401 (registers the environments)
    from metaworld.policies import ENV_POLICY_MAP

    env: Any = gymnasium.make(
        "Meta-World/MT1", env_name=TASK, seed=0, render_mode="rgb_array", camera_name="corner2", width=SIZE, height=SIZE
    )
    policy = ENV_POLICY_MAP[TASK]()  # type: ignore[abstract]
    observation, _ = env.reset(seed=0)
    env.render()  # makes the graphics context

    def run() -> int:
        nonlocal observation
        for _ in range(frames):
            image = env.render()
            observation, *_ = env.step(policy.get_action(observation).clip(-1, 1))
        assert image.shape == (SIZE, SIZE, 3)
        return frames

    return measured(run)


def render(frames: int) -> Measured:
    from counterpoint.envs.metaworld.env import MetaWorldEnv

    task = MetaWorldEnv(TASK, size=SIZE)
    task.reset(seed=0)
    task.images()

    def run() -> int:
        for _ in range(frames):
            task.images()
        return frames

    return measured(run)


def pipeline(workers: int, episodes: int) -> Measured:
    from counterpoint.envs.metaworld.collect import MetaWorldCollectConfig, collect_metaworld
    from counterpoint.formats import open_dataset

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set"
        config = MetaWorldCollectConfig(out=out, tasks=(TASK,), episodes=episodes, size=SIZE, workers=workers)

        def run() -> int:
            return sum(episode.length for episode in open_dataset(collect_metaworld(config)).episodes)

        return measured(run)


def measured(run: Callable[[], int]) -> Measured:
    cpu, wall = cpu_seconds(), time.perf_counter()
    frames = run()
    wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
    return {"frames": frames, "frames_per_s": frames / wall, "frames_per_cpu_s": frames / cpu}


def cpu_seconds() -> float:
    """Return the processor time of all threads of this process and of its ended children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


PARTS: dict[str, tuple[Callable[..., Measured], tuple[int, ...]]] = {
    "default": (default, (60,)),
    "render": (render, (300,)),
    "one worker": (pipeline, (1, 12)),
    "two workers": (pipeline, (2, 24)),
}


def in_fresh_process(function: Callable[..., Measured], arguments: tuple[int, ...]) -> Measured:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def summary(rounds: list[dict[str, Measured]]) -> dict[str, dict[str, list[float]]]:
    """Return, for each part and quantity, the lowest, median and highest value over the rounds."""
    result: dict[str, dict[str, list[float]]] = {}
    for part in PARTS:
        values = {key: [one[part][key] for one in rounds] for key in ("frames_per_s", "frames_per_cpu_s")}
        for key in tuple(values):
            values[f"{key}_over_default"] = [one[part][key] / one["default"][key] for one in rounds]
        result[part] = {key: [round(f(v), 2) for f in (min, median, max)] for key, v in values.items()}
    return result


def main() -> None:
    options = parser(3).parse_args()
    rounds = [{part: in_fresh_process(*job) for part, job in PARTS.items()} for _ in range(options.rounds)]
    parts = summary(rounds)
    rows = []
    for part, one in parts.items():
        (low, middle, high), over = one["frames_per_s"], one["frames_per_s_over_default"]
        rows.append(
            [part, f"{middle:.0f} ({low:.0f} to {high:.0f})", f"{over[1]:.1f}x ({over[0]:.1f} to {over[2]:.1f})"]
        )
    tables = {"collection": {"head": ["path", "frames a second", "speed / default's"], "rows": rows}}
    found = {"task": TASK, "size": SIZE, "n": options.rounds, "interval": "lowest, median, highest of the rounds"}
    found |= {"load_at_end": os.getloadavg(), "summary": parts, "rounds": rounds, "tables": tables}
    write("collection", found, options.out)


if __name__ == "__main__":
    main()
