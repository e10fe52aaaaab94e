"""Zero-shot rewards: a pretrained encoder measures how far a video has progressed in carrying out a task."""

from counterpoint.encoders.calibration import RewardForm
from counterpoint.rewards.embedding import Embedder
from counterpoint.rewards.model import RewardModel

__all__ = ["Embedder", "RewardForm", "RewardModel"]
