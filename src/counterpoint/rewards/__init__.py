"""Zero-shot rewards: how far a video has come with an instruction, by a pretrained encoder."""

from counterpoint.encoders.calibration import RewardForm
from counterpoint.rewards.model import Embedder, RewardModel

__all__ = ["Embedder", "RewardForm", "RewardModel"]
