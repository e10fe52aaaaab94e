"""What a collection consists of: its configuration, its episodes in order, and who records them.

One recorded episode: a pure function of the scene's seed and a few settings.

Finished episodes on their way into a data set: each appears whole or not at all, so a killed run goes on.

Beside the data set `DIR` to come stands `DIR.partial`, with `collect.json` (what is being recorded, and with
what) and a folder an episode, named by its place in the data set: `episode.json` (seed, success and so on),
`arrays.npz` (actions, state, rewards where there are any), a video a camera or, without loss, `pictures.npz`, and
`masks.npz` where there are masks.

What every collection shares: episodes recorded side by side, kept whole, and gone on with after an interruption.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from counterpoint.config import FrozenConfig
from counterpoint.data.episode import Array, Episode
from counterpoint.data.formats.hdf5.writer import robomimic_about
from counterpoint.data.masks.robot import mask_camera, mask_frames
from counterpoint.data.video import encode_video
from counterpoint.envs.base import choose_cameras
from counterpoint.envs.metaworld.env import CAMERAS, CONTROL_HZ, HORIZON, MetaWorldEnv
from counterpoint.envs.metaworld.instructions import resolve_tasks
from counterpoint.errors import BadInputError, require
from counterpoint.processes import worker_processes
from counterpoint.progress import ProgressBar

__all__ = [
    "CollectConfig",
    "Planned",
    "Recording",
    "Slot",
    "Staging",
    "checked",
    "collected_about",
    "episode_seed",
    "first_difference",
    "plan_jobs",
    "record",
    "record_missing",
    "refuse_different",
    "refuse_foreign",
    "slots",
    "split_ranges",
]


_JOBS_A_WORKER = 8  # so that the last job makes the others wait for an eighth of their time at most


class CollectConfig(FrozenConfig):
    """What to record.

    Attributes:
        out: The data set's folder; it must not exist.
        tasks: Names of Meta-World v3 tasks, `default` (15 of them) or `all` (50); `-v3` may be left away.
        episodes: Training episodes a task.
        val_episodes: Validation episodes a task.
        test_episodes: Test episodes a task.
        noise: Standard deviation of Gaussian noise added to the expert's clipped action, in action units (-1
            to 1).
        cameras: Camera names.
        size: Height and width of the frames, in pixels; at least 16.
        stride: Control steps a frame. 1 gives 80 frames a second and, for the default tasks, 35 to 120 frames
            an episode. With more, the recorded action is the mean over the steps.
        after_success: Frames that still show the task solved, after which the episode ends.
        max_steps: Control steps after which an unsolved episode ends, 500 at most.
        successful_only: Give failed episodes up and try the next scene; how many were dropped is recorded.
        workers: Processes that simulate.
        seed: Of initial states and noise.
    """

    out: Path
    tasks: tuple[str, ...] = ("default",)
    episodes: int = 10
    val_episodes: int = 0
    test_episodes: int = 0
    noise: float = 0.0
    cameras: tuple[str, ...] = ("corner2",)
    size: int = 112
    stride: int = 1
    after_success: int = 5
    max_steps: int = HORIZON
    successful_only: bool = False
    workers: int = 2
    seed: int = 0

    @property
    def fps(self) -> float:
        """Frames a second."""
        return CONTROL_HZ / self.stride

    @property
    def a_task(self) -> dict[str, int]:
        """Split -> episodes a task."""
        return {"train": self.episodes, "val": self.val_episodes, "test": self.test_episodes}


class Planned(Protocol):
    """What episodes a data set is made of."""

    @property
    def tasks(self) -> Sequence[str]:
        """Names."""

    @property
    def a_task(self) -> Mapping[str, int]:
        """Split -> episodes a task."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One episode to be recorded: its place in the data set, and what decides its content."""

    place: int
    task: str
    split: str
    number: int


def checked(config: CollectConfig) -> CollectConfig:
    """The configuration with task names written out.

    Raises:
        BadInputError: When a value is out of range or a name unknown.
    """
    bounds: dict[str, tuple[float, float]] = {
        "episodes": (0, math.inf),
        "val_episodes": (0, math.inf),
        "test_episodes": (0, math.inf),
        "noise": (0, 10),
        "after_success": (0, HORIZON),
        "max_steps": (1, HORIZON),
        "workers": (1, 1024),
        "seed": (0, 2**63),
    }
    for key, (low, high) in bounds.items():
        value = getattr(config, key)
        if not low <= value <= high:
            expected = f"at least {low:g}" if high == math.inf else f"{low:g} to {high:g}"
            raise BadInputError(key, f"{value}", expected, f"correct {key}")
    if sum(config.a_task.values()) == 0:
        raise BadInputError("episodes", "0", "at least one a task", "ask for some")
    if config.stride < 1 or CONTROL_HZ % config.stride:
        raise BadInputError(
            "stride",
            f"{config.stride}",
            f"a divisor of {CONTROL_HZ:g}, so that frames a second are a whole number",
            "take 1, 2, 4, 5, 8 or 10",
        )
    require(config.size >= 16, "size", config.size, "at least 16 pixels", "enlarge it")
    require(config.cameras, "cameras", "none", f"some of {', '.join(CAMERAS)}", "choose from these")
    cameras = choose_cameras(config.cameras, (), CAMERAS)
    return config.model_copy(update={"tasks": resolve_tasks(config.tasks), "cameras": cameras})


