"""The tasks of LIBERO-Long in words, which Premier-TACO's Table 6 names."""

from __future__ import annotations

from dataclasses import dataclass


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
