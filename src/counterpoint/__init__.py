"""Counterpoint: representations of trajectories, learned by contrast and put to work.

The public names are loaded when first used, so that `import counterpoint` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from counterpoint.data.episode import Episode as Episode
    from counterpoint.data.sampler import Sampler as Sampler
    from counterpoint.data.store import EpisodeStore as EpisodeStore
    from counterpoint.data.store import MemoryStore as MemoryStore
    from counterpoint.encoders.config import EncoderConfig as EncoderConfig
    from counterpoint.encoders.dual import DualEncoder as DualEncoder
    from counterpoint.encoders.hub import load as load
    from counterpoint.encoders.observation import ObservationConfig as ObservationConfig
    from counterpoint.encoders.observation import ObservationEncoder as ObservationEncoder
    from counterpoint.errors import BadInputError as BadInputError
    from counterpoint.errors import MissingExtraError as MissingExtraError
    from counterpoint.formats import open_dataset as open_dataset
    from counterpoint.policies.cloned import ClonedPolicy as ClonedPolicy
    from counterpoint.policies.diffusion_policy import DiffusionPolicy as DiffusionPolicy
    from counterpoint.rewards.model import RewardModel as RewardModel
    from counterpoint.training.recipe import load_recipe as load_recipe
    from counterpoint.training.train import train as train

_HOMES = {
    "BadInputError": "errors",
    "ClonedPolicy": "policies.cloned",
    "DiffusionPolicy": "policies.diffusion_policy",
    "DualEncoder": "encoders.dual",
    "EncoderConfig": "encoders.config",
    "Episode": "data.episode",
    "EpisodeStore": "data.store",
    "MemoryStore": "data.store",
    "MissingExtraError": "errors",
    "ObservationConfig": "encoders.observation",
    "ObservationEncoder": "encoders.observation",
    "RewardModel": "rewards.model",
    "Sampler": "data.sampler",
    "load": "encoders.hub",
    "load_recipe": "training.recipe",
    "open_dataset": "formats",
    "train": "training.train",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'counterpoint' has no attribute {name!r}")
    return getattr(import_module(f"counterpoint.{_HOMES[name]}"), name)
