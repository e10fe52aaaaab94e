"""Record experts in simulators as data sets: the code that the collections of all suites share.

Episodes are ordered by split, then by task, then by number. An episode depends only on the data set's seed, its task,
its split and its number, and not on the number of workers, on interruptions or on later extensions. Until all episodes
are recorded, finished ones are staged in `OUT.partial`, next to the data set; incomplete ones are never stored. An
interrupted call resumes when repeated. A call that asks for more episodes extends a data set; the content of its
episodes stays the same.
"""

from __future__ import annotations

import json
import platform
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import tyro
from pydantic import Field

from counterpoint.config import FrozenConfig
from counterpoint.data.draws import sample_seed
from counterpoint.data.episode import Episode
from counterpoint.data.robot_masks import mask_camera
from counterpoint.envs.recording import NOTE, NoisyExpert, Recording, Staging, record
from counterpoint.errors import BadInputError, MissingExtraError, require
from counterpoint.folder import require_same
from counterpoint.formats.hdf5.writer import robomimic_about
from counterpoint.formats.lerobot.reader import LeRobotStore
from counterpoint.formats.lerobot.writer import LeRobotWriter
from counterpoint.progress import ProgressBar
from counterpoint.workers import worker_pool

_COUNTS = {"train": "episodes", "val": "val_episodes", "test": "test_episodes"}
SPLITS = tuple(_COUNTS)
_RAISES = 5  # a collection ends after this number of consecutive scenes with simulator errors
_JOBS_A_WORKER = 8  # jobs per worker, so that workers wait at most an eighth of their time for the last job

Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME...")]


class CollectConfig(FrozenConfig):
    """The settings of all collections; each suite adds further settings and sets the defaults.

    Attributes:
        out: The data set's folder; a recording there with the same settings is resumed or extended.
        episodes: Number of training episodes per task.
        val_episodes: Number of validation episodes per task.
        noise: Standard deviation of Gaussian noise on the expert's actions, in action units (-1 to 1).
        workers: Number of processes that simulate.
        seed: Random seed for initial states and noise.
    """

    out: Path
    episodes: int | None = Field(default=50, ge=0)
    val_episodes: int = Field(default=0, ge=0)
    noise: float = Field(default=0.0, ge=0, le=10)
    workers: int = Field(default=2, ge=1, le=1024)
    seed: int = Field(default=0, ge=0, le=2**63)


class ExpertCollectConfig(CollectConfig):
    """The settings of a collection with scripted experts; see `CollectConfig`.

    Attributes:
        tasks: Names of tasks.
        test_episodes: Number of test episodes per task.
        size: Height and width of the images, in pixels.
        cameras: Names of cameras.
        after_success: Number of frames recorded after the task is solved, before the episode ends.
        max_steps: Number of steps after which an unsolved episode ends; by default the task's episode length.
        successful_only: Drop failed episodes and try the next scene; the number of dropped episodes is recorded.
        lossless: Store images as PNG instead of lossy video, so that training images look like the images on which
            policies act later.
        intended: Record the expert's actions without noise, although the noisy actions are executed (DART, arXiv
            1703.09327). Policies then learn to correct the noise instead of imitating it.
    """

    tasks: Names = Field(min_length=1)
    test_episodes: int = Field(default=0, ge=0)
    size: int = Field(default=112, ge=16)
    cameras: Names = Field(min_length=1)
    after_success: int = Field(default=5, ge=0)
    max_steps: int | None = Field(default=None, ge=1)
    successful_only: bool = True
    lossless: bool = False
    intended: bool = False


@dataclass(frozen=True, slots=True)
class Slot:
    """One episode to record: its index in the data set (`place`), and the values that determine its content."""

    place: int
    task: str
    split: str
    number: int


def episode_seed(seed: int, task: str, split: str, number: int, attempt: int = 0) -> int:
    """Return the seed of an episode's scene after `attempt` dropped scenes; it does not depend on other episodes."""
    return sample_seed(seed, number, f"{task}, {split}, attempt {attempt}", bits=32)


