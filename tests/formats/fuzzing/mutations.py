"""One file of a data set changed at random: its bytes, or a part of what it says in its own format.

A mutation takes a file's content and a random generator, and returns other content. Case n is always the same mutant.
"""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import re
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

Rng = np.random.Generator
Mutation = Callable[[bytes, Rng], bytes]
VALUES: list[Any] = [
    *(None, -1, 0, 10**9, 2**63, 10**40, 2.5, float("nan"), float("inf"), 1e308, 1e-300, True),
    *("", "x", "../x", "/etc/passwd", "a\x00b", "0:1", "9:99", "{video_key}", [], {}, [1], {"a": 1}, [[]]),
]
"""What stands in place of a value of a tree or a table."""
WORDS = [
    *("", " ", "-1", "0", "1e999", "NaN", "-inf", "9" * 30, "2.5", "1_000", "0x10", "1e-320", "null", "[]", "{}"),
    *("../x", "../../../../etc/passwd", "/etc/passwd", "a\x00b", "\u202e\U0001f600", "x" * 5000),
]
"""What stands in place of a cell of text."""


def pick(rng: Rng, of: Any) -> Any:
    """Return one of several, which may be of several kinds."""
    return of[int(rng.integers(len(of)))]


# Bytes


def flip(data: bytes, rng: Rng) -> bytes:
    """Flip up to eight bits; half of the time near the start or the end, where headers and indices are."""
    changed = bytearray(data)
    span = len(data) if rng.random() < 0.5 else min(len(data), 96)
    for place in rng.integers(0, span, int(rng.integers(1, 9))):
        changed[place if rng.random() < 0.5 else len(data) - 1 - place] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def overwrite(data: bytes, rng: Rng) -> bytes:
    """Put up to three bytes of other values."""
    changed = bytearray(data)
    for place in rng.integers(0, len(data), int(rng.integers(1, 4))):
        changed[place] = pick(rng, [0, 255, 127, 128, 1, int(rng.integers(256))])
    return bytes(changed)


def truncate(data: bytes, rng: Rng) -> bytes:
    """Cut the end."""
    return data[: int(rng.integers(len(data)))]


def insert(data: bytes, rng: Rng) -> bytes:
    """Put bytes between others."""
    place = int(rng.integers(len(data) + 1))
    return data[:place] + rng.bytes(int(rng.integers(1, 64))) + data[place:]


def drop(data: bytes, rng: Rng) -> bytes:
    """Leave bytes out."""
    place = int(rng.integers(len(data)))
    return data[:place] + data[place + int(rng.integers(1, 200)) :]


def zero(data: bytes, rng: Rng) -> bytes:
    """Put zeros, as a hole in a disk's copy."""
    place = int(rng.integers(len(data)))
    length = min(len(data) - place, int(rng.integers(1, 4096)))
    return data[:place] + bytes(length) + data[place + length :]


def repeat(data: bytes, rng: Rng) -> bytes:
    """Write a part twice."""
    place = int(rng.integers(len(data)))
    stop = place + int(rng.integers(1, 40))
    return data[:stop] + data[place:]


def claim(data: bytes, rng: Rng) -> bytes:
    """Put a huge or negative number of four bytes, of either order."""
    place = int(rng.integers(max(1, len(data) - 8)))
    number: int = pick(rng, [0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFF0])
    return data[:place] + number.to_bytes(4, pick(rng, ["big", "little"])) + data[place + 4 :]


BYTES: tuple[Mutation, ...] = (flip, overwrite, truncate, insert, drop, zero, repeat, claim)


# Text and trees


def csv_cell(data: bytes, rng: Rng) -> bytes:
    """Replace a cell of a table, repeat a row, or leave out its last cell."""
    rows = list(csv.reader(io.StringIO(data.decode())))
    at, kind = int(rng.integers(len(rows))), int(rng.integers(6))
    if kind < 4:
        rows[at][int(rng.integers(len(rows[at])))] = pick(rng, WORDS)
    elif kind == 4:
        rows.insert(at, pick(rng, rows))
    else:
        rows[at] = rows[at][:-1]
    written = io.StringIO()
    csv.writer(written).writerows(rows)
    return written.getvalue().encode()


