"""Run an agent in its environment and say how often it arrives, with an interval, and how near it came.

Success is counted in two ways: *reached* when the goal was reached at any step of the episode (the convention of
contrastive RL and TD InfoNCE) and *held* when it was at the last step. The minimum distance over the episode is
TD InfoNCE's Fig. 7.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from counterpoint.envs.vector import EnvWorkers, Observations, WorkerLostError
from counterpoint.errors import BadInputError
from counterpoint.evaluation.statistics import Estimate, mean_percentile, wilson

__all__ = ["Actor", "Rollouts", "episode_seed", "roll_out", "roll_out_patiently"]


class Actor(Protocol):
    """What acts: an agent, or a scripted controller."""

    def act(self, observation: NDArray, goal: NDArray, *, explore: bool) -> NDArray:  # type: ignore[type-arg]
        """Actions for N situations."""

    def begin_episodes(self, count: int) -> None:
        """N new episodes begin."""


@dataclass(frozen=True)
class Rollouts:
    """What n episodes came to.

    Attributes:
        reached: bool [n], the goal was reached at some step.
        held: bool [n], it was at the last step.
        closest: float64 [n], the smallest distance to the goal, in the environment's units.
        last: float64 [n], the distance at the last step.
        steps: int64 [n], steps until the goal was first reached; the episode's length where it never was.
    """

    reached: NDArray[np.bool_]
    held: NDArray[np.bool_]
    closest: NDArray[np.float64]
    last: NDArray[np.float64]
    steps: NDArray[np.int64]

    def success(self) -> Estimate:
        """Share of episodes that reached the goal, with Wilson's interval."""
        return wilson(int(self.reached.sum()), len(self.reached))

    def summary(self) -> dict[str, float]:
        """The means, to log."""
        return {
            "success": float(self.reached.mean()),
            "success_at_end": float(self.held.mean()),
            "closest_distance": float(self.closest.mean()),
            "last_distance": float(self.last.mean()),
            "steps_to_goal": float(self.steps.mean()),
        }

    def report(self) -> dict[str, object]:
        """The means with intervals, for a result file."""
        success, held = self.success(), wilson(int(self.held.sum()), len(self.held))
        closest = mean_percentile(self.closest)
        return {
            "episodes": len(self.reached),
            "success": {"value": success.value, "interval": [success.low, success.high]},
            "success_at_end": {"value": held.value, "interval": [held.low, held.high]},
            "closest_distance": {"value": closest.value, "interval": [closest.low, closest.high]},
            "last_distance": float(self.last.mean()),
            "steps_to_goal": float(self.steps.mean()),
        }


def episode_seed(seed: int, stream: int, round_number: int, place: int) -> int:
    """The seed of one episode: a pure function of the run's seed, so that nothing needs saving.

    Args:
        seed: The run's seed.
        stream: 0 for training, 1 for evaluation while training, 2 for the final evaluation: they never meet.
        round_number: Which round of episodes.
        place: Which of the environments.
    """
    words = np.random.SeedSequence([seed, stream, round_number, place]).generate_state(1)
    return int(words[0]) & 0x7FFFFFFF


def roll_out(
    actor: Actor,
    workers: EnvWorkers,
    *,
    episodes: int,
    seed: int,
    stream: int = 2,
    explore: bool = False,
    on_round: Callable[[int], None] = lambda done: None,
) -> Rollouts:
    """Run `episodes` episodes, `workers.count` at a time.

    Args:
        actor: What acts.
        workers: Where.
        episodes: How many; the same seeds give the same episodes whatever the number of workers is.
        seed: The run's seed.
        stream: See `episode_seed`.
        explore: Whether the policy is sampled rather than its mode taken.
        on_round: Told how many episodes are done.

    Raises:
        WorkerLostError: When a worker died.
    """
    parts: list[tuple[NDArray, ...]] = []  # type: ignore[type-arg]
    for first in range(0, episodes, workers.count):
        # Episode e has its own seed, so the last round runs a few episodes more and drops them.
        seeds = [episode_seed(seed, stream, first + place, 0) for place in range(workers.count)]
        parts.append(_one_round(actor, workers, workers.reset(seeds), explore))
        on_round(min(episodes, first + workers.count))
    columns = [np.concatenate(column)[:episodes] for column in zip(*parts, strict=True)]
    return Rollouts(*columns)


def roll_out_patiently(actor: Actor, workers: EnvWorkers, **settings: Any) -> Rollouts:
    """`roll_out`, begun again when a worker dies, four times in all.

    Raises:
        BadInputError: When workers keep dying.
    """
    for attempt in range(ATTEMPTS):
        try:
            return roll_out(actor, workers, **settings)
        except WorkerLostError as error:
            print(f"{error}; evaluation environments restarted", flush=True)
            if attempt == ATTEMPTS - 1:
                raise BadInputError(
                    "evaluation environments",
                    f"{error}, {ATTEMPTS} times in a row",
                    "workers that live",
                    "look for memory running out or a simulator that crashes",
                ) from None
    raise AssertionError("unreachable")


ATTEMPTS = 4


def _one_round(actor: Actor, workers: EnvWorkers, observations: Observations, explore: bool) -> tuple[NDArray, ...]:  # type: ignore[type-arg]
    count = workers.count
    actor.begin_episodes(count)
    over = np.zeros(count, bool)
    reached, held = np.zeros(count, bool), np.zeros(count, bool)
    closest, last = np.full(count, np.inf), np.full(count, np.inf)
    steps = np.zeros(count, np.int64)
    while not over.all():
        workers.begin(actor.act(observations["observation"], observations["desired_goal"], explore=explore))
        stepped = workers.finish()
        running = ~over
        steps += running & ~reached
        reached |= running & stepped.success
        held = np.where(running, stepped.success, held)
        closest = np.where(running, np.minimum(closest, stepped.distance), closest)
        last = np.where(running, stepped.distance, last)
        over |= stepped.terminated | stepped.truncated
        observations = stepped.observations
    return reached, held, closest, last, steps
