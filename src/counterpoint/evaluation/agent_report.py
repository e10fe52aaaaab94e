"""`counterpoint report RUN` for a goal-reaching agent: success, learning curves and, in mazes, a map of its value."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from markupsafe import Markup
from numpy.typing import NDArray
from pydantic import TypeAdapter

from counterpoint.agents import SavedAgent
from counterpoint.config import validate
from counterpoint.encoders.card import write_results
from counterpoint.envs.goal.env import EnvConfig, make_goal_env
from counterpoint.envs.goal.mazes import MazeGrid
from counterpoint.errors import import_extra, require
from counterpoint.evaluation.compare import TEMPLATES
from counterpoint.evaluation.held_out import read_config, read_metrics
from counterpoint.evaluation.rollout import RESULT
from counterpoint.evaluation.statistics import Estimate, seeds_interval
from counterpoint.files import read_object, write_atomically
from counterpoint.provenance import provenance
from counterpoint.rewards.page import Line, breakable, line_chart, padded, render, signed

Array = NDArray[np.float64]
Curve = dict[int, float]
"""A metric of one run by step."""

PLACES = 12
"""Number of places along the edge of a maze's cell for which the value is computed."""
BATCH = 4096
"""Maximum number of places in one batch: wide critics take some hundred kilobytes for each."""
GOALS = 500
"""Maximum number of goals, spread over the maze, with which a goal is compared."""
MOST_LOSSES = 3
"""Maximum number of losses whose curves are drawn."""
SUFFIX = "_success"
"""End of the names of the successes of single tasks in an evaluation."""
CARDS = (
    ("success", "success: the goal reached at any step"),
    ("success_at_end", "held: at the goal at the last step"),
    ("steps_to_success", "steps to the goal, mean of solved episodes"),
    ("closest_distance", "smallest distance to the goal, mean"),
)
"""Numbers of an evaluation for the top of the page, which shows those that are defined."""


@dataclass(frozen=True)
class ValueMap:
    """An agent's value over a maze, for one goal.

    Attributes:
        values: The value at each place, from the largest y (first row) to the smallest; `nan` in walls.
        edges: The smallest and largest x and the smallest and largest y of the maze, in metres.
        start: The place where the episode of this goal begins, (x, y).
        goal: The goal's place, (x, y).
        name: The meaning of the value.
    """

    values: Float[Array, "Y X"]
    edges: tuple[float, float, float, float]
    start: tuple[float, float]
    goal: tuple[float, float]
    name: str

    def as_json(self) -> dict[str, Any]:
        """Return the range of the values, and the places of start and goal."""
        low, high = float(np.nanmin(self.values)), float(np.nanmax(self.values))
        return {"name": self.name, "low": low, "high": high, "start": self.start, "goal": self.goal}


def write_agent_report(run: Path, others: Sequence[Path] = (), *, seed: int = 0, device: str = "cpu") -> Path:
    """Write `RUN/report.html` and `RUN/report.json`, and for a value in a maze `RUN/value.png`; return the page.

    The numbers are those of the run's last evaluation: `evaluation.json`, or else training's own `result.json`. The
    success is printed.

    Args:
        run: The run's folder.
        others: Runs of the same agent with other seeds, whose learning curves are drawn with this one's.
        seed: Seed of the episode whose start and goal the map of the value has.
        device: The device that computes.

    Raises:
        BadInputError: If the run is not finished, or one of the others has another agent or environment.
        MissingExtraError: If the extra `report`, or the agent's simulator, is not installed.
    """
    runs = [run, *others]
    config = _same_agent(runs)
    saved, name = SavedAgent.from_pretrained(run, map_location=device), run.resolve().name
    file, numbers = _evaluation(run)
    own = [key for key in numbers if key.endswith(SUFFIX) and key != "steps_to_success"]
    tasks = {key.removesuffix(SUFFIX): numbers.pop(key) for key in own}
    curves = _curves([read_metrics(one / "metrics.jsonl") for one in runs])
    step, mean = _mean_success(curves.get("success", []))
    found = _value_map(saved, seed, f"{run}, [env]")
    drawn = b"" if found is None else _draw(found)
    verdict = _verdict(numbers.get("success"))
    source = config.get("data_source")
    about = {
        "run": name,
        "agent": saved.agent.name,
        "environment": _named(config, "env"),
        "data": source["path"] if source else None,
        "evaluation": file,
        "others": [str(one) for one in others],
        "trained_with": config.get("provenance"),
        "provenance": provenance(),
        "seed": seed,
    }
    page = render(
        "agent.html.j2",
        [TEMPLATES],
        report_style=Markup((TEMPLATES / "report.css").read_text()),
        about=about,
        verdict=verdict,
        cards=[(key, numbers[key], text) for key, text in CARDS if key in numbers],
        tasks=tasks,
        charts=_charts(curves, name, "optimiser steps" if source else "environment steps"),
        runs=len(runs),
        step=step,
        mean=mean,
        value=found,
        image=base64.b64encode(drawn).decode(),
        signed=signed,
        breakable=breakable,
        config=json.dumps(config, indent=2),
    )
    result = {
        "verdict": verdict,
        "results": {f"success, mean over {len(runs)} runs at step {step}": mean.as_json()} if mean else {},
        "about": about,
        "evaluation": {key: one.as_json() for key, one in numbers.items()},
        "tasks": {task: one.as_json() for task, one in tasks.items()},
        "curves": {
            key: [{"run": str(one), "points": list(curve.items())} for one, curve in zip(runs, each, strict=True)]
            for key, each in curves.items()
        },
        "value": None if found is None else found.as_json(),
    }
    if drawn:
        write_atomically(run / "value.png", drawn)
    write_atomically(run / "report.json", json.dumps(result, indent=2) + "\n")
    write_atomically(run / "report.html", page)
    write_results(run)
    print(verdict)
    return run / "report.html"


