"""Planners that act by sampling plans and scoring them: any dynamics, any reward."""

from counterpoint.planning.shooting import CEM, MPPI, CEMConfig, MPPIConfig

__all__ = ["CEM", "MPPI", "CEMConfig", "MPPIConfig"]