def slots(config: Planned) -> list[Slot]:
    """Every episode in the data set's order: by split, by task, by number."""
    keys = [
        (task, split, number)
        for split, count in config.a_task.items()
        for task in config.tasks
        for number in range(count)
    ]
    return [Slot(place, *key) for place, key in enumerate(keys)]


def split_ranges(config: Planned) -> dict[str, str]:
    """Split -> `"a:b"`, the places of its episodes."""
    ranges, start = {}, 0
    for split, count in config.a_task.items():
        end = start + count * len(config.tasks)
        if end > start:
            ranges[split] = f"{start}:{end}"
        start = end
    return ranges


def plan_jobs(pending: Sequence[Slot], workers: int) -> list[tuple[Slot, ...]]:
    """Divide episodes into jobs of one task each, the longest first.

    A worker keeps the simulation of its last task, whose making costs as much as recording an episode or two;
    so a task is divided only where there would be too few jobs to keep all workers busy to the end.
    """
    jobs: dict[str, tuple[Slot, ...]] = {}
    for slot in pending:
        jobs[slot.task] = (*jobs.get(slot.task, ()), slot)
    plan = list(jobs.values())
    while workers > 1 and len(plan) < _JOBS_A_WORKER * workers:
        plan.sort(key=len, reverse=True)
        if not plan or len(plan[0]) == 1:
            break
        longest = plan.pop(0)
        half = len(longest) // 2
        plan += [longest[:half], longest[half:]]
    return sorted(plan, key=lambda job: (-len(job), job[0].place))


SPLITS = ("train", "val", "test")


@dataclass(frozen=True, slots=True)
class Recording:
    """What an expert did in one scene.

    Attributes:
        frames: Camera name -> uint8 [T, size, size, 3].
        actions: float32 [T, A], what was carried out, noise included; over `stride` steps their mean.
        state: float32 [T, P], proprioception at each frame; of Meta-World hand position (metres) and gripper opening
            (0 to 1).
        success: Whether the task was solved at any moment; `None` where a task has rewards alone.
        rewards: float32 [T], what each action earned; over `stride` steps their sum. `None` where nobody said.
        masks: Camera name -> bool [T, size, size], where its picture shows the robot; empty without masks.
        simulation: float64 [T, n], the simulator's whole state at each frame; `None` where it is not kept.
    """

    frames: dict[str, Array]
    actions: Array
    state: Array
    success: bool | None
    rewards: Array | None = None
    masks: Mapping[str, Array] = field(default_factory=dict)
    simulation: Array | None = None


def episode_seed(seed: int, task: str, split: str, number: int, attempt: int = 0) -> int:
    """The seed of one scene. More episodes, other tasks or other splits leave it as it is.

    Args:
        seed: The data set's.
        task: The task's name.
        split: One of train, val, test.
        number: Which episode of that task and split.
        attempt: How many scenes before it were given up.
    """
    keys = [seed, zlib.crc32(task.encode()), SPLITS.index(split), number, attempt]
    return int(np.random.SeedSequence(keys).generate_state(1)[0])


def record(env: MetaWorldEnv, seed: int, *, noise: float, stride: int, after_success: int, max_steps: int) -> Recording:
    """Let the expert act in the scene of `seed` until the task is solved or the steps are used up.

    Args:
        env: The simulation, with `repeat` 1 and at least `max_steps` steps.
        seed: Of the scene and the noise.
        noise: Standard deviation of the Gaussian noise added to the clipped action, which is then clipped
            again.
        stride: Control steps a frame.
        after_success: Frames that still show the task solved.
        max_steps: Control steps at most.
    """
    rng = np.random.default_rng([seed, 1])
    env.look = False
    env.reset(seed=seed)
    pictures: list[dict[str, Array]] = []
    states: list[Array] = []
    actions: list[Array] = []
    rewards: list[float] = []
    success, shown, step = False, 0, 0
    while step < max_steps and not (success and shown >= after_success):
        pictures.append(env.images())
        states.append(env.state())
        shown += success
        carried_out: list[Array] = []
        earned = 0.0
        for _ in range(min(stride, max_steps - step)):
            action = env.expert()
            if noise > 0:
                action = np.clip(action + noise * rng.standard_normal(4), -1.0, 1.0).astype(np.float32)
            _, reward, _, _, info = env.step(action)
            earned += reward
            success |= info["is_success"]
            carried_out.append(action)
            step += 1
        actions.append(np.stack(carried_out).mean(axis=0))
        rewards.append(earned)
    return Recording(
        frames={camera: np.stack([picture[camera] for picture in pictures]) for camera in env.cameras},
        actions=np.stack(actions),
        state=np.stack(states),
        success=success,
        rewards=np.array(rewards, np.float32),
    )


