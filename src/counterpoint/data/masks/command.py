"""What stands behind `counterpoint data masks`: a LeRobot data set with robot masks beside its pictures."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.data.formats import Format, recognise
from counterpoint.data.formats.lerobot.images import copy_with_images
from counterpoint.data.formats.lerobot.layout import INFO
from counterpoint.data.formats.lerobot.reader import LeRobotStore
from counterpoint.data.masks.files import MaskFiles
from counterpoint.data.masks.robot import constant, mask_camera, mask_frames, picture_cameras
from counterpoint.errors import BadInputError

__all__ = ["MaskSource", "add_masks", "write_masks"]

_SHOWN = 6


class MaskSource(Protocol):
    """Where masks come from: files or a model."""

    @property
    def cameras(self) -> tuple[str, ...]:
        """Those that it has masks for."""

    @property
    def about(self) -> Mapping[str, Any]:
        """What to remember of it, as JSON values."""

    def masks(self, number: int, camera: str) -> Array:
        """An episode's masks of a camera: bool [T, H, W]."""


def write_masks(
    path: str | Path,
    out: str | Path,
    *,
    files: Path | None,
    sam: str | None,
    camera: str | None,
    points: Sequence[tuple[float, float]],
    box: tuple[float, float, float, float] | None,
    batch_size: int,
    device: str | None,
) -> None:
    """Do what the command says, and tell what was written.

    Raises:
        BadInputError: When it asks for both kinds of masks or none, or as `add_masks`, `MaskFiles` and `SamMasks` say.
        MissingExtraError: When a model is asked for and `transformers` is not installed.
    """
    if (files is None) == (sam is None):
        raise BadInputError(
            "data masks",
            "neither --from nor --sam" if files is None else "both --from and --sam",
            "one of them",
            "give --from FOLDER for masks made elsewhere, or --sam MODEL to make them",
        )
    if sam is None and (points or box is not None or camera is not None):
        raise BadInputError(
            "data masks",
            "--point, --box or --camera beside --from",
            "prompts for a model",
            "leave them out: the folder names its cameras",
        )
    if Path(out).exists():
        raise BadInputError(out, "an existing path", "a new folder", "give another name, or remove it")
    store = _open(path)
    source: MaskSource
    if files is not None:
        source = MaskFiles(files, store)
    else:
        from counterpoint.data.masks.sam import SamMasks  # imports torch

        assert sam is not None  # one of them is given
        named = camera or picture_cameras(store.cameras)[0]
        source = SamMasks(sam, store, camera=named, points=points, box=box, batch_size=batch_size, device=device)
    useless = add_masks(store, out, source)
    for name, kinds in useless.items():
        for kind, episodes in kinds.items():
            shown = ", ".join(map(str, episodes[:_SHOWN])) + (", ..." if len(episodes) > _SHOWN else "")
            told = f"the mask of {name} is {kind} in every frame of {len(episodes)} episodes ({shown})"
            print(f"counterpoint: warning: {told}: no loss on masks can use them", file=sys.stderr)
    print(f"Wrote {out}: {', '.join(mask_camera(name) for name in source.cameras)}")


def _open(path: str | Path) -> LeRobotStore:
    kind = recognise(path)
    if kind is not Format.LEROBOT:
        raise BadInputError(
            path,
            f"a data set of the format {kind.value}",
            "a LeRobot data set",
            f"run `counterpoint data convert {path} OUT` first",
        )
    return LeRobotStore(path)


def add_masks(store: LeRobotStore, out: str | Path, source: MaskSource) -> dict[str, dict[str, list[int]]]:
    """Write a copy of a data set with the cameras `CAMERA_mask` beside its own.

    Episodes whose mask is empty, or full, in every frame are written and told: no loss that needs robot and
    surroundings can use them.

    Args:
        store: The data set.
        out: The folder to write; it must not exist.
        source: Where masks come from.

    Returns:
        Camera -> `empty` or `full` -> the episodes that are so in every frame.

    Raises:
        BadInputError: When a mask is wrong or missing, a camera has one already, or `out` exists. Nothing is written
            then.
    """
    for camera in source.cameras:
        if camera not in picture_cameras(store.cameras) or mask_camera(camera) in store.cameras:
            raise BadInputError(
                store.root,
                f"{camera!r} with a mask already" if mask_camera(camera) in store.cameras else f"{camera!r}, a mask",
                "a camera without a mask",
                "start from the data set without masks",
            )
    sizes = {mask_camera(camera): store.frames(0, np.array([0]), camera).shape[1:3] for camera in source.cameras}
    useless: dict[str, dict[str, list[int]]] = {}

    def frames(number: int) -> dict[str, Array]:
        added = {}
        for camera in source.cameras:
            mask = source.masks(number, camera)
            kind = constant(mask)
            if kind is not None:
                useless.setdefault(camera, {}).setdefault(kind, []).append(number)
            added[mask_camera(camera)] = mask_frames(mask)
        return added

    told = json.loads((store.root / INFO).read_text(encoding="utf-8")).get("counterpoint") or {}
    origins = {**told.get("masks", {}), **{mask_camera(name): dict(source.about) for name in source.cameras}}
    copy_with_images(store.root, out, sizes, frames, about={"masks": origins})
    return useless
