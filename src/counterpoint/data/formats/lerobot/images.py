"""A copy of a LeRobot data set with further cameras, kept without loss as PNG in its parquet files.

All that was there stays as it is: videos are copied, not encoded again, and features this library has no use for are
kept. The copy is made beside its place and takes its name when it is complete.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from counterpoint.data.episode import Array
from counterpoint.data.formats.lerobot import layout as layout
from counterpoint.data.formats.lerobot.layout import EpisodePlace, places_v21, places_v30
from counterpoint.data.formats.lerobot.tables import as_png, damaged, read_table
from counterpoint.data.formats.lerobot.writer import PixelCounts, sampled_steps
from counterpoint.errors import BadInputError
from counterpoint.progress import ProgressBar

__all__ = ["copy_with_images"]

_HUB = b"huggingface"
Frames = Callable[[int], Mapping[str, Array]]


def copy_with_images(
    root: str | Path,
    out: str | Path,
    cameras: Mapping[str, tuple[int, int]],
    frames: Frames,
    *,
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Copy a LeRobot data set, v3.0 or v2.1, and add cameras.

    Args:
        root: The data set.
        out: The folder to write; it must not exist.
        cameras: New camera name -> (height, width).
        frames: Given an episode's number, the frames of every new camera: uint8 [T, H, W, 3].
        about: What to remember of them, put under the key `counterpoint` of `meta/info.json`.

    Returns:
        `out`.

    Raises:
        BadInputError: When the data set is damaged, `out` exists, or a camera is there already.
    """
    root, out = Path(root), Path(out)
    info = layout.read_info(root)
    places = (places_v21 if info.version[0] == 2 else places_v30)(root, info)
    keys = {camera: layout.IMAGES + camera for camera in cameras}
    for camera, key in keys.items():
        if key in info.features:
            raise BadInputError(root, f"a feature {key!r}", "none yet", f"leave {camera} out")
    _refuse_existing(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder:
        copy = Path(folder) / "dataset"
        rewritten = {str(place.data) for place in places}
        shutil.copytree(root, copy, ignore=lambda at, names: [name for name in names if f"{at}/{name}" in rewritten])
        pixels: dict[int, dict[str, PixelCounts]] = {}
        with ProgressBar("Writing", len(places), "episodes") as bar:
            for path in sorted({place.data for place in places}):
                own = sorted((p for p in places if p.data == path), key=lambda place: place.row)
                for place, counts in _write_rows(path, copy / path.relative_to(root), own, keys, frames):
                    pixels[place.number] = counts
                    bar.advance()
        _describe(copy, keys, cameras, about or {})
        _add_statistics(copy, keys, pixels)
        _refuse_existing(out)
        copy.rename(out)
    return out


def _refuse_existing(out: Path) -> None:
    if out.exists():
        raise BadInputError(out, "an existing path", "a new folder", "give another name, or remove it")


def _write_rows(
    source: Path, target: Path, places: Sequence[EpisodePlace], keys: Mapping[str, str], frames: Frames
) -> Any:
    """Write a parquet file anew, an episode a row group; yields each episode and the counts of its pixels."""
    table = read_table(source)
    if len(table) != places[0].rows:
        raise damaged(source, f"{len(table)} rows", f"{places[0].rows}, as the metadata say")
    schema = table.schema
    told = json.loads((schema.metadata or {}).get(_HUB, b"{}"))
    if told:  # what tells the Hub's viewer and `datasets` that a struct of bytes is a picture
        told["info"]["features"] |= {key: {"_type": "Image"} for key in keys.values()}
        table = table.replace_schema_metadata({**schema.metadata, _HUB: json.dumps(told).encode()})
    target.parent.mkdir(parents=True, exist_ok=True)
    writer: pq.ParquetWriter | None = None
    for place in places:
        rows = table.slice(place.row, place.length)
        counts = {camera: PixelCounts() for camera in keys}
        for camera, pictures in frames(place.number).items():
            rows = rows.append_column(keys[camera], as_png(pictures))
            counts[camera].add(pictures[sampled_steps(place.length)])
        writer = writer or pq.ParquetWriter(target, rows.schema)
        writer.write_table(rows)
        yield place, counts
    if writer is not None:
        writer.close()


def _describe(
    copy: Path, keys: Mapping[str, str], cameras: Mapping[str, tuple[int, int]], about: Mapping[str, Any]
) -> None:
    path = copy / layout.INFO
    raw = json.loads(path.read_text(encoding="utf-8"))
    for camera, key in keys.items():
        shape = [*cameras[camera], 3]
        raw["features"][key] = {"dtype": "image", "shape": shape, "names": ["height", "width", "channels"]}
    raw["counterpoint"] = {**(raw.get("counterpoint") or {}), **about}
    _write_json(path, raw)


def _add_statistics(copy: Path, keys: Mapping[str, str], pixels: Mapping[int, Mapping[str, PixelCounts]]) -> None:
    """Statistics of the new cameras, wherever the data set keeps statistics."""
    total = {camera: PixelCounts() for camera in keys}
    for counts in pixels.values():
        for camera, count in counts.items():
            total[camera].merge(count)
    path = copy / "meta/stats.json"
    if path.is_file():
        stats = json.loads(path.read_text(encoding="utf-8"))
        _write_json(path, stats | {keys[camera]: count.stats() for camera, count in total.items()})
    path = copy / "meta/episodes_stats.jsonl"
    if path.is_file():
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
        for line in lines:
            own = pixels[line["episode_index"]]
            line["stats"] |= {keys[camera]: count.stats() for camera, count in own.items()}
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    for path in sorted((copy / "meta/episodes").glob("*/*.parquet")):
        table = read_table(path)
        numbers = table["episode_index"].to_pylist()
        for camera, key in keys.items():
            rows = [pixels[number][camera].stats() for number in numbers]
            for kind in rows[0]:
                table = table.append_column(f"stats/{key}/{kind}", pa.array([row[kind] for row in rows]))
        pq.write_table(table, path)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=4, ensure_ascii=False) + "\n", encoding="utf-8")
