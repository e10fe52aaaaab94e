"""Finished episodes on their way into a data set: each appears whole or not at all, so a killed run goes on.

Beside the data set `DIR` to come stands `DIR.partial`, with `collect.json` (what is being recorded, and with
what) and a folder an episode, named by its place in the data set: `episode.json` (seed, success and so on),
`arrays.npz` (actions, state, rewards where there are any), a video a camera or, without loss, `pictures.npz`, and
`masks.npz` where there are masks.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.data.episode import Array, Episode
from counterpoint.data.masks import mask_camera, mask_frames
from counterpoint.data.video import encode_video
from counterpoint.envs.recording import Recording
from counterpoint.errors import BadInputError

__all__ = ["Staging", "first_difference"]

Identity = Mapping[str, Any]
_PICTURES, _MASKS = "pictures.npz", "masks.npz"


class Staging:
    """The folder `DIR.partial` beside a data set that is being recorded.

    Args:
        out: The data set's folder.
    """

    def __init__(self, out: Path) -> None:
        self.folder = out.with_name(f"{out.name}.partial")

    def open(self, identity: Identity) -> None:
        """Make the folder, or go on with the one that is there.

        Args:
            identity: All that decides the data, as JSON values.

        Raises:
            BadInputError: When the folder is not ours, or holds episodes recorded otherwise; the key is
                named.
        """
        note = self.folder / "collect.json"
        if not self.folder.exists():
            made = self.folder.with_name(f".{self.folder.name}.{os.getpid()}")
            made.mkdir(parents=True)
            (made / note.name).write_text(json.dumps(identity, indent=2))
            made.rename(self.folder)
        if not note.is_file():
            raise BadInputError(
                self.folder,
                found="a folder without collect.json",
                expected="nothing, or a recording to go on with",
                mend="remove it, or choose another --out",
            )
        difference = first_difference(json.loads(note.read_text()), identity)
        if difference is not None:
            key, then, now = difference
            raise BadInputError(
                self.folder,
                found=f"episodes recorded with {key} = {then}",
                expected=f"{key} = {now}, as asked for now",
                mend=f"set {key} as it was to go on, or remove {self.folder} to start anew",
            )
        for unfinished in self.folder.glob(".*"):
            shutil.rmtree(unfinished, ignore_errors=True)

    def finished(self) -> set[int]:
        """Places of the episodes that are there."""
        return {int(folder.name) for folder in self.folder.iterdir() if folder.name.isdigit()}

    def add(
        self,
        place: int,
        recording: Recording,
        about: Mapping[str, Any],
        fps: float,
        *,
        lossless: bool = False,
    ) -> None:
        """Store an episode.

        Args:
            place: Its place in the data set.
            recording: What happened.
            about: What else to remember, as JSON values.
            fps: Frames a second.
            lossless: Keep pictures as they are instead of as video.
        """
        made = self.folder / f".{place:06d}.{os.getpid()}"
        made.mkdir()
        if lossless:
            _save(made / _PICTURES, recording.frames)
        else:
            for camera, frames in recording.frames.items():
                encode_video(made / f"{camera}.mp4", frames, fps)
        vectors = {name: getattr(recording, name) for name in ("actions", "state", "rewards", "simulation")}
        np.savez(made / "arrays.npz", **{name: value for name, value in vectors.items() if value is not None})
        if recording.masks:
            _save(made / _MASKS, recording.masks)
        (made / "episode.json").write_text(json.dumps({**about, "success": recording.success}))
        try:
            made.rename(self.folder / f"{place:06d}")
        except OSError:
            if place not in self.finished():
                raise
            shutil.rmtree(made)  # a worker of a killed run was a moment faster with the same episode

    def about(self, place: int) -> dict[str, Any]:
        """What is remembered of an episode."""
        remembered: dict[str, Any] = json.loads((self.folder / f"{place:06d}" / "episode.json").read_text())
        return remembered

    def episode(self, place: int, instruction: str, fps: float) -> tuple[Episode, dict[str, Path]]:
        """An episode without the frames that are kept as video, and the videos that hold them by camera."""
        folder = self.folder / f"{place:06d}"
        with np.load(folder / "arrays.npz") as arrays:
            actions, state, rewards = arrays["actions"], arrays["state"], arrays.get("rewards")
        masks = {mask_camera(name): mask_frames(mask) for name, mask in _arrays(folder / _MASKS).items()}
        episode = Episode(
            frames=_arrays(folder / _PICTURES) | masks,
            instruction=instruction,
            timestamps=np.arange(len(actions)) / fps,
            actions=actions,
            state=state,
            success=self.about(place)["success"],
            rewards=rewards,
        )
        return episode, {video.stem: video for video in sorted(folder.glob("*.mp4"))}

    def simulation(self, place: int) -> Array | None:
        """An episode's states of the simulator, float64 [T, n], where they were kept."""
        return _arrays(self.folder / f"{place:06d}" / "arrays.npz").get("simulation")

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder)


def _save(path: Path, arrays: Mapping[str, Any]) -> None:
    np.savez_compressed(path, **arrays)


def _arrays(path: Path) -> dict[str, Array]:
    """Arrays by camera; none where there is no file."""
    if not path.is_file():
        return {}
    with np.load(path) as arrays:
        return dict(arrays)


def first_difference(then: Identity, now: Identity) -> tuple[str, Any, Any] | None:
    """The first key, dotted, at which two trees differ, with both values; `None` if they are equal."""
    for key in [*now, *(key for key in then if key not in now)]:
        old, new = then.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            inner = first_difference(old, new)
            if inner is not None:
                return f"{key}.{inner[0]}", inner[1], inner[2]
        elif old != new:
            return key, old, new
    return None
