"""What a comparison with ICon learns from and is tested on: demonstrations with robot masks, and initial conditions."""

from __future__ import annotations

import zlib
from collections.abc import Collection
from functools import partial
from pathlib import Path

import numpy as np

from counterpoint.data.cache import cached
from counterpoint.data.formats import open_dataset, split_names
from counterpoint.data.masks.robot import mask_camera, masked_cameras
from counterpoint.data.store import EpisodeStore, SubsetStore
from counterpoint.envs.base import CameraEnv
from counterpoint.envs.collect import collected_about
from counterpoint.envs.make import make_env
from counterpoint.errors import BadInputError
from studies.harness import file_name
from studies.icon.config import ComparisonConfig


def check_tasks(config: ComparisonConfig) -> None:
    """Make every task once, so that a simulator, task or camera that is missing is told before anything is recorded.

    Raises:
        BadInputError: When a simulator does not know a task or camera, or a task cannot be recorded and no data set
            was given.
        MissingExtraError: When a simulator is not installed.
    """
    for task in config.all_tasks:
        if config.data.path is None and not task.startswith("robosuite/"):
            raise BadInputError(
                "data.path",
                f"none, with {task}",
                "a folder of data sets: only robosuite's tasks are recorded here",
                "name it, or leave the task out",
            )
    for task in config.all_tasks:
        task_maker(config, task)().close()


def task_maker(config: ComparisonConfig, task: str) -> partial[CameraEnv]:
    """What makes a task's simulation, with the images that policies are trained on."""
    return partial(make_env, task, size=config.data.frame, cameras=config.data.cameras, steps=config.evaluation.steps)


def record_data(config: ComparisonConfig, out: Path) -> None:
    """Record what is missing; an interrupted recording goes on."""
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
                workers=config.data.workers,
                seed=config.data.seed,
            )
        )


def open_episodes(config: ComparisonConfig, out: Path, task: str) -> tuple[EpisodeStore, EpisodeStore]:
    """A task's demonstrations, and the episodes kept back, as frames and masks at the recorded size.

    Of a data set without a validation split the episodes after the demonstrations are kept back.

    Raises:
        BadInputError: When there are too few, a camera is missing, or the one that is measured has no masks.
    """
    folder, demonstrations = _folder(config, out, task), config.demonstrations_for(task)
    if not folder.exists():
        raise BadInputError(folder, "nothing", f"a data set of {task}", "check data.path, or record it")
    split = {"train", "val"} <= set(split_names(folder))
    train = _open(config, folder, out, "train" if split else None)
    held_out, first = (_open(config, folder, out, "val"), 0) if split else (train, demonstrations)
    needed = (len(train.episodes), demonstrations), (len(held_out.episodes) - first, config.data.validation)
    for what, (found, count) in zip(("demonstrations", "episodes to keep back"), needed, strict=True):
        if found < count:
            raise BadInputError(
                folder,
                f"{max(0, found)} {what}",
                f"{count}, as data says",
                "give a data set with more, or ask for fewer",
            )
    kept = range(first, first + config.data.validation)
    return SubsetStore(train, range(demonstrations)), SubsetStore(held_out, kept)


def demonstration_seeds(config: ComparisonConfig, out: Path, task: str) -> list[int]:
    """Seeds a task's episodes were recorded with; empty for a data set that does not say."""
    about = collected_about(_folder(config, out, task)) or {}
    return [int(seed) for seed in about.get("episodes", {}).get("seed", [])]


def evaluation_seeds(config: ComparisonConfig, task: str, taken: Collection[int]) -> list[int]:
    """Seeds of a task's initial conditions: a function of `evaluation.seed`, the task and the condition's number.

    So they are the same for every method, training seed and checkpoint, as in the paper, and more episodes only add to
    them. None is a recorded episode's.

    Args:
        config: The comparison.
        task: `SUITE/TASK`.
        taken: Seeds of the recorded episodes.
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
    """Of a task's data set: below `data.path` by the task's name, with the suite before it or without."""
    if config.data.path is None:
        return out / "data" / file_name(task)
    root, name = Path(config.data.path).expanduser(), task.partition("/")[2]
    return next((root / each for each in (file_name(task), task, name) if (root / each).exists()), root / name)


def _open(config: ComparisonConfig, folder: Path, out: Path, split: str | None) -> EpisodeStore:
    source = open_dataset(folder, split=split)
    cameras, masked = config.data.cameras, masked_cameras(source.cameras)
    if config.measures.camera not in masked:
        raise BadInputError(
            folder,
            f"no mask of {config.measures.camera} among cameras {', '.join(source.cameras)}",
            f"the camera {mask_camera(config.measures.camera)}",
            "record masks, or add them with `counterpoint data masks`",
        )
    masks = [mask_camera(camera) for camera in cameras if camera in masked]
    return cached(source, size=config.data.frame, root=out / "data" / "cache", cameras=(*cameras, *masks))
