"""Counterpoint: learn representations of trajectories by contrastive objectives, and put them to work.

The public names are loaded when first used, so that `import counterpoint` is quick.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from counterpoint.registry import LazyTable

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

# In a notebook without ipywidgets, the Hub's client warns of its own progress bars when it is imported.
warnings.filterwarnings("ignore", message="IProgress not found")

_PUBLIC = LazyTable(
    "name",
    {
        "BadInputError": "counterpoint.errors:BadInputError",
        "ClonedPolicy": "counterpoint.policies.cloned:ClonedPolicy",
        "DiffusionPolicy": "counterpoint.policies.diffusion_policy:DiffusionPolicy",
        "DualEncoder": "counterpoint.encoders.dual:DualEncoder",
        "EncoderConfig": "counterpoint.encoders.config:EncoderConfig",
        "Episode": "counterpoint.data.episode:Episode",
        "EpisodeStore": "counterpoint.data.store:EpisodeStore",
        "MemoryStore": "counterpoint.data.store:MemoryStore",
        "MissingExtraError": "counterpoint.errors:MissingExtraError",
        "ObservationConfig": "counterpoint.encoders.observation:ObservationConfig",
        "ObservationEncoder": "counterpoint.encoders.observation:ObservationEncoder",
        "RewardModel": "counterpoint.rewards.model:RewardModel",
        "Sampler": "counterpoint.data.sampler:Sampler",
        "load": "counterpoint.encoders.hub:load",
        "load_recipe": "counterpoint.training.recipe:load_recipe",
        "open_dataset": "counterpoint.formats:open_dataset",
        "train": "counterpoint.training.train:train",
    },
)

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'counterpoint' has no attribute {name!r}")
    return _PUBLIC[name]
