"""An expert that needs no training: it plans with the true dynamics before every action.

The planner is `MPPI`, which simulates plans with `mujoco.rollout`. A plan's score is the sum of rewards over the
horizon.

Each reward function computes the same as its task's `get_reward` in dm_control 1.0.28, for whole batches of rollouts.
Positions and axes that the suite reads from the physics come from sensors added to the planner's copy of the model. A
reward that is zero almost everywhere (sparse) cannot distinguish plans. For tasks with such a reward, `GUIDES` adds a
guide to the planner's score: a small smooth term that grows towards the goal. Returns do not include it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.dmc.env import ACTION_REPEAT, DMCEnv
from counterpoint.envs.rendering import import_mujoco
from counterpoint.planning.shooting import MPPI, MPPIConfig

SENSORS: dict[str, dict[str, tuple[str, str, str]]] = {
    "acrobot": {"tip": ("FRAMEPOS", "SITE", "tip"), "target": ("FRAMEPOS", "SITE", "target")},
    "ball_in_cup": {"ball": ("FRAMEPOS", "XBODY", "ball"), "target": ("FRAMEPOS", "SITE", "target")},
    "cheetah": {},
    "dog": {
        "torso": ("FRAMEPOS", "XBODY", "torso"),
        "pelvis": ("FRAMEPOS", "XBODY", "pelvis"),
        "torso_x": ("FRAMEXAXIS", "XBODY", "torso"),
        "torso_z": ("FRAMEZAXIS", "XBODY", "torso"),
        "pelvis_z": ("FRAMEZAXIS", "XBODY", "pelvis"),
        "skull_z": ("FRAMEZAXIS", "XBODY", "skull"),
    },
    "finger": {},
    "hopper": {"torso": ("FRAMEPOS", "BODY", "torso"), "foot": ("FRAMEPOS", "BODY", "foot")},
    "humanoid": {"head": ("FRAMEPOS", "XBODY", "head"), "torso_z": ("FRAMEZAXIS", "XBODY", "torso")},
    "quadruped": {"torso_z": ("FRAMEZAXIS", "XBODY", "torso")},
    "reacher": {"finger": ("FRAMEPOS", "GEOM", "finger"), "target": ("FRAMEPOS", "GEOM", "target")},
    "walker": {"torso": ("FRAMEPOS", "XBODY", "torso"), "torso_z": ("FRAMEZAXIS", "XBODY", "torso")},
}
"""Domain -> name of an added sensor -> its kind, kind of object and object.

An object BODY is a body's centre of mass, XBODY is the body's frame.
"""


@dataclass(frozen=True, slots=True)
class Readings:
    """Sensor readings after control steps of several rollouts.

    Attributes:
        positions: For each sensor, positions and velocities after each control step, float64 [B, T, n].
        forces: For each sensor, contact forces in the last simulation step of each control step, float64 [B, T, n].
        controls: Executed controls, float64 [B, T, A].
        model: The planner's `mujoco.MjModel`, with this episode's targets.
        task: The suite's task, with this episode's constants.
    """

    positions: Callable[[str], Any]
    forces: Callable[[str], Any]
    controls: Array
    model: Any
    task: Any

    def gap(self, one: str, other: str, axes: Any = slice(None)) -> Any:
        """Return the distance between the positions of two sensors, along the given axes: float64 [B, T]."""
        return np.linalg.norm(self.positions(one)[..., axes] - self.positions(other)[..., axes], axis=-1)

    @property
    def speed(self) -> Any:
        """The torso's forward velocity: float64 [B, T]."""
        return self.positions("torso_subtreelinvel")[..., 0]


Reward = Callable[[Readings], Any]
_MOST = float("inf")


def _tolerance(*arguments: Any, **options: Any) -> Any:
    from dm_control.utils.rewards import tolerance

    return tolerance(*arguments, **options)


def _little_control(seen: Readings) -> Any:
    little = _tolerance(seen.controls, margin=1, value_at_margin=0, sigmoid="quadratic")
    return (little.mean(axis=-1) + 4) / 5


