"""Cloning from demonstrations of which half fail: does it help to weigh or filter them by a reward's progress?

    python -m studies.labelled_cloning --model=runs/demo --out runs/labelled_cloning

For each task and seed, scripted experts and as many failures are recorded with images; the reward of `model` labels
every frame with its progress under the task's instruction. Policies read the simulator's state, no images, and clone:

- `successes alone`: what a perfect filter would leave, the gate of the study: it must solve the task;
- `everything`: the plain way;
- `random half`: as many demonstrations as there are successes, drawn blindly;
- `filtered`: the demonstrations whose last frame the reward calls a success;
- `better half`: the half with the greatest progress at the last frame;
- `RA-BC`: everything, weighted as LeRobot's `RABCWeights` does (SARM, arXiv 2509.25358, Eqs. 8 and 9);
- `RA-BC, wrong text`: the same with progress under another task's instruction.

Failures are of three kinds, in equal shares: the expert stops half-way and stays, it goes back to where it came from,
or it works on a place beside the object. They last as long as successes do, so that length does not betray them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from pydantic import PositiveInt
from torch import nn

from counterpoint.config import FrozenConfig
from counterpoint.envs.metaworld.env import INSTRUCTIONS, MetaWorldEnv, resolve_tasks
from counterpoint.evaluation.rollout import episode_seed
from counterpoint.evaluation.statistics import wilson
from counterpoint.rewards import RewardModel
from studies.harness import Rows, Study, Tree, Trial, estimate, file_name, main, markdown, over_seeds

Array = NDArray[np.float64]
KINDS = ("stops", "returns", "misses")
AFTER_SUCCESS = 5
"""Frames that still show the task solved."""


class LabelledCloningConfig(FrozenConfig):
    """Demonstrations, policies and their evaluation.

    Attributes:
        model: Run of the reward that labels.
        tasks: Meta-World tasks.
        demonstrations: Successes, and as many failures.
        chunk: Steps ahead over which RA-BC measures progress.
        steps: Gradient steps of a policy.
        batch_size: Frames a step.
        hidden: Width of the policy's two layers.
        episodes: Unseen scenes that a policy is evaluated in.
        horizon: Control steps of such an episode.
        seeds: Random seeds: each has its own demonstrations, weights and scenes.
        processes: Trials at a time.
    """

    model: str
    tasks: tuple[str, ...] = ("drawer-open-v3", "window-open-v3")
    demonstrations: PositiveInt = 18
    chunk: PositiveInt = 20
    steps: PositiveInt = 1000
    batch_size: PositiveInt = 256
    hidden: PositiveInt = 256
    episodes: PositiveInt = 20
    horizon: PositiveInt = 200
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    processes: PositiveInt = 2


def labelled_cloning_study(config: LabelledCloningConfig, out: Path) -> Tree:
    """Record, label, clone and evaluate; write `labelled_cloning.json`, its tables and `results.parquet`."""
    study = Study("labelled cloning", out, config)
    (out / "data").mkdir(exist_ok=True)
    cells = [(task, seed) for seed in config.seeds for task in resolve_tasks(config.tasks)]
    recorded = [
        Trial(file_name("data", *cell), partial(record, config, out, *cell), about={"task": cell[0], "seed": cell[1]})
        for cell in cells
    ]
    study.run(recorded, config.processes)
    cloned = [
        Trial(
            file_name("clone", *cell, row.replace(",", "")),
            partial(clone, config, out, *cell, row),
            about={"task": cell[0], "seed": cell[1], "row": row},
        )
        for cell in cells
        for row in ROWS
    ]
    study.run(cloned, config.processes)
    found = summary(study.rows())
    return study.finish("labelled_cloning", found, f"{success_table(found)}\n\n{labels_table(found)}\n")


# Demonstrations


def record(config: LabelledCloningConfig, out: Path, task: str, seed: int) -> Tree:
    """Record and label the demonstrations of one task and seed, and keep them in `OUT/data`."""
    env, reward = MetaWorldEnv(task, steps=500), RewardModel.from_pretrained(config.model)
    rng, episodes = np.random.default_rng([seed, 1]), list[Tree]()
    kinds = ["succeeds"] * config.demonstrations + [KINDS[n % 3] for n in range(config.demonstrations)]
    others = [text for name, text in INSTRUCTIONS.items() if name in resolve_tasks(["default"]) and name != task]
    number = 0
    while len(episodes) < len(kinds):
        kind, lengths = kinds[len(episodes)], [len(one["actions"]) for one in episodes if one["success"]]
        one = act(env, kind, episode_seed(seed, 0, number), rng, int(rng.choice(lengths)) if lengths else 0)
        number += 1
        if one["success"] == (kind == "succeeds"):
            texts = [INSTRUCTIONS[task], others[int(rng.integers(len(others)))]]
            progress = reward.progress(one.pop("frames"), texts)
            one |= {"progress": progress[0], "wrong": progress[1], "done": reward_says_done(reward, progress[0])}
            episodes.append(one)
    env.close()
    arrays = {key: np.concatenate([one[key] for one in episodes]) for key in ("raw", "actions", "progress", "wrong")}
    arrays["episode"] = np.repeat(np.arange(len(episodes)), [len(one["actions"]) for one in episodes])
    arrays |= {key: np.array([one[key] for one in episodes]) for key in ("success", "done")}
    np.savez_compressed(data_file(out, task, seed), **arrays)  # type: ignore[arg-type]
    last = {
        kind: [one["progress"][-1] for one, k in zip(episodes, kinds, strict=True) if k == kind] for kind in set(kinds)
    }
    right = [one["done"] == one["success"] for one in episodes]
    return {"final_progress": {kind: float(np.mean(v)) for kind, v in last.items()}, "detected": float(np.mean(right))}


def reward_says_done(reward: RewardModel, progress: Float[Array, " T"]) -> bool:
    """Return whether the calibrated reward calls an episode's last frame a success."""
    return bool(progress[-1] >= reward.check_calibration().success)


