"""Record OGBench's data sets without a download: `counterpoint collect ogbench --dataset cube-single-play`.

Park et al., "OGBench: Benchmarking Offline Goal-Conditioned RL", ICLR 2025; numbers of episodes, lengths and noise are
those of its repository's `data_gen_scripts/commands.sh` (commit 1d41409). The package `ogbench` holds the environments
and the oracles; the scripts, which drive them, are followed here:

- `navigate`: go to random corners and junctions of the maze, one after the other, in the direction of the shortest way;
- `stitch`: go to a cell four steps away and stay there;
- `explore`: go in a random direction, another one every ten steps;
- `play`: carry out random manipulations by precomputed plans with smooth noise;
- `noisy`: carry them out by a feedback controller with noise, and random actions now and then.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Self

import gymnasium
import numpy as np
from pydantic import Field, field_validator, model_validator
from safetensors import SafetensorError
from safetensors.numpy import load, save

from counterpoint.data.episode import Array
from counterpoint.envs.collect import CollectConfig, Collection, Slot, collect
from counterpoint.envs.goal.mazes import Cell, MazeGrid
from counterpoint.envs.goal.tasks import PREFIX, global_seed, remove_model_file
from counterpoint.envs.recording import NOTE, Recording, Staging
from counterpoint.envs.rendering import import_mujoco
from counterpoint.errors import import_extra, require, suggestion
from counterpoint.files import Beside, write_atomically
from counterpoint.parameter_types import File

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
    def walks(self) -> bool:
        """True for ants, whose legs need an expert."""
        return self.env.startswith("ant")


def _protocols() -> dict[str, Protocol]:
    found = {}
    for maze in ("medium", "large", "giant", "teleport"):
        env, long = f"pointmaze-{maze}", maze == "giant"
        found[f"{env}-navigate"] = Protocol(f"{env}-v0", "navigate", 500 if long else 1000, 2001 if long else 1001, 0.5)
        found[f"{env}-stitch"] = Protocol(f"{env}-v0", "stitch", 5000, 201, 0.5)
        ant = f"antmaze-{maze}"
        found[f"{ant}-navigate"] = Protocol(f"{ant}-v0", "navigate", 500 if long else 1000, 2001 if long else 1001, 0.2)
        found[f"{ant}-stitch"] = Protocol(f"{ant}-v0", "stitch", 5000, 201, 0.2)
        if not long:
            found[f"{ant}-explore"] = Protocol(f"{ant}-v0", "explore", 10_000, 501, 1.0)
    sizes = {"cube-single": 1000, "cube-double": 1000, "cube-triple": 3000, "cube-quadruple": 5000, "scene": 1000}
    sizes |= {"puzzle-3x3": 1000, "puzzle-4x4": 1000, "puzzle-4x5": 3000, "puzzle-4x6": 5000}
    for env, episodes in sizes.items():
        found[f"{env}-play"] = Protocol(f"{env}-v0", "play", episodes)
        share = 0.2 if env.startswith("puzzle") else 0.1
        found[f"{env}-noisy"] = Protocol(f"{env}-v0", "noisy", episodes, random=share)
    return found


PROTOCOLS: Mapping[str, Protocol] = _protocols()
"""OGBench's data sets of states by name."""