def _named(config: Mapping[str, Any], section: str) -> str | None:
    """Return the name in a section of a run's configuration; `None` if there is none."""
    found = config.get(section)
    name = found.get("name") if isinstance(found, Mapping) else None
    return None if name in (None, "none") else str(name)


def _same_agent(runs: Sequence[Path]) -> dict[str, Any]:
    """Return the first run's configuration.

    Raises:
        BadInputError: If a run has another agent or environment than the first one, or is given twice.
    """
    configs = [read_config(run / "config.json") for run in runs]
    own, *others = (
        f"{_named(config, 'agent') or 'no agent'} in {_named(config, 'env') or 'no environment'}" for config in configs
    )
    expected, hint = f"{own}, as in {runs[0]}", "give runs that differ only in their seeds"
    for run, found in zip(runs[1:], others, strict=True):
        require(found == own, f"--others {run}", found, expected, hint)
    once = len({run.resolve() for run in runs}) == len(runs)
    require(once, "--others", "a run that is given twice", "each run once", "leave it out")
    return configs[0]


def _evaluation(run: Path) -> tuple[str | None, dict[str, Estimate]]:
    """Return the name of the file of a run's last evaluation and its numbers; `None` and none without such a file."""
    for name in ("evaluation.json", RESULT):
        if (run / name).is_file():
            read = read_object(run / name, "a result", "evaluate the run again").items()
            known = {key: value for key, value in read if isinstance(value, dict) and "low" in value}
            return name, TypeAdapter(dict[str, Estimate]).validate_python(known)
    return None, {}


def _verdict(success: Estimate | None) -> str:
    """Return the success of an evaluation in one sentence."""
    if success is None:
        return "The run was not evaluated; counterpoint evaluate measures its success."
    low, value, high = (f"{100 * number:.0f}" for number in (success.low, success.value, success.high))
    count = f"{success.n} episode{'s' if success.n != 1 else ''}"
    return f"The goal was reached in {value} % of {count} (95 % interval: {low} to {high} %)."


def _curves(logs: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, list[Curve]]:
    """Return the success in evaluations and the first losses of training, each with one curve for each run.

    Args:
        logs: Lines of each run's log; the first run decides which curves there are.
    """
    trained = [key for line in logs[0] if line["split"] == "train" for key in line if key.endswith("/loss")]
    wanted = [("success", "eval"), *((key, "train") for key in [*dict.fromkeys(trained)][:MOST_LOSSES])]
    found = {
        key: [{line["step"]: line[key] for line in log if line["split"] == split and key in line} for log in logs]
        for key, split in wanted
    }
    return {key: each for key, each in found.items() if each[0]}


def _mean_success(curves: Sequence[Curve]) -> tuple[int | None, Estimate | None]:
    """Return the last step at which all runs were evaluated, and their mean there; `None` for a single run."""
    common = set.intersection(*map(set, curves)) if len(curves) > 1 else set()
    step = max(common, default=None)
    return step, None if step is None else seeds_interval(np.array([curve[step] for curve in curves]), share=True)


