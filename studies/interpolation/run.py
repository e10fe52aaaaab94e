"""Interpolation of representations: does it pass the states on the way (TD InfoNCE, Appendix E.4, Fig. 13)?

For a start s0 and a goal g, representations phi(s, no-op, g) of s0, of the state at g and of validation states are
compared in two ways, with alpha from 0 at the start to 1 at the goal::

    parametric       slerp(phi(s0), phi(g); alpha), and the validation state with the largest cosine
    non-parametric   (1 - alpha) feat(s0) + alpha feat(g), and the validation state with the nearest feature (l2),
                     feat(s) = softmax_i phi(s) . phi(anchor_i)

The paper prints alpha feat(s0) + (1 - alpha) feat(g), which runs from the goal to the start; here both run forwards.
Its temperature is 1, so that features of unit vectors are nearly flat; only their differences matter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray

from counterpoint.agents.contrastive import ContrastiveAgent
from counterpoint.envs.goal.mazes import Cell, MazeGrid
from counterpoint.errors import BadInputError
from counterpoint.files import write_atomically

Reals = NDArray[np.floating[Any]]
Encoder = Callable[[Reals, Reals], Reals]
"""States [V, O] and one goal [G] to representations [V, D] of unit length."""

METHODS = ("parametric", "non_parametric", "straight_line")


def agent_encoder(agent: ContrastiveAgent) -> Encoder:
    """phi of a contrastive agent for the action that does nothing: zeros.

    Twins stand side by side, scaled so that a cosine is the mean of the twins' cosines. An agent whose phi reads no
    goal (contrastive RL) is not told the goal.

    Raises:
        BadInputError: When the agent's actions are discrete or it sees images.
    """
    spaces = agent.spaces
    if spaces.discrete or len(spaces.observation) != 1 or len(spaces.goal) != 1:
        raise BadInputError(
            f"agent {agent.name}",
            f"{'discrete' if spaces.discrete else 'continuous'} actions, observations {spaces.observation}",
            "continuous actions, in which zero does nothing, and states as vectors",
            "interpolate for an agent of a maze",
        )

    @torch.no_grad()
    def encode(states: Reals, goal: Reals) -> Reals:
        seen, wanted = agent.tensors(states, np.broadcast_to(goal, (len(states), *goal.shape)).copy())
        phi = agent.phi(seen, seen.new_zeros(len(states), spaces.action), wanted)
        phi = phi / phi.norm(dim=-1, keepdim=True)
        both: Reals = torch.cat([*phi], dim=-1).div(len(phi) ** 0.5).double().cpu().numpy()
        return both

    return encode


def untrained(agent: ContrastiveAgent, seeds: Sequence[int]) -> dict[str, Encoder]:
    """Encoders of fresh agents of the same build: the floor of what interpolation finds."""
    return {f"untrained {seed}": agent_encoder(type(agent)(agent.config, agent.spaces, seed=seed)) for seed in seeds}


def slerp(start: Float[Reals, " D"], goal: Float[Reals, " D"], alphas: Float[Reals, " K"]) -> Float[Reals, "K D"]:
    """Unit vectors on the great circle from start (alpha 0) to goal (alpha 1), both of unit length."""
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
    """Indices of the validation states nearest on the sphere to interpolated representations.

    Args:
        start: phi(s0, no-op, g), of unit length, as all are.
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
    """Indices of the validation states whose softmax features are nearest to interpolated ones.

    Args:
        start: phi(s0, no-op, g), of unit length, as all are.
        goal: phi of the state at the goal.
        states: phi of V validation states.
        anchors: phi of S random states.
        alphas: From 0 (start) to 1 (goal).
    """
    features = _softmax(states @ anchors.T)
    ends = _softmax(np.stack([start, goal]) @ anchors.T)
    return _nearest((1 - alphas)[:, None] * ends[0] + alphas[:, None] * ends[1], features)


def _softmax(logits: Float[Reals, "V S"]) -> Float[Reals, "V S"]:
    powers: Reals = np.exp(logits - logits.max(axis=1, keepdims=True))
    powers /= powers.sum(axis=1, keepdims=True)
    return powers


def _nearest(points: Float[Reals, "K D"], among: Float[Reals, "V D"]) -> Int[NDArray[np.int64], " K"]:
    """Indices by l2."""
    found: NDArray[np.int64] = ((among**2).sum(axis=1) - 2 * points @ among.T).argmin(axis=1)
    return found


