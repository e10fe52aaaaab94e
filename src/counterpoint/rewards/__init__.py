"""Zero-shot rewards: how far a video has come with an instruction, by a pretrained encoder."""

from counterpoint.rewards.model import Embedder, RewardForm, RewardModel

__all__ = ["Embedder", "RewardForm", "RewardModel"]
