"""Sound JPEGs of every kind are passed; of damaged ones, what decoders pass over is found as often as it can be."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from counterpoint.cli.data.commands import doctor
from counterpoint.formats.jpeg import jpeg_fault
from tests.formats.made import real_data, smooth_frames, write_epic


def encoded(pixels: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", **options)
    return stream.getvalue()


SIZES = [(8, 8), (16, 16), (24, 32), (17, 33), (1, 1), (100, 3), (256, 456)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        *({"subsampling": kind} for kind in ("4:4:4", "4:2:2", "4:2:0")),
        *({"quality": quality} for quality in (1, 50, 100)),
        {"optimize": True},
        {"restart_marker_blocks": 1},
        {"restart_marker_rows": 1},
        {"progressive": True},
        {"comment": b"a word"},
    ],
    ids=str,
)
def test_sound_images_pass(size: tuple[int, int], options: dict[str, Any]) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    for pixels in (smooth_frames(1, *size)[0], noise, noise[:, :, 0], np.where(noise > 127, 255, 0).astype(np.uint8)):
        assert jpeg_fault(encoded(pixels, **options)) is None


def test_real_frames_pass() -> None:
    files = sorted(real_data("epic_kitchens_sample").rglob("*.jpg"))[::40]
    assert files
    assert [file for file in files if jpeg_fault(file.read_bytes())] == []


def scan(data: bytes) -> int:
    """The first byte of the coded data."""
    at = data.index(b"\xff\xda")
    return at + 2 + int.from_bytes(data[at + 2 : at + 4])


@pytest.mark.parametrize("quality", [50, 90])
def test_a_changed_bit_is_often_found(quality: int) -> None:
    data = encoded(smooth_frames(1, 128, 160)[0] ^ np.uint8(5), quality=quality)
    rng, first, found = np.random.default_rng(0), scan(data), 0
    for _ in range(200):
        changed = bytearray(data)
        changed[int(rng.integers(first, len(data) - 2))] ^= 1 << int(rng.integers(8))
        found += jpeg_fault(bytes(changed)) is not None
    assert found > 40  # a third; most of the others move no code, and nothing in the file says that they are wrong


@pytest.mark.parametrize(("kind", "least"), [("cut", 50), ("dropped", 48), ("inserted", 30), ("zeros", 48)])
def test_longer_damage_is_found_more_often(kind: str, least: int) -> None:
    data, rng, found = encoded(smooth_frames(1, 128, 160)[0]), np.random.default_rng(0), 0
    first = scan(data)
    for _ in range(50):
        place = int(rng.integers(first, len(data) - 100))
        changed = {
            "cut": data[:place],
            "dropped": data[:place] + data[place + 20 :],
            "inserted": data[:place] + rng.bytes(20) + data[place:],
            "zeros": data[:place] + bytes(60) + data[place + 60 :],
        }[kind]
        found += jpeg_fault(changed) is not None
    assert found >= least


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"",
        lambda data: data[:2],
        lambda data: b"xx" + data[2:],
        lambda data: data[:-2],
        lambda data: data.replace(b"\xff\xda", b"\xff\xd9", 1),
        lambda data: data.replace(b"\xff\xc4", b"\xff\xfe", 1),
        lambda data: data[:4] + b"\xff\xff" + data[6:],
        lambda data: data.replace(b"\xff\xc4\x00", b"\xff\xc4\x01", 1),
    ],
)
def test_headers_that_contradict_each_other_are_told(change: Any) -> None:
    assert jpeg_fault(change(encoded(smooth_frames(1, 24, 32)[0])))


def test_the_doctor_reports_what_decoders_pass_over(tmp_path: Path) -> None:
    root = write_epic(tmp_path / "epic")
    assert doctor(str(root)) == 0
    path = root / "P01" / "rgb_frames" / "P01_01" / "frame_0000000004.jpg"
    data = path.read_bytes()
    for place in range(scan(data), len(data) - 2):
        changed = data[:place] + bytes((data[place] ^ 64,)) + data[place + 1 :]
        if jpeg_fault(changed) and np.asarray(Image.open(io.BytesIO(changed)).convert("RGB")).shape == (24, 32, 3):
            break
    path.write_bytes(changed)
    assert doctor(str(root)) == 2