def json_value(data: bytes, rng: Rng) -> bytes:
    """Replace or remove a part of a tree; of a file of one tree a line, repeat or remove a line, too."""
    text = data.decode()
    try:
        return _tree(text, rng).encode()
    except json.JSONDecodeError:
        lines, share = text.splitlines(), rng.random()
    at = int(rng.integers(len(lines)))
    if share < 0.8:
        lines[at] = _tree(lines[at], rng)
    elif share < 0.9:
        lines.append(lines[at])
    else:
        del lines[at]
    return ("\n".join(lines) + "\n").encode()


def _tree(text: str, rng: Rng) -> str:
    tree = json.loads(text)
    place, value = pick(rng, list(_places(tree))), pick(rng, VALUES)
    if not place:
        return json.dumps(value)
    parent = tree
    for key in place[:-1]:
        parent = parent[key]
    if rng.random() < 0.2:
        del parent[place[-1]]
    else:
        parent[place[-1]] = value
    return json.dumps(tree)


def _places(tree: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield above
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from _places(value, (*above, key))


def parquet_column(data: bytes, rng: Rng) -> bytes:
    """Write a sound table with a column gone or of another kind, a cell replaced, or other rows."""
    table, kind = pq.read_table(io.BytesIO(data)), int(rng.integers(7))
    at = int(rng.integers(table.num_columns))
    name, column = table.column_names[at], table.column(at)
    if kind == 0:
        table = table.remove_column(at)
    elif kind == 1:
        table = table.set_column(at, name, pa.array(["../../etc/passwd"] * len(table)))
    elif kind == 2:
        table = table.slice(0, int(rng.integers(len(table))))
    elif kind == 3:
        table = pa.concat_tables([table, table])
    else:
        cells = column.to_pylist()
        cells[int(rng.integers(len(cells)))] = pick(rng, VALUES)
        try:
            table = table.set_column(at, name, pa.array(cells))
        except (pa.ArrowException, OverflowError, TypeError):  # the others are of another kind
            table = table.set_column(at, name, pa.array([None] * len(table), column.type))
    written = io.BytesIO()
    pq.write_table(table, written)
    return written.getvalue()


# Arrays


def hdf5_part(data: bytes, rng: Rng) -> bytes:
    """Remove or replace a data set, a group or an attribute."""
    stream = io.BytesIO(data)
    with h5py.File(stream, "r+") as file:
        sets, groups, attributes = list[str](), list[str](), [("/", name) for name in file.attrs]

        def see(name: str, part: Any) -> None:
            (groups if isinstance(part, h5py.Group) else sets).append(name)
            attributes.extend((name, attribute) for attribute in part.attrs)

        file.visititems(see)
        kind = int(rng.integers(8))
        if kind == 0 and attributes:
            place, name = pick(rng, attributes)
            del file[place].attrs[name]
        elif kind == 1 and attributes:
            place, name = pick(rng, attributes)
            file[place].attrs[name] = pick(rng, HDF5_ATTRIBUTES)
        elif kind == 2 and groups:
            del file[pick(rng, groups)]
        else:
            _replace(file, pick(rng, sets), rng)
    return stream.getvalue()


HDF5_ATTRIBUTES: list[Any] = [
    *(-1, 10**9, float("nan"), "x", "../x", "{}", "[]", [1, 2], '{"env_name": 3, "env_kwargs": []}'),
    *(f'{{"env_kwargs": {{"control_freq": {value}}}}}' for value in ("-1", '"x"', "0.0", "NaN", "1e-300")),
    '{"env_kwargs": {"reward_scale": "a"}}',
]


def _replace(file: Any, name: str, rng: Rng) -> None:
    values, kind = np.asarray(file[name][()]), int(rng.integers(11))
    del file[name]
    if kind == 0:
        return
    if kind == 1:
        file.create_group(name)
    elif kind == 2:
        file[name] = h5py.ExternalLink("/etc/passwd", "/x")
    elif kind == 3:
        file[name] = h5py.SoftLink("/" + name)
    elif kind == 4:
        file.create_dataset(name, shape=(10**10, *values.shape[1:]), dtype=values.dtype, chunks=True)
    else:
        file[name] = _other(values, kind - 5, rng)


def _other(values: Any, kind: int, rng: Rng) -> Any:
    """Return an array of another length, shape, type or of other values."""
    if kind == 0 and values.ndim:
        return values[: int(rng.integers(len(values)))]
    if kind == 1:
        return values.reshape(-1) if rng.random() < 0.5 else values[None]
    if kind == 2:
        return np.array([b"text"] * (len(values) if values.ndim else 1))
    if kind == 3:
        return values.astype(np.int8 if rng.random() < 0.5 else np.complex64) if values.dtype.kind in "biuf" else 0
    if kind == 4 and values.dtype.kind in "biuf":
        middle = np.arange(values.size).reshape(values.shape) == values.size // 2
        return np.where(middle, pick(rng, [np.nan, np.inf, 1e300]), values.astype(np.float64))
    return np.zeros_like(values)


def npz_array(data: bytes, rng: Rng) -> bytes:
    """Remove or replace an array, or have its header claim another shape."""
    with np.load(io.BytesIO(data)) as archive:
        arrays: dict[str, Any] = dict(archive)
    name, kind = pick(rng, sorted(arrays)), int(rng.integers(9))
    if kind == 0:
        del arrays[name]
    elif kind == 1:
        arrays[name] = np.array([{"a": 1}] * len(arrays[name]), object)
    elif kind == 2:
        return _npz_claim(data, f"{name}.npy", rng)
    else:
        arrays[name] = _other(arrays[name], kind - 3, rng)
    written = io.BytesIO()
    np.savez_compressed(written, **arrays)
    return written.getvalue()


def _npz_claim(data: bytes, member: str, rng: Rng) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            content = old.read(name)
            if name == member:
                shape = pick(rng, ["(1000000000, 10)", "(13, 3, 300000, 300000)", "(-1, 2)", "(2,)"])
                content = re.sub(rb"'shape': \([^)]*\)", f"'shape': {shape}".encode(), content, count=1)
                length = content.index(b"\n") + 1 - 10
                content = content[:8] + struct.pack("<H", length) + content[10:]
            new.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)  # dated alike whenever it is written
    return written.getvalue()


