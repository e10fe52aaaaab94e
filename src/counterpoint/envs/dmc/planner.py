"""An expert that needs no training: it plans with the true dynamics before every action.

Model predictive path integral control (Williams et al. 2017, arXiv 1707.02342) over `mujoco.rollout`. Plans of H
actions are sampled about the last plan, shifted by the action that was carried out; the new plan is their mean,
weighted by their rewards::

    w_i = softmax_i( (R_i - mean R) / (temperature * std R) )        plan = sum_i w_i plan_i

R is the sum of rewards over the horizon, plus the task's guide where the reward is sparse. Dividing by the spread of R
makes one temperature do for all tasks. Disturbances are smooth: sampled at a few knots, linear in between, each plan
with a size of its own between a twentieth and all of `noise`, so that one round searches near and far.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from pydantic import Field

from counterpoint.config import FrozenConfig
from counterpoint.data.episode import Array
from counterpoint.envs.dmc.env import ACTION_REPEAT, DMCEnv
from counterpoint.envs.dmc.rewards import GUIDES, REWARDS, SENSORS, Readings
from counterpoint.envs.rendering import import_mujoco

_PREFIX = "planner_"
# What tasks change in their model when an episode begins: targets, their sizes, one joint's damping.
_CHANGING = ("site_pos", "site_size", "geom_pos", "geom_size", "dof_damping")


class TrueModel:
    """The true dynamics of a task: rolls many plans out from its present state, at once.

    The rollouts use a copy of the task's model with a few more sensors. Sensors do not act on the simulation, so that
    a plan brings in the environment what it brought here.

    Args:
        env: The task; its state does not change.
        threads: Threads that simulate; 1 uses the calling thread.
    """

    def __init__(self, env: DMCEnv, *, threads: int = 1) -> None:
        self._mujoco = import_mujoco()
        from mujoco import rollout

        self._env = env
        self._reward, self._guide = REWARDS[env.task.name], GUIDES.get(env.task.name)
        self.model = _with_sensors(self._mujoco, env)
        self._steps = int(env.environment._n_sub_steps)  # simulation steps a control step
        self._pool = rollout.Rollout(nthread=0 if threads == 1 else threads)
        self._data = [self._mujoco.MjData(self.model) for _ in range(threads)]
        self._places = {
            self.model.sensor(number).name: slice(first, first + dim)
            for number, (first, dim) in enumerate(zip(self.model.sensor_adr, self.model.sensor_dim, strict=True))
        }

    def rewards(self, plans: Array) -> tuple[Array, Array]:
        """Return the suite's rewards and the planner's guides that plans bring from the task's present state.

        Args:
            plans: float [B, H, A] in [-1, 1]: H actions, each held for two control steps.

        Returns:
            Both float64 [B, H], summed over an action's control steps.
        """
        seen = self._roll(np.repeat(np.asarray(plans, np.float64), ACTION_REPEAT, axis=1))
        reward = self._reward(seen)
        guide = self._guide(seen) if self._guide is not None else np.zeros_like(reward)
        shape = (len(plans), plans.shape[1], ACTION_REPEAT)
        return reward.reshape(shape).sum(axis=2), guide.reshape(shape).sum(axis=2)

    def close(self) -> None:
        """Stop the threads."""
        self._pool.close()

    def _roll(self, controls: Array) -> Readings:
        mujoco, physics, steps = self._mujoco, self._env.physics, self._steps
        true, data = physics.model.ptr, physics.data.ptr
        for name in _CHANGING:
            getattr(self.model, name)[:] = getattr(true, name)
        kind = mujoco.mjtState.mjSTATE_FULLPHYSICS
        state = np.empty(mujoco.mj_stateSize(true, kind))
        mujoco.mj_getState(true, data, state, kind)
        # Sensors of positions lag one simulation step behind the state: one more shows the last control step's end.
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
    for name, (kind, object_kind, target) in SENSORS[domain].items():
        sensor = spec.add_sensor()
        sensor.name = _PREFIX + name
        sensor.type = getattr(mujoco.mjtSensor, f"mjSENS_{kind}")
        sensor.objtype = getattr(mujoco.mjtObj, f"mjOBJ_{object_kind}")
        sensor.objname = target
    return spec.compile()


class PlannerConfig(FrozenConfig):
    """The effort and the reach of a planner.

    Attributes:
        horizon: H, actions ahead.
        samples: Plans a round.
        rounds: Rounds of sampling and averaging before each action.
        knots: Knots of the disturbances; the more, the jerkier.
        noise: Largest standard deviation of the disturbances, in action units.
        temperature: Temperature of the weights, in standard deviations of R; 0.1 follows the best plan or two.
    """

    horizon: int = Field(default=20, ge=1)
    samples: int = Field(default=32, ge=2)
    rounds: int = Field(default=1, ge=1)
    knots: int = Field(default=6, ge=1)
    noise: float = Field(default=1.0, gt=0)
    temperature: float = Field(default=0.1, gt=0)


SETTINGS: dict[str, PlannerConfig] = {
    "acrobot-swingup": PlannerConfig(horizon=75, samples=64, knots=12),
    "cheetah-run": PlannerConfig(horizon=30),
    "walker-stand": PlannerConfig(horizon=16),
    "walker-walk": PlannerConfig(horizon=16),
    "walker-run": PlannerConfig(horizon=16),
}
"""Task -> settings that differ from the defaults: swinging up takes seconds, a cheetah's action a fiftieth of one."""