def _at_least(value: Any, least: float, margin: float, *, at_margin: float = 0.0) -> Any:
    """Return 1 for values of at least `least`; below, the result falls linearly to `at_margin` at `least - margin`."""
    return _tolerance(value, bounds=(least, _MOST), margin=margin, value_at_margin=at_margin, sigmoid="linear")


def _fast(speed: Any, wanted: float) -> Any:
    return _at_least(speed, wanted, wanted / 2, at_margin=0.5)


def _acrobot(seen: Readings) -> Any:
    return _tolerance(seen.gap("target", "tip"), bounds=(0, seen.model.site("target").size[0]), margin=1)


def _finger_gap(seen: Readings) -> Any:
    """Return the distance in metres from the spinner's tip to the target's rim; negative inside the target."""
    return seen.gap("target", "tip", [0, 2]) - float(seen.model.site("target").size[0])


def _hopper_upright(seen: Readings, **options: Any) -> Any:
    height = seen.positions("torso")[..., 2] - seen.positions("foot")[..., 2]
    return _tolerance(height, (0.6, 2), **options)


def _walker(seen: Readings, wanted: float) -> Any:
    standing = _tolerance(seen.positions("torso")[..., 2], bounds=(1.2, _MOST), margin=0.6)
    upright = (1 + seen.positions("torso_z")[..., 2]) / 2
    stand = (3 * standing + upright) / 4
    return stand if wanted == 0 else stand * (5 * _fast(seen.speed, wanted) + 1) / 6


def _humanoid(seen: Readings, wanted: float) -> Any:
    standing = _tolerance(seen.positions("head")[..., 2], bounds=(1.4, _MOST), margin=0.35)
    upright = _at_least(seen.positions("torso_z")[..., 2], 0.9, 1.9)
    velocity = seen.positions("torso_subtreelinvel")[..., :2]
    moving = _tolerance(velocity, margin=2).mean(axis=-1)
    if wanted > 0:
        moving = (5 * _at_least(np.linalg.norm(velocity, axis=-1), wanted, wanted) + 1) / 6
    return _little_control(seen) * standing * upright * moving


def _dog(seen: Readings, wanted: float) -> Any:
    cosine = float(np.cos(np.deg2rad(30)))
    value: Any = np.ones(seen.controls.shape[:2])
    for body, height in zip(("torso", "pelvis"), seen.task._stand_height, strict=True):
        value = value * _tolerance(seen.positions(body)[..., 2], bounds=(height, _MOST), margin=float(height))
    for axis in ("skull_z", "torso_z", "pelvis_z"):
        value = value * _at_least(seen.positions(axis)[..., 2], cosine, cosine + 1)
    weight = float(seen.task._body_weight)
    feet = [seen.forces(foot) for foot in ("palm_L", "palm_R", "sole_L", "sole_R")]
    value = value * _at_least(np.concatenate(feet, axis=-1).sum(axis=-1), weight, weight, at_margin=0.9)
    if wanted > 0:
        forward = (seen.positions("torso_linvel") * seen.positions("torso_x")).sum(axis=-1)
        bounds, margin = (wanted, 2 * wanted), max(1.0, wanted)
        moving = _tolerance(forward, bounds=bounds, margin=margin, value_at_margin=0, sigmoid="linear")
        value = value * (4 * moving + 1) / 5
    return value


def _cup(seen: Readings) -> Any:
    away = np.abs(seen.positions("target") - seen.positions("ball"))[..., [0, 2]]
    room = seen.model.site("target").size[[0, 2]] - seen.model.geom("ball").size[0]
    return (away < room).all(axis=-1).astype(np.float64)


def _reacher(seen: Readings, **options: Any) -> Any:
    near = float(seen.model.geom("target").size[0] + seen.model.geom("finger").size[0])
    return _tolerance(seen.gap("target", "finger", slice(2)), (0, near), **options)


def _quadruped(seen: Readings, wanted: float) -> Any:
    moving = _at_least(seen.positions("velocimeter")[..., 0], wanted, wanted, at_margin=0.5)
    return _at_least(seen.positions("torso_z")[..., 2], 1, 2) * moving


