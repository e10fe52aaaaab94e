"""The work of `counterpoint data masks`: copy a LeRobot data set with robot masks beside its images."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.data.formats import Format, recognise
from counterpoint.data.formats.base import require_new
from counterpoint.data.formats.lerobot.images import copy_with_images
from counterpoint.data.formats.lerobot.reader import LeRobotStore
from counterpoint.data.masks.robot import constant, mask_camera, mask_frames, rgb_cameras
from counterpoint.data.masks.sources import Box, MaskFiles, Point, SamMasks
from counterpoint.errors import require

_SHOWN = 6


def write_masks(
    path: str | Path,
    out: str | Path,
    *,
    files: Path | None,
    sam: str | None,
    camera: str | None,
    points: Sequence[Point],
    box: Box | None,
    batch_size: int,
    device: str | None,
) -> None:
    """Copy a data set with the cameras `CAMERA_mask` beside its own; arguments as of `MaskFiles` and `SamMasks`.

    Episodes whose mask is empty, or full, in every frame are written with a warning: no loss that needs robot and
    surroundings can use them.

    Raises:
        BadInputError: When both kinds of masks are given or none, a mask is wrong or missing, a camera has one already,
            or `out` exists. Nothing is written then.
        MissingExtraError: When a model is given and `transformers` is not installed.
    """
    found = "neither --from nor --sam" if files is None else "both --from and --sam"
    hint = "give --from FOLDER for masks made elsewhere, or --sam MODEL to make them"
    require((files is None) != (sam is None), "data masks", found, "one of them", hint)
    prompted, found = bool(points or box is not None or camera is not None), "--point, --box or --camera beside --from"
    require(sam or not prompted, "data masks", found, "prompts for a model", "leave them out")
    require_new(Path(out))
    kind = recognise(path)
    hint = f"run `counterpoint data convert {path} OUT` first"
    require(kind is Format.LEROBOT, path, f"a data set of the format {kind.value}", "a LeRobot data set", hint)
    store = LeRobotStore(path)
    source: MaskFiles | SamMasks
    if files is not None:
        source = MaskFiles(files, store)
    else:
        named = camera or rgb_cameras(store.cameras)[0]
        source = SamMasks(sam or "", store, camera=named, points=points, box=box, batch_size=batch_size, device=device)
    for camera in source.cameras:
        expected, hint = "a camera without a mask", "start from the data set without masks"
        require(mask_camera(camera) not in store.cameras, store.root, f"{camera!r} with a mask already", expected, hint)
        require(camera in rgb_cameras(store.cameras), store.root, f"{camera!r}, a mask", expected, hint)
    sizes = {mask_camera(camera): store.frames(0, np.array([0]), camera).shape[1:3] for camera in source.cameras}
    useless: dict[tuple[str, str], list[int]] = {}

    def frames(number: int) -> dict[str, Array]:
        added = {}
        for camera in source.cameras:
            mask = source.masks(number, camera)
            same = constant(mask)
            if same is not None:
                useless.setdefault((camera, same), []).append(number)
            added[mask_camera(camera)] = mask_frames(mask)
        return added

    before = (store.info.raw.get("counterpoint") or {}).get("masks", {})
    origins = {**before, **{mask_camera(name): dict(source.about) for name in source.cameras}}
    copy_with_images(store.root, Path(out), sizes, frames, about={"masks": origins})
    for (name, same), episodes in useless.items():
        shown = ", ".join(map(str, episodes[:_SHOWN])) + (", ..." if len(episodes) > _SHOWN else "")
        text = f"the mask of {name} is {same} in every frame of {len(episodes)} episodes ({shown})"
        print(f"counterpoint: warning: {text}: no loss on masks can use them", file=sys.stderr)
    print(f"Wrote {out}: {', '.join(mask_camera(name) for name in source.cameras)}")
