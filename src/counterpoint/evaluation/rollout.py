"""One simulation of a rollout, in this process or in one of its own; both answer alike, to the bit.

What is begun is finished by `finish`, and other rows work in between. Whatever a simulator raises comes out of `finish`
as `SimulatorRaisedError`; the simulation is of no more use then.

Run a policy in a control task: several simulations step together, so that pictures go through it in batches.

An episode is a function of its seed and of the policy. Which row it runs in, what runs beside it and in which order
seeds are given change nothing, up to the rounding by which a network's output depends on the size of its batch.
Pictures are drawn where the policy looks at them, which changes nothing either.

Simulators raise now and then, in the middle of an episode. That episode has failed and says why, its simulation is
built again, and the others go on; where that happens often, something else is wrong and the rollouts end.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.base import CameraEnv
from counterpoint.errors import BadInputError
from counterpoint.policies.base import FramePolicy

__all__ = ["ControlRollouts", "EpisodeResult", "Row", "RowApart", "RowHere", "Seen", "SimulatorRaisedError", "roll_out"]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a simulation shows.

    Attributes:
        pictures: uint8 [C, H, W, 3], one a camera; zeros where nobody looks.
        state: float32 [P].
        reward: Of the step.
        success: Whether the task is solved at this moment; False where a suite has rewards alone.
        over: Whether the episode is.
    """

    pictures: Array
    state: Array
    reward: float = 0.0
    success: bool = False
    over: bool = False


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

    def finish(self) -> Seen:
        """What the episode or step that was begun led to.

        Raises:
            SimulatorRaisedError: It did.
        """

    def close(self) -> None:
        """Free the simulation; a broken one too, without a word."""


class RowHere:
    """A simulation in this process. Work is done when it is finished: there is nobody else to do it."""

    def __init__(self, make: Callable[[], CameraEnv]) -> None:
        self._env = make()
        self._work: Callable[[], Seen]

    def ready(self) -> None:
        """It is."""

    def begin_episode(self, seed: int) -> None:
        """See `Row`."""
        self._work = partial(self._begin, seed)

    def begin_step(self, action: Array, look: bool) -> None:
        """See `Row`."""
        self._work = partial(self._step, action, look)

    def finish(self) -> Seen:
        """See `Row`."""
        try:
            return self._work()
        except Exception as error:
            words = str(error) if isinstance(error, BadInputError) else f"{type(error).__name__}: {error}"
            raise SimulatorRaisedError(words) from error

    def close(self) -> None:
        """See `Row`."""
        with suppress(Exception):
            self._env.close()

    def _begin(self, seed: int) -> Seen:
        self._env.look = True
        observation, _ = self._env.reset(seed=seed)
        return Seen(self._pictures(observation), observation["state"])

    def _step(self, action: Array, look: bool) -> Seen:
        self._env.look = look
        observation, reward, ended, truncated, info = self._env.step(action)
        success = info.get("is_success", False)
        return Seen(self._pictures(observation), observation["state"], reward, success, ended or truncated)

    def _pictures(self, observation: dict[str, Any]) -> Array:
        return np.stack([observation[camera] for camera in self._env.cameras])


class RowApart:
    """A simulation in a process of its own."""

    def __init__(self, make: Callable[[], CameraEnv]) -> None:
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

    def finish(self) -> Seen:
        """See `Row`."""
        answer: Seen = self._answer()
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


def _serve(make: Callable[[], CameraEnv], pipe: Connection) -> None:
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


