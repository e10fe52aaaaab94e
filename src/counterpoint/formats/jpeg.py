"""Find damage inside a JPEG that decoders pass over.

A JPEG has no checksum, and decoders show whatever bits they find. But the codes of a whole image end with its last
block, exactly where the next marker begins, and no block has more than 64 coefficients. A changed bit in a code makes
the codes after it start elsewhere, so that this seldom comes out right. A changed bit in a coefficient's value moves no
code: nothing in the file says that it is wrong.

Each code is looked up for every bit of the scan at once; what is left for Python is one step a code.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_SEQUENTIAL = (0xC0, 0xC1)
_DHT, _SOI, _EOI, _SOS, _DQT, _DRI = 0xC4, 0xD8, 0xD9, 0xDA, 0xDB, 0xDD
_FRAMES = {*range(0xC0, 0xD0)} - {_DHT, 0xC8, 0xCC}
_END = re.compile(rb"\xff+([^\x00\xff])")  # of coded data: 0xff before zero is a byte of them
_RESTART = range(0xD0, 0xD8)
_AC = 16  # number of the first table of coefficients beside the mean
_OVER = 128  # coefficients: the rest of a block
_NOWHERE = 1 << 50  # the bit behind a code that does not exist
_SLACK = 64  # by which encoders overshoot black and white

_Block = tuple[int, int, int]
"""Component, table of its means, table of its other coefficients."""


@dataclass
class _State:
    """The tables and the frame that were read so far."""

    codes: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=dict)
    scales: dict[int, int] = field(default_factory=dict)  # table -> what means are divided by
    size: tuple[int, int] = (0, 0)  # height, width
    sampling: dict[int, tuple[int, int, int]] = field(
        default_factory=dict
    )  # component -> across, down, table of scales
    kind: int = 0
    interval: int = 0  # MCUs between restarts


def jpeg_fault(data: bytes) -> str | None:
    """Return what is wrong with the coded data of a JPEG, in words; `None` where nothing is found.

    Scans of sequential Huffman codes, as cameras, ffmpeg and Pillow write them by default, are followed code by code.
    Of progressive and arithmetic ones only the order of markers is checked.
    """
    try:
        return _fault(data)
    except (LookupError, struct.error, ValueError) as error:
        return f"headers that contradict each other ({type(error).__name__}: {error})"


def _fault(data: bytes) -> str | None:
    state, place = _State(), 2
    if data[:2] != bytes((0xFF, _SOI)):
        return "no start of an image"
    scans = 0
    while True:
        while data[place : place + 2] == b"\xff\xff":
            place += 1
        if len(data) < place + 2 or data[place] != 0xFF:
            return f"no marker at byte {place}"
        marker, place = data[place + 1], place + 2
        if marker == _EOI:
            return None if scans else "no image before its end"
        (length,) = struct.unpack_from(">H", data, place)
        segment, place = data[place + 2 : place + length], place + length
        if length < 2 or len(segment) != length - 2:
            return f"a segment that reaches beyond the file, at byte {place - length}"
        if marker == _DHT:
            state.codes.update(_tables(segment))
        elif marker == _DQT:
            state.scales.update(_scales(segment))
        elif marker == _DRI:
            (state.interval,) = struct.unpack(">H", segment)
        elif marker in _FRAMES:
            height, width, count = struct.unpack_from(">xHHB", segment)
            parts = [segment[6 + 3 * k : 9 + 3 * k] for k in range(count)]
            state.sampling = {part[0]: (part[1] >> 4, part[1] & 15, part[2]) for part in parts}
            state.size, state.kind = (height, width), marker
        elif marker == _SOS:
            pieces, place = _pieces(data, place)
            scans += 1
            if state.kind in _SEQUENTIAL and (fault := _scan_fault(state, segment, pieces)):
                return f"{fault} in scan {scans}"


def _tables(segment: bytes) -> Iterator[tuple[int, tuple[NDArray[np.int64], NDArray[np.int64]]]]:
    """Yield class and number of each table with, for every 16 bits, the length of the code they begin and its value."""
    place = 0
    while place < len(segment):
        counts = segment[place + 1 : place + 17]
        values = segment[place + 17 : place + 17 + sum(counts)]
        if len(values) != sum(counts):
            raise ValueError("a table of codes that is cut short")
        lengths, symbols = np.zeros(1 << 16, np.int64), np.zeros(1 << 16, np.int64)
        start = used = 0
        for length, count in enumerate(counts, start=1):
            for value in values[used : used + count]:
                stop = start + (1 << 16 - length)
                if stop > 1 << 16:
                    raise ValueError("more codes than there is room for")
                lengths[start:stop], symbols[start:stop], start = length, value, stop
            used += count
        yield segment[place], (lengths, symbols)
        place += 17 + used


def _scales(segment: bytes) -> Iterator[tuple[int, int]]:
    """Yield the number of each table of divisors and its first one, that of the mean."""
    place = 0
    while place < len(segment):
        wide, number = divmod(segment[place], 16)
        yield number, int.from_bytes(segment[place + 1 : place + 2 + bool(wide)])
        place += 1 + 64 * (1 + bool(wide))


def _pieces(data: bytes, place: int) -> tuple[list[bytes], int]:
    """Return a scan's coded data between restart markers, and the place of the marker behind it."""
    pieces = []
    while True:
        end = _END.search(data, place)
        if end is None:
            raise ValueError("coded data without an end")
        pieces.append(data[place : end.start()].replace(b"\xff\x00", b"\xff"))
        if end[1][0] not in _RESTART:
            return pieces, end.start()
        if end[1][0] != _RESTART[(len(pieces) - 1) % 8]:
            raise ValueError("restart markers out of order")
        place = end.end()


