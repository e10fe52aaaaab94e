"""Zero-shot rewards: how far a video has come with an instruction, by a pretrained encoder."""

from counterpoint.rewards.embedding import Embedder
from counterpoint.rewards.model import RewardForm, RewardModel

__all__ = ["Embedder", "RewardForm", "RewardModel"]
