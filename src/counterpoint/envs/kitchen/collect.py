"""Record the kitchen's scripted experts as a LeRobot v3 data set: `counterpoint collect kitchen`."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

from pydantic import Field

from counterpoint.envs.base import CameraEnv, Scene, choose_cameras
from counterpoint.envs.collect import ExpertCollectConfig, ExpertCollection, Names, collect
from counterpoint.envs.kitchen.env import CAMERAS, CONTROL_HZ, HORIZON, LEAVE, TASKS, KitchenEnv, resolve_kitchen
from counterpoint.errors import require


class KitchenCollectConfig(ExpertCollectConfig):
    """The settings of `collect kitchen`; see `ExpertCollectConfig`. The fingers' commands get no noise.

    Attributes:
        tasks: Names of the kitchen's tasks, or `all` for all five.
        after_success: Number of frames recorded after the task is solved, before the episode ends; by default the
            maximum number of actions per episode, so that all episodes have the length used in the papers, or 35 in the
            shared scene, in which the arm returns.
        play: Number of other tasks, drawn anew for each episode, that the experts carry out before it begins. The first
            frame of such play data says little about the task. Episodes have up to 110 steps.
        scene: `shared` lets each episode begin where one other task ended, as `play` 1 does, and end when the arm is
            back where most tasks begin. Neither the first frame nor the last then says which task was carried out.
            Episodes have up to 170 steps. `own` follows `play`.
        pairs: Record two tasks in each episode, one after the other: every pair of the tasks, in both orders. The
            numbers of episodes are those of each pair. The parts are the episode's segments. In the shared scene the
            arm returns between the two tasks too.
    """

    tasks: Names = Field(default=("all",), min_length=1)
    episodes: int = Field(default=25, ge=0)
    cameras: Names = Field(default=CAMERAS[:1], min_length=1)
    after_success: int | None = Field(default=None, ge=0)  # type: ignore[assignment]
    play: int = Field(default=0, ge=0, lt=len(TASKS))
    scene: Scene = "own"
    pairs: bool = False


def collect_kitchen(config: KitchenCollectConfig) -> Path:
    """Record the kitchen's scripted experts as a LeRobot v3 data set, or resume an interrupted recording.

    Actions are executed actions, float32 [T, 9]: velocities of seven joints and two fingers. The state is their
    positions, float32 [T, 9]. The environment state is the state of the handles (see `KitchenEnv`). The simulator takes
    12.5 actions per second; the data set's frame rate is given as 12, a whole number. `meta/info.json` also stores the
    configuration, versions, render settings and the canary (the digest of a test image).

    Time on two cores: about 3 s per episode at 112 pixels. Disk: about 0.2 MB per episode.

    Raises:
        BadInputError: If the configuration is wrong, the folder holds anything but this data set, or a worker dies.
        MissingExtraError: If gymnasium-robotics is not installed.
    """
    tasks = tuple(TASKS) if config.tasks == ("all",) else tuple(dict.fromkeys(map(resolve_kitchen, config.tasks)))
    if config.pairs:
        require(len(tasks) > 1, "tasks", ", ".join(tasks), "at least two for pairs", "name another task")
        tasks = tuple("+".join(pair) for pair in permutations(tasks, 2))
    shared = config.scene == "shared"
    after = (LEAVE if shared else HORIZON) if config.after_success is None else config.after_success
    cameras, play = choose_cameras(config.cameras, (), CAMERAS), max(config.play, int(shared))
    update = {"tasks": tasks, "play": play, "after_success": after, "cameras": cameras}
    return collect(_KitchenCollection(config.model_copy(update=update)))


class _KitchenCollection(ExpertCollection):
    config: KitchenCollectConfig
    packages = KitchenEnv.packages
    robot = "panda"
    exact = 2

    @property
    def fps(self) -> float:
        return float(int(CONTROL_HZ))

    def parts(self, task: str) -> tuple[str, ...]:
        return tuple(TASKS[name].instruction for name in task.split("+"))

    def identity(self) -> dict[str, Any]:
        identity = {**super().identity(), "rendering": self.env.describe_rendering()}
        if self.config.scene == "own":  # recordings of earlier versions do not name this and pairs
            del identity["config"]["scene"]
        if not self.config.pairs:
            del identity["config"]["pairs"]
        return identity

    def make(self, task: str) -> CameraEnv:
        config = self.config
        leaves = config.scene == "shared"
        return KitchenEnv(
            task, play=config.play, leaves=leaves, cameras=config.cameras, size=config.size, steps=config.max_steps
        )
