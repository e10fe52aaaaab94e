"""The tasks of robomimic's data sets in words, with their length; needs no simulator."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["HORIZONS", "INSTRUCTIONS", "instruction_of"]

INSTRUCTIONS: Mapping[str, str] = MappingProxyType(
    {
        "Lift": "lift the cube",
        "PickPlaceCan": "put the can in its bin",
        "NutAssemblySquare": "put the square nut on its peg",
        "ToolHang": "assemble the frame and hang the tool on it",
        "TwoArmTransport": "take the hammer out of the closed box and hand it over into the other bin",
    }
)
"""robosuite's name of an environment -> what is to be done in it. The data sets have no words of their own."""

HORIZONS: Mapping[str, int] = MappingProxyType(
    {"Lift": 400, "PickPlaceCan": 400, "NutAssemblySquare": 400, "ToolHang": 700, "TwoArmTransport": 700}
)
"""Steps of an evaluated episode in robomimic's study (Mandlekar et al. 2021, arXiv 2108.03298)."""


def instruction_of(env_name: str) -> str:
    """An environment's instruction; the words of its name where none is known: `Stack_D0` gives "stack"."""
    plain = re.sub(r"_D\d+$", "", env_name)  # MimicGen's variants of one task
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", plain)
    return INSTRUCTIONS.get(plain) or " ".join(word.lower() for word in words)
