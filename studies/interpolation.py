"""Interpolation of representations: does it visit the states on the way (TD InfoNCE, Appendix E.4, Fig. 13)?

    python -m studies.interpolation --out runs/interpolation

TD InfoNCE (small networks) is trained on recorded data of a point maze. For a start s0 and a goal g, representations
phi(s, no-op, g) of s0, of the state at g and of validation states are compared in two ways, with alpha from 0 at the
start to 1 at the goal::

    parametric       slerp(phi(s0), phi(g); alpha), and the validation state with the largest cosine
    non-parametric   (1 - alpha) feat(s0) + alpha feat(g), and the validation state with the nearest feature (l2),
                     feat(s) = softmax_i phi(s) . phi(anchor_i)

The paper prints alpha feat(s0) + (1 - alpha) feat(g), which runs from the goal to the start; in this study both run
from the start to the goal. The paper's temperature is 1, so features of unit vectors are nearly flat, and only their
differences matter. There are two baselines: untrained encoders, and a straight line in x and y, which uses no encoder
and ignores walls. The ways between start and goal are bent, so that the straight line leaves them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from pydantic import PositiveInt

from counterpoint.agents import SavedAgent
from counterpoint.agents.contrastive import ContrastiveAgent
from counterpoint.config import FrozenConfig
from counterpoint.envs.goal.collect import PointMazeCollect, collect_pointmaze
from counterpoint.envs.goal.env import EnvConfig, make_goal_env
from counterpoint.envs.goal.mazes import Cell, MazeGrid
from counterpoint.errors import BadInputError, require
from counterpoint.formats.minari.reader import read_minari
from counterpoint.training.train import train
from studies.harness import Rows, Study, Tree, Trial, estimate, main, markdown, over_seeds
from studies.plots import INK, PALE, panels, save

Reals = NDArray[np.floating[Any]]
Encoder = Callable[[Reals, Reals], Reals]
"""A function that maps states [V, O] and one goal [G] to representations [V, D] of unit length."""
TITLES = {"parametric": "parametric", "non_parametric": "non-parametric"}
TITLES["straight_line"] = "straight line in x, y\n(no encoder)"
NUMBERS = ("on_path", "monotone", "in_order", "covered")
ENCODERS = ("trained", "untrained")


class InterpolationConfig(FrozenConfig):
    """A maze, an agent and pairs of states.

    Attributes:
        maze: Name of the point maze.
        episodes: Number of training episodes.
        val_episodes: Number of validation episodes, whose states the interpolation visits.
        overrides: Changes to the recipe `td_infonce`.
        pairs: Number of pairs of a start and a goal.
        apart: Minimum distance of a start and its goal, in cells through the maze.
        bent: Minimum ratio of this distance to the straight line between them.
        steps: Number of interpolated states, including both ends.
        anchors: Number of validation states that are anchors of the softmax features, S.
        seeds: Seeds of the agents; each is measured before and after training.
        seed: Random seed of the anchors and pairs.
        processes: Number of trials that run in parallel: 1, since agents evaluate in processes of their own.
    """

    maze: str = "Medium"
    episodes: PositiveInt = 300
    val_episodes: PositiveInt = 30
    overrides: dict[str, Any]
    pairs: PositiveInt = 30
    apart: PositiveInt = 6
    bent: float = 2.0
    steps: PositiveInt = 12
    anchors: PositiveInt = 256
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    seed: int = 0
    processes: PositiveInt = 1


def interpolation_study(config: InterpolationConfig, out: Path) -> Tree:
    """Train, interpolate, and write `interpolation.json`, `interpolation.png` and `results.parquet`."""
    study = Study("interpolation of representations", out, config)
    size = {"episodes": config.episodes, "val_episodes": config.val_episodes}
    data = collect_pointmaze(PointMazeCollect(out=out / "data", maze=config.maze, **size))
    trials = [Trial(f"seed{seed}", partial(_measure, config, out, seed), about={"seed": seed}) for seed in config.seeds]
    study.run(trials, config.processes)
    rows = study.rows()
    states, _ = _validation(data)
    save(figure(rows[0]["trained"], states[:, :2], _maze(config)), out / "interpolation.png")
    return study.finish("interpolation", summary(rows), facts={"states": len(states)})


def summary(rows: Rows, _: Tree | None = None) -> Tree:
    """Return, by encoder (`trained`, `untrained`), method and number, the mean over seeds with a t interval."""
    found: Tree = {}
    for encoder in ENCODERS:
        for method in rows[0][encoder]:
            each = [row[encoder][method] for row in rows]
            numbers = {key: over_seeds([one[key] for one in each], share=True) for key in NUMBERS}
            found.setdefault(encoder, {})[method] = numbers
    return {"encoders": found, "reached": over_seeds([row["reached"] for row in rows], share=True)}


def table(found: Tree) -> str:
    """Return a Markdown table with one row for each encoder and method; the straight line uses no encoder."""
    rows = []
    for encoder, methods in found["encoders"].items():
        for method, numbers in methods.items():
            if method != "straight_line" or encoder == "trained":
                cells = [estimate(numbers[key], share=True) for key in ("in_order", "covered", "on_path", "monotone")]
                rows.append(["none" if method == "straight_line" else encoder, method.replace("_", " "), *cells])
    return markdown(["encoder", "method", "in order", "covered", "on the path", "monotone"], rows)


def _measure(config: InterpolationConfig, out: Path, seed: int) -> Tree:
    """Train an agent and interpolate with its encoder before and after; `reached` is its success in the maze."""
    run = out / f"run-{seed}"
    if not (run / "model").exists():
        train("td_infonce", out / "data", run, overrides={**config.overrides, "train.seed": seed})
    agent = SavedAgent.from_pretrained(run).agent
    assert isinstance(agent, ContrastiveAgent)
    (states, goals), maze = _validation(out / "data"), _maze(config)
    pairs = far_pairs(goals, maze, config.pairs, config.apart, config.seed, bent=config.bent)
    own = {"steps": config.steps, "anchors": config.anchors, "seed": config.seed}
    encoders = dict(zip(ENCODERS, (agent, untrained(agent, seed)), strict=True))
    found = {name: interpolate(agent_encoder(one), states, goals, pairs, maze, **own) for name, one in encoders.items()}
    result = json.loads((run / "result.json").read_text())
    return {**found, "reached": result["success"]["value"]}


def _maze(config: InterpolationConfig) -> MazeGrid:
    env = make_goal_env(EnvConfig(name=f"PointMaze_{config.maze}-v3"))
    try:
        return MazeGrid.of(env)
    finally:
        env.close()


def _validation(data: Path) -> tuple[Reals, Reals]:
    episodes = list(read_minari(data / "val"))
    states = np.concatenate([episode.observations for episode in episodes]).astype(np.float64)
    return states, np.concatenate([episode.achieved for episode in episodes]).astype(np.float64)


def far_pairs(
    goals: Reals, maze: MazeGrid, count: int, apart: int, seed: int, *, bent: float = 1.0
) -> list[tuple[int, int]]:
    """Return indices of pairs of random states that are far from one another through the maze.

    Args:
        goals: x and y of the states.
        maze: The maze.
        count: Number of pairs.
        apart: Minimum distance of the cells through the maze, in cells.
        seed: Random seed.
        bent: Minimum ratio of this distance to the straight one.
    """
    rng = np.random.default_rng(seed)
    cells = maze.cells_of(goals)
    pairs: list[tuple[int, int]] = []
    while len(pairs) < count:
        start, goal = (int(index) for index in rng.integers(len(cells), size=2))
        way = maze.distances(cells[start])[cells[goal]]
        if way >= max(apart, bent * np.hypot(*np.subtract(cells[start], cells[goal]))):
            pairs.append((start, goal))
    return pairs


def interpolate(
    encode: Encoder,
    states: Float[Reals, "V O"],
    goals: Float[Reals, "V G"],
    pairs: Sequence[tuple[int, int]],
    maze: MazeGrid,
    *,
    steps: int = 12,
    anchors: int = 256,
    seed: int = 0,
) -> Tree:
    """Interpolate between pairs of states under an encoder.

    Args:
        encode: The encoder.
        states: Validation states as the agent sees them; the first two numbers are x and y.
        goals: For each state, the goal to reach it: coordinates, or the whole state.
        pairs: (start, goal), as indices of `states`, in different cells.
        maze: The maze.
        steps: Number of interpolated states, including both ends.
        anchors: Number of anchors, S.
        seed: Random seed of the choice of anchors.

    Returns:
        For each method, the numbers of `order_along_the_path` as means over pairs, and every pair's indices.

    Raises:
        BadInputError: If a state lies in a wall, or both states of a pair lie in one cell.
    """
    cells = maze.cells_of(states[:, :2])
    alphas = np.linspace(0, 1, steps)
    chosen = np.random.default_rng(seed).choice(len(states), size=min(anchors, len(states)), replace=False)
    found: Tree = {}
    for start, goal in pairs:
        where, expected = f"pair {(start, goal)}", "a start and a goal in different cells"
        ok = cells[start] != cells[goal]
        require(ok, where, f"both in cell {cells[start]}", expected, "choose states farther apart")
        phi = encode(states, goals[goal])
        line = (1 - alphas)[:, None] * states[start, :2] + alphas[:, None] * states[goal, :2]
        indices = {
            "parametric": parametric(phi[start], phi[goal], phi, alphas),
            "non_parametric": non_parametric(phi[start], phi[goal], phi, phi[chosen], alphas),
            "straight_line": _nearest(line, states[:, :2]),
        }
        for method, visited in indices.items():
            order = order_along_the_path(maze, cells[start], cells[goal], [cells[v] for v in visited])
            entry = {"start": start, "goal": goal, "visited": visited.tolist(), **order}
            found.setdefault(method, {"pairs": []})["pairs"].append(entry)
    for content in found.values():
        content |= {key: float(np.mean([pair[key] for pair in content["pairs"]])) for key in NUMBERS}
    return found


def agent_encoder(agent: ContrastiveAgent) -> Encoder:
    """Return phi of a contrastive agent for the action that does nothing: zeros.

    The twins' vectors are concatenated and scaled so that a cosine is the mean of the twins' cosines.

    Raises:
        BadInputError: If the agent's actions are discrete or it sees images.
    """
    spaces = agent.spaces
    if spaces.discrete or len(spaces.observation) != 1 or len(spaces.goal) != 1:
        found = f"{'discrete' if spaces.discrete else 'continuous'} actions, observations {spaces.observation}"
        expected = "continuous actions, in which zero does nothing, and states as vectors"
        raise BadInputError(f"agent {agent.name}", found, expected, "interpolate for an agent of a maze")

    @torch.no_grad()
    def encode(states: Reals, goal: Reals) -> Reals:
        seen, wanted = agent.tensors(states, np.broadcast_to(goal, (len(states), *goal.shape)).copy())
        phi = agent.critic.encode_actions(seen, seen.new_zeros(len(states), spaces.action), wanted)
        phi = phi / phi.norm(dim=-1, keepdim=True)
        both: Reals = torch.cat([*phi], dim=-1).div(len(phi) ** 0.5).double().cpu().numpy()
        return both

    return encode


def untrained(agent: ContrastiveAgent, seed: int) -> ContrastiveAgent:
    """Return an untrained agent with the same settings, as a baseline of the interpolation."""
    return type(agent)(agent.config, agent.spaces, seed=seed)


def slerp(start: Float[Reals, " D"], goal: Float[Reals, " D"], alphas: Float[Reals, " K"]) -> Float[Reals, "K D"]:
    """Return unit vectors on the great circle from start (alpha 0) to goal (alpha 1), both of unit length."""
    angle = np.arccos(np.clip(start @ goal, -1, 1))
    if np.sin(angle) < 1e-6:  # one direction, or opposite ones, between which no circle is the shortest
        mixed = (1 - alphas)[:, None] * start + alphas[:, None] * goal
    else:
        mixed = np.sin((1 - alphas) * angle)[:, None] * start + np.sin(alphas * angle)[:, None] * goal
    blended: Reals = mixed / np.maximum(np.linalg.norm(mixed, axis=1, keepdims=True), 1e-12)
    return blended


def parametric(
    start: Float[Reals, " D"], goal: Float[Reals, " D"], states: Float[Reals, "V D"], alphas: Float[Reals, " K"]
) -> Int[NDArray[np.int64], " K"]:
    """Return indices of the validation states nearest on the sphere to interpolated representations.

    Args:
        start: phi(s0, no-op, g); this and all other representations have unit length.
        goal: phi of the state at the goal.
        states: phi of V validation states.
        alphas: From 0 (start) to 1 (goal).
    """
    found: NDArray[np.int64] = (slerp(start, goal, alphas) @ states.T).argmax(axis=1)
    return found


def non_parametric(
    start: Float[Reals, " D"],
    goal: Float[Reals, " D"],
    states: Float[Reals, "V D"],
    anchors: Float[Reals, "S D"],
    alphas: Float[Reals, " K"],
) -> Int[NDArray[np.int64], " K"]:
    """Return indices of the validation states whose softmax features are nearest to interpolated ones.

    Arguments are those of `parametric`; `anchors` has phi of S random states.
    """
    features = _softmax(states @ anchors.T)
    ends = _softmax(np.stack([start, goal]) @ anchors.T)
    return _nearest((1 - alphas)[:, None] * ends[0] + alphas[:, None] * ends[1], features)


def _softmax(logits: Float[Reals, "V S"]) -> Float[Reals, "V S"]:
    powers: Reals = np.exp(logits - logits.max(axis=1, keepdims=True))
    powers /= powers.sum(axis=1, keepdims=True)
    return powers


def _nearest(points: Float[Reals, "K D"], among: Float[Reals, "V D"]) -> Int[NDArray[np.int64], " K"]:
    found: NDArray[np.int64] = ((among**2).sum(axis=1) - 2 * points @ among.T).argmin(axis=1)
    return found


def order_along_the_path(maze: MazeGrid, start: Cell, goal: Cell, visited: Sequence[Cell]) -> dict[str, float]:
    """Return the shares of interpolated states that lie, in order, along the shortest way from start to goal.

    d is the distance of a state from the start, h its distance to the goal, and L = d(goal), in cells through the maze:

    - `on_path`: the share of states with d + h <= L + 2, that is, at most one cell away from a shortest path;
    - `monotone`: the share of consecutive pairs in which d does not fall;
    - `in_order`: the largest share of states that are on the path and whose d, in sequence, never falls;
    - `covered`: the share of the distances 0, ..., L at which one of these states lies. Without this number, a sequence
      that stays at the start and then jumps to the goal would be perfect.

    Args:
        maze: The maze.
        start: The start's cell (row, column).
        goal: The goal's cell, another one.
        visited: Cells of the interpolated states, from start to goal, at least two.

    Raises:
        BadInputError: If a cell cannot be reached from the goal.
    """
    from_start, to_goal = maze.distances(start), maze.distances(goal)
    for cell in (start, goal, *visited):
        found = "a wall, or no way between it and the start and goal"
        ok = cell in from_start and cell in to_goal
        require(ok, f"cell {cell}", found, "free, connected cells", "interpolate among states inside the maze")
    d = np.array([from_start[cell] for cell in visited])
    L = from_start[goal]
    beside = np.array([to_goal[cell] for cell in visited]) + d <= L + 2
    kept = _longest_rising(d[beside])
    return {
        "on_path": float(beside.mean()),
        "monotone": float((np.diff(d) >= 0).mean()),
        "in_order": len(kept) / len(d),
        "covered": len({int(one) for one in kept if one <= L}) / (L + 1),
    }


def _longest_rising(values: Int[NDArray[np.int64], " K"]) -> list[int]:
    """Return the longest subsequence that never falls; among equally long ones, one with the most distinct values."""
    best: list[tuple[tuple[int, int], list[int]]] = []
    for value in values.tolist():
        ended = [((1, 1), [value])]
        for (length, different), run in best:
            if run[-1] <= value:
                ended.append(((length + 1, different + (run[-1] < value)), [*run, value]))
        best.append(max(ended))
    return max(best)[1] if best else []


def figure(methods: Tree, locations: Float[Reals, "V 2"], maze: MazeGrid, *, most: int = 4) -> Any:
    """Plot one row per pair and one column per method, from dark at the start to light at the goal (Fig. 13).

    Args:
        methods: Result of `interpolate`.
        locations: x and y of the validation states.
        maze: The maze.
        most: Maximum number of pairs to plot, starting with the first.
    """
    pairs = next(iter(methods.values()))["pairs"][:most]
    shown, made = panels(len(pairs), len(methods), 2.9 * len(methods), 2.6 * len(pairs) + 0.5)
    for column, (method, content) in enumerate(methods.items()):
        for row, pair in enumerate(content["pairs"][:most]):
            panel = made[row][column]
            _walls(panel, maze)
            x, y = locations[pair["visited"]].T
            panel.plot(x, y, color="#999999", linewidth=0.8, zorder=1)
            look = {"cmap": "viridis", "s": 34, "edgecolors": INK, "linewidths": 0.5, "zorder": 2}
            panel.scatter(x, y, c=np.linspace(0, 1, len(x)), **look)
            (sx, sy), (gx, gy) = locations[[pair["start"], pair["goal"]]]
            panel.plot(sx, sy, "s", color=INK, markersize=8, zorder=3)
            panel.plot(gx, gy, "*", color="white", markeredgecolor=INK, markersize=15, zorder=3)
            panel.set_xlabel(f"in order {pair['in_order']:.2f}, covered {pair['covered']:.2f}", fontsize=8)
            if row == 0:
                panel.set_title(TITLES[method], fontsize=9)
    return shown


def _walls(panel: Any, maze: MazeGrid) -> None:
    """Plot walls in grey, north on top."""
    free = set(maze.free)
    for row, cells in enumerate(maze.rows):
        for column in range(len(cells)):
            if (row, column) not in free:
                left, bottom = maze.centre((row, column)) - maze.scale / 2
                panel.bar(left, maze.scale, maze.scale, bottom=bottom, align="edge", color=PALE, linewidth=0)
    height, width = len(maze.rows) * maze.scale / 2, len(maze.rows[0]) * maze.scale / 2
    panel.set(xlim=(-width, width), ylim=(-height, height), xticks=[], yticks=[], aspect="equal")


if __name__ == "__main__":
    main("interpolation")
