"""Record Meta-World's scripted experts as a LeRobot v3 data set: `counterpoint collect metaworld`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from counterpoint.envs.base import CameraEnv, choose_cameras
from counterpoint.envs.collect import ExpertCollectConfig, ExpertCollection, Names, collect
from counterpoint.envs.metaworld.env import CAMERAS, CONTROL_HZ, HORIZON, INSTRUCTIONS, MetaWorldEnv, resolve_tasks


class MetaWorldCollectConfig(ExpertCollectConfig):
    """The settings of `collect metaworld`; see `ExpertCollectConfig`.

    Attributes:
        tasks: Names of Meta-World v3 tasks, `default` (15 of them) or `all` (50); `-v3` may be omitted.
        stride: Number of control steps per frame. 1 gives 80 frames per second and, for the default tasks, 35 to 120
            frames per episode. With a larger number, the recorded action is the mean of these steps' actions, and the
            reward is the sum of their rewards.
        after_success: Number of frames recorded after the task is solved, before the episode ends; if it equals
            max_steps, all episodes have the same length.
        max_steps: Number of control steps after which an unsolved episode ends, at most 500.
    """

    tasks: Names = Field(default=("default",), min_length=1)
    episodes: int = Field(default=10, ge=0)
    cameras: Names = Field(default=CAMERAS[:1], min_length=1)
    stride: int = 1
    after_success: int = Field(default=5, ge=0, le=HORIZON)
    max_steps: int = Field(default=HORIZON, ge=1, le=HORIZON)
    successful_only: bool = False

    @field_validator("stride")
    @classmethod
    def _divides(cls, stride: int) -> int:
        if stride < 1 or CONTROL_HZ % stride:
            raise ValueError(f"a divisor of {CONTROL_HZ:g}, so that frames a second are a whole number")
        return stride


def collect_metaworld(config: MetaWorldCollectConfig) -> Path:
    """Record Meta-World's scripted experts as a LeRobot v3 data set, or resume an interrupted recording.

    Actions are executed actions, float32 [T, 4]. The state is float32 [T, 4] (hand position in metres, gripper
    opening). Rewards are Meta-World's. `meta/info.json` also stores the configuration, versions, render settings and
    the canary (the digest of a test image).

    Time on two cores: about 2 s per episode at 112 pixels. Disk: about 0.3 MB per episode.

    Raises:
        BadInputError: If the configuration is wrong, the folder holds anything but this data set, or a worker dies.
        MissingExtraError: If Meta-World is not installed.
    """
    names = {"tasks": resolve_tasks(config.tasks), "cameras": choose_cameras(config.cameras, (), CAMERAS)}
    return collect(_MetaWorldCollection(config.model_copy(update=names)))


class _MetaWorldCollection(ExpertCollection):
    config: MetaWorldCollectConfig

    packages = MetaWorldEnv.packages
    robot = "sawyer"

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "rendering": self.env.describe_rendering()}

    def make(self, task: str) -> CameraEnv:
        return MetaWorldEnv(task, cameras=self.config.cameras, size=self.config.size, steps=HORIZON)

    @property
    def fps(self) -> float:
        return CONTROL_HZ / self.config.stride

    def instruction(self, task: str) -> str:
        return INSTRUCTIONS[task]
