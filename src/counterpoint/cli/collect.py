"""`counterpoint collect`: record scripted experts of a simulator as data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import arg

__all__ = ["collect"]

Names = Annotated[tuple[str, ...], arg(metavar="NAME...")]
Cell = Annotated[tuple[int, int] | None, arg(metavar="ROW COLUMN")]
collect = tyro.extras.SubcommandApp()


@collect.command(name="metaworld")
def collect_metaworld(
    *,
    out: Path,
    tasks: Names = ("default",),
    episodes: int = 10,
    val_episodes: int = 0,
    test_episodes: int = 0,
    noise: float = 0.0,
    cameras: Names = ("corner2",),
    size: int = 112,
    stride: int = 1,
    max_steps: int = 500,
    after_success: int = 5,
    successful_only: bool = False,
    workers: int = 2,
    seed: int = 0,
) -> None:
    """Record Meta-World's scripted experts as a LeRobot v3 data set. An interrupted call continues.

    Args:
        out: The data set's folder; it appears when everything is recorded.
        tasks: Task names, `default` (15 tasks) or `all` (50).
        episodes: Training episodes a task.
        val_episodes: Validation episodes a task.
        test_episodes: Test episodes a task.
        noise: Standard deviation of Gaussian noise on the expert's actions, in action units.
        cameras: Camera names.
        size: Height and width of the frames, in pixels.
        stride: Control steps a frame; 1 is 80 frames a second.
        max_steps: Control steps after which an unsolved episode ends.
        after_success: Frames that still show the task solved; as many as max_steps gives episodes of one length.
        successful_only: Give failed episodes up and record the next scene instead.
        workers: Processes that simulate.
        seed: Of initial states and noise.
    """
    from counterpoint.envs.metaworld.collect import MetaWorldCollectConfig
    from counterpoint.envs.metaworld.collect import collect_metaworld as record

    written = record(
        MetaWorldCollectConfig(
            tasks=tasks,
            episodes=episodes,
            val_episodes=val_episodes,
            test_episodes=test_episodes,
            noise=noise,
            cameras=cameras,
            size=size,
            stride=stride,
            max_steps=max_steps,
            after_success=after_success,
            successful_only=successful_only,
            workers=workers,
            seed=seed,
            out=out,
        )
    )
    print(f"Wrote {written}")


@collect.command(name="pointmaze")
def collect_pointmaze(
    *,
    out: Path,
    maze: Literal["UMaze", "Open", "Medium", "Large"] = "UMaze",
    suite: Literal["navigate", "stitch"] = "navigate",
    episodes: int = 500,
    val_episodes: int = 50,
    steps: int = 200,
    noise: float = 0.5,
    start: Cell = None,
    goal: Cell = None,
    overlap: int = 1,
    seed: int = 0,
) -> None:
    """Record a waypoint controller in a maze as Minari data sets OUT/train and OUT/val.

    Args:
        out: The folder; it appears when everything is recorded.
        maze: Which PointMaze.
        suite: `navigate` goes all over the maze; `stitch` keeps every episode in one of two overlapping parts, so
            that no episode joins the start of the evaluation with its goal.
        episodes: Training episodes.
        val_episodes: Validation episodes.
        steps: Transitions an episode.
        noise: Standard deviation of Gaussian noise on the controller's actions, in action units.
        start: Where the evaluation starts (`stitch`); the first free cell by default.
        goal: Where it ends; the cell farthest from the start by default.
        overlap: Cells to either side of the middle of the way that both parts share (`stitch`).
        seed: Of all that is random.
    """
    from counterpoint.config import validate
    from counterpoint.envs.goal.collect import PointMazeCollect
    from counterpoint.envs.goal.collect import collect_pointmaze as record

    given = {
        "out": out,
        "maze": maze,
        "suite": suite,
        "episodes": episodes,
        "val_episodes": val_episodes,
        "steps": steps,
        "noise": noise,
        "start": start,
        "goal": goal,
        "overlap": overlap,
        "seed": seed,
    }
    print(f"Wrote {record(validate(PointMazeCollect, given, 'collect pointmaze'))}")


@collect.command(name="dmc")
def collect_dmc(
    *,
    out: Path,
    tasks: Names = ("pretraining",),
    kind: Literal["random", "exploratory", "expert"] = "exploratory",
    episodes: Annotated[int | None, arg(metavar="INT")] = None,
    val_episodes: int = 0,
    steps: int = 500,
    size: int = 84,
    camera: Annotated[str | None, arg(metavar="NAME")] = None,
    noise: float = 0.0,
    workers: int = 2,
    seed: int = 0,
) -> None:
    """Record tasks of the DeepMind Control Suite as LeRobot v3 data sets, one a task. An interrupted call continues.

    Args:
        out: The folder of the data sets OUT/walker-walk and so on.
        tasks: Task names, `pretraining` (Premier-TACO's six) or `evaluation` (the ten of its Table 1).
        kind: `random` actions, an `exploratory` planner of growing skill, or an `expert` planner, both of which know
            the true dynamics.
        episodes: Training episodes a task; by default the paper's numbers.
        val_episodes: Validation episodes a task.
        steps: Actions an episode, each of two control steps; 500 at most.
        size: Height and width of the frames, in pixels.
        camera: A camera of the models; DrQ-v2's choice by default.
        noise: Standard deviation of Gaussian noise on the expert's actions, in action units.
        workers: Processes that simulate.
        seed: Of all that is random.
    """
    from counterpoint.config import validate
    from counterpoint.envs.dmc.collect import DMCCollectConfig
    from counterpoint.envs.dmc.collect import collect_dmc as record

    given = {
        "out": out,
        "tasks": tasks,
        "kind": kind,
        "episodes": episodes,
        "val_episodes": val_episodes,
        "steps": steps,
        "size": size,
        "camera": camera,
        "noise": noise,
        "workers": workers,
        "seed": seed,
    }
    print(f"Wrote {record(validate(DMCCollectConfig, given, 'collect dmc'))}")


@collect.command(name="robosuite")
def collect_robosuite(
    *,
    out: Path,
    tasks: Names = ("Lift",),
    robot: Literal["Panda", "Kinova3", "IIWA"] = "Panda",
    episodes: int = 50,
    val_episodes: int = 0,
    test_episodes: int = 0,
    size: int = 256,
    cameras: Names = ("agentview", "robot0_eye_in_hand"),
    masks: Names = ("all",),
    mask_parts: Names = ("arm", "gripper", "mount"),
    noise: float = 0.0,
    max_steps: Annotated[int | None, arg(metavar="INT")] = None,
    after_success: int = 5,
    successful_only: bool = True,
    format: Literal["lerobot", "robomimic"] = "lerobot",
    workers: int = 2,
    seed: int = 0,
) -> None:
    """Record robosuite's scripted experts with masks of the robot. An interrupted call continues.

    Args:
        out: The data set's folder, or for robomimic its .hdf5 file; it appears when everything is recorded.
        tasks: Lift, Door, Stack, CloseDrawer, OpenBox.
        robot: Which robot does them.
        episodes: Training episodes a task.
        val_episodes: Validation episodes a task.
        test_episodes: Test episodes a task.
        size: Height and width of the pictures, in pixels.
        cameras: Camera names.
        masks: Cameras whose pictures get a mask of the robot; `all` of them, or `none`.
        mask_parts: What counts as the robot: `arm`, `gripper`, `mount`.
        noise: Standard deviation of Gaussian noise on the hand's motion, in action units.
        max_steps: Steps after which an unsolved episode ends; the task's own number by default.
        after_success: Frames that still show the task solved.
        successful_only: Give failed episodes up and record the next scene instead.
        format: LeRobot v3 (pictures as video), or robomimic's HDF5 (pictures without loss, one task a file).
        workers: Processes that simulate.
        seed: Of initial states and noise.
    """
    from counterpoint.config import validate
    from counterpoint.envs.collect import summary
    from counterpoint.envs.robosuite.collect import RobosuiteCollectConfig
    from counterpoint.envs.robosuite.collect import collect_robosuite as record

    given = {
        "out": out,
        "tasks": tasks,
        "robot": robot,
        "episodes": episodes,
        "val_episodes": val_episodes,
        "test_episodes": test_episodes,
        "size": size,
        "cameras": cameras,
        "masks": masks,
        "mask_parts": mask_parts,
        "noise": noise,
        "max_steps": max_steps,
        "after_success": after_success,
        "successful_only": successful_only,
        "format": format,
        "workers": workers,
        "seed": seed,
    }
    written = record(validate(RobosuiteCollectConfig, given, "collect robosuite"))
    print(f"Wrote {written}: {summary(written)}")