def _charts(curves: Mapping[str, Sequence[Curve]], name: str, x_label: str) -> list[Markup]:
    """Return one chart per metric: the run of this name in colour, on top of the other runs in grey."""
    charts = []
    for key, (own, *others) in curves.items():
        words = key.replace("_", " ").replace("/", " ")
        lines = [Line(list(curve), list(curve.values()), "rest") for curve in others if curve]
        if lines:  # the middle line gets the label
            text, middle = f"{len(lines)} other run{'s' if len(lines) > 1 else ''}", len(lines) // 2
            lines[middle] = replace(lines[middle], label=text)
        lines.append(Line(list(own), list(own.values()), "c0", name if lines else ""))
        y_range = padded(0.0, 1.0) if key == "success" else None
        axes: dict[str, Any] = {"x_label": x_label, "y_label": words, "y_range": y_range}
        charts.append(line_chart(lines, **axes, summary=f"{words} over training", dots=True).html)
    return charts


def _value_map(saved: SavedAgent, seed: int, where: str) -> ValueMap | None:
    """Return the agent's value over its maze; `None` without a maze, or if the agent has no value or sees images.

    Args:
        saved: The agent; observations and goals in mazes begin with (x, y).
        seed: Seed of the episode whose goal is taken, and whose first observation is moved from place to place.
        where: The place of the environment's settings, for error messages.
    """
    agent = saved.agent
    if saved.env is None or not agent.value_name or len(agent.spaces.observation) != 1:
        return None
    # A corrupted observation would not show the start.
    env = make_goal_env(validate(EnvConfig, {**saved.env, "corruption": 0.0}, where))
    try:
        maze, (seen, _) = _maze(env), env.reset(seed=seed)
    finally:
        env.close()
    if maze is None:
        return None
    grid, middle = maze
    free = np.array([[cell != 1 for cell in row] for row in grid.rows]).repeat(PLACES, axis=0).repeat(PLACES, axis=1)
    (rows, columns), side = free.shape, grid.scale / PLACES
    left, top = middle + np.array([-columns, rows]) * side / 2
    x, y = left + side * (np.arange(columns) + 0.5), top - side * (np.arange(rows) + 0.5)
    places = np.stack(np.meshgrid(x, y), axis=-1)[free]
    observations, goals = (np.repeat(seen[key][None], len(places), axis=0) for key in ("observation", "desired_goal"))
    elsewhere = goals.copy()
    observations[:, :2] = elsewhere[:, :2] = places
    inputs, others = agent.tensors(observations, goals), agent.tensors(observations, elsewhere)[1]
    others = others[:: -(-len(others) // GOALS)]
    values = np.full(free.shape, np.nan)
    with torch.no_grad():
        batches = zip(*(torch.split(each, BATCH) for each in inputs), strict=True)
        parts = [agent.comparable_value(states, wanted, others) for states, wanted in batches]
    values[free] = torch.cat([part for part in parts if part is not None]).cpu().numpy()
    start, goal = ((float(one[0]), float(one[1])) for one in (seen["observation"], seen["desired_goal"]))
    edges = (float(left), float(left + columns * side), float(top - rows * side), float(top))
    return ValueMap(values, edges, start, goal, agent.value_name)


def _maze(env: Any) -> tuple[MazeGrid, Array] | None:
    """Return an environment's maze with the point in its middle, (x, y); `None` if the environment is no maze."""
    world = env.unwrapped
    if hasattr(world, "maze_map"):  # OGBench's, whose first row has the smallest y
        rows, columns = world.maze_map.shape
        first, last = np.array([world.ij_to_xy((0, 0)), world.ij_to_xy((rows - 1, columns - 1))])
        scale = float(last[0] - first[0]) / (columns - 1)
        return MazeGrid(tuple(map(tuple, world.maze_map[::-1].tolist())), scale), (first + last) / 2
    return (MazeGrid.of(env), np.zeros(2)) if getattr(world, "maze", None) else None


def _draw(found: ValueMap) -> bytes:
    """Return the map of a value as a PNG."""
    figure = import_extra("matplotlib.figure", "report").Figure(figsize=(7, 5.6), dpi=150, layout="constrained")
    axes = figure.add_subplot(xlabel="x (m)", ylabel="y (m)")
    image = axes.imshow(found.values, extent=found.edges, cmap="viridis")
    figure.colorbar(image, label=found.name)
    for place, marker, size, label in ((found.start, "o", 10, "start"), (found.goal, "*", 17, "goal")):
        style = {"markersize": size, "markerfacecolor": "white", "markeredgecolor": "black", "linestyle": "none"}
        axes.plot(*place, marker, label=label, **style)
    axes.spines[:].set_visible(False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
