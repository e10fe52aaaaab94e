"""OGBench's oracles, which record its data sets: one episode by a published protocol.

The package `ogbench` holds the environments and what moves their robots; the scripts of its repository that drive them
(`data_gen_scripts`, commit 1d41409) are followed here:

- `navigate`: go to random corners and junctions of the maze, one after the other, in the direction of the shortest way;
- `stitch`: go to a cell four steps away and stay there;
- `explore`: go in a random direction, another one every ten steps;
- `play`: carry out random manipulations by precomputed plans with smooth noise, or paint (Powderworld) areas, lines and
  squares with random elements, and random spots in between;
- `noisy`: carry them out by a feedback controller with noise, and random actions now and then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from counterpoint.data.episode import Array
from counterpoint.envs.goal.mazes import Cell, MazeGrid
from counterpoint.envs.goal.tasks import global_seed
from counterpoint.errors import require
from counterpoint.files import write_atomically

Kind = Literal["navigate", "stitch", "explore", "play", "noisy"]
MAZES: tuple[Kind, ...] = ("navigate", "stitch", "explore")
STITCH_STEPS, EXPLORE_STEPS = 4, 10
"""Number of cells to the goal of an episode of `stitch`, and of actions in one direction of `explore`."""
SMOOTHING, LEAST_NORM = 0.5, 0.4
"""OGBench's smoothing of a plan's noise, and the smallest action of its feedback controllers."""
NOISE = (1.0, 1.0, 1.0, 3.0, 10.0)
"""Factors of the noise on position (3), yaw and gripper in `noisy`."""
STATES = ("qpos", "qvel", "button_states")
"""The simulator's state before a step, which the step's information holds under these names with the prefix `prev_`."""
ANT_OBSERVATION, ANT_ACTION = 29, 8
"""Numbers of an ant's observation, position included, and of its action."""
PAINTING = {"FillBehavior": 1, "LineBehavior": 3, "SquareBehavior": 3}
"""OGBench's behaviours in Powderworld, and how often each is chosen."""
STACKING = {"single": (0, 0), "double": (0, 0.25), "triple": (0.05, 0.35), "quadruple": (0.1, 0.5)}
"""Range of an episode's share of cubes that are put on others; .5 in other scenes."""


@dataclass(frozen=True)
class Protocol:
    """How OGBench recorded one data set.

    Attributes:
        env: The environment's gymnasium id.
        kind: The oracle's behaviour.
        episodes: Number of training episodes; a tenth more for validation.
        steps: Number of rows of an episode, one more than its transitions.
        noise: Standard deviation of the noise on actions.
        random: Share of random actions.
    """

    env: str
    kind: Kind
    episodes: int = 1000
    steps: int = 1001
    noise: float = 0.1
    random: float = 0.0

    @property
    def in_maze(self) -> bool:
        """True for mazes, False for manipulation."""
        return self.kind in MAZES

    @property
    def paints(self) -> bool:
        """True for Powderworld, whose observations are images and whose actions are discrete."""
        return self.env.startswith("powderworld")

    @property
    def walks(self) -> bool:
        """True for ants, whose legs need an expert."""
        return self.env.startswith("ant")


def recorded(env: Any, protocol: Protocol, seed: int, walker: Walker | None = None) -> dict[str, Array]:
    """Record an episode: `observations`, `actions`, `qpos`, `qvel` and, of scenes with buttons, `button_states`.

    OGBench draws from NumPy's global generator; it is seeded by the episode, and its state is restored. An ant walks
    by `walker`. Powderworld has images, uint8, and numbers of actions, int32.
    """
    rows: dict[str, list[Any]] = defaultdict(list)
    kinds: dict[str, Any] = {"button_states": np.int64}
    kinds |= {"observations": np.uint8, "actions": np.int32} if protocol.paints else {}
    with global_seed(seed):
        oracle = _oracle(env, protocol, walker)
        observation, info = env.reset(seed=seed, options=oracle.scene())
        oracle.begin(observation, info)
        over = False
        while not over:
            action = oracle.act(observation, info)
            following, _, terminated, truncated, info = env.step(action)
            over = terminated or truncated
            oracle.after(info)
            rows["observations"].append(observation)
            rows["actions"].append(action)
            for name in STATES:
                if f"prev_{name}" in info:
                    rows[name].append(info[f"prev_{name}"])
            observation = following
    return {name: np.array(some, kinds.get(name, np.float32)) for name, some in rows.items()}


def _oracle(env: Any, protocol: Protocol, walker: Walker | None) -> MazeOracle | ManipulationOracle | PaintingOracle:
    if protocol.in_maze:
        return MazeOracle(env, protocol, walker)
    return PaintingOracle(env, protocol) if protocol.paints else ManipulationOracle(env, protocol)


