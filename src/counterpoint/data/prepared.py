"""Data sets as training takes them: a split, its frames decoded at training size, several data sets as one store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from counterpoint.data.cache import cached
from counterpoint.data.formats import open_dataset, split_names
from counterpoint.data.store import Cameras, EpisodeStore, MultiTaskStore, camera_names

__all__ = ["open_prepared", "together", "validation_split"]

VALIDATION = ("val", "valid")
"""What data sets call it: LeRobot's recorded here, and robomimic's."""


def open_prepared(
    path: Path,
    split: str | None,
    *,
    size: int,
    camera: Cameras = None,
    cameras: int | None = None,
    root: Path | None = None,
) -> EpisodeStore:
    """A training store of a data set's split; made when it is not there yet.

    Args:
        path: A data set.
        split: One of its splits; not looked at where its format has none.
        size: Height and width of the frames, in pixels.
        camera: Which camera, or several; the data's first by default.
        cameras: How many there must be.
        root: Folder of training stores; by default the user's cache folder.

    Raises:
        BadInputError: When the data set, the split or a camera cannot be used.
    """
    source = open_dataset(path, split=split if split_names(path) else None)
    names = camera_names(camera, source.cameras, cameras)
    return cached(source, size=size, root=root, cameras=names)


def together(stores: Sequence[EpisodeStore], names: Sequence[str]) -> EpisodeStore:
    """One store as it is, several as the domains of a `MultiTaskStore`."""
    return stores[0] if len(stores) == 1 else MultiTaskStore(stores, names)


def validation_split(path: Path, wanted: str | None) -> str | None:
    """The split to validate on; `None` where the data set has none.

    Args:
        path: A data set.
        wanted: As it was asked for. `val` means `valid` where the data set calls it so, as robomimic's do.
    """
    known = split_names(path)
    names = VALIDATION if wanted == VALIDATION[0] else (wanted,)
    return next((name for name in names if name in known), None)
