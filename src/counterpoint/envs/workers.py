"""Environments side by side in processes of their own, none of which can hang a run by dying.

Episodes run in rounds: every environment is reset with a seed of its own, all step together, and the round is over
when the last episode is. Environments that end early idle. Between rounds nothing of a simulation needs saving.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoint.envs.goal_env import EnvConfig, make_goal_env
from counterpoint.errors import MissingExtraError

try:
    import gymnasium
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
except ModuleNotFoundError:
    raise MissingExtraError("gymnasium", "sim") from None

__all__ = ["EnvWorkers", "Stepped", "WorkerLostError"]

Observations = Mapping[str, NDArray[Any]]


class WorkerLostError(RuntimeError):
    """A worker process died, or did not answer in time; the episodes in flight are lost."""


@dataclass(frozen=True)
class Stepped:
    """What N environments answered.

    Attributes:
        observations: `observation`, `achieved_goal`, `desired_goal`, each [N, ...].
        reward: float64 [N].
        terminated: bool [N], the task is over.
        truncated: bool [N], the time is over.
        success: bool [N], the goal is reached at this step.
        distance: float64 [N], from achieved to desired goal, in the environment's units.
    """

    observations: Observations
    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    success: NDArray[np.bool_]
    distance: NDArray[np.float64]


class _Processes(AsyncVectorEnv):
    """gymnasium's, but what a worker raises arrives as it was raised, and not made anew from its text."""

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        failed = sum(not success for success in successes)
        raised = [self.error_queue.get()[2] for _ in range(failed)]
        if raised:
            raise raised[0]


class EnvWorkers:
    """N environments of one kind; one of them lives in this process, several in workers. A context manager.

    Args:
        config: Which environment.
        count: N.
        timeout: Seconds a worker may take for one step (a first reset, which builds the simulator, gets ten times
            as many) before it counts as lost.
        make: Builds one environment; for tests.
    """

    def __init__(
        self,
        config: EnvConfig,
        count: int,
        *,
        timeout: float = 60.0,
        make: Callable[[EnvConfig], gymnasium.Env[Any, Any]] = make_goal_env,
    ) -> None:
        self.count, self._timeout = count, timeout
        self._makers = [partial(make, config) for _ in range(count)]
        self._vector: VectorEnv[Any, Any, Any] | None = None

    def __enter__(self) -> EnvWorkers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def reset(self, seeds: Sequence[int]) -> Observations:
        """Begin an episode in every environment; starts the workers where there are none.

        Raises:
            WorkerLostError: When a worker died.
        """
        if self._vector is None:
            self._vector = self._start()
        observations: Observations = self._guarded(self._reset, seeds)[0]
        return observations

    def begin(self, actions: NDArray[Any]) -> None:
        """Send actions [N, ...]; `finish` brings the answers, and other work can be done in between."""
        if isinstance(self._vector, AsyncVectorEnv):
            self._guarded(self._vector.step_async, actions)
        else:
            self._actions = actions

    def finish(self) -> Stepped:
        """The answers to the actions last sent.

        Raises:
            WorkerLostError: When a worker died or did not answer in time.
        """
        vector = self._vector
        if isinstance(vector, AsyncVectorEnv):
            answer = self._guarded(vector.step_wait, self._timeout)
        else:
            assert vector is not None
            answer = vector.step(self._actions)
        observations, reward, terminated, truncated, info = answer
        return Stepped(
            observations,
            np.asarray(reward, np.float64),
            np.asarray(terminated, bool),
            np.asarray(truncated, bool),
            np.asarray(info["is_success"], bool),
            np.asarray(info["distance"], np.float64),
        )

    def close(self) -> None:
        """End the workers, dead or alive, without waiting for an answer from any of them."""
        vector, self._vector = self._vector, None
        if isinstance(vector, AsyncVectorEnv):
            # gymnasium's own close asks every worker for a last word, which a dead one never gives.
            for process in vector.processes:
                process.kill()
            for process in vector.processes:
                process.join(timeout=5)
            vector.closed = True
        elif vector is not None:
            vector.close()

    def _start(self) -> VectorEnv[Any, Any, Any]:
        if self.count == 1:
            return SyncVectorEnv(self._makers, autoreset_mode=AutoresetMode.DISABLED)
        return _Processes(self._makers, context="forkserver", autoreset_mode=AutoresetMode.DISABLED)

    def _reset(self, seeds: Sequence[int]) -> Any:
        vector: Any = self._vector  # gymnasium's base class types a single seed only
        if isinstance(vector, AsyncVectorEnv):
            vector.reset_async(seed=list(seeds))
            return vector.reset_wait(timeout=10 * self._timeout)
        return vector.reset(seed=list(seeds))

    def _guarded(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except (EOFError, BrokenPipeError, ConnectionError, multiprocessing.TimeoutError) as error:
            dead = self._dead()
            self.close()
            what = f"environment worker {dead[0]} died" if dead else "an environment worker did not answer"
            raise WorkerLostError(f"{what} ({type(error).__name__})") from error

    def _dead(self) -> list[int]:
        processes = self._vector.processes if isinstance(self._vector, AsyncVectorEnv) else []
        for process in processes:
            process.join(timeout=0.2)
        return [number for number, process in enumerate(processes) if not process.is_alive()]
