"""Cloning from demonstrations, half of which fail: does it help to weight or filter them by a reward's progress?

    python -m studies.labelled_cloning --model=runs/metaworld --out runs/labelled_cloning

For each task and seed, equal numbers of scripted successes and failures are recorded with images. The reward of `model`
labels every frame with its progress under the task's instruction. Policies read the simulator's state, not images, and
clone:

- `successes alone`: only the successes, as a perfect filter would choose; as the gate of the study, it must solve the
  task;
- `everything`: all demonstrations;
- `random half`: a random half of the demonstrations;
- `filtered`: the demonstrations whose last frame the reward counts as a success;
- `better half`: the half with the most progress at the last frame;
- `RA-BC`: all demonstrations, weighted like LeRobot's `RABCWeights` (SARM, arXiv 2509.25358, Eqs. 8 and 9);
- `RA-BC, wrong text`: the same with progress under another task's instruction.

Failures are of three kinds, in equal shares: the expert stops half-way and stays, it goes back to where it came from,
or it works at a place next to the object. They last as long as successes, so that length does not reveal them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from pydantic import PositiveInt
from torch import Tensor, nn

from counterpoint.config import FrozenConfig
from counterpoint.envs.metaworld.env import INSTRUCTIONS, MetaWorldEnv, resolve_tasks
from counterpoint.evaluation.rollout import episode_seed
from counterpoint.evaluation.statistics import wilson
from counterpoint.rewards import RewardModel
from counterpoint.rewards.weighting import chunk_gains, gain_weights
from studies.harness import Rows, Study, Tree, Trial, estimate, file_name, main, markdown, over_seeds

Array = NDArray[np.float64]
KINDS = ("stops", "returns", "misses")
AFTER_SUCCESS = 5
"""Number of frames after the task is solved."""


class LabelledCloningConfig(FrozenConfig):
    """Demonstrations, policies and their evaluation.

    Attributes:
        model: Run of the reward that labels.
        tasks: Meta-World tasks.
        demonstrations: Number of successes, and of failures.
        chunk: Number of steps ahead over which RA-BC measures progress.
        steps: Number of gradient steps of a policy.
        batch_size: Number of frames per gradient step.
        hidden: Width of the policy's two layers.
        episodes: Number of unseen scenes in which a policy is evaluated.
        horizon: Number of control steps of an evaluation episode.
        seeds: Random seeds; each has its own demonstrations, weights and scenes.
        processes: Number of trials that run in parallel.
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
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 7)
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
        Trial(file_name("clone", *cell), partial(clone, config, out, *cell), about={"task": cell[0], "seed": cell[1]})
        for cell in cells
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
    """Return True if the calibrated reward counts an episode's last frame as a success."""
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


def _rabc(progress: Float[Array, " N"], episode: NDArray[np.int64], chunk: int) -> Float[Array, " N"]:
    """Return the weight of every frame, given the progress and the episode of all frames."""
    parts = np.split(progress, np.flatnonzero(np.diff(episode)) + 1)
    return gain_weights(np.concatenate([chunk_gains(part, chunk) for part in parts]))


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
    "RA-BC": lambda data, config, rng: _rabc(data["progress"], data["episode"], config.chunk),
    "RA-BC, wrong text": lambda data, config, rng: _rabc(data["wrong"], data["episode"], config.chunk),
}
"""For each row, a function of data, configuration and random numbers that returns the weight of every frame."""


# Policies


class Policies(nn.Module):
    """One perceptron per row, all with the same initial weights, trained in parallel.

    Args:
        rows: Number of rows, R.
        sizes: Widths of input, hidden layers and output.
    """

    def __init__(self, rows: int, sizes: Sequence[int]) -> None:
        super().__init__()
        layers = [nn.Linear(width, following) for width, following in pairwise(sizes)]
        self.weights = nn.ParameterList(layer.weight.detach().T.repeat(rows, 1, 1) for layer in layers)
        self.biases = nn.ParameterList(layer.bias.detach().repeat(rows, 1, 1) for layer in layers)

    def forward(self, seen: Float[Tensor, "R B n"]) -> Float[Tensor, "R B 4"]:
        """Return every row's actions, in [-1, 1]."""
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            seen = torch.baddbmm(bias, seen, weight).relu()
        return torch.baddbmm(self.biases[-1], seen, self.weights[-1]).tanh()


