"""The boundary around foreign files: the errors that damage causes, limits of size, and checks that images are whole.

Foreign files are read inside `parsing`, which turns exceptions that damaged content causes into a `BadInputError`.
Mistakes in this library's own code, such as an `AttributeError`, keep their traceback. The sizes that a file claims are
compared with limits, and with the size of the file, before memory is allocated for them.
"""

from __future__ import annotations

import csv
import io
import lzma
import math
import pickle
import stat
import struct
import tarfile
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import av
import numpy as np
import pyarrow as pa
from PIL import ExifTags, Image

from counterpoint.data.episode import Array
from counterpoint.errors import BadInputError, MissingExtraError, require

DAMAGE = (
    *(OSError, EOFError, ValueError, LookupError, ArithmeticError, BufferError, MemoryError),
    *(RuntimeError, SystemError, SyntaxError),
    *(struct.error, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError, pickle.UnpicklingError),
    *(csv.Error, tokenize.TokenError, Image.DecompressionBombError, pa.ArrowException, av.FFmpegError),
)
"""Errors that parsers raise on damaged content; `SyntaxError` is Pillow's, `SystemError` h5py's."""
LIBRARIES = {"h5py", "minari", "gymnasium", "mcap", "mcap_ros2", "numcodecs", "PIL", "zarr"}
"""Packages whose own exceptions also count as damage, because they do not check the types of what they read."""
MISTAKES = (AttributeError, TypeError, NameError, AssertionError)
"""Exceptions that mean mistakes in code, not in data, unless one of `LIBRARIES` raises them."""

MOST_PIXELS = 1 << 25
"""Maximum number of pixels of one image: a frame of 8K video has 33 million."""
MOST_BYTES = 1 << 30
"""Maximum number of bytes of an array, a text file, a pickle, or a part of a file that is read at once."""
_PNG, _TIFF = b"\x89PNG\r\n\x1a\n", (b"II*\0", b"MM\0*")
_MOST_PACKED = 1040  # zlib shrinks zeros by at most this factor
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""The operation that turns an image upright, by its EXIF orientation; 1 is upright, and other numbers mean nothing."""


@contextmanager
def parsing(where: str | Path, expected: str, hint: str = "download or record it again") -> Iterator[None]:
    """Turn the errors of `DAMAGE`, and exceptions inside `LIBRARIES` on damaged content, into a `BadInputError`."""
    try:
        yield
    except (BadInputError, MissingExtraError):
        raise
    except (*DAMAGE, *MISTAKES) as error:
        if isinstance(error, MISTAKES) and not isinstance(error, DAMAGE) and not _by_a_library(error):
            raise
        found = f"damaged content ({type(error).__name__}: {first_line(error)})"
        raise BadInputError(where, found, expected, hint) from error


def _by_a_library(error: BaseException) -> bool:
    """Return whether the code that raised an error belongs to one of `LIBRARIES`."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    name = "" if last is None else str(last.tb_frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] in LIBRARIES


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, shortened."""
    return next(iter(str(error).strip().splitlines()), "")[:160]


def require_size(where: str | Path, size: int, limit: int = MOST_BYTES) -> None:
    """Raise a `BadInputError` when a part of a file claims more than `limit` bytes."""
    require(size <= limit, where, f"{size} bytes", f"{limit} at most", "do not trust this file, or split it")


def read_bytes(path: Path, limit: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file of at most `limit` bytes.

    Raises:
        BadInputError: When the file is missing, cannot be read or is larger.
    """
    with parsing(path, "a readable file", "check the path"):
        status = path.stat()
        require(stat.S_ISREG(status.st_mode), path, "no regular file", "a file", "check the path")
        require_size(path, status.st_size, limit)
        return path.read_bytes()


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return a JSON object as it is; raise `ValueError` for anything else."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r:.40} where an object should be")
    return value


def as_list(value: object) -> Sequence[Any]:
    """Return a JSON list as it is; raise `ValueError` for anything else."""
    if not isinstance(value, list):
        raise ValueError(f"{value!r:.40} where a list should be")
    return value


def as_whole(value: object) -> int:
    """Return a whole number, given as a number or as text; raise `ValueError` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | np.integer):
        raise ValueError(f"{value!r:.40} where a whole number should be")
    return int(value)


def as_number(value: object) -> float:
    """Return a finite number; raise `ValueError` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r:.40} where a finite number should be")
    return float(value)


def as_numbers(values: object) -> Array:
    """Return an array of real numbers or booleans as it is; raise `ValueError` for any other array."""
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{array.dtype} where numbers should be")
    return array