Identity = Mapping[str, Any]
_PICTURES, _MASKS = "pictures.npz", "masks.npz"


class Staging:
    """The folder `DIR.partial` beside a data set that is being recorded.

    Args:
        out: The data set's folder.
    """

    def __init__(self, out: Path) -> None:
        self.folder = out.with_name(f"{out.name}.partial")

    def open(self, identity: Identity) -> None:
        """Make the folder, or go on with the one that is there.

        Args:
            identity: All that decides the data, as JSON values.

        Raises:
            BadInputError: When the folder is not ours, or holds episodes recorded otherwise; the key is
                named.
        """
        note = self.folder / "collect.json"
        if not self.folder.exists():
            made = self.folder.with_name(f".{self.folder.name}.{os.getpid()}")
            made.mkdir(parents=True)
            (made / note.name).write_text(json.dumps(identity, indent=2))
            made.rename(self.folder)
        if not note.is_file():
            raise BadInputError(
                self.folder,
                "a folder without collect.json",
                "nothing, or a recording to go on with",
                "remove it, or choose another --out",
            )
        difference = first_difference(json.loads(note.read_text()), identity)
        if difference is not None:
            key, then, now = difference
            raise BadInputError(
                self.folder,
                f"episodes recorded with {key} = {then}",
                f"{key} = {now}, as asked for now",
                f"set {key} as it was to go on, or remove {self.folder} to start anew",
            )
        for unfinished in self.folder.glob(".*"):
            shutil.rmtree(unfinished, ignore_errors=True)

    def finished(self) -> set[int]:
        """Places of the episodes that are there."""
        return {int(folder.name) for folder in self.folder.iterdir() if folder.name.isdigit()}

    def add(
        self, place: int, recording: Recording, about: Mapping[str, Any], fps: float, *, lossless: bool = False
    ) -> None:
        """Store an episode.

        Args:
            place: Its place in the data set.
            recording: What happened.
            about: What else to remember, as JSON values.
            fps: Frames a second.
            lossless: Keep pictures as they are instead of as video.
        """
        made = self.folder / f".{place:06d}.{os.getpid()}"
        made.mkdir()
        if lossless:
            _save(made / _PICTURES, recording.frames)
        else:
            for camera, frames in recording.frames.items():
                encode_video(made / f"{camera}.mp4", frames, fps)
        vectors = {name: getattr(recording, name) for name in ("actions", "state", "rewards", "simulation")}
        np.savez(made / "arrays.npz", **{name: value for name, value in vectors.items() if value is not None})
        if recording.masks:
            _save(made / _MASKS, recording.masks)
        (made / "episode.json").write_text(json.dumps({**about, "success": recording.success}))
        try:
            made.rename(self.folder / f"{place:06d}")
        except OSError:
            if place not in self.finished():
                raise
            shutil.rmtree(made)  # a worker of a killed run was a moment faster with the same episode

    def about(self, place: int) -> dict[str, Any]:
        """What is remembered of an episode."""
        remembered: dict[str, Any] = json.loads((self.folder / f"{place:06d}" / "episode.json").read_text())
        return remembered

    def episode(self, place: int, instruction: str, fps: float) -> tuple[Episode, dict[str, Path]]:
        """An episode without the frames that are kept as video, and the videos that hold them by camera."""
        folder = self.folder / f"{place:06d}"
        with np.load(folder / "arrays.npz") as arrays:
            actions, state, rewards = arrays["actions"], arrays["state"], arrays.get("rewards")
        masks = {mask_camera(name): mask_frames(mask) for name, mask in _arrays(folder / _MASKS).items()}
        episode = Episode(
            frames=_arrays(folder / _PICTURES) | masks,
            instruction=instruction,
            timestamps=np.arange(len(actions)) / fps,
            actions=actions,
            state=state,
            success=self.about(place)["success"],
            rewards=rewards,
        )
        return episode, {video.stem: video for video in sorted(folder.glob("*.mp4"))}

    def simulation(self, place: int) -> Array | None:
        """An episode's states of the simulator, float64 [T, n], where they were kept."""
        return _arrays(self.folder / f"{place:06d}" / "arrays.npz").get("simulation")

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder)


