"""Encoders: frames and instructions into one space, and stacks of frames into a state."""

from counterpoint.encoders.base import DualEncoder
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.encoders.towers import EncoderConfig

__all__ = ["DualEncoder", "EncoderConfig", "ObservationConfig", "ObservationEncoder"]
