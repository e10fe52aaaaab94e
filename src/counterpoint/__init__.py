"""Counterpoint: representations of trajectories, learned by contrast and put to work.

The public names are loaded when first used, so that `import counterpoint` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from counterpoint.data.episode import Episode
    from counterpoint.data.formats import open_dataset
    from counterpoint.data.sampler import Sampler
    from counterpoint.data.store import EpisodeStore, MemoryStore
    from counterpoint.encoders.dual import DualEncoder, EncoderConfig
    from counterpoint.encoders.hub import load
    from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
    from counterpoint.errors import BadInputError, MissingExtraError
    from counterpoint.policies.cloned import ClonedPolicy
    from counterpoint.policies.diffusion_policy import DiffusionPolicy
    from counterpoint.rewards.model import RewardModel
    from counterpoint.training.recipe import load_recipe
    from counterpoint.training.train import train

__all__ = [
    "BadInputError",
    "ClonedPolicy",
    "DiffusionPolicy",
    "DualEncoder",
    "EncoderConfig",
    "Episode",
    "EpisodeStore",
    "MemoryStore",
    "MissingExtraError",
    "ObservationConfig",
    "ObservationEncoder",
    "RewardModel",
    "Sampler",
    "load",
    "load_recipe",
    "open_dataset",
    "train",
]

_HOMES = {
    "BadInputError": "errors",
    "ClonedPolicy": "policies.cloned",
    "DiffusionPolicy": "policies.diffusion_policy",
    "DualEncoder": "encoders.dual",
    "EncoderConfig": "encoders.dual",
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
    "open_dataset": "data.formats",
    "train": "training.train",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'counterpoint' has no attribute {name!r}")
    return getattr(import_module(f"counterpoint.{_HOMES[name]}"), name)
