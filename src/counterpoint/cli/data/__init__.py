"""`counterpoint data`: commands that inspect, check and convert data sets."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional, UseAppendAction, arg

from counterpoint.cli.arguments import Number, command

data = tyro.extras.SubcommandApp()


@command("info", data)
def data_info(path: Positional[Path], /) -> None:
    """Say what a data set holds: episodes, cameras, instructions, splits.

    Args:
        path: A LeRobot, video-folder, EPIC-KITCHENS, robomimic, LIBERO, DrQ-v2, RLBench, RLDS, Diffusion Policy or
            Minari data set, or a training store.
    """
    from counterpoint.cli.data.commands import info

    info(path)


@command("doctor", data)
def data_doctor(path: Positional[Path], /) -> None:
    """Look for damage: timestamps, indices, frame counts, statistics, decodability, masks. Exit code 2 for any.

    Args:
        path: A data set of any format, or a training store.
    """
    from counterpoint.cli.data.commands import doctor

    sys.exit(doctor(path))


@command("convert", data)
def data_convert(path: Positional[Path], out: Positional[Path], /, *, size: Number = None, fps: Number = None) -> None:
    """Write any data set that can be read as LeRobot v3.

    Args:
        path: The data set to read.
        out: The folder to write; must not exist.
        size: Height and width to resize frames to, in pixels; by default they stay as they are.
        fps: Frames a second to write, where the episodes differ; by default their own, rounded.
    """
    from counterpoint.cli.data.commands import convert

    convert(path, out, size=size, fps=fps)


@command("masks", data)
def data_masks(
    path: Positional[Path],
    out: Positional[Path],
    /,
    *,
    source: Annotated[Path | None, arg(name="from", metavar="FOLDER")] = None,
    sam: Annotated[str | None, arg(metavar="MODEL")] = None,
    camera: Annotated[str | None, arg(metavar="NAME")] = None,
    point: Annotated[tuple[tuple[float, float], ...], UseAppendAction, arg(metavar="X Y")] = (),
    box: Annotated[tuple[float, float, float, float] | None, arg(metavar="LEFT TOP RIGHT BOTTOM")] = None,
    batch_size: int = 8,
    device: Annotated[str | None, arg(metavar="NAME")] = None,
) -> None:
    """Write a copy of a LeRobot data set with masks of the robot: from files, or by the Segment Anything Model.

    The mask of the camera `top` becomes the camera `top_mask`, kept without loss.

    Args:
        path: A LeRobot data set.
        out: The folder to write; must not exist.
        source: Masks made elsewhere, episode_000000/CAMERA/000000.png and so on, or episode_000000.npz with an array
            bool or uint8 [T, H, W] a camera: 0 off the robot, 1 or 255 on it.
        sam: Make masks by this model: a name on the Hub, such as facebook/sam-vit-base, or a folder.
        camera: The camera whose images are segmented; the first camera by default.
        point: A pixel on the robot, for the model; may be given several times. It holds for all frames.
        box: A box about the robot, for the model.
        batch_size: Frames in one batch of the model.
        device: The device of the model; a GPU by default where there is one.
    """
    from counterpoint.cli.data.masks import write_masks

    write_masks(
        path, out, files=source, sam=sam, camera=camera, points=point, box=box, batch_size=batch_size, device=device
    )
