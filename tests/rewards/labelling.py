"""Parts that tests of labels share: a calibrated model, saved, and its data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from counterpoint.formats import open_dataset
from counterpoint.rewards import RewardModel
from counterpoint.rewards.calibration import calibrate


def save_model(folder: Path, data: Path, *, seed: int = 0, **config: Any) -> Path:
    """A small random encoder, calibrated on the data; needs `quick_words` where the form reads words."""
    torch.manual_seed(seed)
    encoder = DualEncoder(EncoderConfig(image_size=32, embed_dim=8, **config))
    found = calibrate(RewardModel(encoder), open_dataset(data))
    encoder.config = encoder.config.model_copy(update={"calibration": found})
    encoder.save_pretrained(folder)
    return folder
