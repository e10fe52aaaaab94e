"""Record PointMaze data with a waypoint controller: `counterpoint collect pointmaze`.

The suite `navigate` goes from a random cell to a random goal, and on to further random cells until the time is over.
`stitch` does the same inside one of two overlapping parts of the maze, so that an agent has to put two trajectories
together: cells are ordered by their distance from the start, and those at the middle distances are the overlap, which
every path from start to goal crosses::

    distance     0  1  2  3  4  5  6  7  8  9  10  11
    near part    x  x  x  x  x  x  x
    far part                 x  x  x  x  x  x  x   x

An episode depends on the seed, its split and its number alone. The data set appears whole or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from counterpoint.config import FrozenConfig
from counterpoint.data.episode import GoalEpisode
from counterpoint.data.formats.minari.files import import_minari
from counterpoint.data.formats.minari.writer import write_minari
from counterpoint.envs.goal.env import Env, EnvConfig, make_goal_env
from counterpoint.envs.goal.mazes import Cell, MazeGrid, WaypointController
from counterpoint.envs.recording import require_same
from counterpoint.errors import BadInputError, require
from counterpoint.progress import ProgressBar

_ATTEMPTS = 50
_NOTE = "collect.json"
_SPLITS = ("train", "val")


@dataclass(frozen=True)
class StitchPlan:
    """A maze cut in two overlapping parts.

    Attributes:
        start: The cell where evaluation starts.
        goal: The cell where it ends.
        near: Cells of the start's part.
        far: Cells of the goal's part.
    """

    start: Cell
    goal: Cell
    near: tuple[Cell, ...]
    far: tuple[Cell, ...]

    @property
    def overlap(self) -> tuple[Cell, ...]:
        """Cells of both parts."""
        return tuple(cell for cell in self.near if cell in self.far)


def plan_stitching(
    grid: MazeGrid, start: Cell | None = None, goal: Cell | None = None, *, overlap: int = 1
) -> StitchPlan:
    """Cut a maze.

    Args:
        grid: The maze.
        start: The cell where evaluation starts; the first free cell where `None`.
        goal: The cell where it ends; the cell farthest from the start (the first of them) where `None`.
        overlap: The overlap is as many cells to either side of the middle of the way.

    Raises:
        BadInputError: When start and goal are not free, connected and far enough from one another: the goal two
            cells beyond the overlap at least, so that being near the goal is not being in the overlap.
    """
    hint = "choose other cells or less overlap"
    start = grid.free[0] if start is None else start
    require(start in grid.free, "stitching", f"the start {start}", "a free cell, as (row, column)", hint)
    distances = grid.distances(start)
    goal = max(distances, key=lambda cell: (distances[cell], (-cell[0], -cell[1]))) if goal is None else goal
    require(goal in distances, "stitching", f"the goal {goal}", f"a cell that can be reached from {start}", hint)
    middle = distances[goal] // 2
    first, last = middle - overlap, middle + overlap
    found = f"{distances[goal]} cells between start and goal, and an overlap of {2 * overlap + 1}"
    expected = "the start outside the overlap and the goal two cells beyond it"
    require(first >= 1 and distances[goal] >= last + 2, "stitching", found, expected, hint)
    near = tuple(cell for cell in distances if distances[cell] <= last)
    far = tuple(grid.distances(goal, [cell for cell in distances if distances[cell] >= first]))
    return StitchPlan(start, goal, near, far)


def joining_episodes(episodes: Iterable[GoalEpisode], grid: MazeGrid, plan: StitchPlan) -> list[int]:
    """Return the numbers of the episodes that were on both sides of the overlap, which none should be."""
    near, far = set(plan.near), set(plan.far)
    visited = [set(grid.cells_of(episode.achieved)) for episode in episodes]
    return [number for number, cells in enumerate(visited) if cells - far and cells - near]


def refuse_joined(episodes: Iterable[GoalEpisode], grid: MazeGrid, plan: StitchPlan) -> None:
    """Prove that no single trajectory joins start and goal.

    Raises:
        BadInputError: When one does; the first is named.
    """
    joining = joining_episodes(episodes, grid, plan)
    if joining:
        found = f"a trajectory that was on both sides ({len(joining)} such episodes)"
        expected = "trajectories that stay on the start's or on the goal's side of the overlap"
        raise BadInputError(f"episode {joining[0]}", found, expected, "record the data with the suite `stitch`")


class PointMazeCollect(FrozenConfig):
    """Settings of a recording.

    Attributes:
        out: The folder to write: a Minari data set in `train` and one in `val`.
        maze: Name of the PointMaze.
        suite: `navigate` or `stitch`.
        episodes: Training episodes.
        val_episodes: Validation episodes.
        steps: Transitions an episode.
        noise: Standard deviation of the Gaussian noise added to the controller's action, which is then clipped.
        start: Cell (row, column) where evaluation starts, of the suite `stitch`; the first free one where `None`.
        goal: Cell where it ends; the farthest from the start where `None`.
        overlap: Cells on either side of the path's middle that both parts of the maze share.
        seed: Random seed of starts, goals and noise.
    """

    out: Path
    maze: Literal["UMaze", "Open", "Medium", "Large"] = "UMaze"
    suite: Literal["navigate", "stitch"] = "navigate"
    episodes: int = Field(default=500, ge=1)
    val_episodes: int = Field(default=50, ge=0)
    steps: int = Field(default=200, ge=2)
    noise: float = Field(default=0.5, ge=0)
    start: Cell | None = None
    goal: Cell | None = None
    overlap: int = Field(default=1, ge=0)
    seed: int = Field(default=0, ge=0)

    @property
    def env_id(self) -> str:
        """The environment's name in gymnasium."""
        return f"PointMaze_{self.maze}-v3"


