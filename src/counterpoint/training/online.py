"""Online collection as a source of batches: act, store episodes, and train the agent while the simulators step.

Episodes are collected in rounds of one episode in each of the parallel environments (rows). All randomness depends only
on the run's seed and a few counters: the seed of an episode on its round and row, the batch of an update on the
update's number, and the random actions of the warm-up on their round. A checkpoint is taken between rounds. It
therefore holds only the agent, the buffer's cursor and the counters, and a run that resumes from it continues exactly
as if it had not been interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from counterpoint.agents.base import Agent
from counterpoint.config import free
from counterpoint.data.draws import sample_rng
from counterpoint.data.episode import GoalEpisode
from counterpoint.data.replay import ReplayBuffer
from counterpoint.data.sampler import Sampler
from counterpoint.envs.vector import Failed, Step, VectorEnv, stacked
from counterpoint.errors import BadInputError
from counterpoint.evaluation.rollout import episode_seed
from counterpoint.training.distributed import relayed
from counterpoint.training.loop import Source
from counterpoint.training.settings import LoopConfig

MAX_LOST_ROUNDS = 3


class AgentLoopConfig(LoopConfig):
    """The settings of the loops that train agents; `batch_size` counts transitions."""

    batch_size: int = Field(256, ge=2)
    log_every: int = free(200, ge=1)
    eval_every: int = free(10_000, ge=0)


class OnlineConfig(AgentLoopConfig):
    """The online loop's settings. Steps are environment steps, and an evaluation always follows the last step.

    Attributes:
        envs: Number of environments that collect in parallel; if there are several, each runs in a separate process.
        warmup: Environment steps of uniformly random actions before the first update.
        updates_per_step: Updates per environment step; 0.25 is one update every four steps.
        capacity: Maximum number of transitions in the buffer.
        eval_episodes: Number of episodes in one evaluation; every evaluation uses the same episodes.
        worker_timeout: Seconds that a simulator may take for one step before it counts as failed.
    """

    steps: int | None = free(1_000_000, ge=1)
    envs: int = Field(4, ge=1)
    warmup: int = Field(10_000, ge=0)
    updates_per_step: float = Field(1.0, gt=0)
    capacity: int = Field(1_000_000, ge=1)
    eval_episodes: int = free(20, ge=1)
    save_every: int = Field(50_000, ge=1)
    keep: int = Field(2, ge=1)
    worker_timeout: float = free(60.0, gt=0)

    last_evaluation: ClassVar[bool] = True


class Recorder:
    """Collects the steps of one environment's episode, and stores the complete episode in the buffer.

    Args:
        first: The result of the environment's reset.
    """

    def __init__(self, first: Step) -> None:
        self.latest = first
        self._seen = [first.observation["observation"].copy()]
        self._achieved = [first.observation["achieved_goal"].copy()]
        self._commanded = first.observation["desired_goal"].copy()
        self._actions: list[NDArray[Any]] = []
        self._rewards: list[float] = []

    def add(self, action: NDArray[Any], step: Step) -> None:
        """Add one step to the episode."""
        self.latest = step
        self._actions.append(np.asarray(action))
        self._rewards.append(step.reward)
        self._seen.append(step.observation["observation"].copy())
        self._achieved.append(step.observation["achieved_goal"].copy())

    def store(self, buffer: ReplayBuffer) -> None:
        """Put the complete episode into the buffer."""
        episode = GoalEpisode(
            np.stack(self._seen),
            np.stack(self._achieved),
            self._commanded,
            np.stack(self._actions),
            np.array(self._rewards, np.float32),
            terminated=self.latest.terminated,
        )
        buffer.append(episode)


class SimulatorFailedError(RuntimeError):
    """A simulator raised an error, died or hangs; the episodes of the round are lost."""


@dataclass
class Counters:
    """The progress of a run; the counters and the run's seed determine all that follows."""

    steps: int = 0
    updates: int = 0
    rounds: int = 0
    episodes: int = 0
    lost: int = 0


