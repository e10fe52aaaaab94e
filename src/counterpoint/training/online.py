"""An episode on its way from an environment to the replay buffer.

The online loop: act, remember, update, now and then look how well it goes.

Everything that happens is a function of the run's seed and of a few counters: the seed of an episode of its round and
place, the draws of an update of its number, the random actions of the warm-up of their round. A checkpoint, taken
between rounds, therefore holds the agent, the buffer's cursor and the counters, and a run that goes on from it does
what it would have done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from counterpoint.agents.base import Agent, Metrics
from counterpoint.config import FrozenConfig
from counterpoint.data.episode import GoalEpisode
from counterpoint.data.replay import ReplayBuffer
from counterpoint.data.sampler import Sampler
from counterpoint.envs.vector import Failed, Step, VectorEnv, stacked
from counterpoint.errors import BadInputError
from counterpoint.evaluation.rollout import EpisodeResult, episode_seed, means, rollout
from counterpoint.objectives.base import NonFiniteError
from counterpoint.progress import ProgressBar
from counterpoint.training.checkpoint import last_good, newest_valid, save_checkpoint
from counterpoint.training.log import MetricsLog

__all__ = ["OnlineConfig", "OnlineLoop", "Recorder"]


class Recorder:
    """One environment's part of a round: remembered a step at a time, stored when it is over.

    Args:
        first: The answer to its reset.
    """

    def __init__(self, first: Step) -> None:
        self.latest = first
        self._seen, self._achieved = (
            [first.observation["observation"].copy()],
            [first.observation["achieved_goal"].copy()],
        )
        self._commanded = first.observation["desired_goal"].copy()
        self._actions: list[NDArray[Any]] = []
        self._rewards: list[float] = []

    def add(self, action: NDArray[Any], step: Step) -> None:
        """Remember one step."""
        self.latest = step
        self._actions.append(np.asarray(action))
        self._rewards.append(step.reward)
        self._seen.append(step.observation["observation"].copy())
        self._achieved.append(step.observation["achieved_goal"].copy())

    def store(self, buffer: ReplayBuffer) -> None:
        """Put the whole episode into the buffer."""
        episode = GoalEpisode(
            np.stack(self._seen),
            np.stack(self._achieved),
            self._commanded,
            np.stack(self._actions),
            np.array(self._rewards, np.float32),
            terminated=self.latest.terminated,
        )
        buffer.append(episode)


MAX_LOST_ROUNDS = 3


class SimulatorFailedError(RuntimeError):
    """A simulator raised, died or hangs; the episodes of the round are lost."""


class OnlineConfig(FrozenConfig):
    """The loop's settings.

    Attributes:
        steps: Environment steps over all environments.
        envs: Environments that collect side by side; more than one run in processes of their own.
        warmup: Environment steps of uniformly random actions before the first update.
        updates_per_step: Updates per environment step; .25 is one update every four steps.
        batch_size: Transitions an update.
        capacity: Transitions the buffer holds.
        eval_every: Environment steps between evaluations; 0 evaluates only at the end.
        eval_episodes: Episodes of one evaluation, the same ones each time.
        save_every: Environment steps between checkpoints, which wait for the end of a round.
        log_every: Updates between lines of training numbers (each the mean since the last).
        keep: How many checkpoints stay.
        seed: Of initial weights, episodes, actions and draws.
        worker_timeout: Seconds a worker may take for one step before it counts as lost.
        trackers: `tensorboard`, `wandb`, both or none.
    """

    steps: int = Field(default=1_000_000, ge=1)
    envs: int = Field(default=4, ge=1)
    warmup: int = Field(default=10_000, ge=0)
    updates_per_step: float = Field(default=1.0, gt=0)
    batch_size: int = Field(default=256, ge=2)
    capacity: int = Field(default=1_000_000, ge=1)
    eval_every: int = Field(default=10_000, ge=0)
    eval_episodes: int = Field(default=20, ge=1)
    save_every: int = Field(default=50_000, ge=1)
    log_every: int = Field(default=200, ge=1)
    keep: int = Field(default=2, ge=1)
    seed: int = Field(default=0, ge=0)
    worker_timeout: float = Field(default=60.0, gt=0)
    trackers: tuple[str, ...] = ("tensorboard",)


@dataclass
class Counters:
    """How far a run is; together with the seed they say what happens next."""

    steps: int = 0
    updates: int = 0
    rounds: int = 0
    episodes: int = 0
    lost: int = 0
    evaluated: int = 0
    saved: int = 0


class OnlineLoop:
    """Trains an agent in its environments.

    Args:
        agent: What acts and learns.
        buffer: What remembers.
        workers: The training environments.
        evaluators: The evaluation environments.
        config: The loop's settings.
        run: The run's folder.
        settings: The resolved configuration, for trackers.
    """

    def __init__(
        self,
        agent: Agent,
        buffer: ReplayBuffer,
        workers: VectorEnv,
        evaluators: VectorEnv,
        config: OnlineConfig,
        *,
        run: Path,
        settings: dict[str, Any],
    ) -> None:
        self.agent, self.buffer, self.config, self.run = agent, buffer, config, run
        self.workers, self.evaluators, self.settings = workers, evaluators, settings
        self.counters = Counters()
        self._checkpoints = run / "checkpoints"
        self._recent: dict[str, list[Tensor]] = defaultdict(list)

    def train(self, on_evaluation: Callable[[int, list[EpisodeResult]], None] = lambda steps, results: None) -> None:
        """Run to the end, from the newest whole checkpoint where there is one.

        Args:
            on_evaluation: Told the environment steps done and what an evaluation found.

        Raises:
            BadInputError: When the loss stops being finite (the last good checkpoint stays), or rounds keep failing
                (the run is saved first).
        """
        self._resume()
        log = MetricsLog(self.run, self.config.trackers, self.settings, self.counters.steps)
        try:
            with ProgressBar("Training", self.config.steps, "environment steps", done=self.counters.steps) as progress:
                while self.counters.steps < self.config.steps:
                    before = self.counters.steps
                    self._round_or_restart(log)
                    over = self.counters.steps >= self.config.steps
                    if self._due(self.counters.evaluated, self.config.eval_every) or over:
                        results = self._evaluate(log)
                        on_evaluation(self.counters.steps, results)
                        progress.advance(0, note=f"success {means(results)['success']:.2f}")
                    if self._due(self.counters.saved, self.config.save_every) or over:
                        self._save()
                    progress.advance(self.counters.steps - before)
        except NonFiniteError as error:
            raise self._diverged(error) from None
        finally:
            log.close()

    def _round_or_restart(self, log: MetricsLog) -> None:
        """One round of episodes; one in which a worker dies or a simulation blows up is dropped, the next one begun."""
        try:
            self._round(log)
        except (SimulatorFailedError, BadInputError) as error:
            self.workers.close()
            self.counters.lost += 1
            self.counters.rounds += 1
            print(f"{error}; round {self.counters.rounds} dropped, environments restarted", flush=True)
            if self.counters.lost > MAX_LOST_ROUNDS:
                self.counters.lost = 0
                self._save()
                raise BadInputError(
                    f"environments of {self.run}",
                    f"{error}, {MAX_LOST_ROUNDS + 1} rounds in a row",
                    "simulations that last an episode",
                    "look for memory running out or a simulator that crashes; the run is saved and "
                    "continues when started again",
                ) from None
        else:
            self.counters.lost = 0

    def _round(self, log: MetricsLog) -> None:
        config, counters = self.config, self.counters
        rows = list(range(config.envs))
        seeds = [episode_seed(config.seed, 0, counters.rounds, row) for row in rows]
        self.workers.reset(rows, seeds)
        recorders = [Recorder(step) for step in self._answers()]
        self.agent.reset(rows, seeds)
        explorer = np.random.default_rng([config.seed, 3, counters.rounds])
        while rows:
            if counters.steps < config.warmup:
                actions = self._random_actions(explorer)[rows]
            else:
                observation = stacked(recorders[row].latest for row in rows)
                actions = self.agent.act(observation, rows=rows, explore=True)
            self.workers.send(rows, actions)
            # The simulators work on the answer while the agent learns.
            self._updates(log)
            for row, action, step in zip(rows, actions, self._answers(), strict=True):
                recorders[row].add(action, step)
            counters.steps += len(rows)
            rows = [row for row in rows if not recorders[row].latest.over]
        for recorder in recorders:
            recorder.store(self.buffer)
        counters.episodes += config.envs
        counters.rounds += 1

    def _answers(self) -> list[Step]:
        """Return the environments' answers, in the order of rows.

        Raises:
            SimulatorFailedError: When one of them failed.
        """
        answers = self.workers.receive()
        for row, answer in answers.items():
            if isinstance(answer, Failed):
                raise SimulatorFailedError(f"environment {row}: {answer.reason}")
        return [answer for answer in answers.values() if isinstance(answer, Step)]

    @cached_property
    def _sampler(self) -> Sampler:
        bound = self.agent.sampling().bind(self.buffer)
        return Sampler(self.buffer, bound, batch_size=self.config.batch_size, seed=self.config.seed)

    def _updates(self, log: MetricsLog) -> None:
        config, counters = self.config, self.counters
        if counters.steps < config.warmup or not self.buffer.transitions:
            return
        due = int((counters.steps - config.warmup) * config.updates_per_step) - counters.updates
        for _ in range(due):
            batch = self._sampler[counters.updates]
            metrics = self.agent.update(batch, counters.updates)
            counters.updates += 1
            self._note(metrics, log)

    def _note(self, metrics: Metrics, log: MetricsLog) -> None:
        for name, value in metrics.items():
            self._recent[name].append(value)
        if self.counters.updates % self.config.log_every == 0:
            means = {name: float(torch.stack(values).mean()) for name, values in self._recent.items()}
            extra = {"updates": float(self.counters.updates), "transitions": float(self.buffer.transitions)}
            log.write(self.counters.steps, "train", means | extra)
            self._recent.clear()

    def _evaluate(self, log: MetricsLog) -> list[EpisodeResult]:
        config = self.config
        try:
            seeds = [episode_seed(config.seed, 1, number) for number in range(config.eval_episodes)]
            results = rollout(self.agent, self.evaluators, seeds)
        except BadInputError:
            self._save()
            raise
        self.counters.evaluated = self.counters.steps
        log.write(self.counters.steps, "eval", means(results))
        return results

    def _random_actions(self, rng: np.random.Generator) -> NDArray[Any]:
        spaces, count = self.agent.spaces, self.config.envs
        if spaces.discrete:
            return rng.integers(spaces.action, size=count)
        return rng.uniform(-1, 1, (count, spaces.action)).astype(np.float32)

    def _due(self, last: int, every: int) -> bool:
        return every > 0 and self.counters.steps // every > last // every

    def _save(self) -> None:
        self.counters.saved = self.counters.steps
        self.buffer.flush()
        state = {"agent": self.agent.state(), "buffer": self.buffer.cursor(), "counters": asdict(self.counters)}
        save_checkpoint(self._checkpoints, self.counters.steps, state, keep=self.config.keep)

    def _resume(self) -> None:
        found = newest_valid(self._checkpoints)
        if found is None:
            return
        path, _, state, troubles = found
        for trouble in troubles:
            print(f"Skipped a damaged checkpoint. {trouble}", flush=True)
        self.agent.load_state(state["agent"])
        self.buffer.restore(state["buffer"])
        self.counters = Counters(**state["counters"])
        print(f"Resumed from {path}: {self.counters.steps} steps, {self.counters.updates} updates", flush=True)

    def _diverged(self, error: NonFiniteError) -> BadInputError:
        return BadInputError(
            f"update {self.counters.updates + 1}",
            str(error),
            "finite losses",
            f"lower the learning rates; {last_good(self._checkpoints)}",
        )
