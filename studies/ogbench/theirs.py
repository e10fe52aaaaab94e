"""Train one of OGBench's own agents on a file and evaluate it by OGBench's own code; called by `studies.ogbench.run`.

This script runs in an environment with OGBench's requirements, and imports nothing of this library.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any


def main(job: dict[str, Any]) -> None:
    """Carry out a job and write `tasks` (the success of each task) and `train_seconds` to its file `out`."""
    sys.path.insert(0, job["impls"])
    import random

    import numpy as np
    import ogbench
    from ogbench.utils import load_dataset

    agents = import_module("agents").agents
    datasets, evaluate = import_module("utils.datasets"), import_module("utils.evaluation").evaluate

    random.seed(job["seed"])
    np.random.seed(job["seed"])
    config = import_module(f"agents.{job['agent']}").get_config()
    for key, value in job["settings"].items():
        if key in config:
            config[key] = tuple(value) if isinstance(value, list) else value
    loaded = datasets.Dataset.create(**load_dataset(job["data"], compact_dataset=True))
    data = getattr(datasets, config["dataset_class"])(loaded, config)
    example = data.sample(1)
    agent = agents[job["agent"]].create(job["seed"], example["observations"], example["actions"], config)
    begun = time.perf_counter()
    for step in range(1, job["steps"] + 1):
        agent, info = agent.update(data.sample(config["batch_size"]))
        if step % 1000 == 0:
            print(f"step {step}: {time.perf_counter() - begun:.0f} s", flush=True)
    {key: float(value) for key, value in info.items()}  # waits for the last step
    seconds = time.perf_counter() - begun
    env, tasks = ogbench.make_env_and_datasets(f"{job['dataset']}-v0", env_only=True), {}
    for number, task in enumerate(env.unwrapped.task_infos, 1):
        stats, _, _ = evaluate(agent, env, number, config, num_eval_episodes=job["episodes"])
        tasks[f"{task['task_name']}_success"] = float(stats["success"])
        print(f"{task['task_name']}: {tasks}", flush=True)
    Path(job["out"]).write_text(json.dumps({"tasks": tasks, "train_seconds": round(seconds, 1)}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
