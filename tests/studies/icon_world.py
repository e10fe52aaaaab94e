"""The square of `square_world` as a robot: its pictures come with masks, so that ICon learns from them in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from counterpoint.data.cache import cached
from counterpoint.data.episode import Array, Episode
from counterpoint.data.robot_masks import mask_camera, mask_frames
from counterpoint.data.store import MemoryStore
from studies.icon.config import ComparisonConfig, Evaluations, IconData, Measures, Method, Transfer
from tests.studies.square_world import SIZE, SquareTask

__all__ = ["CAMERA", "SOURCE", "TARGET", "make_robot", "record_robots", "recorded_comparison", "small_comparison"]

CAMERA, SOURCE, TARGET = "agentview", "robosuite/left", "robosuite/top"
CROP, PATCH = 20, 4


def make_robot(name: str, *, steps: int | None = None, **_: object) -> SquareTask:
    """In place of `counterpoint.envs.make.make_env`."""
    return SquareTask(name, steps)


def robot_of(frames: Array) -> Array:
    """Where a picture shows the square."""
    shown: Array = frames[..., 0] > 100
    return shown


def record_robots(root: Path, task: str, episodes: int, *, masks: bool = True, seed: int = 0) -> Path:
    """A training store of the expert's episodes in `root/TASK`."""
    rng = np.random.default_rng(seed)
    simulation, made = SquareTask(task), []
    for _ in range(episodes):
        simulation.reset(seed=int(rng.integers(2**31)))
        frames, states, actions = [], [], []
        for _ in range(simulation.horizon):
            frames.append(simulation.render())
            states.append(simulation.state())
            actions.append(simulation.expert())
            simulation.step(actions[-1])
        pictures = np.stack(frames)
        shown = {mask_camera(CAMERA): mask_frames(robot_of(pictures))} if masks else {}
        made.append(
            Episode(
                frames={CAMERA: pictures} | shown,
                instruction=simulation.instruction,
                timestamps=np.arange(simulation.horizon) / 10,
                actions=np.stack(actions),
                state=np.stack(states),
                success=True,
            )
        )
    building = root / "stores"
    cached(MemoryStore(made), size=SIZE, root=building, progress=False)
    (folder,) = (path.parent for path in building.glob("*/store.json"))
    place = root / task.partition("/")[2]
    folder.rename(place)
    return place


def small_comparison(path: Path) -> ComparisonConfig:
    """Two methods, one robot and another to transfer to, two seeds, six gradient steps."""
    vit = {"patch": PATCH, "embed_dim": 12, "depth": 2, "heads": 2}
    return ComparisonConfig(
        title="squares",
        data=IconData(tasks=(SOURCE,), demonstrations=4, validation=2, cameras=(CAMERA,), frame=SIZE, path=str(path)),
        training={
            "encoder": {"kind": "vit", "size": CROP, "cameras": 1, "vit": vit},
            "diffusion": {"down_dims": [8, 16], "step_dim": 8, "horizon": 8, "executed": 4, "inference_steps": 2},
            "optimizer": {"warmup_steps": 2, "lr": 1e-3},
            "train": {"steps": 6, "batch_size": 4, "save_every": 3},
        },
        methods=(
            Method(name="Diff-C"),
            Method(name="ICon-Diff-C", training={"icon": {"agent_keys": 1, "environment_keys": 4}}),
        ),
        seeds=(0, 42),
        evaluation=Evaluations(checkpoints=2, episodes=5, between=3, envs=3),
        measures=Measures(frames=4, probe_frames=16, images=2),
        transfer=Transfer(
            targets={SOURCE: (TARGET,)}, demonstrations=2, training={"train": {"steps": 4}, "optimizer.lr": 1e-4}
        ),
        processes=1,
    )


def recorded_comparison(root: Path) -> ComparisonConfig:
    """`small_comparison`, with the episodes of both tasks in `root`."""
    for number, task in enumerate((SOURCE, TARGET)):
        record_robots(root, task, 6, seed=number)
    return small_comparison(root)
