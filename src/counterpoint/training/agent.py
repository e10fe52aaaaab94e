"""Recipes of kind `agent`: a goal-reaching agent learns online in an environment, or offline from a data set."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from pydantic import BaseModel

from counterpoint.agents import AGENTS, SavedAgent, make_agent
from counterpoint.agents.base import Agent
from counterpoint.config import FrozenConfig, Tree, free
from counterpoint.data.draws import owners
from counterpoint.data.replay import ReplayBuffer
from counterpoint.data.sampler import Sampler
from counterpoint.data.spec import BoundSpec
from counterpoint.data.store import EpisodeStore, spread
from counterpoint.envs.goal.env import EnvConfig, env_facts, goal_envs, in_another_env, matched
from counterpoint.envs.vector import VectorEnv
from counterpoint.errors import BadInputError, require, require_known
from counterpoint.evaluation.rollout import RESULT, evaluation_seeds, rollout, write_report
from counterpoint.formats import open_dataset, recognise
from counterpoint.formats.minari.files import ID, is_minari
from counterpoint.formats.minari.reader import load_minari, replay_from_store
from counterpoint.formats.ogbench import load_ogbench
from counterpoint.formats.remote import may_exist
from counterpoint.progress import ProgressBar
from counterpoint.training.distributed import RowSharing
from counterpoint.training.loop import Source
from counterpoint.training.online import AgentLoopConfig, FollowingSource, OnlineConfig, OnlineSource
from counterpoint.training.plan import Given, Job, Plan, Recipe, named
from counterpoint.training.run import Run
from counterpoint.training.settings import LoopConfig


class OfflineDataConfig(FrozenConfig):
    """Settings for reading a data set of episodes, and for evaluating an agent trained on it.

    Attributes:
        goals: `coordinates` takes the goal coordinates (`achieved_goal`) as goals, if the data store them apart from
            the state; `state` takes whole states as goals.
        dialect: The dialect of HDF5 files, if the files do not identify it: see `counterpoint data info`.
        eval_episodes: Number of episodes in one evaluation, if an environment is given.
        eval_envs: Number of environments that run evaluation episodes in parallel.
    """

    goals: Literal["coordinates", "state"] = "coordinates"
    dialect: str | None = None
    eval_episodes: int = free(20, ge=1)
    eval_envs: int = free(2, ge=1)


class OfflineTrainConfig(AgentLoopConfig):
    """The offline loop's settings.

    Attributes:
        on_device: Keep the data on the device and gather batches there; the batches are the same. It is meant for a GPU
            with room for the data.
    """

    steps: int | None = free(500_000, ge=1)
    save_every: int = free(10_000, ge=1)
    on_device: bool = free(False)


class AgentRecipe(Recipe):
    """A goal-reaching agent.

    Attributes:
        agent: The agent and its settings.
        env: The environment for online training, or for evaluation in offline training; with `none` there is no
            evaluation.
        online: Settings of the online loop.
        train: Settings of the offline loop.
        data: Settings for reading an offline data set.
    """

    kind: Literal["agent"] = "agent"
    agent: Any
    env: EnvConfig = EnvConfig(name="none")
    online: OnlineConfig = OnlineConfig()
    train: OfflineTrainConfig = OfflineTrainConfig()
    data: OfflineDataConfig = OfflineDataConfig()

    @property
    def loop(self) -> LoopConfig:
        """The settings of the online loop."""
        return self.online

    @classmethod
    def sections(cls, tree: Any, where: str) -> dict[str, type[BaseModel]]:
        """Return the configuration class of the section `agent`, which depends on the agent's name."""
        section = tree.get("agent")
        name = section.get("name") if isinstance(section, Mapping) else None
        require_known(name, AGENTS, f"{where} [agent]", f"name = {name!r}")
        return {"agent": named(AGENTS[str(name)].config, str(name))}

    @classmethod
    def adapted(cls, tree: Tree, data: Sequence[object], env: str | None, where: str) -> Tree:
        """Return the recipe's settings with the given environment, or with the one in the data set's `collect.json`."""
        own = dict(tree)
        if env is not None:
            own["env"] = in_another_env(own.get("env") or {}, env)
        elif len(data) == 1 and isinstance(data[0], str | Path):
            own["env"] = (own.get("env") or {}) | recorded_evaluation(data[0])
        return own if own.get("env") else {key: value for key, value in own.items() if key != "env"}

    def plan(self, given: Given, accelerator: Accelerator) -> Plan:
        """Open the data set, read the environment's spaces, and build the agent."""
        expected = "--env for online training, --data for offline training"
        env = None if self.env.name == "none" else self.env
        require(env or given.data, "train", "neither an environment nor a data set", expected, "give one of them")
        several, on_gpu = accelerator.num_processes > 1, accelerator.device.type == "cuda"
        found = f"true in {accelerator.num_processes} processes"
        for option in ("compile", "cuda_graph"):
            alone = not (several and getattr(self.agent, option))
            require(alone, f"agent.{option}", found, "false", "leave it out")
        able = on_gpu or any(map(shutil.which, ("g++", "clang++", "c++")))
        found, expected = "true without a C++ compiler", "g++ or clang++ on a machine without a GPU"
        require(able or not self.agent.compile, "agent.compile", found, expected, "install one, or leave it out")
        recordable = on_gpu and AGENTS[self.agent.name].agent.recordable
        found = f"true for {self.agent.name}" if on_gpu else "true without a GPU"
        require(recordable or not self.agent.cuda_graph, "agent.cuda_graph", found, "false", "leave it out")
        spaces, episode_steps = env_facts(env) if env else (None, 0)
        buffer, seed, loop = None, self.online.seed, self.loop
        identity: dict[str, Any] = {"fingerprint": None}
        facts: dict[str, Any] = {}
        if given.data:
            data = given.one()
            buffer = open_replay(data, self.data)
            spaces = matched(spaces, buffer.spaces, str(data)) if spaces is not None else buffer.spaces
            needed = f"rewards to learn from, which {self.agent.name} needs"
            hint = "choose an agent that learns from states alone, such as td_infonce"
            rewarded = not AGENTS[self.agent.name].agent.needs_reward or buffer.rewards_differ()
            require(rewarded, str(data), "the same reward at every step", needed, hint)
            seed, loop, identity = self.train.seed, self.train, {"fingerprint": buffer.fingerprint}
            if isinstance(data, str | Path):
                facts = {"data_source": {"path": str(data)} | identity}
        assert spaces is not None
        set_seed(seed)
        agent = make_agent(self.agent.model_dump(), spaces, seed=seed, device=accelerator.device)
        agent.processes = RowSharing() if several else None

        source = "Its own episodes." if buffer is None else f"Replay data, content `{buffer.fingerprint[:16]}`."

        def build(run: Run) -> Job:
            def save(folder: Path) -> None:
                if not run.main:
                    return
                described = env.model_dump(mode="json") if env else None
                saved = SavedAgent(agent, described, buffer.action_bounds if buffer else None)
                saved.save_pretrained(folder, method=f"Agent `{agent.name}`, seed {seed}.", data=source)

            if buffer is None:
                return self._online(agent, run, episode_steps, save)
            bound = agent.sampling().bind(buffer)
            drawn: dict[str, Any] = {"batch_size": self.train.batch_size, "seed": self.train.seed}
            kept = self.train.on_device
            replay = DeviceSampler(buffer, bound, agent.device, **drawn) if kept else Sampler(buffer, bound, **drawn)
            evaluate = None
            if env is not None:
                seeds = evaluation_seeds(self.train.seed, 1, self.data.eval_episodes, env.tasks)
                evaluate = _evaluation(agent, goal_envs(env, self.data.eval_envs), seeds, run)
            return Job(agent, Source(replay), save, evaluate=evaluate)

        return Plan(identity, build, facts, loop)

    def _online(self, agent: Agent, run: Run, episode_steps: int, save: Callable[[Path], object]) -> Job:
        online, replay = self.online, run.folder / "replay"
        evaluators = goal_envs(self.env, online.envs, online.worker_timeout)
        seeds = evaluation_seeds(online.seed, 1, online.eval_episodes, self.env.tasks)
        evaluate = _evaluation(agent, evaluators, seeds, run)
        if not run.main:
            return Job(agent, FollowingSource(), save, evaluate=evaluate)
        if not run.checkpoints.exists():
            shutil.rmtree(replay, ignore_errors=True)  # a run that was never saved starts from the beginning
        # Transitions that the oldest kept checkpoint refers to must not be overwritten before that checkpoint is gone.
        slack = (online.keep + 1) * (online.save_every + online.envs * episode_steps)
        # If goals are whole observations, such as images, the buffer keeps only one copy of each.
        same = self.env.observations == "image" or self.env.goals != "coordinates"
        buffer = ReplayBuffer(
            agent.spaces, capacity=online.capacity, folder=replay, slack=slack, goal_is_observation=same
        )
        envs, followed = goal_envs(self.env, online.envs, online.worker_timeout), agent.processes is not None
        return Job(agent, OnlineSource(agent, buffer, envs, online, followed=followed), save, evaluate=evaluate)


