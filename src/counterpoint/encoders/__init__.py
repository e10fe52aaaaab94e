"""Encoders: frames and instructions into one space, and stacks of frames into a state."""

from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder

__all__ = ["DualEncoder", "EncoderConfig", "ObservationConfig", "ObservationEncoder"]
