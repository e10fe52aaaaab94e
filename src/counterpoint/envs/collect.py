"""Record Meta-World's scripted experts as a LeRobot v3 data set: `counterpoint collect metaworld`.

The data set is ordered train | val | test and, inside a split, by task. An episode depends on the data set's
seed, its task, its split and its number alone, so that neither workers nor an interruption change anything.
Finished episodes wait in `DIR.partial`; the same call again goes on from there.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import lru_cache
from multiprocessing import connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from counterpoint.data.formats.lerobot_writer import LeRobotWriter
from counterpoint.envs.collect_plan import CollectConfig, Slot, checked, plan_jobs, slots, split_ranges
from counterpoint.envs.metaworld import STATE_DIMS, MetaWorldTask, describe_rendering, versions
from counterpoint.envs.metaworld_instructions import INSTRUCTIONS
from counterpoint.envs.recording import episode_seed, record
from counterpoint.envs.staging import Staging, first_difference
from counterpoint.errors import BadInputError
from counterpoint.progress import ProgressBar

__all__ = ["CollectConfig", "collect_metaworld"]

_ATTEMPTS = 20
_stopped: Event | None = None  # in a worker: set when the collection is given up


def collect_metaworld(config: CollectConfig) -> Path:
    """Record a data set, or go on with one that was interrupted.

    Actions are float32 [T, 4] as carried out, state is float32 [T, 4] (hand position in metres, gripper
    opening). `meta/info.json` keeps under `counterpoint`: the configuration, versions, render settings and
    canary, and of every episode its task, seed, success and the number of failed scenes dropped before it.

    Args:
        config: What to record. With more than one worker, a script must start it under `if __name__ ==
            "__main__"`.

    Returns:
        The data set's folder.

    Raises:
        BadInputError: When the configuration is wrong, the folder holds something else, or a worker dies.
        MissingExtraError: When Meta-World is not installed.
    """
    config = checked(config)
    _refuse_foreign(config.out)
    identity = _identity(config)
    staging = Staging(config.out)
    if config.out.exists():
        _refuse_different(config.out, identity)
    else:
        plan = slots(config)
        staging.open(identity)
        _record_missing(config, staging, plan)
        _assemble(config, staging, plan, identity)
    if staging.folder.exists():
        staging.remove()
    return config.out


def _identity(config: CollectConfig) -> dict[str, Any]:
    """All that decides the data, as JSON values: where to and by how many workers is not among it."""
    settings = config.model_dump(mode="json", exclude={"out", "workers"})
    rendering = describe_rendering(config.cameras, config.size)
    tree = {"config": settings, "versions": versions(), "rendering": rendering}
    identity: dict[str, Any] = json.loads(json.dumps(tree))
    return identity


def _record_missing(config: CollectConfig, staging: Staging, plan: Sequence[Slot]) -> None:
    counted = staging.finished()
    pending = [slot for slot in plan if slot.place not in counted]
    jobs = plan_jobs(pending, config.workers)
    solved = dropped = 0
    with ProgressBar("collect", len(plan), "episodes", done=len(counted)) as bar:
        for _ in _run(config, jobs):
            fresh = staging.finished() - counted
            for place in fresh:
                about = staging.about(place)
                solved, dropped = solved + about["success"], dropped + about["dropped"]
            counted |= fresh
            recorded = len(counted) - len(plan) + len(pending)
            if fresh:
                bar.advance(len(fresh), f"{solved} of {recorded} solved, {dropped} failed ones dropped")


def _run(config: CollectConfig, jobs: Sequence[Sequence[Slot]]) -> Iterator[None]:
    """Do all jobs, yielding now and then and once at the end."""
    workers = min(config.workers, len(jobs))
    if workers <= 1:
        try:
            for job in jobs:
                for slot in job:
                    _record_slot(config, slot)
                    yield
        finally:
            _simulation.cache_clear()
        return
    try:
        with _pool(workers) as pool:
            running = {pool.submit(_record_job, config, job) for job in jobs}
            while running:
                finished, running = wait(running, timeout=0.25)
                for future in finished:
                    future.result()
                yield
    except BrokenProcessPool:
        raise BadInputError(
            "workers",
            found="a worker process that died",
            expected="workers that live to the end",
            mend="run the same again to go on; with fewer workers if memory was short; in a script, under "
            '`if __name__ == "__main__":`',
        ) from None


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Fresh processes (forked ones would share the graphics context) that stop with this one."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    with ProcessPoolExecutor(workers, context, _enter_worker, (stop,)) as pool:
        try:
            yield pool
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _enter_worker(stop: Event) -> None:
    global _stopped
    _stopped = stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it and sets `stop`
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    """A killed parent cannot tell its workers to stop: they would wait for jobs for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _record_job(config: CollectConfig, job: Sequence[Slot]) -> None:
    for slot in job:
        if _stopped is not None and _stopped.is_set():
            return
        _record_slot(config, slot)


