"""Robot masks made up: a bar that moves sideways over the images of `write_lerobot`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from counterpoint.data.episode import Array

LENGTHS = (5, 7, 3)


def made_masks(lengths: Sequence[int] = LENGTHS, size: tuple[int, int] = (24, 32)) -> list[Array]:
    """Of each episode bool [T, H, W]."""
    masks = []
    for number, length in enumerate(lengths):
        mask = np.zeros((length, *size), np.bool_)
        for step in range(length):
            mask[step, 4 + number :, step : step + 6] = True
        masks.append(mask)
    return masks


def write_masks(folder: Path, masks: Mapping[str, Sequence[Array]], *, packed: bool = False) -> Path:
    """Camera -> masks an episode, as a folder of images or an .npz an episode; returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(len(next(iter(masks.values())))):
        entry = folder / f"episode_{number:06d}"
        if packed:
            np.savez(entry, **{camera: own[number] for camera, own in masks.items()})  # type: ignore[arg-type]
            continue
        for camera, own in masks.items():
            (entry / camera).mkdir(parents=True)
            for step, mask in enumerate(own[number]):
                image = Image.fromarray(mask.astype(np.uint8) * 255)
                image.save(entry / camera / f"{step:06d}.png")
    return folder