TOLERATED = 0.1
"""Share of episodes whose simulator may raise."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """What an episode came to.

    Attributes:
        seed: Of the episode.
        success: Whether the task was solved at any moment; False where the simulator raised.
        total_reward: Sum of the rewards.
        steps: Steps taken; fewer than the horizon where it stopped early.
        error: What the simulator raised in the middle of it.
    """

    seed: int
    success: bool
    total_reward: float
    steps: int
    error: str | None = None


def roll_out(
    policy: FramePolicy,
    make: Callable[[], CameraEnv],
    seeds: Sequence[int],
    *,
    envs: int = 8,
    stop_at_success: bool,
    processes: bool = False,
) -> list[EpisodeResult]:
    """Run one episode for each seed.

    Args:
        policy: What acts.
        make: Builds the task; called `envs` times at most. With `processes`, something that pickles.
        seeds: Of the episodes.
        envs: Simulations side by side.
        stop_at_success: End an episode when its task is solved. Rewards after that moment are then not counted.
        processes: Give every simulation a process of its own, for machines with a core to spare for each.

    Returns:
        Results in the order of `seeds`.

    Raises:
        BadInputError: The simulator raised in more than a tenth of the episodes; the message holds the first error.
    """
    with ControlRollouts(make, min(envs, max(1, len(seeds))), processes=processes) as rollouts:
        return rollouts.run(policy, seeds, stop_at_success=stop_at_success)


class ControlRollouts:
    """Simulations that stay open from one evaluation to the next. A context manager.

    Args:
        make: Builds the task; one that pickles, with `processes`.
        envs: How many at most; each is built when it is first needed.
        processes: Give every simulation a process of its own.
    """

    def __init__(self, make: Callable[[], CameraEnv], envs: int = 8, *, processes: bool = False) -> None:
        if envs < 1:
            raise BadInputError("envs", f"{envs}", "1 or more", "ask for one at least")
        self._make, self._envs, self._apart = make, envs, processes
        self._rows: dict[int, Row] = {}

    def __enter__(self) -> ControlRollouts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free every simulation."""
        rows, self._rows = self._rows, {}
        for row in rows.values():
            row.close()

    def run(self, policy: FramePolicy, seeds: Sequence[int], *, stop_at_success: bool) -> list[EpisodeResult]:
        """One episode for each seed, a row taking the next seed when its episode ends; see `roll_out`."""
        results = _Results(len(seeds))
        left = list(enumerate(seeds))[::-1]
        running: dict[int, _Running] = {}
        while left or running:
            self._refill(policy, left, running, results)
            rows = sorted(running)
            if not rows:
                continue
            frames = np.stack([running[row].stack for row in rows])
            state = np.stack([running[row].state for row in rows])
            actions = policy.act(frames, state, rows)
            for row, action, look in zip(rows, actions, policy.looks(rows), strict=True):
                self._rows[row].begin_step(action, look)
            for row in rows:
                episode = running[row]
                found = self._finish(row)
                if isinstance(found, str):
                    results.add(episode.place, episode.result(error=found))
                else:
                    episode.take(found)
                    if not episode.over(stop_at_success):
                        continue
                    results.add(episode.place, episode.result())
                del running[row]
        return results.all()

    def _refill(
        self, policy: FramePolicy, left: list[tuple[int, int]], running: dict[int, _Running], results: _Results
    ) -> None:
        idle = [row for row in range(self._envs) if row not in running][: len(left)]
        self._stand(idle)
        begun = {row: left.pop() for row in idle}
        for row, (_, seed) in begun.items():
            self._rows[row].begin_episode(seed)
        for row, (place, seed) in list(begun.items()):
            found = self._finish(row)
            if isinstance(found, str):
                results.add(place, EpisodeResult(seed, False, 0.0, 0, found))
                del begun[row]
            else:
                running[row] = _Running(place, seed, found, policy.stack)
        if begun:
            policy.reset(list(begun), [seed for _, seed in begun.values()])

    def _stand(self, rows: list[int]) -> None:
        """Build the simulations that do not stand yet, or no longer; processes build theirs side by side."""
        made = [row for row in rows if row not in self._rows]
        for row in made:
            self._rows[row] = RowApart(self._make) if self._apart else RowHere(self._make)
        for row in made:
            self._rows[row].ready()

    def _finish(self, row: int) -> Seen | str:
        """What a row's simulation led to, or what it raised; such a one is closed."""
        try:
            return self._rows[row].finish()
        except SimulatorRaisedError as error:
            self._rows.pop(row).close()
            return str(error)


class _Results:
    """Episodes by their places, and how many of them failed because their simulator raised."""

    def __init__(self, episodes: int) -> None:
        self._results: list[EpisodeResult | None] = [None] * episodes
        self._raised: list[str] = []

    def add(self, place: int, result: EpisodeResult) -> None:
        self._results[place] = result
        if result.error is None:
            return
        self._raised.append(result.error)
        count, episodes = len(self._raised), len(self._results)
        _log.warning("the simulator raised in the episode of seed %d: %s", result.seed, result.error)
        if count > TOLERATED * episodes:
            raise BadInputError(
                "rollouts",
                f"{count} of {episodes} episodes in which the simulator raised; the first: {self._raised[0]}",
                f"{int(TOLERATED * episodes)} at most",
                "see what the first one says",
            )

    def all(self) -> list[EpisodeResult]:
        return [result for result in self._results if result is not None]


class _Running:
    """An episode under way: its stack of frames for each camera, the first one repeated, and its tally."""

    def __init__(self, place: int, seed: int, seen: Seen, stack: int) -> None:
        self.place, self.seed = place, seed
        self._stacks = np.repeat(seen.pictures[:, None], stack, axis=1)  # [C, S, H, W, 3]
        self.state = seen.state
        self._success, self._over, self._reward, self._steps = False, False, 0.0, 0

    @property
    def stack(self) -> Array:
        """[C S, H, W, 3], the first camera's frames first."""
        return self._stacks.reshape(-1, *self._stacks.shape[2:])

    def take(self, seen: Seen) -> None:
        self._stacks = np.concatenate([self._stacks[:, 1:], seen.pictures[:, None]], axis=1)
        self.state = seen.state
        self._success |= seen.success
        self._over = seen.over
        self._reward += seen.reward
        self._steps += 1

    def over(self, stop_at_success: bool) -> bool:
        return self._over or (stop_at_success and self._success)

    def result(self, error: str | None = None) -> EpisodeResult:
        solved = self._success and error is None
        return EpisodeResult(self.seed, solved, self._reward, self._steps, error)