@dataclass(frozen=True)
class Collection(ABC):
    """A suite's description of one data set to record. It is pickled for every worker, and used as a cache key.

    Attributes:
        config: The settings, with all task names listed.
        packages: Packages whose versions determine the data.
        attempts: Number of consecutive scenes without a demonstration after which the collection ends.
        remedy: Parts of the error message in this case: the setting at fault, the expected value and a hint.
    """

    config: Any
    packages: ClassVar[tuple[str, ...]]
    attempts: ClassVar[int] = 20
    remedy: ClassVar[tuple[str, str, str]] = (
        "successful_only",
        "a task the expert solves now and then",
        "less noise, more max_steps, or keep failed episodes",
    )

    @property
    def lossless(self) -> bool:
        """True if images are stored losslessly instead of as video."""
        return getattr(self.config, "lossless", False)

    @property
    def counts(self) -> dict[str, int]:
        """Number of episodes per task for each split."""
        return {split: getattr(self.config, name, 0) for split, name in _COUNTS.items()}

    @property
    def robot(self) -> str:
        """The robot's human-readable name."""
        raise NotImplementedError

    @property
    def fps(self) -> float:
        """Frames per second of the images, a whole number."""
        raise NotImplementedError

    @property
    def env(self) -> Any:
        """The simulation of the first task."""
        return simulation(self, self.config.tasks[0])

    def parts(self, task: str) -> tuple[str, ...]:
        """Return the instructions that an episode carries out one after the other: one, or none without words."""
        return ()

    def identity(self) -> dict[str, Any]:
        """Return the settings that determine the data (not `out` and `workers`), as JSON values."""
        settings = self.config.model_dump(mode="json", exclude={"out", "workers"})
        return {"config": settings, "versions": versions(self.packages)}

    @abstractmethod
    def make(self, task: str) -> Any:
        """Build the simulation of a task."""

    @abstractmethod
    def record(self, env: Any, slot: Slot, seed: int) -> Recording | None:
        """Record one scene; return `None` to drop it."""

    def writer(self, folder: Path, info: dict[str, Any]) -> Any:
        """Return the data set's writer: a `LeRobotWriter`, or an object with the same `add_episode` and `finalize`."""
        config, env = self.config, self.env
        masks = [mask_camera(camera) for camera in getattr(config, "masks", ())]
        return LeRobotWriter(
            folder,
            fps=self.fps,
            cameras=dict.fromkeys((*config.cameras, *masks), (config.size, config.size)),
            action_dim=env.action_dim,
            state_dim=env.state_dim,
            environment_dim=env.environment_dim or None,
            robot_type=self.robot,
            image_cameras=[*masks, *(config.cameras if self.lossless else ())],
            info=info,
        )

    def staged(self, staging: Staging, slot: Slot) -> tuple[Any, ...]:
        """Return the arguments of the writer's `add_episode` for an episode."""
        return staging.episode(slot.place, self.parts(slot.task), self.fps), staging.videos(slot.place)

    def assemble(self, staging: Staging, folder: Path, info: dict[str, Any]) -> None:
        """Write the data set from the staged episodes."""
        writer, plan = self.writer(folder, info), slots(self)
        with ProgressBar("Writing", len(plan), "episodes") as bar:
            for slot in plan:
                writer.add_episode(*self.staged(staging, slot))
                bar.advance()
            writer.finalize(split_ranges(self))


