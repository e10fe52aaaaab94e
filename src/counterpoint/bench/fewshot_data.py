"""What a few-shot benchmark learns from: recorded once into its folder, or opened where it lies."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from counterpoint.bench.fewshot_config import FewshotConfig, FewshotData
from counterpoint.data.cache import cached
from counterpoint.data.formats import open_dataset, split_names
from counterpoint.data.multitask import MultiTaskStore
from counterpoint.data.store import EpisodeStore, SubsetStore
from counterpoint.envs.control import make_task
from counterpoint.errors import BadInputError

__all__ = [
    "demonstration_seeds",
    "demonstrations_of",
    "evaluation_seeds",
    "expert_returns",
    "open_demonstrations",
    "open_pretraining",
    "overlap",
    "record_data",
    "task_instruction",
]


def record_data(config: FewshotConfig, out: Path) -> None:
    """Record what is missing of pretraining data and demonstrations; an interrupted recording goes on.

    Raises:
        BadInputError: When the suite has no recorder and no path is given.
    """
    data = config.data
    if config.used_pretrainings and data.pretraining_path is None:
        _RECORDERS.get(data.suite, _refuse)(config, _pretraining_path(data, out), False)
    if data.demonstrations_path is None:
        _RECORDERS.get(data.suite, _refuse)(config, _demonstrations_path(data, out), True)


def open_pretraining(config: FewshotConfig, out: Path, size: int) -> tuple[EpisodeStore, EpisodeStore | None]:
    """Training and validation episodes at `size` pixels; the second is `None` where none were kept back."""
    data = config.data
    folders = _folders(_pretraining_path(data, out), data.pretraining_tasks)
    names = [folder.name for folder in folders]
    train = [_open(folder, "train", data.camera, size, out) for folder in folders]
    if not all("val" in split_names(folder) for folder in folders):
        return _together(train, names), None
    validation = [_open(folder, "val", data.camera, size, out) for folder in folders]
    return _together(train, names), _together(validation, names)


def open_demonstrations(config: FewshotConfig, out: Path, size: int, task: str) -> EpisodeStore:
    """Those of a task, or of all where they lie in one data set."""
    (folder,) = _folders(_demonstrations_path(config.data, out), (task,))
    return _open(folder, "train", config.data.seen_camera, size, out)


def demonstrations_of(store: EpisodeStore, instruction: str, seed: int, count: int) -> EpisodeStore:
    """The `count` demonstrations of a task that belong to seed number `seed`.

    Where there are not enough for every seed to have its own, seeds begin again with the first ones.

    Raises:
        BadInputError: When there are fewer than `count` in all.
    """
    own = [number for number, info in enumerate(store.episodes) if info.instruction == instruction]
    if len(own) < count:
        raise BadInputError(
            f"demonstrations of {instruction!r}",
            found=f"{len(own)}",
            expected=f"{count}, as many as data.demonstrations",
            mend="give a data set with more, or ask for fewer",
        )
    share = seed % (len(own) // count)
    return SubsetStore(store, own[share * count : (share + 1) * count])


def evaluation_seeds(config: FewshotConfig, task: str, taken: Sequence[int]) -> list[int]:
    """Seeds of a task's evaluation episodes, the same for every method and none of the demonstrations'.

    Args:
        config: The benchmark.
        task: `SUITE/TASK`.
        taken: Seeds of the demonstrations.
    """
    generator = np.random.default_rng([config.evaluation.seed, zlib.crc32(task.encode())])
    seeds: list[int] = []
    while len(seeds) < config.evaluation.episodes:
        seed = int(generator.integers(2**31))
        if seed not in taken and seed not in seeds:
            seeds.append(seed)
    return seeds


def demonstration_seeds(config: FewshotConfig, out: Path, task: str) -> list[int]:
    """Seeds the demonstrations were recorded with; empty for a data set that does not say."""
    (folder,) = _folders(_demonstrations_path(config.data, out), (task,))
    try:
        info = json.loads((folder / "meta" / "info.json").read_text())
        return [int(seed) for seed in info["counterpoint"]["episodes"]["seed"]]
    except (OSError, KeyError, ValueError):
        return []


def expert_returns(config: FewshotConfig, out: Path) -> dict[str, float]:
    """Task -> mean return of its demonstrations, which scores are shares of.

    Raises:
        BadInputError: When it is zero, or the demonstrations hold no rewards.
    """
    found = {}
    for task in config.data.unseen_tasks:
        store = open_demonstrations(config, out, config.encoder.size, task)
        instruction = task_instruction(config, task)
        own = [number for number, info in enumerate(store.episodes) if info.instruction == instruction]
        rewards = [store.rewards(number) for number in own]
        known = [float(each.sum()) for each in rewards if each is not None]
        mean = float(np.mean(known)) if known else 0.0
        if mean == 0:
            raise BadInputError(
                f"expert of {task}",
                found="a return of zero" if known else "no rewards",
                expected="demonstrations that earn something, which returns can be compared with",
                mend="record better ones, or leave the task out",
            )
        found[task] = mean
    return found


def task_instruction(config: FewshotConfig, task: str) -> str:
    """What a task's episodes are called in data sets."""
    simulation = make_task(
        f"{config.data.suite}/{task}", camera=config.data.seen_camera, size=config.encoder.size
    )
    try:
        return simulation.instruction
    finally:
        simulation.close()


