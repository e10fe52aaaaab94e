"""Run a policy in a control task: several simulations step together, so that pictures go through it in batches.

An episode is a function of its seed and of the policy. Which row it runs in, what runs beside it and in which order
seeds are given change nothing, up to the rounding by which a network's output depends on the size of its batch.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Protocol

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.control import ControlTask, Outcome
from counterpoint.errors import BadInputError
from counterpoint.policies.base import Policy

__all__ = ["ControlRollouts", "EpisodeResult", "roll_out"]


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """What an episode came to.

    Attributes:
        seed: Of the episode.
        success: Whether the task was solved at any moment.
        total_reward: Sum of the rewards.
        steps: Steps taken; fewer than the horizon where it stopped early.
    """

    seed: int
    success: bool
    total_reward: float
    steps: int


def roll_out(
    policy: Policy,
    make: Callable[[], ControlTask],
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

    def __init__(self, make: Callable[[], ControlTask], envs: int = 8, *, processes: bool = False) -> None:
        if envs < 1:
            raise BadInputError("envs", found=f"{envs}", expected="1 or more", mend="ask for one at least")
        self._make, self._envs, self._apart = make, envs, processes
        self._rows: list[_Row] = []

    def __enter__(self) -> ControlRollouts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free every simulation."""
        rows, self._rows = self._rows, []
        for row in rows:
            row.close()

    def run(self, policy: Policy, seeds: Sequence[int], *, stop_at_success: bool) -> list[EpisodeResult]:
        """One episode for each seed, a row taking the next seed when its episode ends; see `roll_out`."""
        while len(self._rows) < min(self._envs, len(seeds)):
            self._rows.append(_RowApart(self._make) if self._apart else _RowHere(self._make))
        results: list[EpisodeResult | None] = [None] * len(seeds)
        left = list(enumerate(seeds))[::-1]
        running: dict[int, _Running] = {}
        while left or running:
            self._refill(policy, left, running)
            rows = sorted(running)
            frames = np.stack([running[row].stack for row in rows])
            state = np.stack([running[row].state for row in rows])
            actions = policy.act(frames, state, rows)
            for row, action in zip(rows, actions, strict=True):
                self._rows[row].begin_step(action)
            for row in rows:
                seen, outcome = self._rows[row].finish()
                episode = running[row]
                episode.take(seen, outcome)
                if episode.over(stop_at_success):
                    results[episode.place] = episode.result()
                    del running[row]
        return [result for result in results if result is not None]

    def _refill(self, policy: Policy, left: list[tuple[int, int]], running: dict[int, _Running]) -> None:
        begun: dict[int, tuple[int, int]] = {}
        for row, simulation in enumerate(self._rows):
            if row not in running and left:
                begun[row] = left.pop()
                simulation.begin_episode(begun[row][1])
        for row, (place, seed) in begun.items():
            seen, _ = self._rows[row].finish()
            running[row] = _Running(place, seed, seen, policy.stack)
        if begun:
            policy.reset(sorted(begun))


@dataclass(frozen=True, slots=True)
class _Seen:
    pictures: Array  # [C, H, W, 3]
    state: Array
    horizon: int


class _Running:
    """An episode under way: its stack of frames for each camera, the first one repeated, and its tally."""

    def __init__(self, place: int, seed: int, seen: _Seen, stack: int) -> None:
        self.place, self.seed = place, seed
        self._stacks = np.repeat(seen.pictures[:, None], stack, axis=1)  # [C, S, H, W, 3]
        self.state, self._horizon = seen.state, seen.horizon
        self._success, self._ended, self._reward, self._steps = False, False, 0.0, 0

    @property
    def stack(self) -> Array:
        """[C S, H, W, 3], the first camera's frames first."""
        return self._stacks.reshape(-1, *self._stacks.shape[2:])

    def take(self, seen: _Seen, outcome: Outcome) -> None:
        self._stacks = np.concatenate([self._stacks[:, 1:], seen.pictures[:, None]], axis=1)
        self.state = seen.state
        self._success |= outcome.success
        self._ended = outcome.ended
        self._reward += outcome.reward
        self._steps += 1

    def over(self, stop_at_success: bool) -> bool:
        return self._ended or self._steps >= self._horizon or (stop_at_success and self._success)

    def result(self) -> EpisodeResult:
        return EpisodeResult(self.seed, self._success, self._reward, self._steps)


class _Row(Protocol):
    """One simulation. What is begun is finished by `finish`, and other rows work in between."""

    def begin_episode(self, seed: int) -> None: ...

    def begin_step(self, action: Array) -> None: ...

    def finish(self) -> tuple[_Seen, Outcome]: ...

    def close(self) -> None: ...


_BEGUN = Outcome(0.0, False)


class _RowHere:
    """A simulation in this process."""

    def __init__(self, make: Callable[[], ControlTask]) -> None:
        self._task = make()
        self._outcome = _BEGUN

    def begin_episode(self, seed: int) -> None:
        self._task.reset(seed)
        self._outcome = _BEGUN

    def begin_step(self, action: Array) -> None:
        self._outcome = self._task.step(action)

    def finish(self) -> tuple[_Seen, Outcome]:
        drawn = self._task.draw()
        pictures = drawn.reshape(-1, *drawn.shape[-3:])
        return _Seen(pictures, self._task.state(), self._task.horizon), self._outcome

    def close(self) -> None:
        self._task.close()


class _RowApart:
    """A simulation in a process of its own."""

    def __init__(self, make: Callable[[], ControlTask]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(make, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def begin_episode(self, seed: int) -> None:
        self._pipe.send(int(seed))

    def begin_step(self, action: Array) -> None:
        self._pipe.send(action)

    def finish(self) -> tuple[_Seen, Outcome]:
        try:
            answer: tuple[_Seen, Outcome] | Exception = self._pipe.recv()
        except (EOFError, ConnectionError):
            raise BadInputError(
                "rollouts",
                found="a simulation whose process died",
                expected="processes that live to the end",
                mend="start it again, with fewer environments if memory was short",
            ) from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self._pipe.close()  # its end hears that and leaves
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.kill()


def _serve(make: Callable[[], ControlTask], pipe: Connection) -> None:
    """Answer every request: a seed begins an episode, an action is a step."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        row = _RowHere(make)
        while True:
            request = pipe.recv()
            if isinstance(request, int):
                row.begin_episode(request)
            else:
                row.begin_step(request)
            pipe.send(row.finish())
    except (EOFError, ConnectionError, KeyboardInterrupt):
        return
    except Exception as error:
        pipe.send(error)
