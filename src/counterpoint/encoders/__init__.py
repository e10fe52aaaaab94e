"""Encoders that map frames and instructions into one space, or stacks of frames to a state (`encoders.observation`)."""

from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder

__all__ = ["DualEncoder", "EncoderConfig"]
