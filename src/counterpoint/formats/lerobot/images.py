"""Copy a LeRobot data set and add cameras, stored losslessly as PNG in its parquet files.

All other content is kept: videos are copied, not encoded again. The copy is made next to its path and renamed when it
is complete.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from counterpoint.data.episode import Array
from counterpoint.errors import require
from counterpoint.files import Beside
from counterpoint.formats.base import require_new
from counterpoint.formats.lerobot import layout
from counterpoint.formats.lerobot.layout import EpisodeLocation
from counterpoint.formats.lerobot.tables import CHECKED, as_png, damaged, read_table
from counterpoint.formats.lerobot.writer import PixelCounts, sampled_steps
from counterpoint.progress import ProgressBar

_HUB = b"huggingface"
Frames = Callable[[int], Mapping[str, Array]]


def copy_with_images(
    root: Path,
    out: Path,
    cameras: Mapping[str, tuple[int, int]],
    frames: Frames,
    *,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Copy a LeRobot data set, v3.0 or v2.1, and add cameras.

    Args:
        root: The data set.
        out: The folder to write; it must not exist.
        cameras: (height, width) of each new camera, by its name.
        frames: Function from an episode's number to the frames of every new camera, uint8 [T, H, W, 3].
        about: Notes on the new cameras, put under the key `counterpoint` of `meta/info.json`.

    Raises:
        BadInputError: When the data set is damaged, `out` exists, or a camera exists already.
    """
    info = layout.read_info(root)
    locations = layout.locate(root, info)
    keys = {camera: layout.IMAGES + camera for camera in cameras}
    for camera, key in keys.items():
        require(key not in info.features, root, f"a feature {key!r}", "none yet", f"leave {camera} out")
    require_new(out)
    with Beside(out) as folder:
        copy = Path(folder) / "dataset"
        files = sorted({location.data for location in locations})
        rewritten = {str(path) for path in files}
        shutil.copytree(root, copy, ignore=lambda at, names: [name for name in names if f"{at}/{name}" in rewritten])
        pixels: dict[int, dict[str, PixelCounts]] = {}
        with ProgressBar("Writing", len(locations), "episodes") as bar:
            for path in files:
                own = sorted((at for at in locations if at.data == path), key=lambda at: at.row)
                for number, counts in _write_rows(path, copy / path.relative_to(root), own, keys, frames):
                    pixels[number] = counts
                    bar.advance()
        _describe(copy, keys, cameras, about or {})
        _add_statistics(copy, keys, pixels)
        require_new(out)
        copy.rename(out)


def _write_rows(
    source: Path, target: Path, locations: Sequence[EpisodeLocation], keys: Mapping[str, str], frames: Frames
) -> Iterator[tuple[int, dict[str, PixelCounts]]]:
    """Write a parquet file anew, one row group per episode; yield each episode's number and pixel counts."""
    table = read_table(source)
    if len(table) != locations[0].rows:
        raise damaged(source, f"{len(table)} rows", f"{locations[0].rows}, as the metadata say")
    metadata = table.schema.metadata or {}
    hub = json.loads(metadata.get(_HUB, b"{}"))
    if hub:  # the Hub's viewer and `datasets` need it to show a struct of bytes as an image
        hub["info"]["features"] |= {key: {"_type": "Image"} for key in keys.values()}
        table = table.replace_schema_metadata({**metadata, _HUB: json.dumps(hub).encode()})
    target.parent.mkdir(parents=True, exist_ok=True)
    writer: pq.ParquetWriter | None = None
    for location in locations:
        rows = table.slice(location.row, location.length)
        counts = {camera: PixelCounts() for camera in keys}
        for camera, images in frames(location.number).items():
            rows = rows.append_column(keys[camera], as_png(images))
            counts[camera].add(images[sampled_steps(location.length)])
        writer = writer or pq.ParquetWriter(target, rows.schema, **CHECKED)
        writer.write_table(rows)
        yield location.number, counts
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
    """Add the new cameras wherever the data set keeps statistics."""
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
        pq.write_table(table, path, **CHECKED)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=4, ensure_ascii=False) + "\n", encoding="utf-8")
