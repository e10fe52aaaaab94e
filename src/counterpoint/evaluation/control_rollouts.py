"""Run a policy in a control task: several simulations step together, so that pictures go through it in batches.

An episode is a function of its seed and of the policy. Which row it runs in, what runs beside it and in which order
seeds are given change nothing, up to the rounding by which a network's output depends on the size of its batch.
Pictures are drawn where the policy looks at them, which changes nothing either.

Simulators raise now and then, in the middle of an episode. That episode has failed and says why, its simulation is
built again, and the others go on; where that happens often, something else is wrong and the rollouts end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.control import ControlTask, Outcome
from counterpoint.errors import BadInputError
from counterpoint.evaluation.control_rows import Row, RowApart, RowHere, Seen, SimulatorRaisedError
from counterpoint.policies.base import Policy

__all__ = ["ControlRollouts", "EpisodeResult", "roll_out"]

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

    def __init__(self, make: Callable[[], ControlTask], envs: int = 8, *, processes: bool = False) -> None:
        if envs < 1:
            raise BadInputError("envs", found=f"{envs}", expected="1 or more", mend="ask for one at least")
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

    def run(self, policy: Policy, seeds: Sequence[int], *, stop_at_success: bool) -> list[EpisodeResult]:
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
                    episode.take(*found)
                    if not episode.over(stop_at_success):
                        continue
                    results.add(episode.place, episode.result())
                del running[row]
        return results.all()

    def _refill(
        self,
        policy: Policy,
        left: list[tuple[int, int]],
        running: dict[int, _Running],
        results: _Results,
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
                running[row] = _Running(place, seed, found[0], policy.stack)
        if begun:
            policy.reset(list(begun), [seed for _, seed in begun.values()])

    def _stand(self, rows: list[int]) -> None:
        """Build the simulations that do not stand yet, or no longer; processes build theirs side by side."""
        made = [row for row in rows if row not in self._rows]
        for row in made:
            self._rows[row] = RowApart(self._make) if self._apart else RowHere(self._make)
        for row in made:
            self._rows[row].ready()

    def _finish(self, row: int) -> tuple[Seen, Outcome] | str:
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
                found=f"{count} of {episodes} episodes in which the simulator raised; the first: {self._raised[0]}",
                expected=f"{int(TOLERATED * episodes)} at most",
                mend="see what the first one says",
            )

    def all(self) -> list[EpisodeResult]:
        return [result for result in self._results if result is not None]


class _Running:
    """An episode under way: its stack of frames for each camera, the first one repeated, and its tally."""

    def __init__(self, place: int, seed: int, seen: Seen, stack: int) -> None:
        assert seen.pictures is not None  # the first are always drawn
        self.place, self.seed = place, seed
        self._blank = np.zeros_like(seen.pictures)
        self._stacks = np.repeat(seen.pictures[:, None], stack, axis=1)  # [C, S, H, W, 3]
        self.state, self._horizon = seen.state, seen.horizon
        self._success, self._ended, self._reward, self._steps = False, False, 0.0, 0

    @property
    def stack(self) -> Array:
        """[C S, H, W, 3], the first camera's frames first."""
        return self._stacks.reshape(-1, *self._stacks.shape[2:])

    def take(self, seen: Seen, outcome: Outcome) -> None:
        pictures = self._blank if seen.pictures is None else seen.pictures
        self._stacks = np.concatenate([self._stacks[:, 1:], pictures[:, None]], axis=1)
        self.state = seen.state
        self._success |= outcome.success
        self._ended = outcome.ended
        self._reward += outcome.reward
        self._steps += 1

    def over(self, stop_at_success: bool) -> bool:
        return self._ended or self._steps >= self._horizon or (stop_at_success and self._success)

    def result(self, error: str | None = None) -> EpisodeResult:
        solved = self._success and error is None
        return EpisodeResult(self.seed, solved, self._reward, self._steps, error)