def order_along_the_path(maze: MazeGrid, start: Cell, goal: Cell, visited: Sequence[Cell]) -> dict[str, float]:
    """How far interpolated states lie, in order, along the shortest way from start to goal.

    With d the distance from the start, h that to the goal, and L = d(goal), all in cells through the maze:

    - `on_path`: the share of states with d + h <= L + 2, that is, no more than one cell beside a shortest path;
    - `monotone`: the share of neighbours in the sequence whose d does not fall;
    - `in_order`: the greatest share of states that are on the path and whose d, in sequence, never falls;
    - `covered`: the share of the distances 0, ..., L at which one of the states in order lies. Without it, a sequence
      that sits at the start and then jumps to the goal would be perfect.

    Args:
        maze: Where the walls are.
        start: Cell (row, column).
        goal: Another one.
        visited: Cells of the interpolated states, from start to goal, two at least.

    Raises:
        BadInputError: When a cell cannot be reached from the goal.
    """
    from_start, to_goal = maze.distances(start), maze.distances(goal)
    for cell in (start, goal, *visited):
        if cell not in from_start or cell not in to_goal:
            raise BadInputError(
                f"cell {cell}",
                "a wall, or no way between it and the start and goal",
                "cells that are free and connected",
                "interpolate between and among states inside the maze",
            )
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
    """The longest subsequence that never falls; of several, one with the most different values."""
    best: list[tuple[tuple[int, int], list[int]]] = []
    for value in values.tolist():
        ended = [((1, 1), [value])]
        for (length, different), run in best:
            if run[-1] <= value:
                ended.append(((length + 1, different + (run[-1] < value)), [*run, value]))
        best.append(max(ended))
    return max(best)[1] if best else []


def interpolation_study(
    encoders: Mapping[str, Encoder],
    states: Float[Reals, "V O"],
    goals: Float[Reals, "V G"],
    pairs: Sequence[tuple[int, int]],
    maze: MazeGrid,
    out: Path,
    *,
    steps: int = 12,
    anchors: int = 256,
    seed: int = 0,
) -> dict[str, Any]:
    """Interpolate between pairs of states under every encoder, and write `interpolation.json` and `.png`.

    Args:
        encoders: By name: a trained agent's, and untrained ones of the same build, which are the floor. The figure
            shows the first.
        states: Validation states as the agent sees them; the first two numbers are x and y.
        goals: What the agent calls the goal when it is to reach each of them: coordinates, or the whole state.
        pairs: (start, goal), as indices of `states`, in different cells.
        maze: Where the walls are.
        out: A folder.
        steps: Interpolated states, both ends included.
        anchors: S, how many of the states (drawn at random) are anchors of the softmax features.
        seed: Of that draw.

    Returns:
        What `interpolation.json` holds: per encoder and method the means over pairs of `order_along_the_path`, and
        every pair's indices. The method `straight_line` interpolates x and y and asks no encoder: it is what an
        encoder that knows positions and no walls would do.

    Raises:
        BadInputError: When a state lies in a wall, or a pair has one cell only.
    """
    from studies.interpolation.figures import plot_interpolation  # matplotlib is an extra

    cells = maze.cells_of(states[:, :2])
    alphas = np.linspace(0, 1, steps)
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(states), size=min(anchors, len(states)), replace=False)
    found: dict[str, Any] = {}
    for name, encode in encoders.items():
        for start, goal in pairs:
            if cells[start] == cells[goal]:
                raise BadInputError(
                    f"pair {(start, goal)}",
                    f"both in cell {cells[start]}",
                    "a start and a goal in different cells",
                    "choose states farther apart",
                )
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
                found.setdefault(name, {}).setdefault(method, {"pairs": []})["pairs"].append(entry)
    for methods in found.values():
        for content in methods.values():
            for key in ("on_path", "monotone", "in_order", "covered"):
                content[key] = float(np.mean([pair[key] for pair in content["pairs"]]))
    result = {"steps": steps, "anchors": len(chosen), "states": len(states), "encoders": found}
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "interpolation.json", json.dumps(result, indent=1) + "\n")
    plot_interpolation(found[next(iter(encoders))], states[:, :2], maze, out / "interpolation.png")
    return result
