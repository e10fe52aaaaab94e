"""Run a policy in parallel environments, one episode for each seed.

An episode depends only on its seed and the policy, not on parallel episodes or on the order of seeds. The one exception
is rounding, since a network's output depends slightly on its batch size. Images that the policy does not read are not
rendered. If a simulator raises an error or dies, its episode counts as failed; too many such episodes end the rollout.

Success is counted in two ways: an episode is a *success* if its goal was reached at any step (the convention of
contrastive RL and TD InfoNCE), and *held* if its goal was reached at the last step.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.data.draws import sample_seed
from counterpoint.envs.make import as_maker
from counterpoint.envs.vector import Env, Failed, Step, VectorEnv, stacked
from counterpoint.errors import require
from counterpoint.evaluation.statistics import mean_bca, wilson
from counterpoint.files import write_atomically
from counterpoint.policies.base import Policy

RESULT = "result.json"
"""The file in a run's folder with the latest evaluation during training."""
TOLERATED = 0.1
"""Maximum share of episodes whose simulator may fail."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """The outcome of an episode.

    Attributes:
        seed: Seed of the episode.
        success: True if the task was solved at any step; `None` if the environment does not define success, False if
            the simulator failed.
        held: True if the task was solved at the last step.
        total_reward: Sum of the rewards.
        steps: Number of steps taken.
        steps_to_success: Number of steps until the task was first solved; `None` if it was not solved.
        closest_distance: Smallest distance to the goal in the environment's units, if it has a goal.
        last_distance: Distance to the goal at the last step.
        task: Name of the episode's task, in an environment with several tasks.
        error: The simulator's error message if it failed.
    """

    seed: int
    success: bool | None
    held: bool | None
    total_reward: float
    steps: int
    steps_to_success: int | None
    closest_distance: float | None = None
    last_distance: float | None = None
    task: str | None = None
    error: str | None = None

    def as_row(self) -> dict[str, Any]:
        """Return the attributes that are not `None`, for a result file; `total_reward` is named `return`."""
        row = {**asdict(self), "return": self.total_reward}
        del row["total_reward"]
        return {key: value for key, value in row.items() if value is not None}


def episode_seed(seed: int, stream: int, number: int, row: int = 0) -> int:
    """Return the seed of one episode, a pure function of the arguments, so that no random state must be saved.

    Args:
        seed: The run's seed.
        stream: 0 for training, 1 for evaluation while training, 2 for the final evaluation; two streams never share a
            seed.
        number: Number of the episode, or of the round of parallel episodes.
        row: Number of the environment within the round.
    """
    return sample_seed(seed, number, f"episodes of stream {stream}, row {row}", bits=31)


def evaluation_seeds(seed: int, stream: int, episodes: int, tasks: int = 1) -> list[int]:
    """Return the seeds of an evaluation's episodes, whose tasks take turns.

    Args:
        seed: The run's seed.
        stream: As for `episode_seed`.
        episodes: Number of episodes.
        tasks: Number of tasks of an environment in which the remainder of a seed by this number selects the task.
    """
    drawn = [episode_seed(seed, stream, number) for number in range(episodes)]
    return [one - one % tasks + number % tasks for number, one in enumerate(drawn)]


def rollout(
    policy: Policy,
    env: VectorEnv | Env | Callable[[], Env] | str,
    seeds: Sequence[int],
    *,
    envs: int = 8,
    processes: bool = False,
    stop_at_success: bool = False,
    on_start: Callable[[], object] = lambda: None,
    on_episode: Callable[[EpisodeResult], None] = lambda result: None,
) -> list[EpisodeResult]:
    """Run one episode for each seed; an environment gets the next seed when its episode ends.

    Args:
        policy: The policy, which acts in all environments (rows) at once.
        env: An environment, a function that makes one, a name such as `metaworld/reach` or `FetchReach-v4`, or a
            `VectorEnv`, which is not closed.
        seeds: Seeds of the episodes.
        envs: Maximum number of parallel environments; if `env` is a single instance, there is one.
        processes: True to run every environment in a separate process.
        stop_at_success: True to end an episode when its task is solved. Rewards after that moment are not counted.
        on_start: Function that is called once, when the first environments are built and reset; an environment that
            does not fit is refused before this call.
        on_episode: Function that is called with every result as soon as its episode ends.

    Returns:
        Results in the order of `seeds`.

    Raises:
        BadInputError: If the simulator failed in more than a tenth of the episodes; the message quotes the first error.
    """
    if not isinstance(env, VectorEnv):
        make, most = as_maker(env)
        with VectorEnv(make, min(envs, most, max(1, len(seeds))), processes=processes) as vector:
            return rollout(
                policy, vector, seeds, stop_at_success=stop_at_success, on_start=on_start, on_episode=on_episode
            )
    left, started = list(enumerate(seeds))[::-1], False
    running: dict[int, _Running] = {}
    results: dict[int, EpisodeResult] = {}

    def settle(row: int, answer: Step | Failed) -> None:
        error = answer.reason if isinstance(answer, Failed) else None
        if isinstance(answer, Step):
            running[row].take(answer)
            if not running[row].over(stop_at_success):
                return
        episode = running.pop(row)
        results[episode.number] = result = episode.result(error)
        if error is not None:
            _log.warning("the simulator failed in the episode of seed %d: %s", episode.seed, error)
            errors = [one.error for one in results.values() if one.error is not None]
            found = f"{len(errors)} of {len(seeds)} episodes in which the simulator failed; the first: {errors[0]}"
            most = int(TOLERATED * len(seeds))
            require(len(errors) <= most, "rollouts", found, f"{most} at most", "mend the first error")
        on_episode(result)

    while left or running:
        idle = [row for row in range(env.n) if row not in running][: len(left)]
        running |= {row: _Running(*left.pop()) for row in idle}
        env.reset(idle, [running[row].seed for row in idle])
        answers = env.receive()
        if not started:
            on_start()
            started = True
        for row, answer in answers.items():
            settle(row, answer)
        begun = [row for row in idle if row in running]
        if begun:
            policy.reset(begun, [running[row].seed for row in begun])
        rows = sorted(running)
        if rows:
            env.send(rows, policy.act(stacked(running[row].latest for row in rows), rows=rows), policy.looks(rows))
            for row, answer in env.receive().items():
                settle(row, answer)
    return [results[number] for number in range(len(seeds))]


@dataclass
class _Running:
    """An episode that is still running, and its sums so far."""

    number: int
    seed: int
    steps: int = -1  # the reset does not count as a step
    reward: float = 0.0
    solved_after: int | None = None
    distances: list[float] = field(default_factory=list)
    task: str | None = None
    latest: Step = field(init=False)

    def take(self, step: Step) -> None:
        self.latest = step
        self.steps += 1
        self.reward += step.reward
        if not self.steps:
            self.task = step.info.get("task")
        else:
            if step.info.get("is_success") and self.solved_after is None:
                self.solved_after = self.steps
            if "distance" in step.info:
                self.distances.append(float(step.info["distance"]))

    def over(self, stop_at_success: bool) -> bool:
        return self.steps > 0 and (self.latest.over or (stop_at_success and self.solved_after is not None))

    def result(self, error: str | None) -> EpisodeResult:
        judged = error is not None or "is_success" in self.latest.info
        return EpisodeResult(
            seed=self.seed,
            success=(self.solved_after is not None and error is None) if judged else None,
            held=(error is None and bool(self.latest.info["is_success"])) if judged else None,
            total_reward=self.reward,
            steps=max(self.steps, 0),
            steps_to_success=self.solved_after if error is None else None,
            closest_distance=min(self.distances, default=None),
            last_distance=self.distances[-1] if self.distances else None,
            task=self.task,
            error=error,
        )


def report(results: Sequence[EpisodeResult]) -> dict[str, Any]:
    """Return success, return and distances with their intervals, for a result file.

    `TASK_success` is the success in the episodes of one task, in an environment with tasks. `steps_to_success` is the
    mean over solved episodes, and `simulator_errors` the number of episodes in which the simulator raised an error.
    Numbers that are not defined are `None`: `success` if the environment does not define it, `steps_to_success` if no
    episode was solved, and distances if there are no goals.
    """
    solved = [one.steps_to_success for one in results if one.steps_to_success is not None]
    goals = [one for one in results if one.closest_distance is not None]
    tasks = sorted({one.task for one in results if one.task is not None})
    return {
        "success": _share([one.success for one in results]),
        **{f"{task}_success": _share([one.success for one in results if one.task == task]) for task in tasks},
        "success_at_end": _share([one.held for one in results]),
        "return": _mean([one.total_reward for one in results]),
        "steps_to_success": _mean(solved),
        "closest_distance": _mean([one.closest_distance for one in goals]),
        "last_distance": _mean([one.last_distance for one in goals]),
        "simulator_errors": sum(one.error is not None for one in results),
    }


def means(results: Sequence[EpisodeResult]) -> dict[str, float]:
    """Return the values of `report` that are defined, for logging."""
    found = {key: one["value"] if isinstance(one, dict) else one for key, one in report(results).items()}
    return {key: float(value) for key, value in found.items() if value is not None}


def write_report(path: Path, results: Sequence[EpisodeResult], **beside: Any) -> dict[str, float]:
    """Write the result of `report`, with the entries `beside`, as JSON; return the result of `means`."""
    write_atomically(path, json.dumps({**beside, **report(results)}, indent=1))
    return means(results)


def main_number(path: Path) -> str:
    """Return the main number of a file written by `write_report`, with interval: success if defined, else return."""
    found = json.loads(path.read_text())
    key = "success" if found["success"] is not None else "return"
    count, errors = found[key]["n"], found["simulator_errors"]
    failed = f", {errors} of them ended by an error of the simulator" if errors else ""
    return f"{key} {with_interval(found[key])} in {count} episode{'s' if count != 1 else ''}{failed}"


def with_interval(number: Mapping[str, Any]) -> str:
    """Return a number of a result file as text, with its interval if it has one: `0.86 [0.74, 0.93]`."""
    ends = "" if number["low"] is None else f" [{number['low']:.2f}, {number['high']:.2f}]"
    return f"{number['value']:.2f}{ends}"


def _share(answers: Sequence[bool | None]) -> dict[str, Any] | None:
    return None if None in answers else wilson(sum(map(bool, answers)), len(answers)).as_json()


def _mean(values: Sequence[Any]) -> dict[str, Any] | None:
    return mean_bca(np.array(values, np.float64)).as_json() if values else None