def _save(path: Path, arrays: Mapping[str, Any]) -> None:
    np.savez_compressed(path, **arrays)


def _arrays(path: Path) -> dict[str, Array]:
    """Arrays by camera; none where there is no file."""
    if not path.is_file():
        return {}
    with np.load(path) as arrays:
        return dict(arrays)


def first_difference(then: Identity, now: Identity) -> tuple[str, Any, Any] | None:
    """The first key, dotted, at which two trees differ, with both values; `None` if they are equal."""
    for key in [*now, *(key for key in then if key not in now)]:
        old, new = then.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            inner = first_difference(old, new)
            if inner is not None:
                return f"{key}.{inner[0]}", inner[1], inner[2]
        elif old != new:
            return key, old, new
    return None


_stopped: Event | None = None  # in a worker: set when the collection is given up

Record = Callable[[Slot], None]
Note = Callable[[Sequence[Mapping[str, Any]]], str]


def record_missing(
    staging: Staging, plan: Sequence[Slot], record: Record, *, workers: int, note: Note, title: str = "collect"
) -> None:
    """Record the episodes of a plan that are not staged yet, with progress.

    Args:
        staging: Where finished episodes wait.
        plan: All episodes.
        record: Records one and stages it; with several workers it is pickled.
        workers: Processes that record; with 1 it is this one.
        note: What the progress bar says, given what is remembered of the episodes recorded by this call.
        title: Of the progress bar.

    Raises:
        BadInputError: When a worker dies.
    """
    counted = staging.finished()
    jobs = plan_jobs([slot for slot in plan if slot.place not in counted], workers)
    recorded: list[Mapping[str, Any]] = []
    with ProgressBar(title, len(plan), "episodes", done=len(counted)) as bar:
        for _ in _run(jobs, record, workers):
            fresh = staging.finished() - counted
            recorded += [staging.about(place) for place in fresh]
            counted |= fresh
            if fresh:
                bar.advance(len(fresh), note(recorded))


def refuse_foreign(out: Path) -> None:
    """Raise a BadInputError when `out` holds anything but a collected data set."""
    if out.exists() and collected_about(out) is None:
        raise BadInputError(
            out,
            "something that is no data set of counterpoint collect",
            "a new folder",
            "choose another --out, or remove it",
        )


def refuse_different(out: Path, identity: Mapping[str, Any]) -> None:
    """Raise a BadInputError unless `out` was collected alike: asking for the same one again is no error."""
    difference = first_difference((collected_about(out) or {}).get("collect", {}), identity)
    if difference is not None:
        key, then, now = difference
        raise BadInputError(
            out,
            f"a data set collected with {key} = {then}",
            f"{key} = {now}, as asked for now",
            "choose another --out, or remove it",
        )


def _run(jobs: Sequence[Sequence[Slot]], record: Record, workers: int) -> Iterator[None]:
    """Do all jobs, yielding now and then and once at the end."""
    workers = min(workers, len(jobs))
    if workers <= 1:
        for job in jobs:
            for slot in job:
                record(slot)
                yield
        return
    stop = multiprocessing.get_context("spawn").Event()
    try:
        with worker_processes(workers, _enter_worker, (stop,), give_up=stop.set) as pool:
            running = {pool.submit(_record_job, record, job) for job in jobs}
            while running:
                finished, running = wait(running, timeout=0.25)
                for future in finished:
                    future.result()
                yield
    except BrokenProcessPool:
        raise BadInputError(
            "workers",
            "a worker process that died",
            "workers that live to the end",
            "run the same again to go on; with fewer workers if memory was short; in a script, under "
            '`if __name__ == "__main__":`',
        ) from None


def _enter_worker(stop: Event) -> None:
    global _stopped
    _stopped = stop


def _record_job(record: Record, job: Sequence[Slot]) -> None:
    for slot in job:
        if _stopped is not None and _stopped.is_set():
            return
        record(slot)


def collected_about(out: Path) -> dict[str, Any] | None:
    """What `out` says of its collection (`collect`, all that decided the data, and more); `None` if it says nothing."""
    try:
        if out.is_file():
            about: dict[str, Any] = robomimic_about(out)
        else:
            about = json.loads((out / "meta" / "info.json").read_text())["counterpoint"]
        return about if isinstance(about["collect"], dict) else None
    except (OSError, ValueError, KeyError, TypeError):  # anything but a data set of ours
        return None
