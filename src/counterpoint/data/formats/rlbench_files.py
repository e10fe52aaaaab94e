"""Files of an RLBench data set: where its episodes lie, and what its mask pictures tell.

`tools/dataset_generator.py` of RLBench writes, for each task::

    TASK/variation0/variation_descriptions.pkl         a list of instructions, all of one meaning
    TASK/variation0/episodes/episode0/low_dim_obs.pkl  a `Demo` of T observations, without their pictures
    TASK/variation0/episodes/episode0/front_rgb/0.png  ... and wrist_rgb, front_mask, front_depth, ...

or, with all variations mixed, `TASK/all_variations/episodes/episode0`, where the descriptions lie in each episode.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8
from numpy.typing import NDArray

__all__ = ["DESCRIPTIONS", "LOW_DIM", "first_rlbench_episode", "mask_handles", "rlbench_episodes"]

LOW_DIM = "low_dim_obs.pkl"
DESCRIPTIONS = "variation_descriptions.pkl"

_EPISODE = re.compile(r"episode(\d+)")
_VARIATION = re.compile(r"variation(\d+)")
_DEPTHS = (
    "",
    "episodes",
    "*/episodes",
    "*/*/episodes",
)  # from the folder of episodes up to that of several tasks


def rlbench_episodes(path: Path) -> list[Path]:
    """Folders of episodes in a data set, a task, a variation or a folder of episodes; empty where there are none.

    In the order of tasks by name, of variations and of episodes by number, `all_variations` first.
    """
    return sorted(_episodes(path), key=_place)


def first_rlbench_episode(path: Path) -> Path | None:
    """Any one of them, or `None`; quicker than the whole list."""
    return next(_episodes(path), None)


def mask_handles(picture: UInt8[NDArray[np.uint8], "*lead 3"]) -> Int[NDArray[np.int64], "*lead"]:
    """The simulator's number of the object that each pixel shows: red + 256 green + 65536 blue."""
    handles: NDArray[np.int64] = picture.astype(np.int64) @ np.array((1, 256, 65536))
    return handles


def _episodes(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        return
    for depth in _DEPTHS:
        for low_dim in path.glob(str(Path(depth) / "episode*" / LOW_DIM)):
            if _EPISODE.fullmatch(low_dim.parent.name):
                yield low_dim.parent


def _place(episode: Path) -> tuple[str, int, int]:
    variation = episode.parent.parent
    number = _VARIATION.fullmatch(variation.name)
    found = _EPISODE.fullmatch(episode.name)
    return variation.parent.name, int(number[1]) if number else -1, int(found[1]) if found else -1
