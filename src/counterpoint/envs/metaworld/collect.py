"""Record Meta-World's scripted experts as a LeRobot v3 data set: `counterpoint collect metaworld`.

The data set is ordered train | val | test and, inside a split, by task. An episode depends on the data set's
seed, its task, its split and its number alone, so that neither workers nor an interruption change anything.
Finished episodes wait in `DIR.partial`; the same call again goes on from there.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from counterpoint.data.formats.lerobot.writer import LeRobotWriter
from counterpoint.envs.collect import (
    CollectConfig,
    Slot,
    Staging,
    checked,
    episode_seed,
    record,
    record_missing,
    refuse_different,
    refuse_foreign,
    slots,
    split_ranges,
)
from counterpoint.envs.metaworld.env import HORIZON, STATE_DIMS, MetaWorldEnv, describe_rendering, versions
from counterpoint.envs.metaworld.instructions import INSTRUCTIONS
from counterpoint.errors import BadInputError
from counterpoint.progress import ProgressBar

__all__ = ["CollectConfig", "collect_metaworld"]

_ATTEMPTS = 20


def collect_metaworld(config: CollectConfig) -> Path:
    """Record a data set, or go on with one that was interrupted.

    Actions are float32 [T, 4] as carried out, state is float32 [T, 4] (hand position in metres, gripper
    opening), rewards are Meta-World's own. `meta/info.json` keeps under `counterpoint`: the configuration,
    versions, render settings and canary, and of every episode its task, seed, success and the number of failed
    scenes dropped before it.

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
    refuse_foreign(config.out)
    identity = _identity(config)
    staging = Staging(config.out)
    if config.out.exists():
        refuse_different(config.out, identity)
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
    def note(abouts: Sequence[Mapping[str, Any]]) -> str:
        solved, dropped = (sum(about[key] for about in abouts) for key in ("success", "dropped"))
        return f"{solved} of {len(abouts)} solved, {dropped} failed ones dropped"

    try:
        record_missing(staging, plan, partial(_record_slot, config), workers=config.workers, note=note)
    finally:
        _simulation.cache_clear()


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
        f"{_ATTEMPTS} scenes of {slot.task} in a row that the expert failed to solve",
        "a task the expert solves now and then",
        "less noise, more max_steps, or keep failed episodes",
    )


@lru_cache(maxsize=1)
def _simulation(task: str, cameras: tuple[str, ...], size: int) -> MetaWorldEnv:
    return MetaWorldEnv(task, cameras=cameras, size=size, steps=HORIZON)


def _assemble(config: CollectConfig, staging: Staging, plan: Sequence[Slot], identity: dict[str, Any]) -> None:
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