def clone(config: LabelledCloningConfig, out: Path, task: str, seed: int) -> Tree:
    """Clone one state-based policy per row with the row's frame weights; evaluate all in the same unseen scenes."""
    with np.load(data_file(out, task, seed)) as file:
        data = dict(file)
    weight = np.stack([weigh(data, config, np.random.default_rng([seed, 3])) for weigh in ROWS.values()])
    middle, scale = data["raw"].mean(0), data["raw"].std(0) + 1e-3
    torch.manual_seed(seed)
    policies = Policies(len(ROWS), (data["raw"].shape[1], config.hidden, config.hidden, 4))
    optimizer, rng = torch.optim.Adam(policies.parameters(), lr=1e-3), np.random.default_rng([seed, 2])
    seen, actions = torch.from_numpy((data["raw"] - middle) / scale).float(), torch.from_numpy(data["actions"])
    weights = torch.from_numpy(weight).float()
    for _ in range(config.steps):
        batch = torch.from_numpy(rng.integers(len(seen), size=config.batch_size))
        error = ((policies(seen[batch].expand(len(ROWS), -1, -1)) - actions[batch]) ** 2).mean(2)
        loss = ((weights[:, batch] * error).sum(1) / (weights[:, batch].sum(1) + 1e-6)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    env = MetaWorldEnv(task, steps=config.horizon)
    env.look = False
    success = {}
    for row, layers in zip(ROWS, _layers(policies), strict=True):
        solved = [_solves(env, layers, middle, scale, episode_seed(seed, 2, n)) for n in range(config.episodes)]
        success[row] = float(np.mean(solved))
    env.close()
    frames = dict(zip(ROWS, (weight > 0).mean(1).tolist(), strict=True))
    return {"success": success, "frames": frames, "episodes": config.episodes}


def _layers(policies: Policies) -> list[list[tuple[Array, Array]]]:
    """Return weights and biases of every row's layers for numpy, which is faster than torch on single observations."""
    pairs = [(w.detach().numpy(), b.detach().numpy()) for w, b in zip(policies.weights, policies.biases, strict=True)]
    return [[(weight[row], bias[row, 0]) for weight, bias in pairs] for row in range(len(pairs[0][0]))]


def _solves(env: MetaWorldEnv, layers: Sequence[tuple[Array, Array]], middle: Array, scale: Array, seed: int) -> bool:
    """Return True if a policy solves the scene of a seed at any step."""
    env.reset(seed=seed)
    for _ in range(env.horizon):
        seen = (env.raw - middle) / scale
        for weight, bias in layers[:-1]:
            seen = np.maximum(seen @ weight + bias, 0)
        if env.step(np.tanh(seen @ layers[-1][0] + layers[-1][1]))[4]["is_success"]:
            return True
    return False


# Results


def summary(rows: Rows, about: Tree | None = None) -> Tree:
    """Return success by row and task, with t intervals over seeds, and statistics of the demonstrations' labels."""
    cloned, labelled = [row for row in rows if "success" in row], [row for row in rows if "detected" in row]
    tasks, seeds = (sorted({row[key] for row in rows}) for key in ("task", "seed"))
    found: Tree = {"success": {}, "mean": {}, "gain": {}, "labels": {}}
    by = {(row["task"], row["seed"]): row["success"] for row in cloned}
    means = {row: [float(np.mean([by[task, seed][row] for task in tasks])) for seed in seeds] for row in ROWS}
    for row in ROWS:
        found["success"][row] = {
            task: over_seeds([by[task, seed][row] for seed in seeds], share=True) for task in tasks
        }
        found["mean"][row] = over_seeds(means[row], share=True)
        found["gain"][row] = over_seeds([a - b for a, b in zip(means[row], means["everything"], strict=True)])
    for task in tasks:
        own = [row for row in labelled if row["task"] == task]
        found["labels"][task] = {
            "detected": over_seeds([row["detected"] for row in own], share=True),
            "final_progress": {k: over_seeds([row["final_progress"][k] for row in own]) for k in ("succeeds", *KINDS)},
        }
    solved = sum(row["success"]["successes alone"] * row["episodes"] for row in cloned)
    gate = wilson(round(solved), sum(row["episodes"] for row in cloned))
    return {**found, "tasks": tasks, "seeds": seeds, "gate": gate.as_json()}


def success_table(found: Tree) -> str:
    """Return the success of every row."""
    head = ["", *(task.removesuffix("-v3") for task in found["tasks"]), "mean", "mean minus that of `everything`"]
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
    """Return the table of the demonstrations' labels."""
    head = ["task", "outcomes classified correctly", *(f"last progress, {kind}" for kind in ("succeeds", *KINDS))]
    rows = [
        [task, estimate(one["detected"], share=True), *(estimate(each) for each in one["final_progress"].values())]
        for task, one in found["labels"].items()
    ]
    return markdown(head, rows)


if __name__ == "__main__":
    main("labelled_cloning")
