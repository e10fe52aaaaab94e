"""Environments side by side in processes of their own, none of which can hang a run by dying.

Episodes run in rounds: every environment is reset with a seed of its own, all step together, and the round is over
when the last episode is. Environments that end early idle. Between rounds nothing of a simulation needs saving.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import connection
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoint.envs.goal.env import EnvConfig, make_goal_env
from counterpoint.errors import MissingExtraError

try:
    import gymnasium
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
except ModuleNotFoundError:
    raise MissingExtraError("gymnasium", "sim") from None

__all__ = ["EnvWorkers", "Stepped", "WorkerLostError"]

ERROR_TIMEOUT = 10.0

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
    """gymnasium's, but nothing waits for ever, and what a worker raises arrives as it was raised.

    Args:
        makers: Build the environments, in their processes.
        start_timeout: Seconds a worker may take to build its environment.
    """

    def __init__(self, makers: Sequence[Callable[[], gymnasium.Env[Any, Any]]], start_timeout: float) -> None:
        self._start_timeout = start_timeout
        super().__init__(makers, context="forkserver", autoreset_mode=AutoresetMode.DISABLED)

    def _check_spaces(self) -> None:
        """The first question to the workers; asked once they are built, and given up with them."""
        try:
            spaces = (self.observation_mode, self.single_observation_space, self.single_action_space)
            for pipe in self.parent_pipes:
                pipe.send(("_check_spaces", spaces))
            if not self._poll_pipe_envs(self._start_timeout):
                raise multiprocessing.TimeoutError
            self._raise_if_errors([pipe.recv()[1] for pipe in self.parent_pipes])
        except BaseException:
            self.kill()
            raise

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        failed = sum(not success for success in successes)
        for _ in range(failed):
            try:
                raised = self.error_queue.get(timeout=ERROR_TIMEOUT)[2]
            except Exception as error:  # an exception that does not pickle never arrives, or not whole
                raise EOFError("a worker failed and could not say why") from error
            raise raised

    def kill(self) -> None:
        """End every worker. gymnasium's own way asks each for a last word, which a dead one never gives."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join(timeout=5)
        self.closed = True


class EnvWorkers:
    """N environments of one kind; one of them lives in this process, several in workers. A context manager.

    Args:
        config: Which environment.
        count: N.
        timeout: Seconds a worker may take for one step before it counts as lost; ten times as many for a reset, and
            for building its simulator.
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
            self._vector = self._guarded(self._start)
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
        if isinstance(vector, _Processes):
            vector.kill()
        elif vector is not None:
            vector.close()

    def _start(self) -> VectorEnv[Any, Any, Any]:
        if self.count == 1:
            return SyncVectorEnv(self._makers, autoreset_mode=AutoresetMode.DISABLED)
        return _Processes(self._makers, 10 * self._timeout)

    def _reset(self, seeds: Sequence[int]) -> Any:
        vector: Any = self._vector  # gymnasium's base class types a single seed only
        if isinstance(vector, AsyncVectorEnv):
            vector.reset_async(seed=list(seeds))
            return vector.reset_wait(timeout=10 * self._timeout)
        return vector.reset(seed=list(seeds))

    def _guarded(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except (EOFError, ConnectionError, multiprocessing.TimeoutError) as error:
            late = isinstance(error, multiprocessing.TimeoutError)
            # A pipe that is closed says that a worker has died, and may say so before the system knows which.
            dead = self._dead(0.0 if late else 1.0)
            self.close()
            which = f"environment worker {dead[0]}" if dead else "an environment worker"
            what = "did not answer" if late and not dead else "died"
            raise WorkerLostError(f"{which} {what} ({type(error).__name__})") from error

    def _dead(self, patience: float) -> list[int]:
        """Numbers of the dead workers; where there are none yet, one may die for `patience` seconds."""
        processes = self._vector.processes if isinstance(self._vector, AsyncVectorEnv) else []
        if processes:
            connection.wait([process.sentinel for process in processes], patience)
        return [number for number, process in enumerate(processes) if not process.is_alive()]
