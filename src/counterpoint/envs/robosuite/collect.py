"""Record robosuite's scripted experts with masks of the robot: `counterpoint collect robosuite`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from counterpoint.envs.base import CameraEnv, Scene
from counterpoint.envs.collect import ExpertCollectConfig, ExpertCollection, Names, Slot, collect
from counterpoint.envs.recording import Staging
from counterpoint.envs.robosuite.env import CAMERAS, CONTROL_HZ, TASKS, RobosuiteEnv, resolve_robosuite
from counterpoint.errors import require, require_known
from counterpoint.formats.hdf5.writer import RobomimicWriter

Part = Literal["arm", "gripper", "mount"]


class RobosuiteCollectConfig(ExpertCollectConfig):
    """The settings of `collect robosuite`; see `ExpertCollectConfig`. The gripper's commands get no noise.

    Attributes:
        out: The data set: a folder for the format `lerobot`, a file that ends in .hdf5 for `robomimic`.
        scene: In `own`, each task has its own objects. In `shared`, all tasks have the same objects, so that the first
            frame says little about the task.
        tasks: Names of the scene's tasks; `default` is `Lift`, or all tasks of the shared scene.
        robot: The robot of all tasks.
        cameras: Names of cameras; `none` records only states.
        masks: Names of cameras for which robot masks are recorded, `all` for all cameras, or `none`.
        mask_parts: Parts of the robot that its masks cover: `arm`, `gripper`, `mount`.
        format: LeRobot v3 (images as video) or robomimic's HDF5 (lossless images); masks are exact in both.
    """

    scene: Scene = "own"
    tasks: Names = Field(default=("default",), min_length=1)
    robot: Literal["Panda", "Kinova3", "IIWA"] = "Panda"
    episodes: int = Field(default=50, ge=0)
    size: int = Field(default=256, ge=16)
    cameras: Names = CAMERAS
    masks: Names = ("all",)
    mask_parts: tuple[Part, ...] = Field(default=("arm", "gripper", "mount"), min_length=1)
    format: Literal["lerobot", "robomimic"] = "lerobot"


def checked(config: RobosuiteCollectConfig) -> RobosuiteCollectConfig:
    """Return the settings with tasks and masks resolved: `Lift-IIWA` becomes `Lift`, `all` becomes camera names.

    Raises:
        BadInputError: If a name is unknown or repeated, or `out` does not suit the format.
    """
    known = [task for task, spec in TASKS.items() if spec.scene == config.scene]
    usual = known if config.scene == "shared" else known[:1]
    given = usual if config.tasks == ("default",) else config.tasks
    for task in given:
        found, hint = f"{task!r} in the scene {config.scene}", "choose from these, or choose another --scene"
        require_known(task.partition("-")[0], known, "tasks", found, hint=hint)
    tasks = tuple(resolve_robosuite(task, config.robot)[0] for task in given)
    cameras = () if config.cameras == ("none",) else config.cameras
    masks = {"all": cameras, "none": ()}.get(" ".join(config.masks), config.masks)
    other = ", ".join(repr(camera) for camera in masks if camera not in cameras)
    some = f"all, none, or some of {', '.join(cameras)}"
    require(not other, "masks", other, some, "name cameras that are recorded")
    lists = {"tasks": tasks, "cameras": cameras, "masks": masks, "mask_parts": config.mask_parts}
    for key, names in lists.items():
        require(len(set(names)) == len(names), key, ", ".join(names), "each name once", "leave the second out")
    file = config.format == "robomimic"
    one = "one: a file of robomimic is of one environment"
    require(not file or len(tasks) == 1, "tasks", ", ".join(tasks), one, "record each task into its own file")
    suits = (config.out.suffix in (".hdf5", ".h5")) == file
    expected = "a file that ends in .hdf5 for robomimic, and a folder for lerobot"
    require(suits, "out", f"{config.out.name} for {config.format}", expected, "choose another --out, or --format")
    return config.model_copy(update={"tasks": tasks, "cameras": cameras, "masks": masks})


def collect_robosuite(config: RobosuiteCollectConfig) -> Path:
    """Record robosuite's scripted experts with masks of the robot, or resume an interrupted recording.

    Actions are executed actions, float32 [T, 7], 20 per second: changes of the hand's pose, then the gripper. The state
    is float32 [T, 9]: hand position, quaternion and gripper. The environment state is the state of the objects (see
    `RobosuiteEnv`). Masks of `agentview` are stored as a further camera, `agentview_mask`. `meta/info.json` (in HDF5
    files, the attribute `counterpoint` of `data`) also stores the configuration, controller, versions, render settings
    and the canary (the digest of a test image).

    Time on two cores: about 5 s per episode of Lift, or several times as long if an expert needs many trials. Disk:
    under a megabyte per episode.

    Raises:
        BadInputError: If the configuration is wrong, `out` holds anything but this data set, a worker dies, or a task
            cannot be solved or simulated.
        MissingExtraError: If robosuite is not installed.
    """
    return collect(_RobosuiteCollection(checked(config)))


class _RobosuiteCollection(ExpertCollection):
    config: RobosuiteCollectConfig
    packages = RobosuiteEnv.packages
    exact = 1

    @property
    def robot(self) -> str:
        return self.config.robot

    @property
    def simulator(self) -> bool:
        return self.config.format == "robomimic"

    @property
    def lossless(self) -> bool:
        return self.simulator or super().lossless

    @property
    def fps(self) -> float:
        return CONTROL_HZ

    def parts(self, task: str) -> tuple[str, ...]:
        return (TASKS[task].instruction,)

    def identity(self) -> dict[str, Any]:
        env, identity = self.env, super().identity()
        del identity["config"]["scene"]  # the tasks' names tell it, and earlier data sets have none
        controller = {"control_freq": CONTROL_HZ, **env.controller}
        return {**identity, "controller": controller, "rendering": env.describe_rendering()}

    def make(self, task: str) -> CameraEnv:
        config = self.config
        return RobosuiteEnv(
            task,
            robot=config.robot,
            cameras=config.cameras,
            size=config.size,
            steps=config.max_steps,
            mask_parts=config.mask_parts,
        )

    def staged(self, staging: Staging, slot: Slot) -> tuple[Any, ...]:
        episode, videos = super().staged(staging, slot)
        return episode, staging.arrays(slot.place)["simulation"] if self.simulator else videos

    def writer(self, folder: Path, info: dict[str, Any]) -> Any:
        if not self.simulator:
            return super().writer(folder, info)
        config, task = self.config, TASKS[self.config.tasks[0]]
        env = self.env
        return RobomimicWriter(
            folder,
            env_name=self.config.tasks[0],
            env_version=info["collect"]["versions"]["robosuite"],
            env_kwargs={
                "robots": [config.robot],
                "control_freq": int(CONTROL_HZ),
                "controller_configs": env.controller,
                "camera_names": list(config.cameras),
                "camera_heights": config.size,
                "camera_widths": config.size,
                "reward_shaping": False,
                "lang": task.instruction,
            },
            model_file=env.env.sim.model.get_xml(),
            about=info,
        )
