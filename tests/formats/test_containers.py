"""Files that are cut short, in containers whose frames before the cut still decode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import pytest

from counterpoint.errors import BadInputError
from counterpoint.formats.remote import Part
from counterpoint.formats.video import probe_video
from tests.formats.made import smooth_frames


def written(path: Path, codec: str, pixels: str) -> bytes:
    """Write 20 frames; return the bytes of the file."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, pixels
        for frame in smooth_frames(20, 48, 64):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
    return path.read_bytes()


WHOLE = {
    "a.ts": ("libx264", "yuv420p", r"\d+ bytes; expected whole packets of 188 bytes.*-c copy OUT\.mkv"),
    "a.m2ts": ("libx264", "yuv420p", r"\d+ bytes; expected whole packets of 192 bytes.*-c copy OUT\.mkv"),
    "a.gif": ("gif", "rgb8", r"\d+ bytes; expected a trailer \(;\) as the last block.*-c:v libx264 OUT\.mp4"),
    "a.flv": ("flv1", "yuv420p", r"\d+ frames; expected a whole file.*-c copy OUT\.mkv"),
}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", WHOLE)
def test_a_cut_file_is_refused_and_a_whole_one_is_read(name: str, inside: bool, tmp_path: Path) -> None:
    codec, pixels, found = WHOLE[name]
    path = tmp_path / name
    content = written(path, codec, pixels)
    assert probe_video(path).frames == 20
    for keep in (len(content) // 2 + 1, len(content) - 10):
        path.write_bytes(content[:keep])
        with pytest.raises(BadInputError, match=found):
            probe_video(Part(path, 0, keep, "the video") if inside else path)


def test_a_gif_may_have_bytes_after_its_trailer_and_a_semicolon_before_a_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.gif"
    content = written(path, "gif", "rgb8")
    path.write_bytes(content + bytes(5))
    assert probe_video(path).frames == 20
    path.write_bytes(content[: content.rindex(b";", 0, len(content) - 1) + 1])  # a byte of an image, and no trailer
    with pytest.raises(BadInputError, match="cut short"):
        probe_video(path)
