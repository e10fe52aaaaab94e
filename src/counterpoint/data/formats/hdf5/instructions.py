"""The tasks of robomimic and LIBERO in words; needs no simulator.

LIBERO names a task by its scene and its instruction, `KITCHEN_SCENE3_turn_on_the_stove_and_put_the_moka_pot_on_it`,
or by the instruction alone, and its data sets by that name and `_demo`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

INSTRUCTIONS: Mapping[str, str] = MappingProxyType(
    {
        "Lift": "lift the cube",
        "PickPlaceCan": "put the can in its bin",
        "NutAssemblySquare": "put the square nut on its peg",
        "ToolHang": "assemble the frame and hang the tool on it",
        "TwoArmTransport": "take the hammer out of the closed box and hand it over into the other bin",
    }
)
"""robosuite's name of an environment -> its instruction. The data sets have no words of their own."""

HORIZONS: Mapping[str, int] = MappingProxyType(
    {"Lift": 400, "PickPlaceCan": 400, "NutAssemblySquare": 400, "ToolHang": 700, "TwoArmTransport": 700}
)
"""Steps of an evaluated episode in robomimic's study (Mandlekar et al. 2021, arXiv 2108.03298)."""


def instruction_of(env_name: str) -> str:
    """Return an environment's instruction; the words of its name where none is known: `Stack_D0` gives "stack"."""
    plain = re.sub(r"_D\d+$", "", env_name)  # MimicGen's variants of one task
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", plain)
    return INSTRUCTIONS.get(plain) or " ".join(word.lower() for word in words)


_SCENE = re.compile(r"^[A-Z_]+_SCENE\d+_")


@dataclass(frozen=True, slots=True)
class LiberoInstruction:
    """A task of LIBERO in words.

    Attributes:
        scene: Its scene, as in LIBERO's names.
        text: The instruction.
    """

    scene: str
    text: str

    @property
    def name(self) -> str:
        """The task's name in LIBERO."""
        return f"{self.scene}_{self.text.replace(' ', '_')}"


LIBERO_10: tuple[LiberoInstruction, ...] = (
    LiberoInstruction("LIVING_ROOM_SCENE2", "put both the alphabet soup and the tomato sauce in the basket"),
    LiberoInstruction("LIVING_ROOM_SCENE2", "put both the cream cheese box and the butter in the basket"),
    LiberoInstruction("KITCHEN_SCENE3", "turn on the stove and put the moka pot on it"),
    LiberoInstruction("KITCHEN_SCENE4", "put the black bowl in the bottom drawer of the cabinet and close it"),
    LiberoInstruction(
        "LIVING_ROOM_SCENE5", "put the white mug on the left plate and put the yellow and white mug on the right plate"
    ),
    LiberoInstruction("STUDY_SCENE1", "pick up the book and place it in the back compartment of the caddy"),
    LiberoInstruction(
        "LIVING_ROOM_SCENE6", "put the white mug on the plate and put the chocolate pudding to the right of the plate"
    ),
    LiberoInstruction("LIVING_ROOM_SCENE1", "put both the alphabet soup and the cream cheese box in the basket"),
    LiberoInstruction("KITCHEN_SCENE8", "put both moka pots on the stove"),
    LiberoInstruction("KITCHEN_SCENE6", "put the yellow and white mug in the microwave and close it"),
)
"""The ten tasks of the suite `libero_10` (LIBERO-Long), in its order."""

PREMIER_TACO_TASKS = LIBERO_10[:8]
"""The tasks of Premier-TACO's Table 6: the first eight."""


def instruction_from_name(name: str) -> str:
    """Return the instruction in the name of a task, of its data set's file or of its BDDL file."""
    stem = name.rsplit("/", 1)[-1].removesuffix(".hdf5").removesuffix(".bddl").removesuffix("_demo")
    return _SCENE.sub("", stem).replace("_", " ").strip()
