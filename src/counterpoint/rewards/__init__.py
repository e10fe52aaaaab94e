"""Zero-shot rewards: a pretrained encoder measures how far a video has come in carrying out an instruction."""

from counterpoint.encoders.calibration import RewardForm
from counterpoint.rewards.model import Embedder, RewardModel

__all__ = ["Embedder", "RewardForm", "RewardModel"]