def overlap(pretraining: EpisodeStore, demonstrations: EpisodeStore) -> set[str]:
    """Instructions that stand in both: tasks that were to be unseen and are not."""
    first, second = ({info.instruction for info in store.episodes} for store in (pretraining, demonstrations))
    return (first & second) - {""}


def _pretraining_path(data: FewshotData, out: Path) -> Path:
    return Path(data.pretraining_path) if data.pretraining_path else out / "data" / "pretraining"


def _demonstrations_path(data: FewshotData, out: Path) -> Path:
    return Path(data.demonstrations_path) if data.demonstrations_path else out / "data" / "demonstrations"


def _open(path: Path, split: str, camera: str | None, size: int, out: Path) -> EpisodeStore:
    names = split_names(path)
    source = open_dataset(path, split=split if split in names else None)
    cameras = (camera,) if camera else source.cameras[:1]
    return cached(source, size=size, root=out / "data" / "cache", cameras=cameras)


def _folders(path: Path, tasks: Sequence[str]) -> list[Path]:
    """A data set of all tasks, or one a task in a folder of its name."""
    return [path / task for task in tasks if (path / task).is_dir()] or [path]


def _together(stores: Sequence[EpisodeStore], names: Sequence[str]) -> EpisodeStore:
    return stores[0] if len(stores) == 1 else MultiTaskStore(stores, names)


def _record_metaworld(config: FewshotConfig, path: Path, demonstrations: bool) -> None:
    from counterpoint.envs.collect import CollectConfig, collect_metaworld

    data = config.data
    if data.behaviour == "random" and not demonstrations:
        raise BadInputError(
            "data.behaviour",
            found="random on Meta-World",
            expected="expert",
            mend="raise data.noise, or use dm_control, as the paper does (Figure 7)",
        )
    camera = data.seen_camera if demonstrations else data.camera
    shared = CollectConfig(
        out=path,
        cameras=(camera or "corner2",),
        size=data.render or config.encoder.size,
        max_steps=data.steps,
        stride=data.repeat,
        workers=data.workers,
        seed=data.seed,
    )
    if demonstrations:
        own = {
            "tasks": data.unseen_tasks,
            "episodes": max(map(data.demonstrations_for, data.unseen_tasks)) * config.seeds,
            "successful_only": True,
            "seed": data.seed + 1,
        }
    else:
        own = {
            "tasks": data.pretraining_tasks,
            "episodes": data.episodes,
            "val_episodes": data.validation_episodes,
            "noise": data.noise,
            "after_success": data.steps,  # episodes of one length, as in the paper
        }
    collect_metaworld(shared.model_copy(update=own))


def _record_dmc(config: FewshotConfig, path: Path, demonstrations: bool) -> None:
    from counterpoint.envs.dmc_collect import DMCCollectConfig, collect_dmc

    data = config.data
    shared = DMCCollectConfig(
        out=path,
        size=data.render or config.encoder.size,
        camera=data.seen_camera if demonstrations else data.camera,
        steps=data.steps,
        workers=data.workers,
    )
    if demonstrations:
        for task in data.unseen_tasks:
            count = data.demonstrations_for(task) * config.seeds
            own = {"tasks": (task,), "kind": "expert", "episodes": count, "seed": data.seed + 1}
            collect_dmc(shared.model_copy(update=own))
    else:
        own = {
            "tasks": data.pretraining_tasks,
            "kind": "random" if data.behaviour == "random" else "exploratory",
            "episodes": data.episodes,
            "val_episodes": data.validation_episodes,
            "seed": data.seed,
        }
        collect_dmc(shared.model_copy(update=own))


def _refuse(config: FewshotConfig, path: Path, demonstrations: bool) -> None:
    raise BadInputError(
        "data",
        found=f"{config.data.suite}, whose demonstrations are people's",
        expected="data.demonstrations_path (and data.pretraining_path, to pretrain)",
        mend="download the suite's data and name their folders",
    )


_RECORDERS = {"metaworld": _record_metaworld, "dmc": _record_dmc}
