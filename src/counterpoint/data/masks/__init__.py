"""Masks of the robot in camera images."""
