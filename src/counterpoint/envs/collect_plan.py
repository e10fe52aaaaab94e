"""What a collection consists of: its configuration, its episodes in order, and who records them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from counterpoint.config import FrozenConfig
from counterpoint.envs.metaworld import CONTROL_HZ, HORIZON, check_cameras, check_size
from counterpoint.envs.metaworld_instructions import resolve_tasks
from counterpoint.errors import BadInputError

__all__ = ["CollectConfig", "Planned", "Slot", "checked", "plan_jobs", "slots", "split_ranges"]

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
            raise BadInputError(key, found=f"{value}", expected=expected, mend=f"correct {key}")
    if sum(config.a_task.values()) == 0:
        raise BadInputError("episodes", found="0", expected="at least one a task", mend="ask for some")
    if config.stride < 1 or CONTROL_HZ % config.stride:
        raise BadInputError(
            "stride",
            found=f"{config.stride}",
            expected=f"a divisor of {CONTROL_HZ:g}, so that frames a second are a whole number",
            mend="take 1, 2, 4, 5, 8 or 10",
        )
    check_size(config.size)
    return config.model_copy(
        update={"tasks": resolve_tasks(config.tasks), "cameras": check_cameras(config.cameras)}
    )


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