class ExpertCollection(Collection):
    """A collection with the scripted expert of a suite's environment; `config` is an `ExpertCollectConfig`."""

    exact: ClassVar[int] = 0
    """Number of action dimensions at the end of an action that get no noise."""

    @property
    def simulator(self) -> bool:
        """True if the simulator's whole state is recorded too."""
        return False

    def record(self, env: Any, slot: Slot, seed: int) -> Recording:
        """Record one scene."""
        config = self.config
        return record(
            env,
            NoisyExpert(env.expert, config.noise, exact=self.exact),
            seed,
            steps=env.horizon if config.max_steps is None else config.max_steps,
            after_success=config.after_success,
            stride=getattr(config, "stride", 1),
            intended=config.intended,
            masks=getattr(config, "masks", ()),
            simulator=self.simulator,
            parts=len(self.parts(slot.task)),
        )


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the installed versions of packages."""
    return {name: version(name) for name in packages}


@lru_cache(maxsize=1)
def simulation(job: Collection, task: str) -> Any:
    """Return the cached simulation of a task; building one takes as long as recording one or two episodes."""
    return job.make(task)


def slots(job: Collection) -> list[Slot]:
    """Return every episode in the data set's order."""
    every = ((task, split, n) for split, count in job.counts.items() for task in job.config.tasks for n in range(count))
    return [Slot(place, *key) for place, key in enumerate(every)]


def split_ranges(job: Collection) -> dict[str, str]:
    """Return the indices of each split's episodes as `"a:b"`."""
    places: dict[str, list[int]] = {}
    for slot in slots(job):
        places.setdefault(slot.split, []).append(slot.place)
    return {split: f"{found[0]}:{found[-1] + 1}" for split, found in places.items()}


def collect(job: Collection) -> Path:
    """Record a data set, resume an interrupted one, or extend one by more episodes, and return its path.

    If the data set is complete, nothing changes. If a LeRobot data set is extended, its episodes are copied. In other
    formats they are recorded again, which gives the same episodes.

    Under the key `counterpoint`, the data set stores its settings (`collect`) and the versions of software and machine.
    For each episode it also stores the task, split, seed and success, and the number of earlier scenes that failed
    (`dropped`) or raised an error (`raised`).

    Args:
        job: The data set. With more than one worker, a script must call this under `if __name__ == "__main__"`.

    Raises:
        BadInputError: If `out` holds anything but this data set, a worker dies, or a task cannot be solved or run.
    """
    out: Path = job.config.out
    require(sum(job.counts.values()) > 0, "episodes", 0, "at least one a task", "ask for some")
    require_collected(out)
    staging = Staging(out)
    try:
        identity: dict[str, Any] = json.loads(json.dumps(job.identity()))
        earlier = _smaller(out, identity)
        if earlier is not None and (out / "meta" / "info.json").is_file():
            staging = _Extension(out, job, earlier)
        if earlier is not None or not out.exists():
            out.parent.mkdir(parents=True, exist_ok=True)
            staging.open(identity)
        if out.exists() and earlier is None:  # completed earlier, or by another process while this one waited
            about = (collected_about(out) or {})["collect"]
            hint = "choose another --out, or remove it; more episodes of the same settings extend it"
            require_same(out, about, identity, "a data set collected", hint)
        else:
            built = staging.folder / "dataset"  # in this folder, so that a killed writer's files are removed with it
            if not built.exists():
                _record_missing(job, staging)
                abouts = [staging.about(slot.place) for slot in slots(job)]
                totals = {key: sum(about[key] for about in abouts) for key in ("dropped", "raised")}
                machine = {"python": platform.python_version(), "platform": platform.platform()}
                episodes = {key: [about[key] for about in abouts] for key in abouts[0]}
                job.assemble(staging, built, {"collect": identity, "machine": machine, **totals, "episodes": episodes})
            if earlier is not None:
                out.rename(staging.folder / "earlier")
            built.rename(out)
    finally:
        simulation.cache_clear()
        staging.close()
    shutil.rmtree(staging.folder, ignore_errors=True)
    return out