class OGBenchCollect(CollectConfig):
    """The settings of `collect ogbench`; see `CollectConfig`.

    Attributes:
        out: The folder to write, with `DATASET-v0.npz`, `DATASET-v0-val.npz` and `collect.json`.
        dataset: OGBench's name without its version, such as `cube-single-play` or `pointmaze-medium-stitch`.
        episodes: Number of training episodes; by default OGBench's.
        val_episodes: Number of validation episodes; by default a tenth of the training episodes.
        noise: Standard deviation of the noise on actions; by default OGBench's.
        steps: Number of rows of an episode, one more than its transitions; by default OGBench's.
        expert: For an ant, the file of its expert, as `python -m studies.ant_expert` writes it.
    """

    dataset: str
    expert: File = None
    val_episodes: int | None = Field(default=None, ge=0)  # type: ignore[assignment]
    noise: float | None = Field(default=None, ge=0, le=10)  # type: ignore[assignment]
    steps: int | None = Field(default=None, ge=2)
    episodes: int | None = Field(default=None, ge=0)

    @field_validator("dataset")
    @classmethod
    def _known(cls, dataset: str) -> str:
        if dataset not in PROTOCOLS:
            raise ValueError(f"one of {', '.join(PROTOCOLS)}; {suggestion(dataset, PROTOCOLS)}".rstrip("; "))
        return dataset

    @model_validator(mode="after")
    def _an_ant_has_an_expert(self) -> Self:
        if self.protocol.walks != (self.expert is not None):
            other = "leave it out" if self.expert else "train one by `python -m studies.ant_expert`"
            raise ValueError(f"{self.dataset} needs {'an' if self.protocol.walks else 'no'} --expert: {other}")
        return self

    @model_validator(mode="before")
    @classmethod
    def _as_ogbench(cls, given: Any) -> Any:
        """Fill what is not given with OGBench's values."""
        protocol, own = PROTOCOLS.get(str(given.get("dataset"))), {k: v for k, v in given.items() if v is not None}
        if protocol is None:
            return own
        episodes = own.get("episodes", protocol.episodes)
        filled = {"episodes": episodes, "noise": protocol.noise, "steps": protocol.steps}
        return filled | {"val_episodes": int(episodes) // 10} | own

    @property
    def protocol(self) -> Protocol:
        """OGBench's protocol of the data set, with this configuration's noise and length."""
        known = PROTOCOLS[self.dataset]
        return replace(known, noise=self.noise or 0.0, steps=self.steps or known.steps)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The only task of the data set: the environment's name."""
        return (self.protocol.env,)


def collect_ogbench(config: OGBenchCollect) -> Path:
    """Record one of OGBench's data sets by its published protocol, in its own file format.

    `--data OUT/DATASET-v0.npz` reads the files. Time on two cores: half an hour for a million transitions of cube,
    scene or puzzle. Disk: about 0.2 GB, and as much again until the recording is complete.

    Raises:
        BadInputError: If the folder holds anything but this data set, or the data set is unknown.
        MissingExtraError: If OGBench is not installed.
    """
    import_mujoco()
    import_extra(PREFIX, "sim")
    return collect(_OGBenchCollection(config))


class _OGBenchCollection(Collection):
    config: OGBenchCollect
    packages = ("ogbench", "mujoco", "numpy")
    remedy = ("noise", "episodes in which the cube stays in sight", "less noise")

    @property
    def fps(self) -> float:
        return 10.0  # the files record no rate

    def make(self, task: str) -> Any:
        import_mujoco()
        import_extra(PREFIX, "sim")  # registers the environments
        protocol = self.config.protocol
        if self.config.expert:
            load_walker(self.config.expert)  # a wrong file is refused before anything is recorded
        options: dict[str, Any] = {} if protocol.in_maze else {"mode": "data_collection"}
        env = gymnasium.make(task, terminate_at_goal=False, max_episode_steps=protocol.steps, **options)
        remove_model_file(env)
        return env

    def record(self, env: Any, slot: Slot, seed: int) -> Recording | None:
        """Record one episode; drop it if the cube of `scene` leaves the camera's view, as OGBench does."""
        expert = self.config.expert
        arrays = recorded(env, self.config.protocol, seed, load_walker(expert) if expert else None)
        if slot.task.startswith("scene") and not cube_in_sight(arrays["qpos"]):
            return None
        state, actions = arrays.pop("observations"), arrays.pop("actions")
        return Recording(actions, state, np.zeros(len(actions), np.float32), None, extra=arrays)

    def assemble(self, staging: Staging, folder: Path, info: dict[str, Any]) -> None:
        """Write the two files in OGBench's format."""
        splits = info["episodes"]["split"]
        with Beside(folder) as beside:
            made = Path(beside) / folder.name
            made.mkdir()
            for split, ending in (("train", ""), ("val", "-val")):
                episodes = [staging.arrays(place) for place, own in enumerate(splits) if own == split]
                if episodes:
                    np.savez_compressed(made / f"{self.config.dataset}-v0{ending}.npz", **_columns(episodes))  # type: ignore[arg-type]
            (made / NOTE).write_text(json.dumps(info, indent=2))
            made.rename(folder)


def _columns(episodes: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Return the columns of OGBench's file for episodes one after the other."""
    names = [name for name in episodes[0] if name not in ("state", "rewards")]
    columns = {"observations": np.concatenate([episode["state"] for episode in episodes])}
    columns |= {name: np.concatenate([episode[name] for episode in episodes]) for name in names}
    ends = np.cumsum([len(episode["actions"]) for episode in episodes])
    terminals = np.zeros(ends[-1], bool)
    terminals[ends - 1] = True
    return columns | {"terminals": terminals}


def recorded(env: Any, protocol: Protocol, seed: int, walker: Walker | None = None) -> dict[str, Array]:
    """Record an episode: `observations`, `actions`, `qpos`, `qvel` and, of scenes with buttons, `button_states`.

    OGBench draws from NumPy's global generator; it is seeded by the episode, and its state is restored. An ant walks
    by `walker`.
    """
    rows: dict[str, list[Any]] = defaultdict(list)
    oracle: MazeOracle | ManipulationOracle
    with global_seed(seed):
        oracle = MazeOracle(env, protocol, walker) if protocol.in_maze else ManipulationOracle(env, protocol)
        observation, info = env.reset(seed=seed, options=oracle.scene())
        oracle.begin(observation, info)
        over = False
        while not over:
            action = np.clip(oracle.act(observation, info), -1, 1)
            following, _, terminated, truncated, info = env.step(action)
            over = terminated or truncated
            oracle.after(info)
            rows["observations"].append(observation)
            rows["actions"].append(action)
            for name in STATES:
                if f"prev_{name}" in info:
                    rows[name].append(info[f"prev_{name}"])
            observation = following
    return {name: np.array(some, np.int64 if name == "button_states" else np.float32) for name, some in rows.items()}


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
        return np.asarray(action + np.random.normal(0, self.protocol.noise, action.shape))

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
        return action

    def after(self, info: Mapping[str, Any]) -> None:
        """Begin another task when one is done."""
        if self.oracle.done:
            self._begin_task(*self.env.unwrapped.set_new_target(p_stack=self.stacking))

    def _begin_task(self, observation: Array, info: Mapping[str, Any]) -> None:
        self.oracle = self.oracles[info["privileged/target_task"]]
        self.oracle.reset(observation, info)


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


def cube_in_sight(qpos: Array) -> bool:
    """Return whether the cube of `scene` stays in view, or in the drawer; OGBench drops other episodes."""
    _, y, z = qpos[:, 14:17].T
    return not ((y >= 0.29).any() or ((y <= -0.3) & ((z < 0.06) | (z > 0.08))).any())