def _record_slot(config: CollectConfig, slot: Slot) -> None:
    simulation = _simulation(slot.task, config.cameras, config.size)
    for attempt in range(_ATTEMPTS):
        seed = episode_seed(config.seed, slot.task, slot.split, slot.number, attempt)
        recording = record(
            simulation,
            seed,
            noise=config.noise,
            stride=config.stride,
            after_success=config.after_success,
            max_steps=config.max_steps,
        )
        if recording.success or not config.successful_only:
            about = {"task": slot.task, "split": slot.split, "seed": seed, "dropped": attempt}
            Staging(config.out).add(slot.place, recording, about, config.fps)
            return
    raise BadInputError(
        "successful_only",
        found=f"{_ATTEMPTS} scenes of {slot.task} in a row that the expert failed to solve",
        expected="a task the expert solves now and then",
        mend="less noise, more max_steps, or keep failed episodes",
    )


@lru_cache(maxsize=1)
def _simulation(task: str, cameras: tuple[str, ...], size: int) -> MetaWorldTask:
    return MetaWorldTask(task, cameras=cameras, size=size)


def _assemble(
    config: CollectConfig, staging: Staging, plan: Sequence[Slot], identity: dict[str, Any]
) -> None:
    """Make the data set out of the staged episodes and give it its name."""
    built = staging.folder / "dataset"  # inside, so that the remains of a killed writer go with the folder
    if not built.exists():
        abouts = [staging.about(slot.place) for slot in plan]
        writer = LeRobotWriter(
            built,
            fps=config.fps,
            cameras=dict.fromkeys(config.cameras, (config.size, config.size)),
            action_dim=4,
            state_dim=STATE_DIMS,
            robot_type="sawyer",
            info={
                "collect": identity,
                "machine": {"python": platform.python_version(), "platform": platform.platform()},
                "dropped": sum(about["dropped"] for about in abouts),
                "episodes": {key: [about[key] for about in abouts] for key in abouts[0]},
            },
        )
        with ProgressBar("assemble", len(plan), "episodes") as bar:
            for slot in plan:
                writer.add_episode(*staging.episode(slot.place, INSTRUCTIONS[slot.task], config.fps))
                bar.advance()
            writer.finalize(split_ranges(config))
    built.rename(config.out)


def _refuse_foreign(out: Path) -> None:
    if out.exists() and _collected(out) is None:
        raise BadInputError(
            out,
            found="something that is no data set of counterpoint collect",
            expected="a new folder",
            mend="choose another --out, or remove it",
        )


def _refuse_different(out: Path, identity: dict[str, Any]) -> None:
    """A finished data set stays as it is; asking for the same one again is no error."""
    difference = first_difference(_collected(out) or {}, identity)
    if difference is not None:
        key, then, now = difference
        raise BadInputError(
            out,
            found=f"a data set collected with {key} = {then}",
            expected=f"{key} = {now}, as asked for now",
            mend="choose another --out, or remove it",
        )


def _collected(out: Path) -> dict[str, Any] | None:
    """What `out` says it was collected with; `None` if it does not."""
    try:
        info = json.loads((out / "meta" / "info.json").read_text())
        collected: dict[str, Any] = info["counterpoint"]["collect"]
    except (OSError, ValueError, KeyError, TypeError):  # anything but a data set of ours
        return None
    return collected
