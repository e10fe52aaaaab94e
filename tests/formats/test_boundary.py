"""Damage becomes one message, our own mistakes surface, and no size is believed before memory is taken for it."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from counterpoint.errors import BadInputError
from counterpoint.formats.boundary import (
    DAMAGE,
    MISTAKES,
    array_headers,
    as_list,
    as_mapping,
    as_number,
    as_numbers,
    as_whole,
    decode_image,
    load_array,
    load_arrays,
    parsing,
    read_bytes,
)
from tests.formats.made import real_data, smooth_frames


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_one_message(kind: type[Exception]) -> None:
    error = kind(1, "text") if issubclass(kind, av.FFmpegError) else kind("text")
    expected = r"where: found damaged content .*; expected whole"
    with pytest.raises(BadInputError, match=expected), parsing("where", "whole"):
        raise error


@pytest.mark.parametrize("kind", MISTAKES)
def test_mistakes_surface(kind: type[Exception]) -> None:
    with pytest.raises(kind), parsing("where", "whole"):
        raise kind


def test_a_mistake_that_a_library_makes_of_damage_is_damage() -> None:
    with pytest.raises(BadInputError, match="TypeError"), parsing("where", "whole"):
        Image.frombytes("RGB", (1, 1), [object()])  # type: ignore[arg-type]
    with pytest.raises(AttributeError), parsing("where", "whole"):
        Image.frombyte("RGB", (1, 1), b"123")  # type: ignore[attr-defined]  # raised here, not there


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
def test_an_image_comes_upright(form: str, orientation: int) -> None:
    stored, exif, written = smooth_frames(1, 32, 48)[0], Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    Image.fromarray(stored).save(
        written, form, exif=exif, **({"quality": 98, "subsampling": 0} if form == "JPEG" else {})
    )
    rows, columns = stored[::-1], stored[:, ::-1]  # what is shown, by the standard's words on row 0 and column 0
    shown = {2: columns, 3: rows[:, ::-1], 4: rows, 5: stored.swapaxes(0, 1), 6: rows.swapaxes(0, 1)}
    shown |= {7: rows[:, ::-1].swapaxes(0, 1), 8: columns.swapaxes(0, 1)}
    found, expected = decode_image("photo", written.getvalue()), shown.get(orientation, stored)
    assert found.shape == expected.shape
    assert np.abs(found.astype(int) - expected).mean() < 3


@pytest.mark.parametrize("value", ["1", [], {}, None, True, float("nan"), float("inf")])
def test_what_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="where a finite number should be"):
        as_number(value)


def test_parts_of_trees_are_taken_as_they_are() -> None:
    assert (as_number(2), as_whole("3"), as_whole(np.int64(4)), as_list([1]), as_mapping({"a": 1})) == (
        *(2.0, 3, 4),
        *([1], {"a": 1}),
    )
    for refuse, value in ((as_whole, True), (as_whole, []), (as_list, "ab"), (as_list, {}), (as_mapping, [1])):
        with pytest.raises(ValueError, match="should be"):
            refuse(value)
    unfit: list[Any] = [["a"], [{}], np.zeros(2, complex), [None]]
    for values in unfit:
        with pytest.raises(ValueError, match="where numbers should be"):
            as_numbers(values)


def test_files_that_are_too_large_or_no_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"12345")
    assert read_bytes(tmp_path / "a.json") == b"12345"
    with pytest.raises(BadInputError, match="found 5 bytes; expected 4 at most"):
        read_bytes(tmp_path / "a.json", 4)
    for path in (tmp_path, Path("/dev/zero"), tmp_path / "none"):
        with pytest.raises(BadInputError, match=r"no regular file|No such file"):
            read_bytes(path)


def npz_that_claims(path: Path, shape: tuple[int, ...], dtype: str = "<f4") -> Path:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": dtype, "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", header.getvalue() + bytes(80))
    return path


def test_headers_are_compared_with_the_content(tmp_path: Path) -> None:
    assert array_headers(npz_that_claims(tmp_path / "good.npz", (20,))) == {"a": ((20,), np.dtype("<f4"))}
    for shape in ((10**9, 10), (19,), (21,)):
        path = npz_that_claims(tmp_path / "bad.npz", shape)
        with pytest.raises(ValueError, match="claims"):
            array_headers(path)
        with pytest.raises(ValueError, match="claims"):
            load_arrays(path)
    with pytest.raises(ValueError, match="allow_pickle"):
        load_arrays(npz_that_claims(tmp_path / "objects.npz", (10,), "|O"))
    with pytest.raises(ValueError, match="shape"):
        array_headers(npz_that_claims(tmp_path / "negative.npz", (-1, 2)))
    with pytest.raises(BadInputError, match="found 80 bytes; expected 79 at most"):
        load_arrays(tmp_path / "good.npz", limit=79)
    assert load_arrays(tmp_path / "good.npz")["a"].shape == (20,)


def test_an_array_as_long_as_its_header_says(tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.save(stream, np.arange(5))
    np.testing.assert_array_equal(load_array(stream.getvalue()), np.arange(5))
    for content in (stream.getvalue()[:-1], stream.getvalue() + b"x"):
        with pytest.raises(ValueError, match="bytes for int64"):
            load_array(content)


def encoded(form: str, pixels: NDArray[Any] | None = None) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(smooth_frames(1, 24, 32)[0] if pixels is None else pixels).save(stream, form)
    return stream.getvalue()


@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_a_picture_that_claims_too_much_is_refused_before_it_is_decoded(form: str) -> None:
    data = encoded(form)
    if form == "PNG":
        header = b"IHDR" + struct.pack(">II", 6000, 6000) + data[24:29]
        data = data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:]
    else:
        at = data.index(b"\xff\xc0")
        data = data[: at + 5] + struct.pack(">HH", 6000, 6000) + data[at + 9 :]
    with pytest.raises(BadInputError, match="found 6000 x 6000 pixels"):
        decode_image("picture", data)


def test_checksums_of_a_png_are_verified() -> None:
    data = bytearray(encoded("PNG"))
    np.testing.assert_array_equal(decode_image("picture", bytes(data)), smooth_frames(1, 24, 32)[0])
    for place in range(8, len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(BadInputError, match="picture"):
            decode_image("picture", bytes(changed))


def coded(data: bytes) -> int:
    """Return the first byte of a JPEG's coded pixels."""
    at = data.index(b"\xff\xda")
    return at + 2 + int.from_bytes(data[at + 2 : at + 4])


