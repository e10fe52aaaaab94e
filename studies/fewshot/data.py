"""The data of a few-shot study: recorded once into its folder, or opened from a path."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from counterpoint.data.cache import cached
from counterpoint.data.store import Cameras, EpisodeStore, camera_names
from counterpoint.data.store_views import SubsetStore, join_domains
from counterpoint.envs.base import choose_cameras
from counterpoint.envs.collect import collected_about
from counterpoint.envs.make import make_env
from counterpoint.errors import require
from counterpoint.formats import open_dataset, split_names
from studies.fewshot.check import cameras_of
from studies.fewshot.config import FewshotConfig, FewshotData


def record_data(config: FewshotConfig, out: Path) -> None:
    """Record missing pretraining data and demonstrations; an interrupted recording resumes."""
    data = config.data
    if config.used_pretrainings and data.pretraining_path is None:
        _RECORDERS[data.suite](config, _pretraining_path(data, out), False)
    if data.demonstrations_path is None:
        _RECORDERS[data.suite](config, _demonstrations_path(data, out), True)


def open_pretraining(config: FewshotConfig, out: Path, size: int) -> tuple[EpisodeStore, EpisodeStore | None]:
    """Return training and validation episodes at `size` pixels; the latter are `None` if none were held out."""
    data = config.data
    folders = _folders(_pretraining_path(data, out), data.pretraining_tasks)
    names = [folder.name for folder in folders]
    train = [_open(data, folder, "train", data.camera, size, out) for folder in folders]
    if not all("val" in split_names(folder) for folder in folders):
        return join_domains(train, names), None
    validation = [_open(data, folder, "val", data.camera, size, out) for folder in folders]
    return join_domains(train, names), join_domains(validation, names)


def open_demonstrations(config: FewshotConfig, out: Path, size: int, task: str) -> EpisodeStore:
    """Return the demonstrations of a task, or of all tasks if they are in one data set."""
    folder = _demonstrations_folder(config.data, out, task)
    return _open(config.data, folder, "train", config.data.seen_camera, size, out)


def demonstrations_of(store: EpisodeStore, instruction: str, seed: int, count: int) -> EpisodeStore:
    """Return the `count` demonstrations of a task that belong to seed number `seed`.

    If there are too few for every seed, later seeds use the first demonstrations again.

    Raises:
        BadInputError: If there are fewer than `count` in all.
    """
    own = [number for number, info in enumerate(store.episodes) if info.instruction == instruction]
    where, expected = f"demonstrations of {instruction!r}", f"{count}, as many as data.demonstrations"
    require(len(own) >= count, where, len(own), expected, "give a data set with more, or ask for fewer")
    share = seed % (len(own) // count)
    return SubsetStore(store, own[share * count : (share + 1) * count])


def evaluation_seeds(config: FewshotConfig, task: str, taken: Sequence[int], number: int) -> list[int]:
    """Return seeds of the evaluation episodes that belong to seed number `number`, the same for every method.

    Seeds of different numbers differ, so that pooled episodes begin differently, and no seed is a demonstration's.
    LIBERO has only a few initial states per task, and its seeds are their numbers.

    Args:
        config: The study.
        task: `SUITE/TASK`.
        taken: Seeds of the demonstrations.
        number: The study's seed.
    """
    episodes, seed = config.evaluation.episodes, config.evaluation.seed
    if config.data.suite == "libero":
        first = (seed * config.seeds + number) * episodes
        return list(range(first, first + episodes))
    generator = np.random.default_rng([seed, zlib.crc32(task.encode())])
    found: dict[int, None] = {}
    while len(found) < (number + 1) * episodes:
        drawn = int(generator.integers(2**31))
        if drawn not in taken:
            found[drawn] = None
    return list(found)[number * episodes :]


def demonstration_seeds(config: FewshotConfig, out: Path, task: str) -> list[int]:
    """Return seeds of the recorded demonstrations; empty for a data set that does not store them."""
    about = collected_about(_demonstrations_folder(config.data, out, task)) or {}
    return [int(seed) for seed in about.get("episodes", {}).get("seed", [])]


def expert_returns(config: FewshotConfig, out: Path) -> dict[str, float]:
    """Return the mean return of each task's demonstrations, over the same number of steps as rollouts.

    Raises:
        BadInputError: If a mean is not positive, or demonstrations are shorter or have no rewards.
    """
    found = {}
    for task in config.data.unseen_tasks:
        store = open_demonstrations(config, out, config.encoder.size, task)
        instruction = task_instruction(config, task)
        own = [number for number, info in enumerate(store.episodes) if info.instruction == instruction]
        shortest, limit = min((store.episodes[number].length for number in own), default=0), config.data.limit
        where, found_steps = f"expert of {task}", f"demonstrations of {shortest} steps"
        expected, hint = f"{limit}, as long as rollouts", f"record longer ones, or say data.steps={shortest}"
        require(limit is None or shortest >= limit, where, found_steps, expected, hint)
        rewards = [store.rewards(number) for number in own]
        known = [float(each[:limit].sum()) for each in rewards if each is not None]
        mean = float(np.mean(known)) if known else 0.0
        earned = f"a return of {mean:g}" if known else "no rewards"
        require(mean > 0, where, earned, "a positive return", "record better demonstrations, or leave the task out")
        found[task] = mean
    return found


def start_simulations(config: FewshotConfig) -> None:
    """Make every task that rollouts or a recording will need once, so that errors occur early.

    Raises:
        BadInputError: If the simulator has no such task or camera.
        MissingExtraError: If it is not installed.
    """
    for task in config.data.unseen_tasks:
        task_instruction(config, task)
    data = config.data
    if data.suite == "dmc" and config.used_pretrainings and data.pretraining_path is None:
        for task in data.pretraining_tasks:  # each task's model has its own cameras
            make_env(f"dmc/{task}", size=config.encoder.size, cameras=data.camera).close()


def task_instruction(config: FewshotConfig, task: str) -> str:
    """Return the instruction of a task's episodes in data sets.

    Raises:
        BadInputError: If the simulator has no such task or camera.
        MissingExtraError: If it is not installed.
    """
    data = config.data
    simulation = make_env(
        f"{data.suite}/{task}", size=config.encoder.size, cameras=data.seen_camera, repeat=data.repeat, steps=data.limit
    )
    try:
        return simulation.instruction
    finally:
        simulation.close()


def _pretraining_path(data: FewshotData, out: Path) -> Path:
    return Path(data.pretraining_path) if data.pretraining_path else out / "data" / "pretraining"


def _demonstrations_path(data: FewshotData, out: Path) -> Path:
    return Path(data.demonstrations_path) if data.demonstrations_path else out / "data" / "demonstrations"


def _demonstrations_folder(data: FewshotData, out: Path, task: str) -> Path:
    folders = _folders(_demonstrations_path(data, out), data.unseen_tasks)
    return folders[0] if len(folders) == 1 else folders[data.unseen_tasks.index(task)]


def _open(data: FewshotData, path: Path, split: str, camera: Cameras, size: int, out: Path) -> EpisodeStore:
    names = split_names(path)
    source = open_dataset(path, split=split if split in names else None)
    if data.suite == "dmc" and len(source.cameras) == 1:
        camera = None  # dm_control's recorder gives its images one name, whichever camera took them
    cameras = camera_names(camera, source)
    return cached(source, size=size, root=out / "data" / "cache", cameras=cameras)


def _folders(path: Path, tasks: Sequence[str]) -> list[Path]:
    """Return the folder of a data set of all tasks, or one folder a task.

    Raises:
        BadInputError: If some tasks have a folder and others have none.
    """
    missing = [task for task in tasks if not (path / task).is_dir()]
    if len(missing) == len(tasks):
        return [path]
    expected = f"one for each of {', '.join(tasks)}, or a single data set of all"
    require(not missing, path, f"no folder of {', '.join(missing)}", expected, "record it, or leave the task out")
    return [path / task for task in tasks]


def _record_metaworld(config: FewshotConfig, path: Path, demonstrations: bool) -> None:
    from counterpoint.envs.metaworld.collect import MetaWorldCollectConfig, collect_metaworld
    from counterpoint.envs.metaworld.env import HORIZON

    data = config.data
    camera = data.seen_camera if demonstrations else data.camera
    shared = MetaWorldCollectConfig(
        out=path,
        cameras=choose_cameras(camera, ("corner2",)),
        size=data.render or config.encoder.size,
        max_steps=data.limit or HORIZON,
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
            "after_success": data.limit,  # episodes of one length, as in the paper
        }
    collect_metaworld(shared.model_copy(update=own))


def _record_dmc(config: FewshotConfig, path: Path, demonstrations: bool) -> None:
    from counterpoint.envs.dmc.collect import DMCCollectConfig, collect_dmc
    from counterpoint.envs.dmc.env import HORIZON

    data = config.data
    (camera,) = cameras_of(data.seen_camera if demonstrations else data.camera) or (None,)
    shared = DMCCollectConfig(
        out=path,
        size=data.render or config.encoder.size,
        camera=camera,
        steps=data.limit or HORIZON,
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


def _record_robosuite(config: FewshotConfig, path: Path, demonstrations: bool) -> None:
    from counterpoint.envs.robosuite.collect import RobosuiteCollectConfig, collect_robosuite
    from counterpoint.envs.robosuite.env import resolve_robosuite

    data = config.data
    for task in data.unseen_tasks if demonstrations else data.pretraining_tasks:
        name, robot = resolve_robosuite(task)
        recording = RobosuiteCollectConfig(
            out=path / task,
            tasks=(name,),
            robot=robot,
            episodes=data.demonstrations_for(task) * config.seeds if demonstrations else data.episodes,
            val_episodes=0 if demonstrations else data.validation_episodes,
            noise=0.0 if demonstrations else data.noise,
            cameras=choose_cameras(data.seen_camera if demonstrations else data.camera, ("agentview",)),
            masks=("none",),
            size=data.render or config.encoder.size,
            max_steps=data.limit,
            seed=data.seed + demonstrations,
            workers=data.workers,
        )
        collect_robosuite(recording)


_RECORDERS = {"metaworld": _record_metaworld, "dmc": _record_dmc, "robosuite": _record_robosuite}
