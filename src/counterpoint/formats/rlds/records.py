"""Read TFRecord files and the `tf.train.Example` messages in them.

A file is a sequence of records, each of which holds a serialised message::

    uint64   length of the data, little endian
    uint32   masked CRC-32C of these eight bytes
    bytes    data
    uint32   masked CRC-32C of the data

Only the requested parts of a message are decoded, and a walk through a memory-mapped file reads no image. Indexing a
large data set therefore takes a small part of the time of reading it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.errors import import_extra, require
from counterpoint.formats.boundary import parsing

HINT = "download this file again"
_BYTES, _FLOATS, _INTEGERS = 1, 2, 3  # the field numbers of tf.train.Feature, of which one is set

Example = dict[str, memoryview]
"""Name of a feature -> its encoded `tf.train.Feature`."""


def masked_crc(data: bytes) -> int:
    """Return the checksum that TFRecord files hold: a CRC-32C, rotated by 15 bits and shifted by a constant."""
    crc: int = import_extra("google_crc32c", "rlds").value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record_spans(path: Path) -> Iterator[tuple[int, int]]:
    """Yield the offset and length of each record's data; only the lengths are read and compared with their checksums.

    Raises:
        BadInputError: A length is damaged or reaches beyond the end of the file.
    """
    with parsing(path, "a readable TFRecord file", HINT):
        size, number, place = path.stat().st_size, 0, 0
        file = path.open("rb")
    with file:
        while place < size:
            where, hint = f"{path}, record {number}", HINT
            file.seek(place)
            head = file.read(12)
            require(len(head) == 12, where, f"{len(head)} bytes at the file's end", "a record", hint)
            length, checksum = struct.unpack("<QI", head)
            require(masked_crc(head[:8]) == checksum, where, "a length that fails its checksum", "a whole file", hint)
            stop = place + 16 + length
            require(stop <= size, where, f"{size - place} bytes", f"{16 + length}: the file is cut short", hint)
            yield place + 12, length
            number, place = number + 1, stop


def read_record(path: Path, where: str, offset: int, length: int) -> bytes:
    """Return the data of a record, after verifying their checksum."""
    with parsing(where, "the file as it was when it was opened", HINT), path.open("rb") as file:
        file.seek(offset)
        data = file.read(length)
        (checksum,) = struct.unpack("<I", file.read(4))
    require(masked_crc(data) == checksum, where, "data that fail their checksum", "a whole record", HINT)
    return data


def parse_example(data: memoryview) -> Example:
    """Return the features of a serialised `tf.train.Example`, still encoded.

    Raises:
        ValueError: The bytes are a message of another type, or damaged.
    """
    example: Example = {}
    for features in _repeated(data, 1):
        for entry in _repeated(features, 1):
            parts = dict(_fields(entry))
            example[str(parts[1], "utf-8")] = parts.get(2, memoryview(b""))
    return example


def values_of(feature: memoryview) -> list[memoryview] | Array:
    """Return the values of an encoded `tf.train.Feature`: byte strings, float32 [n] or int64 [n].

    Raises:
        ValueError: The bytes are a message of another type, or damaged.
    """
    kind, content = next(iter(_fields(feature)), (_BYTES, memoryview(b"")))
    parts = list(_repeated(content, 1))
    if kind == _BYTES:
        return parts
    packed = b"".join(parts)  # the bytes of the numbers are the same whether packed or one by one
    if kind == _FLOATS:
        return np.frombuffer(packed, "<f4")
    if kind == _INTEGERS:
        return _integers(packed)
    raise ValueError(f"a feature of kind {kind}")


def _repeated(data: memoryview, wanted: int) -> Iterator[memoryview]:
    return (content for number, content in _fields(data) if number == wanted)


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the number and content of each field of a protobuf message (protobuf.dev/programming-guides/encoding)."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        start, kind = place, key & 7
        if kind == 0:
            _, stop = _varint(data, place)
        elif kind == 2:
            size, start = _varint(data, place)
            stop = start + size
        elif kind in (1, 5):
            stop = start + (8 if kind == 1 else 4)
        else:
            raise ValueError(f"a field of wire type {kind}")
        if stop > len(data):
            raise ValueError("a field that reaches beyond its message")
        yield key >> 3, data[start:stop]
        place = stop


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    """Return the number at `place`, and the place after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
    raise ValueError("a number of more than ten bytes")


def _integers(packed: bytes) -> Array:
    """Decode varints, end to end: int64 [n]."""
    raw = np.frombuffer(packed, np.uint8)
    last = raw < 128
    if not last[-1:].all():
        raise ValueError("a number that is cut short")
    ends = np.flatnonzero(last)
    group: Array = np.cumsum(last) - last
    place = np.arange(len(raw)) - np.concatenate([[0], ends + 1])[group]
    if len(raw) and place.max() > 9:
        raise ValueError("a number of more than ten bytes")
    values = np.zeros(len(ends), np.uint64)
    np.bitwise_or.at(values, group, (raw & 127).astype(np.uint64) << (7 * place).astype(np.uint64))
    return values.view(np.int64)