def collect_pointmaze(config: PointMazeCollect) -> Path:
    """Record a waypoint controller in a maze as Minari data sets OUT/train and OUT/val.

    A data set that is already there, recorded alike, does not change.

    Beside the data lies `collect.json`: the configuration, versions, how many episodes strayed and were recorded
    anew, and `evaluation`, the environment on which to evaluate.

    Args:
        config: What to record.

    Returns:
        The folder; `train` and `val` in it are Minari data sets.

    Raises:
        BadInputError: When the folder holds something else, or the maze cannot be cut as asked.
        MissingExtraError: When the simulator or what writes Minari's form is not installed.
    """
    versions = {name: version(name) for name in ("gymnasium-robotics", "mujoco", "numpy")}
    identity: dict[str, Any] = {"config": config.model_dump(mode="json", exclude={"out"}), "versions": versions}
    if config.out.exists():
        _refuse_different(config.out, identity)
        return config.out
    import_minari()  # before an hour of recording that could not be written
    env = make_goal_env(EnvConfig(name=config.env_id, max_episode_steps=config.steps))
    try:
        grid = MazeGrid.of(env)
        plan = _plan(config, grid)
        splits, strayed = _record(config, env, grid, plan)
    finally:
        env.close()
    if plan is not None:
        for episodes in splits.values():
            refuse_joined(episodes, grid, plan)
    _write(config, splits, {**identity, "strayed": strayed, "evaluation": evaluation_env(config).model_dump()})
    return config.out


def evaluation_env(config: PointMazeCollect) -> EnvConfig:
    """Return the environment on which to evaluate: for `stitch`, from one part to the other."""
    if config.suite == "navigate":
        return EnvConfig(name=config.env_id)
    env = make_goal_env(EnvConfig(name=config.env_id))
    plan = _plan(config, MazeGrid.of(env))
    env.close()
    assert plan is not None
    return EnvConfig(name=config.env_id, start_cells=(plan.start,), goal_cells=(plan.goal,))


def _plan(config: PointMazeCollect, grid: MazeGrid) -> StitchPlan | None:
    if config.suite == "navigate":
        return None
    return plan_stitching(grid, config.start, config.goal, overlap=config.overlap)


