"""Record Meta-World's scripted experts as a LeRobot v3 data set: `counterpoint collect metaworld`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from counterpoint.envs.base import CameraEnv, Options, Scene, choose_cameras
from counterpoint.envs.collect import ExpertCollectConfig, ExpertCollection, Names, collect
from counterpoint.envs.metaworld.env import CAMERAS, CONTROL_HZ, HORIZON, INSTRUCTIONS, MetaWorldEnv, resolve_tasks
from counterpoint.envs.metaworld.shared import BACK, SHARED_CAMERAS, SharedSceneEnv, resolve_shared


class MetaWorldCollectConfig(ExpertCollectConfig):
    """The settings of `collect metaworld`; see `ExpertCollectConfig`.

    Attributes:
        scene: `own` gives every task a scene of its own, as Meta-World does, so that a single frame names the task.
            `shared` puts a drawer, a door, a window and a faucet into one scene, in which eight tasks open or close
            them. The other objects are at random ends, so the first frame leaves four of the eight tasks possible.
        tasks: Names of Meta-World v3 tasks, `default` (15 of them) or `all` (50); `-v3` may be omitted. In the shared
            scene, both stand for its eight tasks.
        cameras: Names of cameras; `default` is `corner2`, and `left` in the shared scene.
        stride: Number of control steps per frame. 1 gives 80 frames per second and, for the default tasks, 35 to 120
            frames per episode. With a larger number, the recorded action is the mean of these steps' actions, and the
            reward is the sum of their rewards.
        after_success: Number of frames recorded after the task is solved, before the episode ends: by default 5, or in
            the shared scene those in which the hand moves back. If it equals max_steps, all episodes have the same
            length.
        max_steps: Number of control steps after which an unsolved episode ends, at most 500.
    """

    scene: Scene = "own"
    tasks: Names = Field(default=("default",), min_length=1)
    episodes: int = Field(default=10, ge=0)
    cameras: Names = Field(default=("default",), min_length=1)
    stride: int = 1
    after_success: int | None = Field(default=None, ge=0, le=HORIZON)  # type: ignore[assignment]
    max_steps: int = Field(default=HORIZON, ge=1, le=HORIZON)
    successful_only: bool = False

    @field_validator("stride")
    @classmethod
    def _divides(cls, stride: int) -> int:
        if stride < 1 or CONTROL_HZ % stride:
            raise ValueError(f"a divisor of {CONTROL_HZ:g}, so that frames a second are a whole number")
        return stride


def collect_metaworld(config: MetaWorldCollectConfig) -> Path:
    """Record scripted experts in Meta-World as a LeRobot v3 data set, or resume an interrupted recording.

    The shared scene has experts of this library. Actions are executed actions, float32 [T, 4]. The state is float32
    [T, 4] (hand position in metres, gripper opening). Rewards are Meta-World's; in the shared scene, the reward is 1 at
    steps at which the task is solved. `meta/info.json` also stores the configuration, versions, render settings and the
    canary (the digest of a test image).

    Time on two cores: about 2 s per episode at 112 pixels. Disk: about 0.3 MB per episode.

    Raises:
        BadInputError: If the configuration is wrong, the folder holds anything but this data set, or a worker dies.
        MissingExtraError: If Meta-World is not installed.
    """
    shared = config.scene == "shared"
    known, resolve = (SHARED_CAMERAS, resolve_shared) if shared else (CAMERAS, resolve_tasks)
    cameras = choose_cameras([known[0] if name == "default" else name for name in config.cameras], (), known)
    usual = -(-BACK // config.stride) if shared else 5
    after = usual if config.after_success is None else config.after_success
    update = {"tasks": resolve(config.tasks), "cameras": cameras, "after_success": after}
    return collect(_MetaWorldCollection(config.model_copy(update=update)))


class _MetaWorldCollection(ExpertCollection):
    config: MetaWorldCollectConfig

    packages = MetaWorldEnv.packages
    robot = "sawyer"

    def identity(self) -> dict[str, Any]:
        identity = {**super().identity(), "rendering": self.env.describe_rendering()}
        if self.config.scene == "own":  # recordings of earlier versions do not name the scene
            del identity["config"]["scene"]
        return identity

    def make(self, task: str) -> CameraEnv:
        options: Options = {"cameras": self.config.cameras, "size": self.config.size, "steps": HORIZON}
        return SharedSceneEnv(task, **options) if self.config.scene == "shared" else MetaWorldEnv(task, **options)

    @property
    def fps(self) -> float:
        return CONTROL_HZ / self.config.stride

    def parts(self, task: str) -> tuple[str, ...]:
        return (INSTRUCTIONS[task],)