def array_headers(file: Path) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Return the shape and dtype of each array of an .npz file by name, without unpacking the arrays.

    Raises:
        ValueError, zipfile.BadZipFile: When the file is damaged, or an array is not as long as its header says.
    """
    headers = {}
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            with archive.open(member) as stream:
                shape, dtype, start = _header(stream)
            size = member.file_size if dtype.hasobject else start + math.prod(shape) * dtype.itemsize
            if not size == member.file_size <= _MOST_PACKED * member.compress_size:
                raise ValueError(f"{member.filename} claims {size} bytes and has {member.file_size}")
            headers[member.filename.removesuffix(".npy")] = (shape, dtype)
    return headers


def load_arrays(file: Path, names: Sequence[str] | None = None, limit: int = MOST_BYTES) -> dict[str, Array]:
    """Return arrays of an .npz file (all by default) of at most `limit` bytes in total; see `array_headers`."""
    headers = array_headers(file)
    names = list(headers) if names is None else names
    require_size(file, sum(math.prod(headers[name][0]) * headers[name][1].itemsize for name in names), limit)
    with np.load(file) as arrays:
        return {name: arrays[name] for name in names}


def load_array(content: bytes) -> Array:
    """Return the array of an .npy file; raise `ValueError` if it is not as long as its header says."""
    shape, dtype, start = _header(io.BytesIO(content))
    if start + math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"{len(content)} bytes for {dtype} {shape}")
    values: Array = np.load(io.BytesIO(content), allow_pickle=False)
    return values


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Return the shape, the dtype and the offset of the first byte of the array in an .npy file."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    if any(length < 0 for length in shape):
        raise ValueError(f"an array of shape {shape}")
    return shape, dtype, stream.tell()


def open_image(where: str | Path, content: bytes | memoryview, formats: Sequence[str] = ("JPEG", "PNG")) -> Image.Image:
    """Return a decoded image of at most `MOST_PIXELS` pixels, in its own colour mode, turned by its EXIF orientation.

    Pillow does not look at the checksums of a PNG's pixels; this function verifies them. A JPEG has no checksum: a file
    that is cut short or has a damaged header is refused, but most other damage goes unnoticed and changes pixels.

    Raises:
        BadInputError: When the image is too large or damaged.
    """
    expected = f"a whole {' or '.join(formats)}"
    hint = "copy or download it again; save an image of another kind as PNG or JPEG"
    with parsing(where, expected, hint), Image.open(io.BytesIO(content), formats=tuple(formats)) as image:
        pixels, hint = image.width * image.height, "do not trust this file"
        found = f"{image.width} x {image.height} pixels"
        require(pixels <= MOST_PIXELS, where, found, f"{MOST_PIXELS} at most", hint)
        if image.format == "PNG":
            _check_png(bytes(content))
        if image.format == "TIFF":
            packed, hint = str(image.info.get("compression")), "save it without compression"
            require(packed == "raw", where, f"a TIFF packed by {packed}", "a plain one", hint)
        image.load()
        turn = _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
        return image.copy() if turn is None else image.transpose(turn)


def decode_image(where: str | Path, content: bytes | memoryview, formats: Sequence[str] = ("JPEG", "PNG")) -> Array:
    """Return an image as uint8 [H, W, 3]; see `open_image`. Grey is repeated in three channels, and alpha is left out.

    Raises:
        BadInputError: When the image is too large or damaged, or has more than 8 bits a channel, as depth images have.
    """
    expected, hint = "8 bits a channel", "leave depth images out; save colours with 8 bits a channel"
    require(not _has_wide_channels(content), where, "an image with 16 bits a channel", expected, hint)
    image = open_image(where, content, formats)
    require(image.mode[0] not in "IF", where, f"an image of mode {image.mode}", expected, hint)  # TIFF above 8 bits
    return np.asarray(image.convert("RGB"))


def is_depth(content: bytes | memoryview) -> bool:
    """Return whether an image holds depth (a grey PNG of 16 bits, or a TIFF); its first 26 bytes suffice."""
    return (_has_wide_channels(content) and content[25] == 0) or bytes(content[:4]) in _TIFF


def decode_depth(where: str | Path, content: bytes | memoryview) -> Array:
    """Return a depth image [H, W]: uint16 in millimetres, or float32 in metres.

    Raises:
        BadInputError: When the image is damaged, or is neither a grey PNG or TIFF of 16 bits nor a TIFF of float32.
    """
    image = open_image(where, content, ("PNG", "TIFF"))
    values: Array = np.asarray(image)
    if image.mode == "I" and values.min() >= 0 and values.max() < 1 << 16:  # Pillow's mode for some images of 16 bits
        values = values.astype(np.uint16)
    kind = {2: np.uint16, 4: np.float32}.get(values.dtype.itemsize)
    good, found = values.ndim == 2 and kind == values.dtype.newbyteorder("="), f"an image of mode {image.mode}"
    hint = "leave this camera out: the unit of other images is not known"
    require(good, where, found, "depth in 16-bit millimetres or float32 metres", hint)
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def _has_wide_channels(content: bytes | memoryview) -> bool:
    """Return whether an image's header says that it is a PNG of 16 bits a channel."""
    return bytes(content[:8]) == _PNG and len(content) > 25 and content[24] == 16


def _check_png(content: bytes) -> None:
    """Raise `ValueError` if a chunk of a PNG does not match its checksum."""
    place = 8
    while place < len(content):
        (length,) = struct.unpack_from(">I", content, place)
        (checksum,) = struct.unpack_from(">I", content, place + 8 + length)
        if zlib.crc32(memoryview(content)[place + 4 : place + 8 + length]) != checksum:
            raise ValueError(f"a part at byte {place} that fails its checksum")
        if content[place + 4 : place + 8] == b"IEND":
            return
        place += 12 + length
    raise ValueError("no end of the image")
