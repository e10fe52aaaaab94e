"""Parallel environments that reset and step independently, in this process or in separate processes."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeAlias

import gymnasium
import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper
from numpy.typing import NDArray

from counterpoint.errors import BadInputError, require

Observation: TypeAlias = Mapping[str, NDArray[Any]]
Env: TypeAlias = gymnasium.Env[Any, Any]

_RESET_PATIENCE = 10  # a reset, or building a simulator, may take this many times as long as a step


class Step(NamedTuple):
    """The result of a reset (with reward 0) or an action in one environment; fields mean the same as in gymnasium."""

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]

    @property
    def over(self) -> bool:
        """True if the episode has ended."""
        return self.terminated or self.truncated


@dataclass(frozen=True, slots=True)
class Failed:
    """The result of an environment that raised an error, died or hangs; it is rebuilt at its next reset."""

    reason: str


def stacked(steps: Iterable[Step]) -> dict[str, NDArray[Any]]:
    """Return the observations of several environments as one dictionary of arrays [n, ...]."""
    observations = [step.observation for step in steps]
    return {key: np.stack([one[key] for one in observations]) for key in observations[0]}


class VectorEnv:
    """A context manager of N environments of one kind, called rows. A row depends only on its seeds and actions.

    Args:
        make: Function that builds one environment, called when a row is first reset. With `processes`, cloudpickle must
            be able to pickle it.
        n: Number of rows.
        processes: Run every environment in a separate process.
        timeout: Seconds that a process may take for one step before it counts as failed. A reset, or building the
            simulator, may take ten times as long.

    Raises:
        BadInputError: If `n` is less than 1.
    """

    def __init__(self, make: Callable[[], Env], n: int, *, processes: bool = False, timeout: float = 60.0) -> None:
        require(n >= 1, "envs", n, "1 or more", "ask for one at least")
        self.n, self.timeout = n, timeout
        self._make, self._processes = make, processes
        self._rows: dict[int, _Here | _Apart] = {}
        self._waiting: dict[int, float] = {}  # row -> seconds that its result may take

    def __enter__(self) -> VectorEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reset(self, rows: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in each of these rows; `receive` returns their first observations, always rendered.

        Raises:
            Exception: Any error raised while an environment is built in this process.
        """
        for row, seed in zip(rows, seeds, strict=True):
            built = row in self._rows
            if not built:
                self._rows[row] = (_Apart if self._processes else _Here)(self._make)
            self._send(row, (int(seed), None, True), _RESET_PATIENCE * (1 if built else 2))

    def send(self, rows: Sequence[int], actions: NDArray[Any], render: Sequence[bool] | None = None) -> None:
        """Take one action in each of these rows; `receive` returns the results.

        Args:
            rows: Rows whose episodes are running.
            actions: One action per row.
            render: For each row, True if its next images will be read; by default True for all rows. Environments with
                an attribute `look` do not render images that will not be read.
        """
        for row, action, look in zip(rows, actions, render or [True] * len(rows), strict=True):
            self._send(row, (None, action, look), 1)

    def receive(self) -> dict[int, Step | Failed]:
        """Return the results of all requests since the last call, by row.

        Raises:
            BadInputError: If an environment cannot be built in its process; the message quotes the process's error.
        """
        now, answers = time.monotonic(), {}
        try:
            for row, seconds in self._waiting.items():
                answers[row] = answer = self._rows[row].answer(now + seconds)
                if isinstance(answer, Failed):
                    self._rows.pop(row).close(0)
        except BaseException:
            self.close()
            raise
        self._waiting = {}
        return answers

    def close(self) -> None:
        """Close all environments, including failed ones; a later `reset` builds new ones."""
        rows, self._rows, self._waiting = self._rows, {}, {}
        for row in rows.values():
            row.leave()
        for row in rows.values():
            row.close()

    def _send(self, row: int, request: _Request, patience: float) -> None:
        self._rows[row].send(request)
        self._waiting[row] = patience * self.timeout


_Request: TypeAlias = tuple[int | None, Any, bool]  # seed (`None` for a step), action (`None` for a reset), render


def _carry_out(env: Env, request: _Request) -> Step | Failed:
    seed, action, look = request
    try:
        if hasattr(env.unwrapped, "look"):
            env.unwrapped.look = look
        if seed is not None:
            observation, info = env.reset(seed=seed)
            return Step(observation, 0.0, False, False, info)
        observation, reward, terminated, truncated, info = env.step(action)
        return Step(observation, float(reward), bool(terminated), bool(truncated), info)
    except BadInputError as error:
        return Failed(str(error))
    except Exception as error:  # simulators may raise anything
        return Failed(f"{type(error).__name__}: {error}")


class _Here:
    """An environment in this process; it takes a step only when the step's result is read."""

    _request: _Request

    def __init__(self, make: Callable[[], Env]) -> None:
        self._env = make()

    def send(self, request: _Request) -> None:
        self._request = request

    def answer(self, _: float) -> Step | Failed:
        return _carry_out(self._env, self._request)

    def leave(self) -> None: ...

    def close(self, _: float = 0) -> None:
        with suppress(Exception):  # errors of a broken simulator
            self._env.close()


class _Apart:
    """An environment in a separate process."""

    def __init__(self, make: Callable[[], Env]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(CloudpickleWrapper(make), theirs), daemon=True)
        self.process.start()
        theirs.close()

    def send(self, request: _Request) -> None:
        with suppress(ConnectionError):  # `answer` reports that the process died
            self._pipe.send(request)

    def answer(self, deadline: float) -> Step | Failed:
        try:
            if not self._pipe.poll(max(0.0, deadline - time.monotonic())):
                return Failed("its process did not answer in time")
            answer = self._pipe.recv()
        except (EOFError, ConnectionError):
            return Failed("its process died, perhaps for want of memory")
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Step | Failed)
        return answer

    def leave(self) -> None:
        self._pipe.close()  # the process exits when its pipe is closed

    def close(self, patience: float = 5) -> None:
        self.leave()
        if patience:
            self.process.join(patience)
        self.process.kill()
        self.process.join()


def _serve(make: Callable[[], Env], pipe: Connection) -> None:
    """Build an environment and answer requests until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        env = make()
    except BadInputError as error:
        pipe.send(error)
        return
    except Exception as error:  # not every error can be pickled
        pipe.send(RuntimeError(f"{type(error).__name__}: {error}"))
        return
    with suppress(EOFError, ConnectionError):
        while True:
            pipe.send(_carry_out(env, pipe.recv()))
    with suppress(Exception):
        env.close()
