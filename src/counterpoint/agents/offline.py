"""Data sets for offline training: where they are, what they hold, and whether they fit an environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from counterpoint.agents.replay import ReplayBuffer
from counterpoint.config import FrozenConfig
from counterpoint.data.formats import open_dataset
from counterpoint.data.formats.minari import load_minari, replay_from_store
from counterpoint.data.formats.minari_files import is_minari
from counterpoint.data.goals import Spaces
from counterpoint.errors import BadInputError
from counterpoint.training.trainer import TrainConfig

__all__ = ["OfflineDataConfig", "OfflineTrainConfig", "matched", "open_replay", "recorded_evaluation"]


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
                    found=f"no environment to evaluate in ({type(error).__name__}: {error})",
                    expected='JSON with an environment\'s settings under "evaluation"',
                    mend="name the environment with --env, or record the data again",
                ) from None
            return {f"env.{key}": value for key, value in found.items()}
    return {}


def matched(wanted: Spaces, found: Spaces, data: str) -> Spaces:
    """The environment's spaces, once the data set or agent is known to have the same.

    Raises:
        BadInputError: When observations, goals or actions differ.
    """
    for name in ("observation", "goal", "action", "discrete"):
        ours, theirs = getattr(wanted, name), getattr(found, name)
        if ours != theirs:
            raise BadInputError(
                data,
                found=f"{name} {theirs}",
                expected=f"{ours}, as in the environment",
                mend="evaluate in the environment it was made for, or set data.goals and env.goals alike",
            )
    return wanted
