"""Open video files, and find those that are cut short by what their container says of its own length.

    mp4, mov         an index, which recorders write last, and the sizes of the boxes
    mkv, webm        the size of the file in its header, unless the recorder did not finish
    ts, m2ts         packets of one size; a cut between two packets leaves no trace
    gif              blocks, each with its size, and a trailer

A cut .mpg or .wmv looks like a shorter video, because nothing in it says how long it should be.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import av

from counterpoint.errors import BadInputError, require
from counterpoint.formats.remote import Part, Stream, opened

EXPECTED = "a whole, readable video"
# A title that is not UTF-8 must not make a video unreadable; av 19 reads any title, and dropped the option.
_TITLES: dict[str, Any] = {"metadata_errors": "replace"} if int(av.__version__.partition(".")[0]) < 19 else {}
_LFS = b"version https://git-lfs"
_MOST_BOXES = 10_000  # top-level boxes that are examined: a fragmented file has two per second
_SYNC = 0x47  # first byte of each packet of a transport stream
_IMAGE, _EXTENSION, _TRAILER = 0x2C, 0x21, 0x3B  # first bytes of the blocks of a GIF
_GIF_END = "a trailer (;) as the last block"


def open_container(path: str | Part, source: str | Stream) -> Any:
    """Open a file; an .mp4 or .mov that is cut off before its index raises an error that says so."""
    try:
        return av.open(source, "r", **_TITLES)
    except av.InvalidDataError:
        with _bytes_of(path) as file:
            head = file.read(len(_LFS))
        require(head, str(path), "an empty file", EXPECTED, "copy or download it again, or leave it out")
        hint = "fetch the files themselves: git lfs pull, in the folder of the repository"
        require(head != _LFS, str(path), "the text that Git LFS keeps in place of a file", EXPECTED, hint)
        kinds, _ = _boxes(path)
        if kinds[:1] != [b"ftyp"] or b"moov" in kinds:
            raise
        found = "a video that is cut short: its index (moov), which is written last, is missing"
        hint = (
            "copy it again if the original is whole; if not, untrunc may rebuild it from an intact video of the same "
            "device (ffmpeg cannot), or leave it out; from .mkv and fragmented .mp4, ffmpeg saves what precedes a cut"
        )
        raise BadInputError(str(path), found, "a whole video", hint) from None


def _boxes(path: str | Part) -> tuple[list[bytes], bool]:
    """Return the kinds of the top-level boxes of an .mp4 or .mov, and whether the last one is cut short."""
    kinds: list[bytes] = []
    with _bytes_of(path) as file:
        end, place = file.seek(0, os.SEEK_END), 0
        while place + 8 <= end and len(kinds) < _MOST_BOXES:
            file.seek(place)
            size, kind, large = struct.unpack(">I4sQ", file.read(16).ljust(16, b"\0"))
            kinds.append(kind)
            size = large if size == 1 else size
            if size < 8:  # 0 means that the box extends to the end
                return kinds, False
            place += size
    return kinds, place > end


def is_cut(path: str | Part) -> bool:
    """Return whether the last box of an .mp4 or .mov is cut short."""
    return _boxes(path)[1]


def require_whole(path: str | Part, container: str) -> None:
    """Raise a `BadInputError` if a file is shorter than its container says.

    Args:
        path: The file.
        container: Name of its format, as FFmpeg gives it. Formats that do not show a cut are taken to be whole.
    """
    kept, hint = "keep what is left: ffmpeg -i IN", "copy it again, or "
    with _bytes_of(path) as file:
        size = file.seek(0, os.SEEK_END)
        if container.startswith("matroska"):
            expected, hint = _matroska_end(file, size), f"{hint}{kept} -c copy OUT.mkv"
        elif container == "mpegts":
            expected, hint = _last_packet_end(file, size), f"{hint}{kept} -c copy OUT.mkv"
        elif container == "gif":
            expected, hint = _gif_end(file, size), f"{hint}{kept} -c:v libx264 OUT.mp4"
        else:
            return
    require(not expected, str(path), f"a video that is cut short: {size} bytes", expected, hint)


def _matroska_end(file: IO[bytes], size: int) -> str:
    """Return the length that a Matroska file should have, in words; "" if it has it, or the header does not say."""
    place, end, known = 0, 0, False
    file.seek(0)
    head = file.read(4096)
    for kind in (b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"):  # the elements EBML and Segment, one after the other
        place = end
        if head[place : place + 4] != kind:
            return ""
        width = 9 - head[place + 4].bit_length()  # bytes of the length, given by its leading bit
        most = (1 << 7 * width) - 1
        length = int.from_bytes(head[place + 4 : place + 4 + width]) & most
        end, known = place + 4 + width + length, length < most
    return f"{end} bytes" if known and end > size else ""


def _last_packet_end(file: IO[bytes], size: int) -> str:
    """Return what a transport stream should end with, in words; "" if its last packet is whole.

    Packets have 188 bytes; .m2ts has 4 bytes more before each packet, and some broadcasts have 16 more after it.
    """
    file.seek(0)
    head = file.read(4 * 204)
    for first, length in ((0, 188), (4, 192), (0, 204)):
        if len(head) > first + 3 * length and all(head[first + n * length] == _SYNC for n in range(4)):
            return f"whole packets of {length} bytes" if size % length else ""
    return ""


def _gif_end(file: IO[bytes], size: int) -> str:
    """Return what a GIF should end with, in words; "" if it has its trailer."""
    file.seek(0)
    data, place = file.read(), 13  # the header and the description of the screen
    place += _colours(data[10]) if size > 10 else 0
    while place < size and data[place] != _TRAILER:
        if data[place] == _IMAGE and place + 9 < size:  # its description, its colours and the least width of a code
            place += 10 + _colours(data[place + 9]) + 1
        elif data[place] == _EXTENSION:
            place += 2
        else:
            return "" if data[place] != _IMAGE else _GIF_END  # damage, which the decoder reports
        while place < size and data[place]:  # sub-blocks, each with its length, up to one of length 0
            place += data[place] + 1
        place += 1
    return "" if place < size else _GIF_END


def _colours(flags: int) -> int:
    """Return the bytes of the table of colours that a description in a GIF announces."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


@contextmanager
def _bytes_of(path: str | Part) -> Iterator[IO[bytes]]:
    source = opened(path)
    with Path(source).open("rb") if isinstance(source, str) else source as file:
        yield file