REWARDS: dict[str, Reward] = {
    "acrobot-swingup": _acrobot,
    "finger-turn_hard": lambda seen: (_finger_gap(seen) <= 0).astype(np.float64),
    "finger-spin": lambda seen: (seen.positions("hinge_velocity")[..., 0] <= -15.0).astype(np.float64),
    "hopper-stand": lambda seen: _hopper_upright(seen) * _little_control(seen),
    "hopper-hop": lambda seen: _hopper_upright(seen) * _fast(seen.speed, 2.0),
    "walker-stand": partial(_walker, wanted=0),
    "walker-walk": partial(_walker, wanted=1),
    "walker-run": partial(_walker, wanted=8),
    "humanoid-stand": partial(_humanoid, wanted=0),
    "humanoid-walk": partial(_humanoid, wanted=1),
    "dog-stand": partial(_dog, wanted=0),
    "dog-walk": partial(_dog, wanted=1),
    "dog-trot": partial(_dog, wanted=3),
    "cup-catch": _cup,
    "reacher-hard": _reacher,
    "cheetah-run": lambda seen: _at_least(seen.speed, 10, 10),
    "quadruped-walk": partial(_quadruped, wanted=0.5),
    "quadruped-run": partial(_quadruped, wanted=5),
}
"""Task -> its reward, a function from `Readings` of B rollouts and T control steps to float64 [B, T] in [0, 1]."""


def _hopper_guide(seen: Readings) -> Any:
    return 0.3 * _hopper_upright(seen, margin=0.6, value_at_margin=0, sigmoid="linear")


GUIDES: dict[str, Reward] = {
    "acrobot-swingup": lambda seen: 0.2 * (1 - seen.gap("target", "tip") / 4),
    "finger-turn_hard": lambda seen: 0.3 * _tolerance(_finger_gap(seen), (-_MOST, 0), margin=0.3, sigmoid="long_tail"),
    "finger-spin": lambda seen: 0.3 * np.clip(-seen.positions("hinge_velocity")[..., 0] / 15, -1, 1),
    "hopper-stand": _hopper_guide,
    "hopper-hop": lambda seen: _hopper_guide(seen) * (1 + _fast(seen.speed, 2.0)),
    "cup-catch": lambda seen: 0.2 * _tolerance(seen.gap("target", "ball"), margin=0.3, sigmoid="long_tail"),
    "reacher-hard": lambda seen: 0.3 * _reacher(seen, margin=0.1, sigmoid="long_tail"),
}
"""Task -> its guide, which the planner adds to the reward of a control step: float64 [B, T], at most 0.6."""

_PREFIX = "planner_"
# Parts of the model that tasks change when an episode begins: targets, their sizes, one joint's damping.
_CHANGING = ("site_pos", "site_size", "geom_pos", "geom_size", "dof_damping")


class TrueModel:
    """The true dynamics of a task: rolls out many plans in parallel from the task's current state.

    The rollouts use a copy of the task's model with a few more sensors. Sensors do not influence the simulation, so a
    plan gets the same reward in the environment.

    Args:
        env: The task; its state does not change.
        threads: Number of threads that simulate; 1 uses the calling thread.
    """

    def __init__(self, env: DMCEnv, *, threads: int = 1) -> None:
        self._mujoco = import_mujoco()
        from mujoco import rollout

        self._env = env
        self._reward, self._guide = REWARDS[env.task.name], GUIDES.get(env.task.name)
        self.model = _with_sensors(self._mujoco, env)
        self._steps = int(env.environment._n_sub_steps)  # simulation steps per control step
        self._pool = rollout.Rollout(nthread=0 if threads == 1 else threads)  # the threads end when this is freed
        self._data = [self._mujoco.MjData(self.model) for _ in range(threads)]
        sensors = map(self.model.sensor, range(self.model.nsensor))
        self._places = {sensor.name: slice(sensor.adr[0], sensor.adr[0] + sensor.dim[0]) for sensor in sensors}

    def rewards(self, plans: Array) -> tuple[Array, Array]:
        """Return the suite's rewards and the planner's guides for plans that start in the task's current state.

        Args:
            plans: B plans of H actions, float [B, H, A] in [-1, 1]; each action is held for two control steps.

        Returns:
            Rewards and guides, each float64 [B, H], summed over an action's control steps.
        """
        seen = self._roll(np.repeat(np.asarray(plans, np.float64), ACTION_REPEAT, axis=1))
        reward = self._reward(seen)
        guide = self._guide(seen) if self._guide is not None else np.zeros_like(reward)
        shape = (len(plans), plans.shape[1], ACTION_REPEAT)
        return reward.reshape(shape).sum(axis=2), guide.reshape(shape).sum(axis=2)

    def _roll(self, controls: Array) -> Readings:
        mujoco, physics, steps = self._mujoco, self._env.physics, self._steps
        true, data = physics.model.ptr, physics.data.ptr
        for name in _CHANGING:
            getattr(self.model, name)[:] = getattr(true, name)
        kind = mujoco.mjtState.mjSTATE_FULLPHYSICS
        state = np.empty(mujoco.mj_stateSize(true, kind))
        mujoco.mj_getState(true, data, state, kind)
        # Position sensors lag one simulation step behind the state. So one more simulation step is needed to read the
        # positions at the end of the last control step.
        held = np.repeat(controls, steps, axis=1)
        held = np.concatenate([held, held[:, -1:]], axis=1)
        warm = np.array(data.qacc_warmstart)
        _, sensors = self._pool.rollout(self.model, self._data, state[None], held, initial_warmstart=warm[None])
        after, last, places = sensors[:, steps::steps], sensors[:, steps - 1 : -1 : steps], self._places
        return Readings(
            lambda name: after[..., places.get(_PREFIX + name) or places[name]],
            lambda name: last[..., places[name]],
            controls,
            self.model,
            self._env.environment.task,
        )