def _scan_fault(state: _State, header: bytes, pieces: list[bytes]) -> str | None:
    """Follow the codes of a sequential scan to its end."""
    chosen = [(header[1 + 2 * k], header[2 + 2 * k]) for k in range(header[0])]
    most = [max(sides) for sides in zip(*state.sampling.values(), strict=True)]  # across, down
    height, width = state.size
    blocks: list[_Block] = []  # of an MCU
    for component, tables in chosen:
        across, down, _ = state.sampling[component]
        many = across * down if len(chosen) > 1 else 1
        blocks += [(component, tables >> 4, _AC + (tables & 15))] * many
    if len(chosen) == 1:  # blocks beyond the image's edge are left out
        across, down, _ = state.sampling[chosen[0][0]]
        units = -(-width * across // (8 * most[0])) * -(-height * down // (8 * most[1]))
    else:
        units = -(-width // (8 * most[0])) * -(-height // (8 * most[1]))
    interval = state.interval or units
    if len(pieces) != -(-units // interval):
        return f"{len(pieces)} parts where there should be {-(-units // interval)}"
    for number, piece in enumerate(pieces):
        fault = _piece_fault(state, blocks, min(interval, units - number * interval), piece)
        if fault:
            return fault
    return None


def _piece_fault(state: _State, blocks: list[_Block], units: int, piece: bytes) -> str | None:
    """Follow the codes of one piece: `units` MCUs of these blocks, which must take all its bits."""
    raw = np.frombuffer(piece + b"\xff" * 4, np.uint8).astype(np.int64)
    wide = raw[:-3] << 24 | raw[1:-2] << 16 | raw[2:-1] << 8 | raw[3:]  # 32 bits from each byte on
    windows = (wide[:, None] >> (16 - np.arange(8)) & 0xFFFF).reshape(-1)  # 16 bits from each bit on
    end, places = 8 * len(piece), np.arange(len(windows))
    steps: dict[int, list[int]] = {}  # table -> for each bit: the bit behind its code and value << 8 | coefficients
    for table in {table for _, *tables in blocks for table in tables}:
        lengths, symbols = state.codes[table]
        length, symbol = lengths[windows], symbols[windows]
        size = symbol & 15 if table >= _AC else symbol
        run = np.where(size > 0, (symbol >> 4) + 1, np.where(symbol >> 4 == 15, 16, _OVER))
        after = np.where(length == 0, _NOWHERE, places + length + size)
        steps[table] = (after << 8 | run).tolist()
    place, starts, chain = 0, [], [(steps[dc], steps[ac]) for _, dc, ac in blocks]
    try:
        for _ in range(units):
            for dc, ac in chain:
                starts.append(place)
                place = dc[place] >> 8
                k = 1
                while k < 64:
                    step = ac[place]
                    place, k = step >> 8, k + (step & 255)
                if 64 < k < _OVER:
                    return "a block of too many coefficients"
    except IndexError:
        return "a code that does not exist" if place >= _NOWHERE else "coded data that end before the image"
    if not 0 <= end - place < 8:
        return f"{end - place} bits behind the image" if place <= end else "coded data that end before the image"
    return _brightness_fault(state, blocks, np.array(starts).reshape(units, len(blocks)), windows)


def _brightness_fault(
    state: _State, blocks: list[_Block], starts: NDArray[np.int64], windows: NDArray[np.int64]
) -> str | None:
    """Return a fault where a block's mean is beyond black or white; means are coded as differences: errors add up."""
    for component in {component for component, *_ in blocks}:
        own = [k for k, (name, *_) in enumerate(blocks) if name == component]
        lengths, symbols = state.codes[blocks[own[0]][1]]
        at = starts[:, own].reshape(-1)
        size = symbols[windows[at]]
        value = windows[at + lengths[windows[at]]] >> 16 - size
        change = np.where(value >> size - 1 == 1, value, value - (1 << size) + 1) * (size > 0)
        scale = state.scales[state.sampling[component][2]]
        if np.abs(np.cumsum(change) * scale).max() > 1024 + scale + _SLACK:
            return "a part brighter than white or darker than black"
    return None
