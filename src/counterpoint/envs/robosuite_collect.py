"""Record robosuite's scripted experts with robot masks: `counterpoint collect robosuite`.

The data set is ordered train | val | test and, inside a split, by task. An episode depends on the data set's seed, its
task, its split and its number alone, so that neither workers nor an interruption change anything. Finished episodes
wait in `OUT.partial`; the same call again goes on from there.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from counterpoint.data.formats.lerobot_writer import LeRobotWriter
from counterpoint.data.formats.robomimic_writer import RobomimicWriter
from counterpoint.data.masks import mask_camera
from counterpoint.envs.collect_plan import Slot, slots, split_ranges
from counterpoint.envs.collect_run import collected_about, record_missing, refuse_different, refuse_foreign
from counterpoint.envs.recording import episode_seed
from counterpoint.envs.robosuite import RobosuiteTask, describe_rendering, versions
from counterpoint.envs.robosuite_plan import RobosuiteCollectConfig, checked
from counterpoint.envs.robosuite_record import record_robosuite
from counterpoint.envs.robosuite_tasks import CONTROL_HZ, TASKS
from counterpoint.envs.staging import Staging
from counterpoint.errors import BadInputError, MissingExtraError
from counterpoint.progress import ProgressBar

__all__ = ["RobosuiteCollectConfig", "collect_robosuite", "summary"]

_FAILURES = 20  # scenes in a row without a demonstration that end it all
_RAISES = 5  # the same of scenes in which the simulator raised an error


def collect_robosuite(config: RobosuiteCollectConfig) -> Path:
    """Record a data set, or go on with one that was interrupted.

    Actions are float32 [T, 7] as carried out, 20 a second: changes of the hand's pose, and the gripper. State is
    float32 [T, 9]: hand position, quaternion and gripper. The mask of `agentview` is the camera `agentview_mask`.
    `meta/info.json` (of HDF5 the attribute `counterpoint` of `data`) keeps the configuration, controller, versions,
    render settings and canary, and of every episode its task, seed, success, the number of failed scenes dropped
    before it, and the number of those in which the simulator raised an error.

    Args:
        config: What to record. With more than one worker, a script must start it under `if __name__ ==
            "__main__"`.

    Returns:
        The data set.

    Raises:
        BadInputError: When the configuration is wrong, `out` holds something else, a worker dies, or a task cannot be
            solved or simulated.
        MissingExtraError: When robosuite is not installed.
    """
    config = checked(config)
    refuse_foreign(config.out)
    staging = Staging(config.out)
    try:
        identity = _identity(config)
        if config.out.exists():
            refuse_different(config.out, identity)
        else:
            plan = slots(config)
            staging.open(identity)
            record_missing(staging, plan, partial(_record_slot, config), workers=config.workers, note=_note)
            _assemble(config, staging, plan, identity)
    finally:
        _simulation.cache_clear()
    if staging.folder.exists():
        staging.remove()
    return config.out


def summary(out: Path) -> str:
    """A collected data set in a line: how many episodes, and how many scenes gave none."""
    about = collected_about(out) or {}
    episodes = len(about["episodes"]["seed"])
    return f"{episodes} episodes, {_lost(about['dropped'], about['raised'])}"


def _identity(config: RobosuiteCollectConfig) -> dict[str, Any]:
    """All that decides the data, as JSON values: where to and by how many workers is not among it."""
    settings = config.model_dump(mode="json", exclude={"out", "workers"})
    rendering = describe_rendering(
        config.tasks[0], robot=config.robot, cameras=config.cameras, size=config.size
    )
    controller = _simulation(config, config.tasks[0]).env.robots[0].composite_controller_config
    tree = {
        "config": settings,
        "controller": {"control_freq": CONTROL_HZ, **controller},
        "versions": versions(),
        "rendering": rendering,
    }
    identity: dict[str, Any] = json.loads(json.dumps(tree))
    return identity


def _note(abouts: Sequence[Mapping[str, Any]]) -> str:
    solved, dropped, raised = (
        sum(about[key] for about in abouts) for key in ("success", "dropped", "raised")
    )
    return f"{solved} of {len(abouts)} solved, {_lost(dropped, raised)}"


def _lost(dropped: int, raised: int) -> str:
    return f"{dropped} failed ones dropped, {raised} in which the simulator raised an error"


def _record_slot(config: RobosuiteCollectConfig, slot: Slot) -> None:
    failed = raised = in_a_row = 0
    for attempt in range(_FAILURES):
        seed = episode_seed(config.seed, slot.task, slot.split, slot.number, attempt)
        try:
            recording = record_robosuite(
                _simulation(config, slot.task),
                seed,
                masks=config.masks,
                noise=config.noise,
                after_success=config.after_success,
                simulation=config.format == "robomimic",
            )
        except (BadInputError, MissingExtraError):
            raise
        except Exception as error:  # a simulator may raise anything; an episode is lost, not the collection
            _simulation.cache_clear()  # what raised may be in any state
            raised, in_a_row = raised + 1, in_a_row + 1
            if in_a_row == _RAISES:
                raise BadInputError(
                    f"{slot.task} with {config.robot}",
                    found=f"{_RAISES} scenes in a row in which the simulator raised "
                    f"{type(error).__name__}: {error}",
                    expected="a simulation that runs to its end",
                    mend="repair the installation of robosuite and mujoco, then run the same again to go on",
                ) from error
            continue
        in_a_row = 0
        if recording.success or not config.successful_only:
            about = {
                "task": slot.task,
                "split": slot.split,
                "seed": seed,
                "dropped": failed,
                "raised": raised,
            }
            Staging(config.out).add(
                slot.place, recording, about, CONTROL_HZ, lossless=config.format == "robomimic"
            )
            return
        failed += 1
    raise BadInputError(
        "successful_only",
        found=f"{_FAILURES} scenes of {slot.task} in a row without a solution ({_lost(failed, raised)})",
        expected="a task the expert solves now and then",
        mend="less noise, more max_steps, or keep failed episodes",
    )


@lru_cache(maxsize=1)
def _simulation(config: RobosuiteCollectConfig, task: str) -> RobosuiteTask:
    return RobosuiteTask(
        task,
        robot=config.robot,
        cameras=config.cameras,
        size=config.size,
        horizon=config.max_steps,
        mask_parts=config.mask_parts,
    )


def _assemble(
    config: RobosuiteCollectConfig, staging: Staging, plan: Sequence[Slot], identity: dict[str, Any]
) -> None:
    """Make the data set out of the staged episodes and give it its name."""
    built = staging.folder / "dataset"  # inside, so that the remains of a killed writer go with the folder
    if not built.exists():
        abouts = [staging.about(slot.place) for slot in plan]
        info = {
            "collect": identity,
            "machine": {"python": platform.python_version(), "platform": platform.platform()},
            "dropped": sum(about["dropped"] for about in abouts),
            "raised": sum(about["raised"] for about in abouts),
            "episodes": {key: [about[key] for about in abouts] for key in abouts[0]},
        }
        writer = (_robomimic if config.format == "robomimic" else _lerobot)(config, built, info)
        with ProgressBar("assemble", len(plan), "episodes") as bar:
            for slot in plan:
                episode, videos = staging.episode(slot.place, TASKS[slot.task].instruction, CONTROL_HZ)
                if isinstance(writer, LeRobotWriter):
                    writer.add_episode(episode, videos)
                else:
                    writer.add_episode(episode, staging.simulation(slot.place))
                bar.advance()
            writer.finalize(split_ranges(config))
    built.rename(config.out)


def _lerobot(config: RobosuiteCollectConfig, built: Path, info: dict[str, Any]) -> LeRobotWriter:
    masks = [mask_camera(camera) for camera in config.masks]
    return LeRobotWriter(
        built,
        fps=CONTROL_HZ,
        cameras=dict.fromkeys((*config.cameras, *masks), (config.size, config.size)),
        action_dim=RobosuiteTask.action_dim,
        state_dim=RobosuiteTask.state_dim,
        robot_type=config.robot,
        image_cameras=masks,
        info=info,
    )


def _robomimic(config: RobosuiteCollectConfig, built: Path, info: dict[str, Any]) -> RobomimicWriter:
    (task,) = config.tasks
    return RobomimicWriter(
        built,
        env_name=TASKS[task].environment,
        env_version=info["collect"]["versions"]["robosuite"],
        env_kwargs={
            "robots": [config.robot],
            "control_freq": int(CONTROL_HZ),
            "controller_configs": _simulation(config, task).env.robots[0].composite_controller_config,
            "camera_names": list(config.cameras),
            "camera_heights": config.size,
            "camera_widths": config.size,
            "reward_shaping": False,
            "lang": TASKS[task].instruction,
        },
        model_file=_simulation(config, task).env.sim.model.get_xml(),
        about=info,
    )
