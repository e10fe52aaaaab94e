"""The true dynamics of a suite task for a planner: what rewards do plans bring, many at once.

A copy of the task's model with a few more sensors is rolled out by `mujoco.rollout`. Sensors do not act on the
simulation, so that a plan brings in the environment what it brought here.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.dmc import ACTION_REPEAT, DMCTask
from counterpoint.envs.dmc_rewards import GUIDES, REWARDS, SENSORS, Readings
from counterpoint.envs.rendering import import_mujoco

__all__ = ["TrueModel"]

_PREFIX = "planner_"
# What tasks change in their model when an episode begins: targets, their sizes, one joint's damping.
_CHANGING = ("site_pos", "site_size", "geom_pos", "geom_size", "dof_damping")


class TrueModel:
    """Rolls plans out from where a task stands.

    Args:
        task: The task; it is not moved.
        threads: That simulate; 1 uses the calling thread.
    """

    def __init__(self, task: DMCTask, *, threads: int = 1) -> None:
        self._mujoco = import_mujoco()
        from mujoco import rollout

        self._task = task
        self._reward = REWARDS[task.task.name]
        self._guide = GUIDES.get(task.task.name)
        self.model = _with_sensors(self._mujoco, task)
        self._steps = int(task.environment._n_sub_steps)  # simulation steps a control step
        self._pool = rollout.Rollout(nthread=0 if threads == 1 else threads)
        self._data = [self._mujoco.MjData(self.model) for _ in range(threads)]
        self._places = {
            self.model.sensor(number).name: slice(first, first + dim)
            for number, (first, dim) in enumerate(
                zip(self.model.sensor_adr, self.model.sensor_dim, strict=True)
            )
        }

    def rewards(self, plans: Array) -> tuple[Array, Array]:
        """What plans would bring from where the task stands now.

        Args:
            plans: float [B, H, A] in [-1, 1]: H actions, each held for two control steps.

        Returns:
            The suite's rewards and the planner's guide, float64 [B, H] each, summed over an action's control steps.
        """
        controls = np.repeat(np.asarray(plans, np.float64), ACTION_REPEAT, axis=1)
        seen = self._roll(controls)
        reward = self._reward(seen)
        guide = self._guide(seen) if self._guide is not None else np.zeros_like(reward)
        shape = (len(plans), plans.shape[1], ACTION_REPEAT)
        return reward.reshape(shape).sum(axis=2), guide.reshape(shape).sum(axis=2)

    def close(self) -> None:
        """Stop the threads."""
        self._pool.close()

    def _roll(self, controls: Array) -> Readings:
        mujoco, physics, steps = self._mujoco, self._task.physics, self._steps
        true = physics.model.ptr
        for name in _CHANGING:
            getattr(self.model, name)[:] = getattr(true, name)
        kind = mujoco.mjtState.mjSTATE_FULLPHYSICS
        state = np.empty(mujoco.mj_stateSize(true, kind))
        mujoco.mj_getState(true, physics.data.ptr, state, kind)
        # Sensors of positions lag one simulation step behind the state: one more shows the last control step's end.
        held = np.repeat(controls, steps, axis=1)
        held = np.concatenate([held, held[:, -1:]], axis=1)
        warm = np.array(physics.data.ptr.qacc_warmstart)
        _, sensors = self._pool.rollout(
            self.model, self._data, state[None], held, initial_warmstart=warm[None]
        )
        after, last = sensors[:, steps::steps], sensors[:, steps - 1 : -1 : steps]

        def positions(name: str) -> Array:
            place = self._places.get(_PREFIX + name) or self._places[name]
            found: Array = after[..., place]
            return found

        def forces(name: str) -> Array:
            found: Array = last[..., self._places[name]]
            return found

        return Readings(positions, forces, controls, self.model, self._task.environment.task)


def _with_sensors(mujoco: Any, task: DMCTask) -> Any:
    """The task's model, compiled anew with the sensors that its reward needs."""
    domain = task.task.domain
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