class OnlineSource(Source):
    """Batches from a replay buffer, which the agent fills between batches.

    Args:
        agent: The agent that acts and learns.
        buffer: The buffer that holds the episodes.
        envs: The training environments.
        config: The loop's settings.
        followed: True to send every batch to all other processes, which receive it through `FollowingSource`.
    """

    unit = "environment steps"
    copies = True

    def __init__(
        self, agent: Agent, buffer: ReplayBuffer, envs: VectorEnv, config: OnlineConfig, *, followed: bool = False
    ) -> None:
        self.agent, self.buffer, self.envs, self.config, self.followed = agent, buffer, envs, config, followed
        self.counters = Counters()
        self._resting = True

    @property
    def epoch_size(self) -> int:
        """The number of transitions in the buffer."""
        return self.buffer.transitions

    @cached_property
    def _sampler(self) -> Sampler:
        bound = self.agent.sampling().bind(self.buffer)
        return Sampler(self.buffer, bound, batch_size=self.config.batch_size, seed=self.config.seed)

    def clock(self, updates: int) -> int:
        """Return the number of environment steps done."""
        return self.counters.steps

    def at_rest(self) -> bool:
        """Return whether no round is in progress."""
        return self._resting

    def state(self) -> dict[str, Any]:
        """Return the buffer's cursor and the counters."""
        return {"buffer": self.buffer.cursor(), "counters": asdict(self.counters)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Resume from a saved state."""
        self.buffer.restore(state["buffer"])
        self.counters = Counters(**state["counters"])

    def flush(self) -> None:
        """Flush the buffer to the disk."""
        self.buffer.flush()

    def numbers(self) -> dict[str, float]:
        """Return the number of updates done and the number of transitions in the buffer."""
        return {"updates": float(self.counters.updates), "transitions": float(self.buffer.transitions)}

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()

    def batches(self, updates: int, stop: int) -> Iterator[dict[str, Any] | None]:
        """Collect rounds of episodes until `stop` environment steps; yield a batch for each update that is due.

        If a simulator fails, the round is dropped and the next round begins. After four failed rounds in a row, an
        error is raised.
        """
        collected = self._collected(stop)
        if not self.followed:
            return collected
        told = ((batch, self.counters.steps, self._resting) for batch in collected)
        return (batch for batch, *_ in relayed(told))

    def _collected(self, stop: int) -> Iterator[dict[str, Any] | None]:
        while self.counters.steps < stop:
            self._resting = False
            try:
                yield from self._round()
                self.counters.lost = 0
            except (SimulatorFailedError, BadInputError) as error:
                self._drop_round(error)
            self._resting = True
            yield None

    def _drop_round(self, error: Exception) -> None:
        self.envs.close()
        self.counters.lost += 1
        self.counters.rounds += 1
        print(f"{error}; round {self.counters.rounds} dropped, environments restarted", flush=True)
        if self.counters.lost > MAX_LOST_ROUNDS:
            self.counters.lost, self._resting = 0, True
            found = f"{error}, {MAX_LOST_ROUNDS + 1} rounds in a row"
            hint = "look for memory running out or a simulator that crashes; the run is saved and continues when "
            expected = "simulations that last an episode"
            raise BadInputError("environments", found, expected, f"{hint}started again") from None

    def _round(self) -> Iterator[dict[str, Any] | None]:
        config, counters = self.config, self.counters
        rows = list(range(config.envs))
        seeds = [episode_seed(config.seed, 0, counters.rounds, row) for row in rows]
        self.envs.reset(rows, seeds)
        recorders = [Recorder(step) for step in self._answers()]
        self.agent.reset(rows, seeds)
        explorer = sample_rng(config.seed, counters.rounds, "warmup actions")
        while rows:
            if counters.steps < config.warmup:
                actions = self._random_actions(explorer)[rows]
            else:
                observation = stacked(recorders[row].latest for row in rows)
                actions = self.agent.act(observation, rows=rows, explore=True)
            self.envs.send(rows, actions)
            # The simulators compute their answers while the agent learns.
            yield from self._due()
            for row, action, step in zip(rows, actions, self._answers(), strict=True):
                recorders[row].add(action, step)
            counters.steps += len(rows)
            rows = [row for row in rows if not recorders[row].latest.over]
            yield None
        for recorder in recorders:
            recorder.store(self.buffer)
        counters.episodes += config.envs
        counters.rounds += 1

    def _answers(self) -> list[Step]:
        """Return the environments' newest steps, in the order of rows.

        Raises:
            SimulatorFailedError: When one of the environments failed.
        """
        answers = self.envs.receive()
        for row, answer in answers.items():
            if isinstance(answer, Failed):
                raise SimulatorFailedError(f"environment {row}: {answer.reason}")
        return [answer for answer in answers.values() if isinstance(answer, Step)]

    def _due(self) -> Iterator[dict[str, Any]]:
        """Yield the batches of the updates that are due."""
        config, counters = self.config, self.counters
        if counters.steps < config.warmup or not self.buffer.transitions:
            return
        due = int((counters.steps - config.warmup) * config.updates_per_step) - counters.updates
        for _ in range(due):
            batch = self._sampler[counters.updates]
            counters.updates += 1
            yield batch

    def _random_actions(self, rng: np.random.Generator) -> NDArray[Any]:
        spaces, count = self.agent.spaces, self.config.envs
        if spaces.discrete:
            return rng.integers(spaces.action, size=count)
        return rng.uniform(-1, 1, (count, spaces.action)).astype(np.float32)


class FollowingSource(Source):
    """Batches of the main process's `OnlineSource`, for all other processes, which have no simulators and no buffer."""

    unit = OnlineSource.unit

    def __init__(self) -> None:
        self._steps, self._resting = 0, True

    @property
    def epoch_size(self) -> int:
        """Return 0: there is no buffer."""
        return 0

    def clock(self, updates: int) -> int:
        """Return the number of environment steps done."""
        return self._steps

    def at_rest(self) -> bool:
        """Return whether no round is in progress."""
        return self._resting

    def load_state(self, state: dict[str, Any]) -> None:
        """Resume from a saved state of the main process's source."""
        self._steps = state["counters"]["steps"]

    def batches(self, updates: int, stop: int) -> Iterator[dict[str, Any] | None]:
        """Yield the batches of the main process's source."""
        told: Iterator[tuple[dict[str, Any] | None, int, bool]] = relayed(None)
        for batch, self._steps, self._resting in told:
            yield batch