@pytest.mark.parametrize("place", [0.0, 0.2, 0.9])
def test_a_jpeg_that_is_cut_short_is_refused(place: float) -> None:
    data = encoded("JPEG")
    with pytest.raises(BadInputError, match="truncated"):
        decode_image("picture", data[: coded(data) + int(place * (len(data) - coded(data)))])


@pytest.mark.parametrize(("source", "expected"), [("real", 4), ("made", 20)])
def test_a_flipped_bit_in_a_jpeg_is_seldom_noticed(source: str, expected: int) -> None:
    """The shares that the page of trust states."""
    if source == "real":
        images = [file.read_bytes() for file in sorted(real_data("epic_kitchens_sample").rglob("*.jpg"))[::6]]
    else:
        images = [encoded("JPEG", frame) for frame in smooth_frames(10, 128, 160)]
    sound, rng = [decode_image("picture", data).astype(int) for data in images], np.random.default_rng(0)
    noticed, changed = 0, list[float]()
    for number in range(300):
        data, before = bytearray(images[number % len(images)]), sound[number % len(images)]
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        try:
            after = decode_image("picture", bytes(data))
            changed.append(float((np.abs(after - before).max(-1) > 8).mean()))
        except BadInputError:
            noticed += 1
    assert abs(noticed - expected) <= 8  # versions of libjpeg differ
    assert 0.3 < np.mean(np.array(changed) > 0.1) < 0.5  # these show in more than a tenth of the image


@pytest.mark.parametrize(("form", "dtype"), [("PNG", np.uint16), ("TIFF", np.uint16), ("TIFF", np.float32)])
def test_no_image_of_more_than_8_bits_is_squeezed(form: str, dtype: type) -> None:
    with pytest.raises(BadInputError, match="8 bits a channel"):
        decode_image("picture", encoded(form, np.full((4, 6), 300, dtype)), ["PNG", "TIFF"])


def test_other_formats_are_refused() -> None:
    with pytest.raises(BadInputError, match="a whole PNG"):
        decode_image("picture", encoded("JPEG"), ["PNG"])
    with pytest.raises(BadInputError, match="a whole JPEG or PNG"):
        decode_image("picture", encoded("GIF"))
