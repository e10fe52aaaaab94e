"""A maze in which no recorded trajectory connects all parts: gates for agents, their paths, and a figure.

`studies.goal_reaching` trains the agents; the data are those of `counterpoint collect pointmaze --suite stitch`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.agents import Agent
from counterpoint.encoders.hub import load
from counterpoint.envs.goal.collect import PointMazeCollect, evaluation_env, maze_of
from counterpoint.envs.goal.env import make_goal_env
from counterpoint.envs.goal.mazes import MazeGrid, WaypointController
from counterpoint.envs.recording import NOTE
from counterpoint.evaluation.rollout import episode_seed, report, rollout
from studies.harness import Tree
from studies.plots import COLOURS, INK, panels

CONTROLLER = "controller"
"""The row of the controller that recorded the data."""
PATHS = 8
"""Number of episodes whose paths are stored."""


def recorded(data: str) -> PointMazeCollect:
    """Return the settings of the recording."""
    note = json.loads((Path(data) / NOTE).read_text())
    return PointMazeCollect.model_validate(note["collect"]["config"] | {"out": data})


def controller_trial(data: str, episodes: int) -> Tree:
    """Return how often the controller that recorded the data gets from the first part to the last, and the maze."""
    recording = recorded(data)
    grid, plan, _ = maze_of(recording)
    assert plan is not None
    results = rollout(WaypointController(grid), partial(make_goal_env, evaluation_env(recording)), _seeds(episodes))
    maze = {"rows": grid.rows, "scale": grid.scale, "parts": plan.parts, "starts": plan.starts, "goals": plan.goals}
    return {"evaluation": report(results), "curve": [], "maze": maze}


def in_the_maze(data: str, episodes: int, run: Path) -> Tree:
    """Return the success at goals in the part where an episode begins, which needs no stitching, and some paths."""
    recording, agent = recorded(data), load(run).agent
    plan = maze_of(recording)[1]
    assert plan is not None
    seeds, inside = _seeds(episodes), []
    for number, part in enumerate(plan.parts):
        own = evaluation_env(recording).model_copy(update={"start_cells": part, "goal_cells": part})
        inside += rollout(agent, partial(make_goal_env, own), seeds[number :: len(plan.parts)])
    traced, env = _Traced(agent), partial(make_goal_env, evaluation_env(recording))
    ended = rollout(traced, env, seeds[:PATHS], envs=PATHS, stop_at_success=True)
    paths = [{**traced.paths[row], "reached": result.success} for row, result in enumerate(ended)]
    return {"inside": report(inside), "paths": paths}


def _seeds(episodes: int) -> list[int]:
    """Return the seeds of `counterpoint evaluate`."""
    return [episode_seed(0, 2, number) for number in range(episodes)]


class _Traced:
    """An agent that records its goal and every second position in each row (environment); a row plays one episode."""

    def __init__(self, agent: Agent) -> None:
        self.agent, self.steps = agent, 0
        self.paths: dict[int, Tree] = {}
        self.reset, self.looks = agent.reset, agent.looks

    def act(self, observation: Mapping[str, Any], *, rows: Sequence[int], explore: bool = False) -> Any:
        """Return the agent's actions."""
        if self.steps % 2 == 0:
            for row, point, goal in zip(rows, observation["achieved_goal"], observation["desired_goal"], strict=True):
                kept = self.paths.setdefault(row, {"goal": _rounded(goal), "points": []})
                kept["points"].append(_rounded(point))
        self.steps += 1
        return self.agent.act(observation, rows=rows, explore=explore)


def _rounded(point: Any) -> list[float]:
    """Return a position to the centimetre."""
    return [round(float(number), 2) for number in point]


def maze_figure(found: Tree, shown: Mapping[str, str]) -> Any:
    """Return a figure of the maze's parts, and of the first seed's paths from the first part to the last.

    Args:
        found: The result of `summary`.
        shown: Title of the panel of each row. Squares are starts and stars are goals; dashed paths do not arrive.
    """
    maze = found["rows"][CONTROLLER]["runs"][0]["maze"]
    grid = MazeGrid(tuple(map(tuple, maze["rows"])), maze["scale"])
    figure, (made,) = panels(1, len(shown) + 1, 3.0 * (len(shown) + 1), 3.2)
    for panel in made:
        for cell in np.ndindex(len(grid.rows), len(grid.rows[0])):
            if cell not in grid.free:
                _square(panel, grid, cell, INK)
        panel.set_aspect("equal")
        panel.axis("off")
        panel.autoscale_view()
    made[0].set_title("the parts of the data", fontsize=9)
    for part, colour in zip(maze["parts"], COLOURS, strict=False):
        for cell in part:
            _square(made[0], grid, cell, colour, alpha=0.35)
    for mark, cells in (("s", maze["starts"]), ("*", maze["goals"])):
        made[0].plot(*np.array([grid.centre(tuple(cell)) for cell in cells]).T, mark, color=INK)
    for panel, (row, title) in zip(made[1:], shown.items(), strict=True):
        panel.set_title(title, fontsize=9)
        for number, path in enumerate(found["rows"][row]["runs"][0]["paths"]):
            colour, points = COLOURS[number % len(COLOURS)], np.array(path["points"])
            panel.plot(*points.T, "-" if path["reached"] else ":", color=colour, linewidth=1.2)
            panel.plot(*points[0], "s", color=colour, markersize=5)
            panel.plot(*path["goal"], "*", color=colour, markersize=9, markeredgecolor=INK, markeredgewidth=0.4)
    return figure


def _square(panel: Any, grid: MazeGrid, cell: Sequence[int], colour: str, **options: Any) -> None:
    """Fill a cell of the maze."""
    (x, y), half = grid.centre((cell[0], cell[1])), grid.scale / 2
    panel.fill([x - half, x + half, x + half, x - half], [y - half, y - half, y + half, y + half], colour, **options)