def planner_config(task: str) -> PlannerConfig:
    """Return the settings of a task's expert."""
    return SETTINGS.get(task, PlannerConfig())


class Planner:
    """Chooses actions for a task by planning.

    Args:
        env: The task; planning does not change its state.
        config: Settings; the task's own by default.
        threads: Threads that simulate.
    """

    def __init__(self, env: DMCEnv, config: PlannerConfig | None = None, *, threads: int = 1) -> None:
        self.config = config or planner_config(env.task.name)
        self._model = TrueModel(env, threads=threads)
        self._shape = (self.config.horizon, env.action_dim)
        self._basis = _linear(self.config.horizon, self.config.knots)
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Forget the plan and begin with the random numbers of a seed."""
        self._rng = np.random.default_rng([seed, 2])
        self._plan = np.zeros(self._shape)

    def act(self) -> Array:
        """Return the action for the task's present state: float32 [A] in [-1, 1]."""
        for _ in range(self.config.rounds):
            self._plan = self._improve(self._plan)
        action: Array = self._plan[0].astype(np.float32)
        self._plan = np.concatenate([self._plan[1:], self._plan[-1:]])
        return action

    def close(self) -> None:
        """Stop the simulating threads."""
        self._model.close()

    def _improve(self, plan: Array) -> Array:
        settings = self.config
        sizes = settings.noise * np.exp(self._rng.uniform(np.log(0.05), 0, settings.samples))
        knots = self._rng.standard_normal((settings.samples, len(self._basis[0]), self._shape[1]))
        disturbances = sizes[:, None, None] * (self._basis @ knots)
        disturbances[0] = 0  # the plan itself
        plans = np.clip(plan + disturbances, -1.0, 1.0)
        rewards, guides = self._model.rewards(plans)
        value = (rewards + guides).sum(axis=1)
        weights = np.exp((value - value.max()) / (settings.temperature * max(float(value.std()), 1e-9)))
        better: Array = np.tensordot(weights / weights.sum(), plans, axes=1)
        return better


def _linear(steps: int, knots: int) -> Array:
    """Return weights of evenly spaced knots, linear in between: float64 [steps, knots]."""
    if knots == 1:
        return np.ones((steps, 1))
    places = np.linspace(0, knots - 1, steps)
    return np.asarray(np.maximum(0, 1 - np.abs(places[:, None] - np.arange(knots))))
