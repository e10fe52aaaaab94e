"""Planners that sample plans and score them, for any dynamics and any reward."""

from counterpoint.planning.shooting import CEM, MPPI, CEMConfig, MPPIConfig

__all__ = ["CEM", "MPPI", "CEMConfig", "MPPIConfig"]