def act(env: MetaWorldEnv, kind: str, seed: int, rng: np.random.Generator, length: int) -> Tree:
    """Return one episode: images, raw observations, actions, and whether it ended in success."""
    env.look = False
    env.reset(seed=seed)
    start, turn = env.raw[:3].copy(), int(length * rng.uniform(0.2, 0.6))
    angle = rng.uniform(0, 2 * np.pi)
    beside = rng.uniform(0.12, 0.2) * np.array([np.cos(angle), np.sin(angle), 0])
    kept: dict[str, list[Any]] = {"frames": [], "raw": [], "actions": []}
    solved = shown = 0
    while len(kept["actions"]) < (length if kind != "succeeds" else env.horizon) and shown < AFTER_SUCCESS:
        step, shown = len(kept["actions"]), shown + solved
        kept["frames"].append(env.images()[env.cameras[0]])
        kept["raw"].append(env.raw.copy())
        action = _misled(env, beside) if kind == "misses" else env.expert()
        if step >= turn and kind == "stops":
            action = np.array([0, 0, 0, action[3]])
        if step >= turn and kind == "returns":
            action = np.array([*(10 * (start - env.raw[:3])).clip(-1, 1), -1.0])
        kept["actions"].append(np.clip(action + 0.05 * rng.standard_normal(4), -1, 1))
        solved = int(env.step(kept["actions"][-1])[4]["is_success"] or solved)
    arrays = {
        "frames": np.stack(kept["frames"]),
        **{key: np.array(kept[key], np.float32) for key in ("raw", "actions")},
    }
    return {**arrays, "success": bool(solved)}


def _misled(env: MetaWorldEnv, beside: Array) -> NDArray[np.float32]:
    """Return the action of an expert that believes object and goal to be elsewhere."""
    true = env.raw.copy()
    for place in (slice(4, 7), slice(36, 39)):
        env.raw[place] += beside
    action = env.expert()
    env.raw = true
    return action


def data_file(out: Path, task: str, seed: int) -> Path:
    """Return the file with the demonstrations of one task and seed."""
    return out / "data" / f"{file_name(task, seed)}.npz"


# Weights of frames


def rabc_weights(
    progress: Float[Array, " N"], episode: NDArray[np.int64], chunk: int, kappa: float = 0.01, epsilon: float = 1e-6
) -> Float[Array, " N"]:
    """Return the weight of every frame as lerobot 0.6's `RABCWeights` computes it.

    Args:
        progress: Progress of all frames, episode after episode.
        episode: Number of each frame's episode.
        chunk: Steps ahead; near the end of an episode, its last frame.
        kappa: Progress over the chunk from which on a frame counts fully.
        epsilon: Least deviation.
    """
    last = np.searchsorted(episode, episode, side="right") - 1
    delta = progress[np.minimum(np.arange(len(progress)) + chunk, last)] - progress
    mean, deviation = max(float(delta.mean()), 0.0), max(float(delta.std()), epsilon)
    soft = ((delta - (mean - 2 * deviation)) / (4 * deviation + epsilon)).clip(0, 1)
    return np.where(delta > kappa, 1.0, np.where(delta >= 0, soft, 0.0))


def _kept(chosen: Callable[[Tree, np.random.Generator], NDArray[np.bool_]]) -> Callable[..., Array]:
    """Return the weights of a filter of episodes."""
    return lambda data, config, rng: chosen(data, rng)[data["episode"]].astype(float)


