"""Robot masks that were made elsewhere: a folder with an entry an episode.

::

    FOLDER/episode_000000/CAMERA/000000.png ...     a picture a frame, its number being the frame's, or
    FOLDER/episode_000000.npz                       an array CAMERA, bool or uint8 [T, H, W]

A mask is as large as its picture and has two values: 0 off the robot, and 1 or 255 on it.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from counterpoint.data.episode import Array
from counterpoint.data.masks.robot import as_mask
from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError

__all__ = ["MaskFiles"]

_SHOWN = 6  # missing frames that are named


class MaskFiles:
    """Masks in files, checked to be there for every frame of a data set before any is read.

    Args:
        folder: Laid out as above.
        store: The data set; its episodes are numbered as the folder's.

    Attributes:
        cameras: Those that have masks.
        about: What to remember of where masks came from.

    Raises:
        BadInputError: When the folder has another layout, names a camera or an episode that the data set has not, or
            lacks frames.
    """

    def __init__(self, folder: str | Path, store: EpisodeStore) -> None:
        self._folder, self._store = Path(folder), store
        self.cameras = self._cameras()
        self.about = {"from": self._folder.name}
        missing = [
            f"{_name(number)}/{camera}/{frame:06d}"
            for number in range(len(store.episodes))
            for camera in self.cameras
            for frame in self._lacking(number, camera)
        ]
        if missing:
            named = ", ".join(missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
            raise BadInputError(
                self._folder,
                f"{len(missing)} frames without a mask: {named}",
                "a mask for every frame of every episode",
                "make the missing ones; a frame without the robot has a mask of zeros",
            )

    def masks(self, number: int, camera: str) -> Array:
        """An episode's masks of a camera: bool [T, H, W].

        Raises:
            BadInputError: When a file cannot be read, has another size than its picture, or more than two values.
        """
        length = self._store.episodes[number].length
        size = self._store.frames(number, np.array([0]), camera).shape[1:3]
        packed = self._packed(number)
        if packed.is_file():
            return _checked(f"{packed}, {camera}", _arrays(packed)[camera], size)
        folder = self._folder / _name(number) / camera
        return np.stack([_checked(str(path), _picture(path), size) for path in sorted(folder.glob("*.png"))[:length]])

    def _cameras(self) -> tuple[str, ...]:
        """Those that any episode has masks of; `_lacking` tells of the episodes that have none."""
        count = len(self._store.episodes)
        beyond = sorted(
            entry.name
            for entry in self._folder.glob("episode_*")
            if entry.stem not in {_name(number) for number in range(count)}
        )
        if beyond:
            raise BadInputError(
                self._folder,
                beyond[0],
                f"{_name(0)} to {_name(count - 1)}, the data set's episodes",
                "check that masks belong to this data set, episode by episode",
            )
        named = sorted({camera for number in range(count) for camera in self._named(number)})
        if not named:
            raise BadInputError(
                self._folder,
                "no masks of any episode",
                f"{_name(0)}/CAMERA/000000.png or {_name(0)}.npz with an array a camera",
                "lay masks out so",
            )
        for camera in named:
            if camera not in self._store.cameras:
                raise BadInputError(
                    self._folder,
                    f"masks of a camera {camera!r}",
                    f"one of {', '.join(self._store.cameras)}",
                    "name them by the camera whose pictures they belong to",
                )
        return tuple(camera for camera in self._store.cameras if camera in named)

    def _named(self, number: int) -> list[str]:
        """Cameras that an episode has masks of."""
        packed, folder = self._packed(number), self._folder / _name(number)
        if packed.is_file():
            return list(_arrays(packed))
        return [child.name for child in folder.iterdir() if child.is_dir()] if folder.is_dir() else []

    def _lacking(self, number: int, camera: str) -> list[int]:
        """Frames of an episode that have no mask."""
        length = self._store.episodes[number].length
        packed, folder = self._packed(number), self._folder / _name(number) / camera
        if packed.is_file():
            masks = _arrays(packed).get(camera, np.empty((0, 0, 0)))
            if masks.ndim not in (3, 4):
                raise BadInputError(
                    f"{packed}, {camera}",
                    f"an array of shape {masks.shape}",
                    f"({length}, H, W), a mask for each frame",
                    "stack the masks of an episode",
                )
            count = len(masks)
            there, where = set(range(count)), f"{packed}, {camera}"
        else:
            stems = sorted(path.stem for path in folder.glob("*.png"))
            strange = [stem for stem in stems if not stem.isdecimal() or len(stem) != 6]
            if strange:
                raise BadInputError(folder, f"{strange[0]}.png", "000000.png and so on", "rename it")
            there, where = {int(stem) for stem in stems}, str(folder)
        beyond = sorted(there - set(range(length)))
        if beyond:
            raise BadInputError(
                where,
                f"a mask for frame {beyond[0]}",
                f"masks for frames 0 to {length - 1}, the episode's",
                "check that masks belong to this data set, episode by episode",
            )
        return sorted(set(range(length)) - there)

    def _packed(self, number: int) -> Path:
        return self._folder / f"{_name(number)}.npz"


def _name(number: int) -> str:
    return f"episode_{number:06d}"


def _arrays(path: Path) -> dict[str, Array]:
    try:
        with np.load(path) as arrays:
            return dict(arrays)
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise _unreadable(path, error, "an .npz file of arrays") from None


def _picture(path: Path) -> Array:
    try:
        with Image.open(path) as picture:
            plain = picture.mode in ("1", "L", "RGB", "RGBA") or picture.mode.startswith("I")
            return np.asarray(picture if plain else picture.convert("RGBA"))  # a palette's numbers are no colours
    except (OSError, ValueError, SyntaxError) as error:
        raise _unreadable(path, error, "a PNG file") from None


def _unreadable(path: Path, error: Exception, expected: str) -> BadInputError:
    found = f"a file that cannot be read ({next(iter(str(error).splitlines()), '')[:120]})"
    return BadInputError(path, found, expected, "write it again")


def _checked(where: str, values: Array, size: tuple[int, ...]) -> Array:
    """bool [..., H, W] of the size that its picture has."""
    mask = as_mask(where, values)
    if mask.shape[-2:] != size:
        raise BadInputError(
            where,
            f"a mask of {mask.shape[-1]}x{mask.shape[-2]} pixels",
            f"{size[1]}x{size[0]}, the size of its picture",
            "make masks at the size of the pictures, or bring both to one size",
        )
    return mask
