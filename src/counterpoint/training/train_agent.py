"""Data sets for offline training: where they are, what they hold, and whether they fit an environment.

`counterpoint train`: an agent, and an environment or a data set, become a policy that reaches goals.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate.utils import set_seed
from pydantic import Field

from counterpoint.agents import AGENTS, Agent, SavedAgent, agent_config, make_agent
from counterpoint.config import FrozenConfig, override, read_recipe, recipe_names, validate
from counterpoint.data.formats import open_dataset
from counterpoint.data.formats.minari.files import is_minari
from counterpoint.data.formats.minari.reader import load_minari, replay_from_store
from counterpoint.data.replay import ReplayBuffer
from counterpoint.data.sampler import Sampler
from counterpoint.envs.goal.env import EnvConfig, env_facts, env_spaces, goal_envs, in_another_env, matched
from counterpoint.errors import BadInputError
from counterpoint.evaluation.rollout import EpisodeResult, episode_seed, means, report, rollout
from counterpoint.files import write_atomically
from counterpoint.provenance import provenance
from counterpoint.training.distributed import accelerator_of
from counterpoint.training.fit import TrainConfig, train
from counterpoint.training.online import OnlineConfig, OnlineLoop
from counterpoint.training.run import claim_run

__all__ = [
    "AgentRunConfig",
    "OfflineDataConfig",
    "OfflineTrainConfig",
    "load_agent_config",
    "open_replay",
    "recorded_evaluation",
    "train_agent",
]


class OfflineDataConfig(FrozenConfig):
    """How a data set of episodes is read, and how an agent trained on it is evaluated.

    Attributes:
        goals: `coordinates` reads the goal coordinates where the data tell them apart (`achieved_goal`), `state`
            takes whole states as goals.
        eval_episodes: Episodes of one evaluation, where an environment is given.
        eval_envs: Environments that evaluate side by side.
    """

    goals: Literal["coordinates", "state"] = "coordinates"
    eval_episodes: int = Field(default=20, ge=1)
    eval_envs: int = Field(default=2, ge=1)


class OfflineTrainConfig(FrozenConfig):
    """The offline loop's settings: those of `TrainConfig` that mean something to an agent (bf16 is `agent.bf16`).

    Attributes:
        steps: Updates.
        batch_size: Transitions an update.
        seed: Of initial weights and of every draw.
        log_every: Updates between lines of training numbers (each the mean since the last).
        eval_every: Updates between evaluations; 0 evaluates never.
        save_every: Updates between checkpoints.
        keep: How many checkpoints stay.
        trackers: `tensorboard`, `wandb`, both or none.
    """

    steps: int = Field(default=500_000, ge=1)
    batch_size: int = Field(default=256, ge=2)
    seed: int = Field(default=0, ge=0)
    log_every: int = Field(default=200, ge=1)
    eval_every: int = Field(default=10_000, ge=0)
    save_every: int = Field(default=10_000, ge=1)
    keep: int = Field(default=2, ge=1)
    trackers: tuple[str, ...] = ("tensorboard",)

    def loop(self) -> TrainConfig:
        """As the trainer takes them."""
        return TrainConfig(**self.model_dump())


def open_replay(data: str, config: OfflineDataConfig) -> ReplayBuffer:
    """A data set as a replay buffer.

    Args:
        data: A Minari folder or id, the folder `counterpoint collect pointmaze` wrote (its `train` is taken), or
            a LeRobot data set with states and actions.
        config: How it is read.

    Raises:
        BadInputError: When there is no such data set, or it holds no goals to learn from.
    """
    path = Path(data).expanduser()
    if is_minari(path / "train"):
        return load_minari(path / "train", goals=config.goals)
    if is_minari(path) or not path.exists():
        return load_minari(data, goals=config.goals)
    return replay_from_store(open_dataset(path))


def recorded_evaluation(data: str) -> dict[str, Any]:
    """The environment that a data set's own recorder says to evaluate in, as dotted keys; none where it says none.

    Raises:
        BadInputError: When the recorder's note is damaged.
    """
    path = Path(data).expanduser()
    for folder in (path, path.parent):
        note = folder / "collect.json"
        if note.is_file() and is_minari(folder / "train"):
            try:
                found = dict(json.loads(note.read_text(encoding="utf-8"))["evaluation"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise BadInputError(
                    note,
                    f"no environment to evaluate in ({type(error).__name__}: {error})",
                    'JSON with an environment\'s settings under "evaluation"',
                    "name the environment with --env, or record the data again",
                ) from None
            return {f"env.{key}": value for key, value in found.items()}
    return {}


class AgentRunConfig(FrozenConfig):
    """Everything a recipe for `counterpoint train` says.

    Attributes:
        agent: `name`, and the keys of that agent's configuration.
        env: The environment; online it is trained in, offline it evaluates.
        online: The online loop.
        train: The offline loop.
        data: How an offline data set is read.
    """

    agent: dict[str, Any]
    env: EnvConfig | None = None
    online: OnlineConfig = OnlineConfig()
    train: OfflineTrainConfig = OfflineTrainConfig()
    data: OfflineDataConfig = OfflineDataConfig()


def load_agent_config(agent: str, overrides: Mapping[str, Any], *, offline: bool = False) -> AgentRunConfig:
    """A recipe, or an agent under its own defaults, with overrides; every key checked.

    Args:
        agent: An agent's name (its defaults are the paper's), a recipe's name or a TOML file.
        overrides: Dotted keys and their values.
        offline: Whether an agent's name alone means its offline defaults (TD InfoNCE's Table 3).

    Raises:
        BadInputError: Naming the key that is unknown or ill-typed, or the agent that does not exist.
    """
    if agent in AGENTS:
        tree: dict[str, Any] = {"agent": {"name": agent, **(AGENTS[agent].offline if offline else {})}}
    elif agent.endswith(".toml") or agent in recipe_names():
        tree = read_recipe(agent)
    else:
        recipes = [name for name in recipe_names() if "agent" in read_recipe(name)]
        raise BadInputError(
            f"agent {agent!r}",
            "no such agent or recipe",
            f"an agent ({', '.join(AGENTS)}), a recipe ({', '.join(recipes)}) or a .toml file",
            "choose one of these",
        )
    if "env.name" in overrides:
        tree["env"] = in_another_env(tree.get("env", {}), overrides["env.name"])
    config = validate(AgentRunConfig, override(tree, overrides), f"recipe {agent}")
    agent_config(config.agent, f"recipe {agent}")
    return config


def train_agent(
    agent: str, out: Path, overrides: Mapping[str, Any], *, env: str | None = None, data: str | None = None
) -> Path:
    """Train an agent online in an environment, or offline on a data set; run again to continue.

    Args:
        agent: An agent's name, a recipe's name or a TOML file.
        out: The run's folder.
        overrides: Dotted keys and their values.
        env: A goal environment's id; without `data` the agent is trained in it, with `data` evaluated.
        data: A Minari data set (folder or id) or a LeRobot data set.

    Returns:
        The folder of the trained agent, `out/model`.

    Raises:
        BadInputError: When the configuration, the environment, the data or the run's folder cannot be used.
    """
    given = dict(overrides) | ({"env.name": env} if env is not None else {})
    if data is not None and "env.name" not in given:
        given = recorded_evaluation(data) | given
    config = load_agent_config(agent, given, offline=data is not None)
    if config.env is None and data is None:
        raise BadInputError(
            "train",
            "neither an environment nor a data set",
            "--env for online training, --data for offline training",
            "give one of them",
        )
    # Whatever cannot be opened is told before the folder is claimed.
    spaces = env_spaces(config.env) if config.env is not None else None
    buffer = open_replay(data, config.data) if data is not None else None
    if buffer is not None:
        spaces = matched(spaces, buffer.spaces, str(data)) if spaces is not None else buffer.spaces
    assert spaces is not None
    if buffer is not None and AGENTS[config.agent["name"]].agent.needs_reward and not buffer.rewards_differ():
        raise BadInputError(
            str(data),
            "the same reward at every step",
            f"rewards to learn from, which {config.agent['name']} needs",
            "choose an agent that learns from states alone, such as td_infonce",
        )
    settings = config.model_dump(mode="json")
    settings |= {"agent": {"name": config.agent["name"], **_resolved(config)}}
    settings["data_source"] = None if buffer is None else {"path": data, "fingerprint": buffer.fingerprint}
    claim_run(out, settings, FREE)
    record = settings | {"recipe": agent, "provenance": provenance()}
    write_atomically(out / "config.json", json.dumps(record, indent=1))
    seed = config.online.seed if buffer is None else config.train.seed
    learner = make_agent(config.agent, spaces, seed=seed, device=_device())
    if buffer is None:
        _online(learner, config, out, settings)
    else:
        _offline(learner, buffer, config, out, settings)
    env_settings = config.env.model_dump(mode="json") if config.env else None
    return SavedAgent(learner, env_settings, buffer.action_bounds if buffer else None).save_pretrained(out / "model")


def _resolved(config: AgentRunConfig) -> dict[str, Any]:
    return agent_config(config.agent, "agent")[1].model_dump(mode="json")


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _online(agent: Agent, config: AgentRunConfig, out: Path, settings: dict[str, Any]) -> None:
    assert config.env is not None
    online = config.online
    _, steps = env_facts(config.env)
    replay = out / "replay"
    if not (out / "checkpoints").exists():
        shutil.rmtree(replay, ignore_errors=True)  # a run that was never saved begins again
    # What the oldest kept checkpoint refers to must not be written over before that checkpoint is gone.
    slack = (online.keep + 1) * (online.save_every + online.envs * steps)
    # Where goals are what is seen, pictures above all, one copy of each is enough.
    same = config.env.observations == "image" or config.env.goals != "coordinates"
    buffer = ReplayBuffer(agent.spaces, capacity=online.capacity, folder=replay, slack=slack, goal_is_observation=same)

    def tell(steps: int, results: list[EpisodeResult]) -> None:
        # Before the checkpoint that may follow: a finished run always has its result.
        write_atomically(out / "result.json", json.dumps({"steps": steps, **report(results)}, indent=1))

    with (
        goal_envs(config.env, online.envs, online.worker_timeout) as workers,
        goal_envs(config.env, online.envs, online.worker_timeout) as evaluators,
    ):
        loop = OnlineLoop(agent, buffer, workers, evaluators, online, run=out, settings=settings)
        loop.train(tell)


def _offline(agent: Agent, buffer: ReplayBuffer, config: AgentRunConfig, out: Path, settings: dict[str, Any]) -> None:
    set_seed(config.train.seed)
    bound = agent.sampling().bind(buffer)
    source = Sampler(buffer, bound, batch_size=config.train.batch_size, seed=config.train.seed)
    workers = goal_envs(config.env, config.data.eval_envs) if config.env is not None else None
    seeds = [episode_seed(config.train.seed, 1, number) for number in range(config.data.eval_episodes)]

    def evaluate(step: int) -> dict[str, float]:
        assert workers is not None
        results = rollout(agent, workers, seeds)
        write_atomically(out / "result.json", json.dumps({"steps": step, **report(results)}, indent=1))
        return means(results)

    try:
        train(
            agent,
            source,
            None,
            config.train.loop(),
            run=out,
            accelerator=accelerator_of("no"),
            settings=settings,
            evaluation=evaluate if workers is not None else None,
        )
    finally:
        if workers is not None:
            workers.close()


FREE = {
    "online": ("steps", "eval_every", "eval_episodes", "log_every", "worker_timeout", "trackers"),
    "train": ("steps", "log_every", "eval_every", "save_every", "keep", "trackers"),
    "data": ("eval_episodes", "eval_envs"),
    "data_source": ("path",),
}
"""Settings that may change when a run is continued: none of them touches a parameter."""