def _random_half(data: Tree, rng: np.random.Generator) -> NDArray[np.bool_]:
    return rng.permutation(np.arange(len(data["success"])) < len(data["success"]) // 2)


def _better_half(data: Tree, rng: np.random.Generator) -> NDArray[np.bool_]:
    final = data["progress"][np.searchsorted(data["episode"], np.arange(len(data["success"])), side="right") - 1]
    better = np.zeros(len(final), bool)
    better[np.argsort(final, kind="stable")[len(final) // 2 :]] = True
    return better


ROWS: dict[str, Callable[..., Array]] = {
    "successes alone": _kept(lambda data, rng: data["success"]),
    "everything": _kept(lambda data, rng: np.ones(len(data["success"]), bool)),
    "random half": _kept(_random_half),
    "filtered": _kept(lambda data, rng: data["done"]),
    "better half": _kept(_better_half),
    "RA-BC": lambda data, config, rng: rabc_weights(data["progress"], data["episode"], config.chunk),
    "RA-BC, wrong text": lambda data, config, rng: rabc_weights(data["wrong"], data["episode"], config.chunk),
}
"""Row -> (data, configuration, random numbers) -> weight of every frame."""


# Policies


def clone(config: LabelledCloningConfig, out: Path, task: str, seed: int, row: str) -> Tree:
    """Clone a policy of states with one row's weights, and evaluate it in unseen scenes."""
    with np.load(data_file(out, task, seed)) as file:
        data = dict(file)
    rng = np.random.default_rng([seed, 2])
    weights = ROWS[row](data, config, rng)
    if not weights.any():
        return {"success": 0.0, "frames": 0.0, "episodes": config.episodes}  # nothing to learn from
    torch.manual_seed(seed)
    middle, scale = data["raw"].mean(0), data["raw"].std(0) + 1e-3
    policy = nn.Sequential(
        *(nn.Linear(data["raw"].shape[1], config.hidden), nn.ReLU()),
        *(nn.Linear(config.hidden, config.hidden), nn.ReLU(), nn.Linear(config.hidden, 4), nn.Tanh()),
    )
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    seen, actions = torch.from_numpy((data["raw"] - middle) / scale).float(), torch.from_numpy(data["actions"])
    weight = torch.from_numpy(weights).float()
    for _ in range(config.steps):
        batch = torch.from_numpy(rng.integers(len(weight), size=config.batch_size))
        error = ((policy(seen[batch]) - actions[batch]) ** 2).mean(1)
        loss = (weight[batch] * error).sum() / (weight[batch].sum() + 1e-6)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    env = MetaWorldEnv(task, steps=config.horizon)
    env.look, solved = False, 0
    with torch.no_grad():
        for number in range(config.episodes):
            env.reset(seed=episode_seed(seed, 2, number))
            for _ in range(config.horizon):
                action = policy(torch.from_numpy((env.raw - middle) / scale).float()).numpy()
                if env.step(action)[4]["is_success"]:
                    solved += 1
                    break
    env.close()
    return {"success": solved / config.episodes, "frames": float((weights > 0).mean()), "episodes": config.episodes}


# Results


def summary(rows: Rows, about: Tree | None = None) -> Tree:
    """Return success by row and task, with t intervals over seeds, and what the labels said of the demonstrations."""
    cloned, labelled = [row for row in rows if "row" in row], [row for row in rows if "detected" in row]
    tasks = sorted({row["task"] for row in rows})
    found: Tree = {"success": {}, "mean": {}, "gain": {}, "labels": {}}
    by = {(row["row"], row["task"], row["seed"]): row["success"] for row in cloned}
    seeds = sorted({row["seed"] for row in cloned})
    means = {row: [float(np.mean([by[row, task, seed] for task in tasks])) for seed in seeds] for row in ROWS}
    for row in ROWS:
        found["success"][row] = {
            task: over_seeds([by[row, task, seed] for seed in seeds], share=True) for task in tasks
        }
        found["mean"][row] = over_seeds(means[row], share=True)
        found["gain"][row] = over_seeds([a - b for a, b in zip(means[row], means["everything"], strict=True)])
    for task in tasks:
        own = [row for row in labelled if row["task"] == task]
        found["labels"][task] = {
            "detected": over_seeds([row["detected"] for row in own], share=True),
            "final_progress": {k: over_seeds([row["final_progress"][k] for row in own]) for k in ("succeeds", *KINDS)},
        }
    gate = [row["success"] * row["episodes"] for row in cloned if row["row"] == "successes alone"]
    tried = [row["episodes"] for row in cloned if row["row"] == "successes alone"]
    passed = wilson(round(sum(gate)), sum(tried))
    return {**found, "tasks": tasks, "seeds": seeds, "gate": passed.as_json()}


def success_table(found: Tree) -> str:
    """Return the success of every row."""
    head = ["", *(task.removesuffix("-v3") for task in found["tasks"]), "mean", "mean, beyond `everything`"]
    rows = [
        [
            row,
            *(estimate(found["success"][row][task], share=True) for task in found["tasks"]),
            estimate(found["mean"][row], share=True),
            estimate(found["gain"][row]),
        ]
        for row in found["success"]
    ]
    return markdown(head, rows)


def labels_table(found: Tree) -> str:
    """Return what the labels say of the demonstrations."""
    head = ["task", "outcome told right", *(f"last progress, {kind}" for kind in ("succeeds", *KINDS))]
    rows = [
        [task, estimate(one["detected"], share=True), *(estimate(each) for each in one["final_progress"].values())]
        for task, one in found["labels"].items()
    ]
    return markdown(head, rows)


if __name__ == "__main__":
    main("labelled_cloning")
