"""The kitchen's true dynamics for planners: rolls out many plans in parallel, and renders the plans' last states."""

from __future__ import annotations

from typing import Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.kitchen.env import STEPS, KitchenEnv, control


class KitchenDynamics:
    """A simulation that rolls out plans from an environment's current state, without changing the environment.

    A plan ends in the state that the environment would reach, with differences of up to 1e-6, because the contact
    solver starts from a different initial guess.

    Args:
        env: The task.
        threads: Number of threads that simulate; 1 uses the calling thread.
    """

    def __init__(self, env: KitchenEnv, *, threads: int = 1) -> None:
        from mujoco import rollout

        self._env, mujoco = env, env.mujoco
        self._kind = mujoco.mjtState.mjSTATE_FULLPHYSICS
        self._pool = rollout.Rollout(nthread=0 if threads == 1 else threads)  # the threads end when this is freed
        self._data = [mujoco.MjData(env.model) for _ in range(threads)]
        self._seen = mujoco.MjData(env.model)
        self._state = np.empty(mujoco.mj_stateSize(env.model, self._kind))
        self._positions = slice(1, 1 + env.model.nq)  # a state begins with the time

    def roll(self, plans: Array) -> Array:
        """Return the states after every action: float64 [B, H, N].

        Args:
            plans: B plans of H actions, float [B, H, 9] in [-1, 1].
        """
        env = self._env
        env.mujoco.mj_getState(env.model, env.data, self._state, self._kind)
        states = np.tile(self._state, (len(plans), 1))
        warm: Array | None = np.tile(env.data.qacc_warmstart, (len(plans), 1))
        found = np.empty((*plans.shape[:2], len(self._state)))
        for step in range(plans.shape[1]):
            told = control(states[:, self._positions][:, : env.action_dim], plans[:, step])
            after, _ = self._pool.rollout(
                env.model, self._data, states, told[:, None], nstep=STEPS, initial_warmstart=warm
            )
            found[:, step] = states = after[:, -1]
            warm = None
        return found

    def joints(self, states: Array) -> Array:
        """Return the position of the task's joint in states [..., N]: float64 [...]."""
        return np.asarray(states[..., self._positions][..., self._env.place])

    def gaps(self, states: Array) -> Array:
        """Return the hand's distance from the task's handle in metres, for states [B, N]: float64 [B]."""
        return np.array([self._env.gap(self._posed(state)) for state in states])

    def images(self, states: Array) -> Array:
        """Return the first camera's image of states [B, N]: uint8 [B, S, S, 3]."""
        env = self._env
        return np.stack([env.renderer.render(env.cameras[0], self._posed(state)) for state in states])

    def _posed(self, state: Array) -> Any:
        env = self._env
        env.mujoco.mj_setState(env.model, self._seen, state, self._kind)
        env.mujoco.mj_kinematics(env.model, self._seen)
        env.mujoco.mj_camlight(env.model, self._seen)
        return self._seen
