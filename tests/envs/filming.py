"""gymnasium's `RecordVideo` without moviepy: everything but the encoding of its clips."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from counterpoint.data.episode import Array


class Clip:
    """Keeps the frames of a clip that is written, with its path and its frames a second."""

    written: tuple[tuple[str, float, Array], ...] = ()

    def __init__(self, frames: list[Array], fps: float) -> None:
        self.frames, self.fps = np.stack(frames), fps

    def write_videofile(self, path: str, **_: Any) -> None:
        type(self).written = (*type(self).written, (path, self.fps, self.frames))


def in_place_of_moviepy(monkeypatch: pytest.MonkeyPatch) -> type[Clip]:
    for name in ("moviepy", "moviepy.video", "moviepy.video.io", "moviepy.video.io.ImageSequenceClip"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["moviepy.video.io.ImageSequenceClip"], "ImageSequenceClip", Clip, raising=False)
    monkeypatch.setattr(Clip, "written", ())
    return Clip
