"""Record PointMaze data with a waypoint controller: `counterpoint collect pointmaze`.

In the suite `navigate`, the controller goes from a random cell to a random goal, and then to further random cells until
the episode ends. In `stitch`, it does the same within one of several parts of the maze, so that an agent must combine
trajectories. Each part shares some cells with the next part: those at certain distances from the start. Every path
between the two parts crosses these cells.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from counterpoint.data.draws import sample_rng
from counterpoint.data.episode import GoalEpisode
from counterpoint.envs.collect import CollectConfig, Collection, Slot, collect, split_ranges
from counterpoint.envs.goal.env import Env, EnvConfig, make_goal_env
from counterpoint.envs.goal.mazes import Cell, MazeGrid, StitchPlan, WaypointController, plan_stitching
from counterpoint.envs.recording import NOTE, Recording, Staging
from counterpoint.errors import require
from counterpoint.files import Beside
from counterpoint.formats.minari.files import import_minari
from counterpoint.formats.minari.writer import write_minari
from counterpoint.workers import in_worker


def joining_episodes(episodes: Iterable[GoalEpisode], grid: MazeGrid, plan: StitchPlan) -> list[int]:
    """Return the indices of the episodes that are not within one part."""
    visited = [set(grid.cells_of(episode.achieved)) for episode in episodes]
    return [number for number, cells in enumerate(visited) if not any(cells <= set(part) for part in plan.parts)]


def refuse_joined(episodes: Iterable[GoalEpisode], grid: MazeGrid, plan: StitchPlan) -> None:
    """Raise `BadInputError` if a trajectory leaves its part; the message names the first such trajectory."""
    joining = joining_episodes(episodes, grid, plan)
    found, expected = f"a trajectory that no part contains ({len(joining)} such episodes)", "trajectories inside a part"
    require(
        not joining, f"episode {min(joining, default=0)}", found, expected, "record the data with the suite `stitch`"
    )


class PointMazeCollect(CollectConfig):
    """The settings of `collect pointmaze`; see `CollectConfig`.

    Attributes:
        out: The folder to write, with one Minari data set in `train` and one in `val`.
        maze: Name of the PointMaze.
        suite: `navigate` for trajectories through the whole maze, or `stitch` for trajectories within parts.
        steps: Number of transitions per episode.
        repeat: Number of simulation steps per action; with more, the same path takes fewer actions.
        noise: Standard deviation of the Gaussian noise added to the controller's action, which is then clipped.
        parts: Number of parts of the maze in the suite `stitch`; no trajectory leaves the part in which it begins.
        start: Cell (row, column) of the first part, from which distances are counted; by default the first free cell.
        goal: Cell of the last part; by default the farthest from the start.
        overlap: Number of cells on each side of the cut between two parts that both parts share.
    """

    maze: Literal["UMaze", "Open", "Medium", "Large"] = "UMaze"
    suite: Literal["navigate", "stitch"] = "navigate"
    episodes: int = Field(default=500, ge=1)
    val_episodes: int = Field(default=50, ge=0)
    steps: int = Field(default=200, ge=2)
    repeat: int = Field(default=1, ge=1)
    noise: float = Field(default=0.5, ge=0)
    parts: int = Field(default=2, ge=2)
    start: Cell | None = None
    goal: Cell | None = None
    overlap: int = Field(default=1, ge=0)
    workers: int = Field(default=1, ge=1, le=1024)

    @property
    def env_id(self) -> str:
        """The environment's name in gymnasium."""
        return f"PointMaze_{self.maze}-v3"

    @property
    def tasks(self) -> tuple[str, ...]:
        """The only task of the data set."""
        return (self.env_id,)


def collect_pointmaze(config: PointMazeCollect) -> Path:
    """Record a waypoint controller in a maze as Minari data sets OUT/train and OUT/val.

    The folder also has `collect.json` with the metadata that `collect` stores for every data set (episodes that left
    their part count as `dropped`) and, under `evaluation`, the environment for evaluation.

    Time on two cores: under a second per episode. Disk: about 40 kB per episode.

    Raises:
        BadInputError: If the folder holds anything but this data set, or the maze cannot be divided into the parts.
        MissingExtraError: If the simulator or the package that writes Minari's format is not installed.
    """
    import_minari()  # fails before an hour of recording, not after it
    return collect(_MazeCollection(config))