def _smaller(out: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the metadata of a data set with the same settings and fewer episodes; `None` for anything else."""
    about = collected_about(out)
    if about is None or "config" not in about["collect"]:
        return None
    then, now = about["collect"]["config"], identity["config"]
    counts = {name: now[name] for name in _COUNTS.values() if name in now}
    more = [count - then.get(name, 0) for name, count in counts.items()]
    alike = about["collect"] | {"config": then | counts} == identity
    return about if alike and min(more) >= 0 and max(more) > 0 else None


class _Extension(Staging):
    """The staged episodes of a larger data set, and the episodes of the smaller data set that it extends.

    Args:
        out: The smaller data set, in LeRobot's format.
        job: The larger data set.
        about: The smaller data set's metadata, as returned by `collected_about`.
    """

    def __init__(self, out: Path, job: Collection, about: Mapping[str, Any]) -> None:
        super().__init__(out)
        self._store, self._columns = LeRobotStore(out), about["episodes"]
        known: dict[tuple[str, str], list[int]] = {}
        for number, key in enumerate(zip(self._columns["task"], self._columns["split"], strict=True)):
            known.setdefault(key, []).append(number)
        self._numbers = {
            slot.place: known[slot.task, slot.split][slot.number]
            for slot in slots(job)
            if slot.number < len(known.get((slot.task, slot.split), ()))
        }

    def finished(self) -> set[int]:
        return super().finished() | set(self._numbers)

    def about(self, place: int) -> dict[str, Any]:
        if place not in self._numbers:
            return super().about(place)
        return {key: column[self._numbers[place]] for key, column in self._columns.items()}

    def videos(self, place: int) -> dict[str, Path]:
        if place not in self._numbers:
            return super().videos(place)
        return self._store.cut_videos(self._numbers[place], self.folder / ".videos")

    def episode(self, place: int, instructions: Sequence[str], fps: float) -> Episode:
        if place not in self._numbers:
            return super().episode(place, instructions, fps)
        number, store = self._numbers[place], self._store
        steps = np.arange(store.episodes[number].length)
        images = [name for name in store.cameras if store.is_lossless(name)]
        return Episode(
            frames={camera: store.frames(number, steps, camera) for camera in images},
            instruction=store.episodes[number].instruction,
            segments=store.episodes[number].segments,
            timestamps=steps / fps,
            actions=store.actions(number),
            state=store.state(number),
            success=self.about(place)["success"],
            rewards=store.rewards(number),
            environment_state=store.environment_state(number),
        )


def record_slot(job: Collection, slot: Slot) -> None:
    """Record and stage an episode; scenes that fail or raise an error are dropped, up to a limit."""
    dropped = raised = in_a_row = 0
    for attempt in range(job.attempts):
        seed = episode_seed(job.config.seed, slot.task, slot.split, slot.number, attempt)
        try:
            recording = job.record(simulation(job, slot.task), slot, seed)
        except (BadInputError, MissingExtraError):
            raise
        except Exception as error:  # simulators may raise anything; only the scene is lost
            simulation.cache_clear()  # the simulation may be in any state
            raised, in_a_row = raised + 1, in_a_row + 1
            if in_a_row == _RAISES:
                found = f"{_RAISES} scenes in a row in which the simulator raised {type(error).__name__}: {error}"
                hint = "repair the installation of the simulator, then run the same again to continue"
                raise BadInputError(slot.task, found, "a simulation that runs to its end", hint) from error
            continue
        in_a_row = 0
        if recording is None or (recording.success is False and getattr(job.config, "successful_only", False)):
            dropped += 1
            continue
        about = {"task": slot.task, "split": slot.split, "seed": seed, "dropped": dropped, "raised": raised}
        if recording.success is None:
            about["return"] = round(float(recording.rewards.sum()), 4)
        Staging(job.config.out).add(slot.place, recording, about, job.fps, lossless=job.lossless)
        return
    key, expected, hint = job.remedy
    found = f"{job.attempts} scenes of {slot.task} in a row without a solution ({_lost(dropped, raised)})"
    raise BadInputError(key, found, expected, hint)


def summary(out: Path) -> str:
    """Return a line about a collected data set's episodes and failed scenes, or an empty string for other data sets."""
    about = collected_about(out)
    if about is None:
        return ""
    lost = _lost(about.get("dropped", 0), about.get("raised", 0))
    return f"{len(about['episodes']['seed'])} episodes" + (f", {lost}" if lost else "")


def _lost(dropped: int, raised: int) -> str:
    """Return a text about the scenes that gave no episode, or an empty string if there are none."""
    parts = [f"{dropped} failed ones dropped"] * bool(dropped)
    return ", ".join(parts + [f"{raised} in which the simulator raised an error"] * bool(raised))


def _note(abouts: Sequence[Mapping[str, Any]]) -> str:
    lost = _lost(*(sum(about[key] for about in abouts) for key in ("dropped", "raised")))
    returns = [about["return"] for about in abouts if "return" in about]
    if returns:  # some data have no rewards, so that all returns are 0
        earned = f"mean return {np.mean(returns):.1f}" if any(returns) else ""
    else:
        earned = f"{sum(about['success'] for about in abouts)} of {len(abouts)} solved"
    return ", ".join(part for part in (earned, lost) if part)


def collected_about(out: Path) -> dict[str, Any] | None:
    """Return a collected data set's metadata, such as its settings `collect`; `None` for other data sets."""
    try:
        if out.is_file():
            about: dict[str, Any] = robomimic_about(out)
        elif (out / NOTE).is_file():
            about = json.loads((out / NOTE).read_text())
        else:
            about = json.loads((out / "meta" / "info.json").read_text())["counterpoint"]
        return about if isinstance(about["collect"], dict) else None
    except (OSError, ValueError, KeyError, TypeError):  # not a data set of this library
        return None


def require_collected(out: Path) -> None:
    """Raise `BadInputError` if `out` holds anything but a collected data set."""
    free = not out.exists() or collected_about(out) is not None
    found = "something that is no data set of counterpoint collect"
    require(free, out, found, "a new folder", "choose another --out, or remove it")


def plan_jobs(pending: Sequence[Slot], workers: int) -> list[tuple[Slot, ...]]:
    """Divide episodes into jobs of one task each, the longest first.

    A worker keeps the simulation of its last task, so a task is divided only if workers would be idle at the end.
    """
    tasks = dict.fromkeys(slot.task for slot in pending)
    plan = [tuple(slot for slot in pending if slot.task == task) for task in tasks]
    while workers > 1 and len(plan) < _JOBS_A_WORKER * workers:
        plan.sort(key=len, reverse=True)
        if not plan or len(plan[0]) == 1:
            break
        half = len(plan[0]) // 2
        plan = [*plan[1:], plan[0][:half], plan[0][half:]]
    return sorted(plan, key=lambda job: (-len(job), job[0].place))


def _record_missing(job: Collection, staging: Staging) -> None:
    """Record the episodes that are not staged yet, with progress."""
    plan, counted = slots(job), staging.finished()
    batches = plan_jobs([slot for slot in plan if slot.place not in counted], job.config.workers)
    recorded: list[Mapping[str, Any]] = [staging.about(place) for place in counted]
    with ProgressBar("Collecting", len(plan), "episodes", done=len(counted), shorten="--episodes") as bar:
        for _ in _run(job, batches):
            fresh = staging.finished() - counted
            recorded += [staging.about(place) for place in fresh]
            counted |= fresh
            if fresh:
                bar.advance(len(fresh), _note(recorded))


def _run(job: Collection, batches: Sequence[Sequence[Slot]]) -> Iterator[None]:
    """Record all batches; yield from time to time, for the progress display, and once at the end."""
    workers = min(job.config.workers, len(batches))
    if workers <= 1:
        for slot in [slot for batch in batches for slot in batch]:
            record_slot(job, slot)
            yield
        return
    with worker_pool(workers) as pool:
        running = {pool.submit(_record_batch, job, batch) for batch in batches}
        while running:
            finished, running = wait(running, timeout=0.25)
            for future in finished:
                future.result()
            yield


def _record_batch(job: Collection, batch: Sequence[Slot]) -> None:
    for slot in batch:
        record_slot(job, slot)
