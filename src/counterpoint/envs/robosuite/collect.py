"""What a collection of robosuite's demonstrations consists of; needs no simulator.

One demonstration of robosuite's scripted experts, with the robot's masks beside the pictures.

Record robosuite's scripted experts with robot masks: `counterpoint collect robosuite`.

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
from typing import Any, Literal

import numpy as np
from pydantic import Field

from counterpoint.config import FrozenConfig
from counterpoint.data.episode import Array
from counterpoint.data.formats.hdf5.writer import RobomimicWriter
from counterpoint.data.formats.lerobot.writer import LeRobotWriter
from counterpoint.data.masks.robot import mask_camera
from counterpoint.envs.collect import (
    Recording,
    Slot,
    Staging,
    collected_about,
    episode_seed,
    record_missing,
    refuse_different,
    refuse_foreign,
    slots,
    split_ranges,
)
from counterpoint.envs.robosuite.env import RobosuiteEnv, describe_rendering, versions
from counterpoint.envs.robosuite.tasks import CONTROL_HZ, TASKS, resolve_robosuite
from counterpoint.errors import BadInputError, MissingExtraError
from counterpoint.progress import ProgressBar

__all__ = ["RobosuiteCollectConfig", "checked", "collect_robosuite", "record_robosuite", "summary"]


class RobosuiteCollectConfig(FrozenConfig):
    """What to record.

    Attributes:
        out: The data set to come: a folder (`lerobot`) or a file that ends in .hdf5 (`robomimic`).
        tasks: Names of robosuite's tasks that have an expert.
        robot: Which robot does them all.
        episodes: Training episodes a task.
        val_episodes: Validation episodes a task.
        test_episodes: Test episodes a task.
        size: Height and width of the pictures, in pixels.
        cameras: Names of cameras.
        masks: Cameras whose pictures get a mask of the robot; `all` of them, or `none`.
        mask_parts: What counts as the robot: `arm`, `gripper`, `mount`.
        noise: Standard deviation of Gaussian noise on the hand's motion, in action units (-1 to 1).
        after_success: Frames that still show the task solved, after which the episode ends.
        max_steps: Steps after which an unsolved episode ends; the task's own number by default.
        successful_only: Give failed episodes up and try the next scene; how many were dropped is recorded.
        format: LeRobot v3 (pictures as video) or robomimic's HDF5 (pictures as they are); masks are exact in both.
        workers: Processes that simulate.
        seed: Of initial states and noise.
    """

    out: Path
    tasks: tuple[str, ...] = Field(default=("Lift",), min_length=1)
    robot: str = "Panda"
    episodes: int = Field(default=50, ge=0)
    val_episodes: int = Field(default=0, ge=0)
    test_episodes: int = Field(default=0, ge=0)
    size: int = Field(default=256, ge=16)
    cameras: tuple[str, ...] = Field(default=("agentview", "robot0_eye_in_hand"), min_length=1)
    masks: tuple[str, ...] = ("all",)
    mask_parts: tuple[Literal["arm", "gripper", "mount"], ...] = Field(
        default=("arm", "gripper", "mount"), min_length=1
    )
    noise: float = Field(default=0.0, ge=0, le=10)
    after_success: int = Field(default=5, ge=0)
    max_steps: int | None = Field(default=None, ge=1)
    successful_only: bool = True
    format: Literal["lerobot", "robomimic"] = "lerobot"
    workers: int = Field(default=2, ge=1, le=1024)
    seed: int = Field(default=0, ge=0, le=2**63)

    @property
    def a_task(self) -> dict[str, int]:
        """Split -> episodes a task."""
        return {"train": self.episodes, "val": self.val_episodes, "test": self.test_episodes}


def checked(config: RobosuiteCollectConfig) -> RobosuiteCollectConfig:
    """The configuration with tasks and masks written out: `Lift-IIWA` is `Lift`, and `all` the cameras' names.

    Raises:
        BadInputError: When a name is unknown or named twice, nothing is asked for, or `out` does not suit the format.
    """
    tasks = [resolve_robosuite(task, config.robot)[0] for task in config.tasks]
    masks = {"all": config.cameras, "none": ()}.get(" ".join(config.masks), config.masks)
    unknown = [camera for camera in masks if camera not in config.cameras]
    if unknown:
        raise BadInputError(
            "masks",
            repr(unknown[0]),
            f"all, none, or some of {', '.join(config.cameras)}",
            "name cameras whose pictures are recorded",
        )
    if sum(config.a_task.values()) == 0:
        raise BadInputError("episodes", "0", "at least one a task", "ask for some")
    given = {"tasks": tasks, "cameras": config.cameras, "masks": masks, "mask_parts": config.mask_parts}
    for key, names in given.items():
        if len(set(names)) < len(names):
            raise BadInputError(key, ", ".join(names), "each name once", "leave the second out")
    if config.format == "robomimic" and len(config.tasks) > 1:
        raise BadInputError(
            "tasks",
            ", ".join(config.tasks),
            "one: a file of robomimic is of one environment",
            "record each task into a file of its own",
        )
    hdf5 = config.out.suffix in (".hdf5", ".h5")
    if hdf5 != (config.format == "robomimic"):
        raise BadInputError(
            "out",
            f"{config.out.name} for {config.format}",
            "a file that ends in .hdf5 for robomimic, and a folder for lerobot",
            "choose another --out, or the other --format",
        )
    return config.model_copy(update={"tasks": tuple(tasks), "masks": tuple(masks)})


_GRIPPER = 1  # the last numbers of an action, which open or close


def record_robosuite(
    task: RobosuiteEnv, seed: int, *, masks: Sequence[str], noise: float, after_success: int, simulation: bool = False
) -> Recording:
    """Let the expert act in the scene of `seed` until the task is solved or its time is over.

    Args:
        task: The simulation.
        seed: Of the scene and the noise.
        masks: Those of the task's cameras whose masks are kept.
        noise: Standard deviation of the Gaussian noise added to the motion of the hand, in action units, and clipped
            to [-1, 1]. The gripper's command has none: it is opened or closed.
        after_success: Frames that still show the task solved.
        simulation: Keep the simulator's whole state at each frame, as robomimic does.

    Raises:
        ArithmeticError: When the simulation comes to numbers that are not finite.
    """
    cameras = task.cameras
    rng = np.random.default_rng([seed, 1])
    task.look = False
    task.reset(seed=seed)
    pictures: list[dict[str, Array]] = []
    robots: list[dict[str, Array]] = []
    states: list[Array] = []
    whole: list[Array] = []
    actions: list[Array] = []
    rewards: list[float] = []
    success, shown = False, 0
    while len(actions) < task.horizon and not (success and shown >= after_success):
        pictures.append(task.images())
        if masks:
            robots.append(task.masks())
        states.append(task.state())
        if simulation:
            whole.append(task.env.sim.get_state().flatten())
        shown += success
        action = task.expert()
        if noise > 0:
            motion = noise * rng.standard_normal(len(action) - _GRIPPER)
            action = np.clip(action + np.append(motion, np.zeros(_GRIPPER)), -1.0, 1.0).astype(np.float32)
        if not np.isfinite(action).all():
            raise ArithmeticError("an action that is not finite")
        _, reward, _, _, info = task.step(action)
        success |= info["is_success"]
        actions.append(action)
        rewards.append(reward)
    recording = Recording(
        frames={camera: np.stack([shot[camera] for shot in pictures]) for camera in cameras},
        actions=np.stack(actions).astype(np.float32),
        state=np.stack(states).astype(np.float32),
        success=success,
        rewards=np.array(rewards, np.float32),
        masks={camera: np.stack([shot[camera] for shot in robots]) for camera in masks},
        simulation=np.stack(whole) if simulation else None,
    )
    for name in ("state", "rewards"):
        if not np.isfinite(getattr(recording, name)).all():
            raise ArithmeticError(f"{name} that is not finite")
    return recording


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
    rendering = describe_rendering(config.tasks[0], robot=config.robot, cameras=config.cameras, size=config.size)
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
    solved, dropped, raised = (sum(about[key] for about in abouts) for key in ("success", "dropped", "raised"))
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
                    f"{_RAISES} scenes in a row in which the simulator raised {type(error).__name__}: {error}",
                    "a simulation that runs to its end",
                    "repair the installation of robosuite and mujoco, then run the same again to go on",
                ) from error
            continue
        in_a_row = 0
        if recording.success or not config.successful_only:
            about = {"task": slot.task, "split": slot.split, "seed": seed, "dropped": failed, "raised": raised}
            Staging(config.out).add(slot.place, recording, about, CONTROL_HZ, lossless=config.format == "robomimic")
            return
        failed += 1
    raise BadInputError(
        "successful_only",
        f"{_FAILURES} scenes of {slot.task} in a row without a solution ({_lost(failed, raised)})",
        "a task the expert solves now and then",
        "less noise, more max_steps, or keep failed episodes",
    )


@lru_cache(maxsize=1)
def _simulation(config: RobosuiteCollectConfig, task: str) -> RobosuiteEnv:
    return RobosuiteEnv(
        task,
        robot=config.robot,
        cameras=config.cameras,
        size=config.size,
        steps=config.max_steps,
        mask_parts=config.mask_parts,
    )


def _assemble(config: RobosuiteCollectConfig, staging: Staging, plan: Sequence[Slot], identity: dict[str, Any]) -> None:
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
        action_dim=7,
        state_dim=9,
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
