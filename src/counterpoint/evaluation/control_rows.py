"""One simulation of a rollout, in this process or in one of its own; both answer alike, to the bit.

What is begun is finished by `finish`, and other rows work in between. Whatever a simulator raises comes out of `finish`
as `SimulatorRaisedError`; the simulation is of no more use then.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Protocol

from counterpoint.data.episode import Array
from counterpoint.envs.control import ControlTask, Outcome
from counterpoint.errors import BadInputError

__all__ = ["Row", "RowApart", "RowHere", "Seen", "SimulatorRaisedError"]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a simulation shows.

    Attributes:
        pictures: uint8 [C, H, W, 3], one a camera; `None` where nobody looks.
        state: float32 [P].
        horizon: Steps of an episode.
    """

    pictures: Array | None
    state: Array
    horizon: int


class SimulatorRaisedError(RuntimeError):
    """A simulation raised, or its process died; the message says what."""


class Row(Protocol):
    """One simulation."""

    def ready(self) -> None:
        """Wait until it is built; raises what building it raised."""

    def begin_episode(self, seed: int) -> None:
        """Place the objects by `seed`; the first observation is always drawn."""

    def begin_step(self, action: Array, look: bool) -> None:
        """Act once, and draw what that leads to if somebody will look."""

    def finish(self) -> tuple[Seen, Outcome]:
        """What the episode or step that was begun led to.

        Raises:
            SimulatorRaisedError: It did.
        """

    def close(self) -> None:
        """Free the simulation; a broken one too, without a word."""


class RowHere:
    """A simulation in this process. Work is done when it is finished: there is nobody else to do it."""

    def __init__(self, make: Callable[[], ControlTask]) -> None:
        self._task = make()
        self._work: Callable[[], tuple[Seen, Outcome]]

    def ready(self) -> None:
        """It is."""

    def begin_episode(self, seed: int) -> None:
        """See `Row`."""
        self._work = partial(self._begin, seed)

    def begin_step(self, action: Array, look: bool) -> None:
        """See `Row`."""
        self._work = partial(self._step, action, look)

    def finish(self) -> tuple[Seen, Outcome]:
        """See `Row`."""
        try:
            return self._work()
        except Exception as error:
            words = str(error) if isinstance(error, BadInputError) else f"{type(error).__name__}: {error}"
            raise SimulatorRaisedError(words) from error

    def close(self) -> None:
        """See `Row`."""
        with suppress(Exception):
            self._task.close()

    def _begin(self, seed: int) -> tuple[Seen, Outcome]:
        self._task.reset(seed)
        return self._seen(True), Outcome(0.0, False)

    def _step(self, action: Array, look: bool) -> tuple[Seen, Outcome]:
        outcome = self._task.step(action)
        return self._seen(look), outcome

    def _seen(self, look: bool) -> Seen:
        pictures = None
        if look:
            drawn = self._task.draw()
            pictures = drawn.reshape(-1, *drawn.shape[-3:])
        return Seen(pictures, self._task.state(), self._task.horizon)


class RowApart:
    """A simulation in a process of its own."""

    def __init__(self, make: Callable[[], ControlTask]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(make, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def ready(self) -> None:
        """See `Row`."""
        self._answer()

    def begin_episode(self, seed: int) -> None:
        """See `Row`."""
        self._ask(int(seed))

    def begin_step(self, action: Array, look: bool) -> None:
        """See `Row`."""
        self._ask((action, look))

    def finish(self) -> tuple[Seen, Outcome]:
        """See `Row`."""
        answer: tuple[Seen, Outcome] = self._answer()
        return answer

    def close(self) -> None:
        """Its end hears that the pipe is closed, and leaves."""
        self._pipe.close()
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.kill()

    def _ask(self, request: object) -> None:
        with suppress(ConnectionError):  # of a dead process `finish` tells
            self._pipe.send(request)

    def _answer(self) -> Any:
        try:
            answer = self._pipe.recv()
        except (EOFError, ConnectionError):
            raise SimulatorRaisedError("its process died, perhaps for want of memory") from None
        if isinstance(answer, Exception):
            raise answer
        return answer


def _serve(make: Callable[[], ControlTask], pipe: Connection) -> None:
    """Say that it is built, then answer every request: a seed begins an episode, action and look are a step."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        row = RowHere(make)
        pipe.send(None)
        while True:
            request = pipe.recv()
            if isinstance(request, int):
                row.begin_episode(request)
            else:
                row.begin_step(*request)
            pipe.send(row.finish())
    except (EOFError, ConnectionError, KeyboardInterrupt):
        return
    except (BadInputError, SimulatorRaisedError) as error:
        pipe.send(error)
    except Exception as error:  # of `make`; not every error can be put together again behind a pipe
        pipe.send(RuntimeError(f"{type(error).__name__}: {error}"))