_FIELDS = rb"gripper_open|joint_positions|gripper_pose|full_state|actions"  # of RLBench and BridgeData


def pickle_opcode(data: bytes, rng: Rng) -> bytes:
    """Write a pickle that runs a command, claims much, nests deeply, or holds other values."""
    kind = int(rng.integers(9))
    fixed = [
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.",
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x051+1+1\x85R.",
        pickle.dumps([[]] * 3),
        b"\x80\x04B\xff\xff\xff\x7f" + data,
        b"\x80\x04\x96\xff\xff\xff\xff\x00\x00\x00\x00" + data,
        b"(" * 100000 + b".",
    ]
    if kind < len(fixed):
        return fixed[kind]
    if kind == 6:
        return re.sub(_FIELDS, lambda name: name[0][:-1] + b"z", data, count=1)
    if kind == 7:
        return data.replace(b"f8", b"O8", 1)
    places = [match.end() for match in re.finditer(_FIELDS, data)] or [0]
    start = pick(rng, places) + int(rng.integers(108))
    return data[:start] + struct.pack("<d", pick(rng, [float("nan"), 1e308, -1.0])) + data[start + 8 :]


# Archives and media


def tar_member(data: bytes, rng: Rng) -> bytes:
    """Rename, link, repeat, remove, cut or swell a member of an archive."""
    kind, written = int(rng.integers(7)), io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(data)) as old:
        members = [(member, old.extractfile(member).read()) for member in old if member.isreg()]  # type: ignore[union-attr]
    at = int(rng.integers(len(members)))
    with tarfile.open(fileobj=written, mode="w") as new:
        for number, (member, content) in enumerate(members):
            info = tarfile.TarInfo(member.name)
            if number == at:
                if kind == 0:
                    info.name = "../../../../tmp/outside/" + info.name
                elif kind == 1:
                    info.type, info.linkname, content = tarfile.SYMTYPE, "/etc/passwd", b""
                elif kind == 2:
                    _add(new, tarfile.TarInfo(info.name), content[::-1])
                elif kind == 3:
                    continue
                elif kind == 4:
                    content = content[: len(content) // 2]
                elif kind == 5:
                    info.name = re.sub(r"\d+(?=\.)", "99999999999999999999", info.name)
            _add(new, info, content)
    return _tar_claim(written.getvalue(), rng) if kind == 6 else written.getvalue()


def _add(archive: tarfile.TarFile, info: tarfile.TarInfo, content: bytes) -> None:
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def _tar_claim(data: bytes, rng: Rng) -> bytes:
    """Have the first member claim another size, with a header whose checksum agrees."""
    header = bytearray(data[:512])
    header[124:136] = b"\x80" + bytes(3) + struct.pack(">q", pick(rng, [2**40, -512, 2**62]))
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + data[512:]


_BOXES = (
    *(b"stts", b"ctts", b"stsz", b"stco", b"stss", b"stsc", b"elst", b"mdhd", b"tkhd", b"mvhd", b"avcC", b"stsd"),
    *(b"hdlr", b"mdat", b"ftyp"),
)


def mp4_number(data: bytes, rng: Rng) -> bytes:
    """Put another number of four bytes into a box of a video's index."""
    places = [match.start() for match in re.finditer(pick(rng, _BOXES), data)]
    if not places:
        return flip(data, rng)
    start = max(0, pick(rng, places) + int(rng.integers(-4, 60)))
    number: int = pick(rng, [0, 1, 0xFFFFFFFF, 0x7FFFFFFF, int(rng.integers(2**31))])
    return data[:start] + number.to_bytes(4, "big") + data[start + 4 :]


def image_size(data: bytes, rng: Rng) -> bytes:
    """Write an image of another size or mode, turned, or that claims billions of pixels."""
    with Image.open(io.BytesIO(data)) as opened:
        image, kind, form = opened.copy(), int(rng.integers(5)), str(opened.format)
    if kind == 0:
        return _huge(data, form)
    changed = {
        1: lambda: image.resize((image.width + 3, image.height)),
        2: lambda: image.convert("L"),
        3: lambda: image.convert("RGBA" if form == "PNG" else "CMYK"),
        4: lambda: image.rotate(90, expand=True),
    }[kind]()
    written = io.BytesIO()
    changed.save(written, form)
    return written.getvalue()


def _huge(data: bytes, form: str) -> bytes:
    if form == "PNG":
        at = data.index(b"IHDR")
        header = data[at : at + 4] + struct.pack(">II", 60000, 60000) + data[at + 12 : at + 17]
        return data[:at] + header + struct.pack(">I", zlib.crc32(header)) + data[at + 21 :]
    at = data.index(b"\xff\xc0")
    return data[: at + 5] + struct.pack(">HH", 65000, 65000) + data[at + 9 :]


STRUCTURE: dict[str, Mutation] = {
    ".csv": csv_cell, ".json": json_value, ".jsonl": json_value, ".zarray": json_value, ".zgroup": json_value,
    ".parquet": parquet_column, ".hdf5": hdf5_part, ".h5": hdf5_part, ".npz": npz_array, ".pkl": pickle_opcode,
    ".tar": tar_member, ".mp4": mp4_number, ".png": image_size, ".jpg": image_size,
}  # fmt: skip
"""What knows a file's own format, by the ending of its name."""


# Files


@dataclass(frozen=True)
class Mutant:
    """What was done to which file; `changed` says whether a byte differs."""

    file: str
    how: str
    changed: bool

    @property
    def kind(self) -> str:
        """The ending of the file's name."""
        return ending(Path(self.file))


def ending(file: Path) -> str:
    """Return the ending of a name that says a file's format: `.zarray` of `.zarray`; "" for a chunk `0.0`."""
    if file.name.startswith("."):
        return file.name
    end = file.suffix if not file.suffix[1:].isdigit() else ""
    return ".tfrecord" if ".tfrecord" in file.name else end


def mutate(source: Path, target: Path, case: int) -> Mutant:
    """Copy a data set, and change one of its files; kinds of files are drawn first, so that no kind is rare."""
    rng = np.random.default_rng(case)
    if source.is_file():  # its neighbours are part of it
        return mutate(source.parent, target.parent, case)
    shutil.copytree(source, target, copy_function=os.link, dirs_exist_ok=True)
    files = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())
    kind = pick(rng, sorted({ending(file) for file in files}))
    name = pick(rng, [file for file in files if ending(file) == kind])
    path, share = target / name, rng.random()
    before = path.read_bytes()
    path.unlink()  # the link: the source stays whole
    if share < 0.04:
        return Mutant(str(name), "delete", True)
    if share < 0.05:
        path.mkdir()
        return Mutant(str(name), "folder", True)
    if share < 0.07:
        path.symlink_to(pick(rng, ["/etc/passwd", path.name]))
        return Mutant(str(name), "link", True)
    if share < 0.09:
        path.write_bytes(pick(rng, [b"", rng.bytes(max(1, len(before)))]))
        return Mutant(str(name), "noise", True)
    change = STRUCTURE[kind] if share < 0.55 and kind in STRUCTURE else pick(rng, BYTES)
    after = change(before, rng) if before else rng.bytes(8)
    path.write_bytes(after)
    return Mutant(str(name), change.__name__, after != before)
