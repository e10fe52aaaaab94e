"""Encoders: frames and instructions into one space."""

from counterpoint.encoders.base import DualEncoder
from counterpoint.encoders.config import EncoderConfig

__all__ = ["DualEncoder", "EncoderConfig"]