@lru_cache(maxsize=1)
def maze_of(config: PointMazeCollect) -> tuple[MazeGrid, StitchPlan | None, tuple[WaypointController, ...]]:
    """Return the maze, its parts for the suite `stitch`, and a controller for each part."""
    env = make_goal_env(EnvConfig(name=config.env_id))
    grid = MazeGrid.of(env)
    env.close()
    if config.suite == "navigate":
        return grid, None, (WaypointController(grid),)
    plan = plan_stitching(grid, config.start, config.goal, parts=config.parts, overlap=config.overlap)
    return grid, plan, tuple(WaypointController(grid, part) for part in plan.parts)


def evaluation_env(config: PointMazeCollect) -> EnvConfig:
    """Return the environment for evaluation: for `stitch`, from the first part to the last one."""
    plan = maze_of(config)[1]
    cells = {} if plan is None else {"start_cells": plan.starts, "goal_cells": plan.goals}
    return EnvConfig(name=config.env_id, repeat=config.repeat, **cells)


class _MazeCollection(Collection):
    config: PointMazeCollect
    packages = ("gymnasium-robotics", "mujoco", "numpy")
    attempts = 50
    remedy = ("noise", "a controller that mostly stays in its part of the maze", "less noise, or more overlap")

    @property
    def fps(self) -> float:
        return 50.0 / self.config.repeat  # PointMaze's `render_fps`

    def identity(self) -> dict[str, Any]:
        maze_of(self.config)  # raises if the maze cannot be divided
        return super().identity()

    def make(self, task: str) -> Env:
        steps = self.config.steps * self.config.repeat
        return make_goal_env(EnvConfig(name=task, repeat=self.config.repeat, max_episode_steps=steps))

    def record(self, env: Env, slot: Slot, seed: int) -> Recording | None:
        """Drive to the commanded goal, then to random cells of the part; drop the episode if the ball leaves it."""
        grid, _, controllers = maze_of(self.config)
        controller, rng = controllers[slot.number % len(controllers)], sample_rng(seed, 0, "controller")
        part = controller.cells
        start, goal = (part[index] for index in rng.choice(len(part), 2, replace=False))
        seen, _ = env.reset(seed=seed, options={"reset_cell": np.array(start), "goal_cell": np.array(goal)})
        target = commanded = seen["desired_goal"]
        states, actions, success, over = [seen], [], [], False
        while not over:
            action = controller.action(seen["observation"], target) + self.config.noise * rng.standard_normal(2)
            actions.append(np.clip(action, -1, 1).astype(np.float32))
            seen, _, _, over, info = env.step(actions[-1])
            states.append(seen)
            success.append(info["is_success"])
            if np.linalg.norm(seen["achieved_goal"] - target) < 0.25 * grid.scale:
                target = grid.centre(part[rng.integers(len(part))])
        achieved = np.stack([state["achieved_goal"] for state in states])
        if not set(grid.cells_of(achieved)) <= set(part):
            return None
        return Recording(
            actions=np.stack(actions),
            state=np.stack([state["observation"] for state in states]),
            rewards=np.array(success, np.float32),
            success=any(success),
            extra={"achieved": achieved, "commanded": commanded},
        )

    def assemble(self, staging: Staging, folder: Path, info: dict[str, Any]) -> None:
        """Check that no episode leaves its part, then write the splits."""
        config, (grid, plan, _) = self.config, maze_of(self.config)
        with Beside(folder) as beside:
            made = Path(beside) / folder.name
            for split, indices in split_ranges(self).items():
                episodes = []
                for place in range(*map(int, indices.split(":"))):
                    kept: dict[str, Any] = staging.arrays(place)
                    episodes.append(GoalEpisode(observations=kept.pop("state"), success=kept["rewards"] > 0, **kept))
                if plan is not None:
                    refuse_joined(episodes, grid, plan)
                write = partial(
                    write_minari,
                    env_id=config.env_id,
                    description=f"PointMaze {config.maze}, suite {config.suite}, {split}",
                    algorithm="waypoint controller with noise",
                    dataset_id=f"pointmaze-{config.maze.lower()}-{config.suite}-{split}-v0",
                    about={key: value for key, value in info.items() if key != "episodes"},
                )
                # HDF5 crashes its process if something else fills the disk during writing.
                hint = "free some space, then run the same command again"
                in_worker(write, made / split, episodes, timeout=None, expected="a disk with room", hint=hint)
            note = {**info, "evaluation": evaluation_env(config).model_dump(mode="json")}
            (made / NOTE).write_text(json.dumps(note, indent=2))
            made.rename(folder)