def _with_sensors(mujoco: Any, env: DMCEnv) -> Any:
    """Compile the task's model with the sensors that its reward reads."""
    domain = env.task.domain
    suite = importlib.import_module(f"dm_control.suite.{domain}")
    if domain == "quadruped":  # without the terrain and ball of other tasks
        text, assets = suite.make_model(), suite.common.ASSETS
    else:
        text, assets = suite.get_model_and_assets()
    text = text if isinstance(text, str) else text.decode()
    spec = mujoco.MjSpec.from_string(text, include=assets, assets=assets)
    for name, (sensor, kind, target) in SENSORS[domain].items():
        of = {"objtype": getattr(mujoco.mjtObj, f"mjOBJ_{kind}"), "objname": target}
        spec.add_sensor(name=_PREFIX + name, type=getattr(mujoco.mjtSensor, f"mjSENS_{sensor}"), **of)
    return spec.compile()


SETTINGS: dict[str, MPPIConfig] = {
    "acrobot-swingup": MPPIConfig(horizon=75, samples=64, knots=12),
    "finger-spin": MPPIConfig(horizon=10, knots=10, samples=64, rounds=2, noise=3.0),
    "hopper-stand": MPPIConfig(horizon=30, knots=15, samples=64, noise=3.0),
    "hopper-hop": MPPIConfig(horizon=30, knots=15, samples=64, noise=3.0),
    "cheetah-run": MPPIConfig(horizon=30),
    "walker-stand": MPPIConfig(horizon=16),
    "walker-walk": MPPIConfig(horizon=16),
    "walker-run": MPPIConfig(horizon=16),
}
"""Task -> its planner settings that differ from the defaults.

Horizons differ because swinging up an acrobot takes seconds, while an action of the cheetah lasts 1/50 s. The noise is
large for the hopper and the spinning finger, which need plans whose actions use the whole range.
"""


def planner_config(task: str) -> MPPIConfig:
    """Return the settings of a task's expert."""
    return SETTINGS.get(task, MPPIConfig())


class Planner(MPPI):
    """A controller that chooses a task's actions by planning with its true dynamics.

    Args:
        env: The task; planning does not change its state.
        config: Settings; by default the task's.
        threads: Number of threads that simulate.
    """

    def __init__(self, env: DMCEnv, config: MPPIConfig | None = None, *, threads: int = 1) -> None:
        self._model = TrueModel(env, threads=threads)
        super().__init__(self._value, env.action_dim, config or planner_config(env.task.name))

    def _value(self, plans: Array) -> Array:
        rewards, guides = self._model.rewards(plans)
        return np.asarray((rewards + guides).sum(axis=1))