def _record(
    config: PointMazeCollect, env: Env, grid: MazeGrid, plan: StitchPlan | None
) -> tuple[dict[str, list[GoalEpisode]], int]:
    """Return the episodes of each split, and how many strayed out of their part of the maze and were given up."""
    parts = (grid.free,) if plan is None else (plan.near, plan.far)
    controllers = [WaypointController(grid, part) for part in parts]
    counts = {"train": config.episodes, "val": config.val_episodes}
    splits: dict[str, list[GoalEpisode]] = {split: [] for split in counts}
    strayed = 0
    with ProgressBar("collect", sum(counts.values()), "episodes") as bar:
        for split, count in counts.items():
            for number in range(count):
                part, seeds = number % len(parts), [config.seed, _SPLITS.index(split), number]
                episode, given_up = _episode_in(parts[part], env, controllers[part], config.noise, seeds)
                splits[split].append(episode)
                strayed += given_up
                bar.advance(note=f"{strayed} strayed" if strayed else "")
    return splits, strayed


def _episode_in(
    part: tuple[Cell, ...], env: Env, controller: WaypointController, noise: float, seeds: list[int]
) -> tuple[GoalEpisode, int]:
    """Return the first attempt that stays in its part of the maze, and how many did not."""
    for attempt in range(_ATTEMPTS):
        episode = _episode(part, env, controller, noise, np.random.default_rng([*seeds, attempt]))
        if set(controller.grid.cells_of(episode.achieved)) <= set(part):
            return episode, attempt
    found = f"{_ATTEMPTS} episodes in a row that left their part of the maze"
    raise BadInputError("noise", found, "a controller that mostly stays in it", "less noise, or more overlap")


def _episode(
    part: tuple[Cell, ...], env: Env, controller: WaypointController, noise: float, rng: np.random.Generator
) -> GoalEpisode:
    """Drive to the commanded goal and, once there, on to random cells of the part."""
    start, goal = (part[index] for index in rng.choice(len(part), 2, replace=False))
    options = {"reset_cell": np.array(start), "goal_cell": np.array(goal)}
    seen, _ = env.reset(seed=int(rng.integers(2**31)), options=options)
    target = commanded = seen["desired_goal"]
    observations, achieved, actions, success = [seen["observation"]], [seen["achieved_goal"]], [], []
    over = False
    while not over:
        action = controller.action(seen["observation"], target) + noise * rng.standard_normal(2)
        action = np.clip(action, -1, 1).astype(np.float32)
        seen, _, _, over, info = env.step(action)
        observations.append(seen["observation"])
        achieved.append(seen["achieved_goal"])
        actions.append(action)
        success.append(info["is_success"])
        if np.linalg.norm(seen["achieved_goal"] - target) < 0.25 * controller.grid.scale:
            target = controller.grid.centre(part[rng.integers(len(part))])
    return GoalEpisode(
        observations=np.stack(observations),
        achieved=np.stack(achieved),
        commanded=commanded,
        actions=np.stack(actions),
        rewards=np.array(success, np.float32),
        success=np.array(success),
    )


def _write(config: PointMazeCollect, splits: dict[str, list[GoalEpisode]], note: dict[str, Any]) -> None:
    made = config.out.with_name(f".{config.out.name}.{os.getpid()}")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    try:
        for split, episodes in splits.items():
            if episodes:
                write_minari(
                    made / split,
                    episodes,
                    env_id=config.env_id,
                    description=f"PointMaze {config.maze}, suite {config.suite}, {split}",
                    algorithm="waypoint controller with noise",
                    dataset_id=f"pointmaze-{config.maze.lower()}-{config.suite}-{split}-v0",
                    about=note,
                )
        (made / _NOTE).write_text(json.dumps(note, indent=2))
        made.rename(config.out)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def _refuse_different(out: Path, identity: dict[str, Any]) -> None:
    hint = "choose another --out, or remove it"
    try:
        kept = json.loads((out / _NOTE).read_text())
        recorded = {key: kept[key] for key in identity}
    except (OSError, ValueError, KeyError):
        raise BadInputError(out, "something that counterpoint did not collect", "a new folder", hint) from None
    require_same(out, recorded, identity, "a data set collected", hint)