class DeviceSampler(Sampler):
    """A sampler of a replay buffer that keeps the data on a device: only the numbers of the drawn states move there.

    Each batch equals that of `Sampler`; what is drawn and not read, such as `future_offset`, stays on the CPU.

    Args:
        buffer: The episodes; they are copied, so the buffer must not change afterwards.
        bound: The spec, bound to the buffer.
        device: The device.
        batch_size: B, samples per batch.
        seed: The run's seed.

    Raises:
        BadInputError: When the data do not fit into the GPU's free memory.
    """

    def __init__(
        self, buffer: ReplayBuffer, bound: BoundSpec, device: torch.device, *, batch_size: int, seed: int
    ) -> None:
        super().__init__(buffer, bound, batch_size=batch_size, seed=seed)
        episode, self._starts = owners(buffer.lengths + 1)  # numbers of states, end to end
        steps = np.arange(len(episode)) - self._starts[episode]
        sources = sorted({read.source for read in bound.spec.reads.values()})
        columns = {name: torch.from_numpy(buffer.gather(name, episode, steps)) for name in sources}
        if device.type == "cuda":
            need, (free, _) = sum(column.nbytes for column in columns.values()), torch.cuda.mem_get_info(device)
            found, expected = f"data of {need / 1e9:.2f} GB", f"at most the {free / 1e9:.2f} GB of free memory"
            require(need < free, "train.on_device", found, expected, "leave it out")
        self._device = device
        self._columns = {name: column.to(device) for name, column in columns.items()}

    def batches(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """Yield the batches of steps `start` to `stop - 1`."""
        return map(self.__getitem__, range(start, stop))

    def __getitem__(self, step: int) -> dict[str, Any]:
        """Return the batch of one step."""
        draws, values = self.table.draw(self.batch_size, self.seed, step, self._wanted)
        places = {at: spread(self._starts[draws[at].episode], draws[at].steps) + draws[at].steps for at in self._wanted}
        # One copy of all numbers takes a fraction of the time of one for each draw.
        numbers = torch.from_numpy(np.concatenate([place.ravel() for place in places.values()])).to(self._device)
        parts = torch.split(numbers, [place.size for place in places.values()])
        rows = {at: part.view(place.shape) for (at, place), part in zip(places.items(), parts, strict=True)}
        batch = {key: self._columns[read.source][rows[read.at]] for key, read in self.bound.spec.reads.items()}
        return batch | {key: torch.from_numpy(value) for key, value in values.items()}


def _evaluation(agent: Agent, envs: VectorEnv, seeds: list[int], run: Run) -> Callable[[int], dict[str, float]]:
    """Return a function that rolls the agent out and writes `RUN/result.json`."""

    def evaluate(steps: int) -> dict[str, float]:
        if not run.main:
            return {}
        with envs, ProgressBar("Evaluating", len(seeds), "episodes") as bar:
            results = rollout(agent, envs, seeds, on_episode=lambda _: bar.advance())
        # Written before the checkpoint that may follow: a finished run always has its result.
        return write_report(run.folder / RESULT, results, steps=steps)

    return evaluate


def open_replay(data: str | Path | EpisodeStore, config: OfflineDataConfig) -> ReplayBuffer:
    """Read a data set as a replay buffer.

    Args:
        data: A Minari folder or id, a folder written by `counterpoint collect pointmaze` (its `train` part is read), an
            OGBench file, or a LeRobot data set with states and actions. A Hub id that ends like `-v2` is a Minari id.
        config: Settings for reading the data set.

    Raises:
        BadInputError: When the data set does not exist, or holds no goals to learn from.
    """
    if isinstance(data, EpisodeStore):
        return replay_from_store(data)
    path = Path(data).expanduser()
    minari = is_minari(path / "train") or is_minari(path)
    minari = minari or (not path.exists() and (ID.fullmatch(str(data)) is not None or not may_exist(data)))
    ogbench = not minari and recognise(path).name == "ogbench"
    expected = f"none: {'OGBench' if ogbench else 'Minari'}'s data sets have no dialects"
    single = minari or ogbench
    require(not single or config.dialect is None, "data.dialect", repr(config.dialect), expected, "leave it out")
    if is_minari(path / "train"):
        return load_minari(path / "train", goals=config.goals)
    if minari:
        return load_minari(str(data), goals=config.goals)
    if ogbench:
        return load_ogbench(path)
    return replay_from_store(open_dataset(path, dialect=config.dialect))


def recorded_evaluation(data: str | Path) -> dict[str, Any]:
    """Return the settings of the evaluation environment in a data set's `collect.json`; empty without this file.

    Raises:
        BadInputError: When `collect.json` is damaged.
    """
    path = Path(data).expanduser()
    for folder in (path, path.parent):
        note = folder / "collect.json"
        if note.is_file() and is_minari(folder / "train"):
            try:
                return dict(json.loads(note.read_text(encoding="utf-8"))["evaluation"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                found = f"no environment to evaluate in ({type(error).__name__}: {error})"
                expected = 'JSON with an environment\'s settings under "evaluation"'
                hint = "name the environment with --env, or record the data again"
                raise BadInputError(note, found, expected, hint) from None
    return {}
