"""The data of a study of language-conditioned cloning: videos and demonstrations, recorded once into its folder."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from counterpoint.data.cache import cached
from counterpoint.data.episode import Array
from counterpoint.data.store import EpisodeStore
from counterpoint.data.store_views import CamerasApart, SubsetStore, join_domains
from counterpoint.envs.collect import collected_about
from counterpoint.envs.kitchen.collect import KitchenCollectConfig, collect_kitchen
from counterpoint.envs.kitchen.env import RETURN
from counterpoint.envs.make import make_env
from counterpoint.envs.metaworld.collect import MetaWorldCollectConfig, collect_metaworld
from counterpoint.errors import require
from counterpoint.formats import open_dataset
from studies.lcbc.config import LcbcConfig, suite_of

ACTIONS = {"kitchen": 50, "metaworld": 100}
"""Number of actions of an episode in each suite (AcTOL, Table 5)."""
REPEAT = 2
"""Control steps per action on Meta-World; with one step, 100 actions are too few for bin-picking's expert."""
STILL = 1e-4
"""Standard deviation below which a number of the environment state counts as the same in all scenes."""


def env_options(suite: str) -> dict[str, int]:
    """Return the settings of `make_env` with which policies act as the experts did."""
    return {"repeat": REPEAT, "steps": ACTIONS[suite] * REPEAT} if suite == "metaworld" else {}


def record_data(config: LcbcConfig, out: Path) -> None:
    """Record missing videos and demonstrations; an interrupted recording resumes."""
    videos = config.videos
    for suite in dict.fromkeys(map(suite_of, videos.tasks)):
        limits = {"episodes": videos.episodes, "noise": videos.noise, "after_success": 5, "seed": videos.seed}
        _record(config, suite, _folder(out, "videos", suite), _names(videos.tasks, suite), videos.steps, **limits)
    for suite in config.suites:
        limits = {"episodes": max(config.demonstrations) * config.seeds, "noise": config.noise, "intended": True}
        limits |= {"after_success": ACTIONS[suite], "seed": 0}
        _record(config, suite, _folder(out, "demonstrations", suite), _names(config.tasks, suite), None, **limits)


def _record(
    config: LcbcConfig, suite: str, out: Path, tasks: tuple[str, ...], most: int | None, **settings: float
) -> None:
    """Record experts; `most` is the number of actions of a video, and by default the suite's number for demonstrations.

    Images are stored losslessly, because video compression changes embeddings.
    """
    shared = {"out": out, "tasks": tasks, "cameras": config.cameras[suite], "size": config.size, "lossless": True}
    if suite == "kitchen":
        play = {"play": 1, "max_steps": most + RETURN} if most else {}
        collect_kitchen(KitchenCollectConfig.model_validate({**shared, **settings, **play}))
        return
    steps = REPEAT * (most or ACTIONS[suite])
    own = {"stride": REPEAT, "max_steps": steps, "successful_only": True}
    collect_metaworld(MetaWorldCollectConfig.model_validate({**shared, **settings, **own}))


def open_videos(config: LcbcConfig, out: Path) -> EpisodeStore:
    """Return the videos of all suites; each camera's images form a separate episode."""
    views = []
    suites = tuple(dict.fromkeys(map(suite_of, config.videos.tasks)))
    for suite in suites:
        cameras = config.cameras[suite]
        source = open_dataset(_folder(out, "videos", suite), split="train")
        store = cached(source, size=config.size, root=out / "data" / "cache", cameras=cameras)
        views.append(CamerasApart(store, cameras))
    return join_domains(views, suites)


def open_demonstrations(config: LcbcConfig, out: Path, tasks: Sequence[str], count: int, seed: int) -> EpisodeStore:
    """Return `count` demonstrations of every task for seed number `seed`; a smaller `count` gives the first of them.

    Raises:
        BadInputError: If there are no demonstrations.
    """
    suite = suite_of(tasks[0])
    folder, most = _folder(out, "demonstrations", suite), max(config.demonstrations)
    source = open_dataset(folder, split="train")
    told = [info.instruction for info in source.episodes]
    chosen: list[int] = []
    for task in tasks:
        wanted = instruction(task)
        own = [number for number, other in enumerate(told) if other == wanted][seed * most :][:count]
        require(len(own) == count, folder, f"{len(own)} demonstrations of {task}", f"{count}", "record it again")
        chosen += own
    store = cached(source, size=config.size, root=out / "data" / "cache", cameras=config.cameras[suite])
    return SubsetStore(store, chosen)


def first_moments(config: LcbcConfig, out: Path, task: str) -> tuple[Array, Array, Array]:
    """Return the first time step of all demonstrations of a task; each has another scene.

    Returns:
        Images of the first camera, uint8 [N, S, S, 3]; the state, float32 [N, P]; and those numbers of the environment
        state that differ between scenes, float32 [N, E].
    """
    suite = suite_of(task)
    store = open_dataset(_folder(out, "demonstrations", suite), split="train")
    own = np.array([number for number, info in enumerate(store.episodes) if info.instruction == instruction(task)])
    first = np.zeros((len(own), 1), np.int64)
    images = store.gather("frames", own, first, camera=config.cameras[suite][0])[:, 0]
    state, surroundings = (store.gather(source, own, first)[:, 0] for source in ("state", "environment_state"))
    return images, state, surroundings[:, surroundings.std(0) > STILL]


@cache
def instruction(task: str) -> str:
    """Return a task in words.

    Raises:
        BadInputError: If there is no such task.
    """
    env = make_env(task, cameras=[])
    try:
        return env.instruction
    finally:
        env.close()


def evaluation_seeds(config: LcbcConfig, out: Path, task: str, seed: int) -> list[int]:
    """Return the evaluation episodes' seeds for seed number `seed`, the same for every row; they were not recorded."""
    folders = [_folder(out, kind, suite_of(task)) for kind in ("demonstrations", "videos")]
    abouts = [collected_about(folder) or {} for folder in folders if folder.exists()]
    taken = {number for about in abouts for number in about.get("episodes", {}).get("seed", [])}
    rng = np.random.default_rng([zlib.crc32(task.encode()), seed])
    drawn = (int(number) for number in rng.integers(2**31, size=2 * config.episodes))
    return [number for number in drawn if number not in taken][: config.episodes]


def _folder(out: Path, kind: str, suite: str) -> Path:
    return out / "data" / kind / suite


def _names(tasks: Sequence[str], suite: str) -> tuple[str, ...]:
    return tuple(task.partition("/")[2] for task in tasks if suite_of(task) == suite)