@dataclass(frozen=True)
class Walker:
    """A policy that walks in a given direction: perceptron layers with GELU between them, and tanh at the end.

    Attributes:
        layers: Weights [out, in] and biases [out]; the input is posture and speed without the position, then the
            direction [2].
    """

    layers: tuple[tuple[Array, Array], ...]

    def __call__(self, observation: Array, direction: Array) -> Array:
        """Return the action for an observation that begins with the position (x, y)."""
        x = np.concatenate([observation[2:], direction])
        for number, (weight, bias) in enumerate(self.layers):
            x = weight @ (_gelu(x) if number else x) + bias
        return np.asarray(np.tanh(x))

    def save(self, path: Path) -> None:
        """Write the layers as safetensors."""
        names = ("weight", "bias")
        arrays = {f"{n}.{name}": a for n, one in enumerate(self.layers) for name, a in zip(names, one, strict=True)}
        write_atomically(path, save(arrays))


@cache
def load_walker(path: Path) -> Walker:
    """Read a file that `Walker.save` wrote.

    Raises:
        BadInputError: If the file is missing, or does not hold the layers of an ant's expert.
    """
    expected, hint = "the layers of an ant's expert", "train one by `python -m studies.ant_expert`"
    require(path.is_file(), path, "no file", expected, hint)
    try:
        arrays = load(path.read_bytes())
        layers = tuple((arrays[f"{n}.weight"], arrays[f"{n}.bias"]) for n in range(len(arrays) // 2))
        walker = Walker(layers)
        fits = walker(np.zeros(ANT_OBSERVATION), np.zeros(2)).shape == (ANT_ACTION,)
    except (SafetensorError, KeyError, ValueError):
        fits = False
    require(fits, path, "other contents", expected, hint)
    return walker


def _gelu(x: Array) -> Array:
    """Return GELU in the form with tanh, as in JAX."""
    return np.asarray(x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


class MazeOracle:
    """Goes to cells of a maze along the shortest way, in the direction of the next cell.

    Args:
        env: The maze.
        protocol: The behaviour and the noise.
        walker: An ant's policy for a direction; a point's action is the direction itself.
    """

    def __init__(self, env: Any, protocol: Protocol, walker: Walker | None = None) -> None:
        self.env, self.protocol, self.walker = env.unwrapped, protocol, walker
        self.grid = MazeGrid(tuple(map(tuple, self.env.maze_map)))
        self.junctions = [cell for cell in self.grid.free if not _in_corridor(self.env.maze_map, cell)]

    def scene(self) -> dict[str, Any]:
        """Draw the start and the first goal."""
        start, goals = _any(self.grid.free), self.junctions
        if self.protocol.kind == "stitch":
            away = self.grid.distances(start, neighbours=_around)
            goals = [cell for cell, steps in away.items() if steps == STITCH_STEPS] or [start]
        return {"task_info": {"init_ij": start, "goal_ij": _any(goals)}}

    def begin(self, observation: Array, info: Mapping[str, Any]) -> None:
        """Begin an episode."""
        self.steps = 0

    def act(self, observation: Array, info: Mapping[str, Any]) -> Array:
        """Return the action that goes in the direction of the next cell, or in a random one, with noise."""
        if self.protocol.kind != "explore":
            place = self.env.get_xy()
            self.direction = self.env.get_oracle_subgoal(place, self.env.cur_goal_xy)[0] - place
        elif self.steps % EXPLORE_STEPS == 0:
            self.direction = np.random.randn(2)
        self.steps += 1
        direction = self.direction / (np.linalg.norm(self.direction) + 1e-6)
        action = self.walker(self.env.get_ob(ob_type="states"), direction) if self.walker else direction
        return np.asarray(np.clip(action + np.random.normal(0, self.protocol.noise, action.shape), -1, 1))

    def after(self, info: Mapping[str, Any]) -> None:
        """Choose another goal when one is reached, in `navigate`."""
        if info["success"] and self.protocol.kind == "navigate":
            self.env.set_goal(_any(self.junctions))


class ManipulationOracle:
    """Carries out random manipulations one after the other, by OGBench's oracle of each kind of object.

    Args:
        env: The table.
        protocol: The behaviour and the noise.
    """

    def __init__(self, env: Any, protocol: Protocol) -> None:
        self.env, self.protocol = env, protocol
        self.oracles = _oracles(env, protocol)

    def scene(self) -> None:
        """Draw nothing: the environment draws its own scene."""

    def begin(self, observation: Array, info: Mapping[str, Any]) -> None:
        """Draw the share of cubes that are stacked and, in `noisy`, the episode's noise; begin the first task."""
        size = self.protocol.env.split("-")[1]
        low, high = STACKING.get(size, (0.5, 0.5))
        self.stacking = float(np.random.uniform(low, high)) if low < high else low
        self.spread = np.random.uniform(0, self.protocol.noise) if self.protocol.kind == "noisy" else 0.0
        self._begin_task(observation, info)

    def act(self, observation: Array, info: Mapping[str, Any]) -> Array:
        """Return the oracle's action, in `noisy` with noise; or now and then a random action."""
        if np.random.rand() < self.protocol.random:
            # OGBench's own sampler of actions cannot be seeded.
            return np.asarray(np.random.uniform(-1, 1, self.env.action_space.shape))
        action = np.array(self.oracle.select_action(observation, info))
        if self.protocol.kind == "noisy":
            action = action + np.random.normal(0, self.spread * np.array(NOISE), action.shape)
        return np.asarray(np.clip(action, -1, 1))

    def after(self, info: Mapping[str, Any]) -> None:
        """Begin another task when one is done."""
        if self.oracle.done:
            self._begin_task(*self.env.unwrapped.set_new_target(p_stack=self.stacking))

    def _begin_task(self, observation: Array, info: Mapping[str, Any]) -> None:
        self.oracle = self.oracles[info["privileged/target_task"]]
        self.oracle.reset(observation, info)


class PaintingOracle:
    """Paints shapes in Powderworld, one after the other, by OGBench's behaviours.

    An element and a place make three actions: the element, its column and its row.

    Args:
        env: The world.
        protocol: The share of random elements and places.
    """

    def __init__(self, env: Any, protocol: Protocol) -> None:
        module = import_module("ogbench.powderworld.behaviors")
        self.env, self.protocol = env.unwrapped, protocol
        self.behaviours = [getattr(module, name)(env=env) for name in PAINTING]
        self.shares = np.array(list(PAINTING.values())) / sum(PAINTING.values())

    def scene(self) -> None:
        """Draw nothing: every episode begins with an empty world."""

    def begin(self, observation: Array, info: Mapping[str, Any]) -> None:
        """Begin an episode with the first shape."""
        self.steps = 0
        self._begin_shape()

    def act(self, observation: Array, info: Mapping[str, Any]) -> int:
        """Return the next third of the shape's next element and place, or of random ones."""
        if self.steps % 3 == 0 and np.random.rand() < self.protocol.random:
            self.wanted = self.env.sample_semantic_action()
        elif self.steps % 3 == 0:
            self.wanted = self.behaviour.select_action(observation, info)
        self.steps += 1
        return int(self.env.semantic_action_to_action(*self.wanted))

    def after(self, info: Mapping[str, Any]) -> None:
        """Begin another shape when one is done."""
        if self.behaviour.done:
            self._begin_shape()

    def _begin_shape(self) -> None:
        self.behaviour = self.behaviours[np.random.choice(len(PAINTING), p=self.shares)]
        self.behaviour.reset(None, None)  # it reads neither observation nor information


def _oracles(env: Any, protocol: Protocol) -> dict[str, Any]:
    """Return OGBench's oracle of each kind of object on the table."""
    family = protocol.env.split("-")[0]
    objects = {"cube": ("cube",), "puzzle": ("button",), "scene": ("cube", "button", "drawer", "window")}[family]
    module, name = ("plan", "PlanOracle") if protocol.kind == "play" else ("markov", "MarkovOracle")
    found = {}
    for each in objects:
        options: dict[str, Any] = {"min_norm": LEAST_NORM}
        if protocol.kind == "play":
            options = {"noise": protocol.noise, "noise_smoothing": SMOOTHING}
        elif family == "scene" and each == "cube":
            options["max_step"] = 100
        if family == "puzzle":
            options["gripper_always_closed"] = True
        place = import_module(f"ogbench.manipspace.oracles.{module}.{each}_{module}")
        found[each] = getattr(place, f"{each.capitalize()}{name}")(env=env, **options)
    return found


def _any(cells: Sequence[Cell]) -> Cell:
    return cells[np.random.randint(len(cells))]


def _in_corridor(walls: Array, cell: Cell) -> bool:
    """Return whether a cell has free neighbours on two opposite sides and walls on the other two."""
    i, j = cell
    up, down, left, right = (bool(walls[at]) for at in ((i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)))
    return (not up and not down and left and right) or (not left and not right and up and down)


def _around(cell: Cell) -> list[Cell]:
    """Return the four neighbours of a cell in OGBench's order, on which the drawn goals depend."""
    i, j = cell
    return [(i - 1, j), (i, j - 1), (i + 1, j), (i, j + 1)]
