"""What a collection of robosuite's demonstrations consists of; needs no simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from counterpoint.config import FrozenConfig
from counterpoint.envs.robosuite_tasks import resolve_robosuite
from counterpoint.errors import BadInputError

__all__ = ["RobosuiteCollectConfig", "checked"]


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
            found=repr(unknown[0]),
            expected=f"all, none, or some of {', '.join(config.cameras)}",
            mend="name cameras whose pictures are recorded",
        )
    if sum(config.a_task.values()) == 0:
        raise BadInputError("episodes", found="0", expected="at least one a task", mend="ask for some")
    given = {"tasks": tasks, "cameras": config.cameras, "masks": masks, "mask_parts": config.mask_parts}
    for key, names in given.items():
        if len(set(names)) < len(names):
            raise BadInputError(
                key, found=", ".join(names), expected="each name once", mend="leave the second out"
            )
    if config.format == "robomimic" and len(config.tasks) > 1:
        raise BadInputError(
            "tasks",
            found=", ".join(config.tasks),
            expected="one: a file of robomimic is of one environment",
            mend="record each task into a file of its own",
        )
    hdf5 = config.out.suffix in (".hdf5", ".h5")
    if hdf5 != (config.format == "robomimic"):
        raise BadInputError(
            "out",
            found=f"{config.out.name} for {config.format}",
            expected="a file that ends in .hdf5 for robomimic, and a folder for lerobot",
            mend="choose another --out, or the other --format",
        )
    return config.model_copy(update={"tasks": tuple(tasks), "masks": tuple(masks)})
