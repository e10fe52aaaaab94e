"""The kitchen's true dynamics for planners: rolls out many plans in parallel, and renders the plans' last states."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.kitchen.env import STEPS, KitchenEnv, control
from counterpoint.workers import worker_pool

_AT_ONCE = 4  # states that a worker process gets at a time: few enough to share 64 among many processes


class KitchenDynamics:
    """A simulation that rolls out plans from an environment's current state, without changing the environment.

    A plan ends in the state that the environment would reach, with differences of up to 1e-6, because the contact
    solver starts from a different initial guess.

    Args:
        env: The task.
        threads: Number of threads that simulate; 1 uses the calling thread.
        renderers: Processes that render, from `render_pool`; `None` renders in the calling process.
    """

    def __init__(self, env: KitchenEnv, *, threads: int = 1, renderers: ProcessPoolExecutor | None = None) -> None:
        from mujoco import rollout

        self._env, self._renderers, mujoco = env, renderers, env.mujoco
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
        """Return the first camera's image of states [B, N]: uint8 [B, S, S, 3].

        Raises:
            BadInputError: If a process that renders died.
        """
        if self._renderers is None:
            return np.stack([self._image(state) for state in states])
        render = partial(_render, self._env.model.body_pos.copy())
        return np.stack(list(self._renderers.map(render, states, chunksize=_AT_ONCE)))

    def _image(self, state: Array) -> Array:
        return self._env.renderer.render(self._env.cameras[0], self._posed(state))

    def _posed(self, state: Array) -> Any:
        env = self._env
        env.mujoco.mj_setState(env.model, self._seen, state, self._kind)
        env.mujoco.mj_kinematics(env.model, self._seen)
        env.mujoco.mj_camlight(env.model, self._seen)
        return self._seen


def render_pool(env: KitchenEnv, workers: int) -> AbstractContextManager[ProcessPoolExecutor | None]:
    """Return processes that render for `KitchenDynamics`; nothing for one worker.

    The processes start at the first image and end with the context. Each has its own simulator and graphics context.
    Images are the same bits as those of one process.

    Args:
        env: The task, whose first camera is rendered.
        workers: Number of processes. More processes than cores do not help, since Mesa's software renderer uses one
            core in each process.
    """
    if workers == 1:
        return nullcontext()
    return worker_pool(workers, _enter, env.task, env.cameras[0], env.size)


_entered: list[KitchenDynamics] = []
"""This worker process's simulation, set by `_enter`."""


def _enter(task: str, camera: str, size: int) -> None:
    _entered.append(KitchenDynamics(KitchenEnv(task, cameras=[camera], size=size)))


def _render(places: Array, state: Array) -> Array:
    """Return the image of a state; the places of the model's bodies are the only part of a model that scenes change."""
    dynamics = _entered[0]
    dynamics._env.model.body_pos[:] = places
    return dynamics._image(state)
