"""The data of a comparison with ICon: demonstrations with robot masks, and initial conditions."""

from __future__ import annotations

import zlib
from collections.abc import Collection
from functools import partial
from pathlib import Path

import numpy as np

from counterpoint.data.cache import cached
from counterpoint.data.robot_masks import mask_camera, masked_cameras
from counterpoint.data.store import EpisodeStore
from counterpoint.data.store_views import SubsetStore
from counterpoint.envs.base import CameraEnv
from counterpoint.envs.collect import collected_about
from counterpoint.envs.make import make_env
from counterpoint.errors import require
from counterpoint.formats import open_dataset, split_names
from studies.harness import file_name
from studies.icon.config import ComparisonConfig


def check_tasks(config: ComparisonConfig) -> None:
    """Make every task once, so that a missing simulator, task or camera is reported before anything is recorded.

    Raises:
        BadInputError: If a simulator has no such task or camera, or a task without data cannot be recorded.
        MissingExtraError: If a simulator is not installed.
    """
    for task in config.all_tasks:
        ok = config.data.path or task.startswith("robosuite/")
        expected = "a folder of data sets: only robosuite is recorded"
        require(ok, "data.path", f"none, with {task}", expected, "name it, or leave the task out")
    for task in config.all_tasks:
        task_maker(config, task)().close()


def task_maker(config: ComparisonConfig, task: str) -> partial[CameraEnv]:
    """Return the constructor of a task's simulation, with the cameras of the policies."""
    return partial(make_env, task, size=config.data.frame, cameras=config.data.cameras, steps=config.evaluation.steps)


def record_data(config: ComparisonConfig, out: Path) -> None:
    """Record missing demonstrations; an interrupted recording resumes."""
    if config.data.path is not None:
        return
    from counterpoint.envs.robosuite.collect import RobosuiteCollectConfig, collect_robosuite
    from counterpoint.envs.robosuite.env import resolve_robosuite

    for task in config.all_tasks:
        name, robot = resolve_robosuite(task.partition("/")[2])
        collect_robosuite(
            RobosuiteCollectConfig(
                out=_folder(config, out, task),
                tasks=(name,),
                robot=robot,
                episodes=config.demonstrations_for(task),
                val_episodes=config.data.validation,
                size=config.data.frame,
                cameras=config.data.cameras,
                noise=config.data.noise,
                workers=config.data.workers,
                seed=config.data.seed,
            )
        )


def open_episodes(config: ComparisonConfig, out: Path, task: str) -> tuple[EpisodeStore, EpisodeStore]:
    """Return a task's demonstrations and the held-out episodes, as frames and masks at the recorded size.

    Without a validation split, the episodes after the demonstrations are held out.

    Raises:
        BadInputError: If there are too few episodes, a camera is missing, or the measured camera has no masks.
    """
    folder, demonstrations = _folder(config, out, task), config.demonstrations_for(task)
    require(folder.exists(), folder, "nothing", f"a data set of {task}", "check data.path, or record it")
    split = {"train", "val"} <= set(split_names(folder))
    train = _open(config, folder, out, "train" if split else None)
    held_out, first = (_open(config, folder, out, "val"), 0) if split else (train, demonstrations)
    needed = (len(train.episodes), demonstrations), (len(held_out.episodes) - first, config.data.validation)
    for what, (found, count) in zip(("demonstrations", "episodes to keep back"), needed, strict=True):
        hint = "give a data set with more, or ask for fewer"
        require(found >= count, folder, f"{max(0, found)} {what}", f"{count}, as data says", hint)
    kept = range(first, first + config.data.validation)
    return SubsetStore(train, range(demonstrations)), SubsetStore(held_out, kept)


def demonstration_seeds(config: ComparisonConfig, out: Path, task: str) -> list[int]:
    """Return seeds of a task's recorded episodes; empty for a data set that does not store them."""
    about = collected_about(_folder(config, out, task)) or {}
    return [int(seed) for seed in about.get("episodes", {}).get("seed", [])]


def evaluation_seeds(config: ComparisonConfig, task: str, taken: Collection[int]) -> list[int]:
    """Return seeds of a task's initial conditions: a function of `evaluation.seed`, the task and a number.

    They are the same for every method, training seed and checkpoint, as in the paper. If the number of episodes is
    increased, the first seeds stay the same. No seed is in `taken`, the seeds of the recorded episodes.
    """
    found: dict[int, None] = {}
    number = 0
    while len(found) < config.evaluation.episodes:
        generator = np.random.default_rng([config.evaluation.seed, zlib.crc32(task.encode()), number])
        drawn = int(generator.integers(2**31))
        if drawn not in taken:
            found[drawn] = None
        number += 1
    return list(found)


def _folder(config: ComparisonConfig, out: Path, task: str) -> Path:
    """Return the folder of a task's data set: below `data.path` by the task's name, with or without the suite."""
    if config.data.path is None:
        return out / "data" / file_name(task)
    root, name = Path(config.data.path).expanduser(), task.partition("/")[2]
    return next((root / each for each in (file_name(task), task, name) if (root / each).exists()), root / name)


def _open(config: ComparisonConfig, folder: Path, out: Path, split: str | None) -> EpisodeStore:
    source = open_dataset(folder, split=split)
    cameras, masked = config.data.cameras, masked_cameras(source.cameras)
    measured = config.measures.camera
    found = f"no mask of {measured} among cameras {', '.join(source.cameras)}"
    expected = f"the camera {mask_camera(measured)}"
    require(measured in masked, folder, found, expected, "record masks, or add them with `counterpoint data masks`")
    masks = [mask_camera(camera) for camera in cameras if camera in masked]
    return cached(source, size=config.data.frame, root=out / "data" / "cache", cameras=(*cameras, *masks))
