"""Which geoms of a robosuite model are the robot's, so that its segmentation gives the robot's mask."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.errors import BadInputError

__all__ = ["MASK_PARTS", "check_parts", "robot_geoms"]

_PREFIXES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "arm": ("robot",),
        "gripper": ("gripper",),
        "mount": ("fixed_mount",),
    }
)
"""A part -> how robosuite begins the names of its bodies, before the robot's number: `gripper0_right_leftfinger`."""

MASK_PARTS = tuple(_PREFIXES)
"""The arm with its links and hand, the gripper with its fingers, and the pedestal that the arm stands on."""


def check_parts(parts: Sequence[str]) -> tuple[str, ...]:
    """Parts without repeats.

    Raises:
        BadInputError: When one is unknown or there is none.
    """
    chosen = tuple(dict.fromkeys(parts))
    unknown = [part for part in chosen if part not in MASK_PARTS]
    if unknown or not chosen:
        raise BadInputError(
            "mask_parts",
            found=f"{unknown[0]!r}" if unknown else "none",
            expected=f"some of {', '.join(MASK_PARTS)}",
            mend="choose from these",
        )
    return chosen


def robot_geoms(model: Any, parts: Sequence[str]) -> Array:
    """Which geoms belong to parts of the robot: bool [G + 1], the last, that of no geom, False.

    Args:
        model: A `mujoco.MjModel` of robosuite's, with G geoms.
        parts: Some of `MASK_PARTS`.

    Raises:
        BadInputError: When a part is unknown or there is none.
    """
    wanted = {prefix for part in check_parts(parts) for prefix in _PREFIXES[part]}
    names = (model.body(number).name for number in range(model.nbody))
    owned = np.array([_before_digit(name) in wanted for name in names])
    return np.append(owned[model.geom_bodyid], False)


def _before_digit(name: str) -> str:
    """`gripper` of `gripper0_right_leftfinger`; nothing where no digit follows."""
    found = re.match(r"([a-z_]+)\d", name)
    return found[1] if found else ""
