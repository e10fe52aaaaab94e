"""Copy a LeRobot data set and add cameras, stored losslessly as PNG in its parquet files, or a number for every frame.

All other content is kept: videos are copied, not encoded again. The copy is made next to its path and renamed when it
is complete.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from counterpoint.data.episode import Array
from counterpoint.errors import require
from counterpoint.files import Beside
from counterpoint.formats.base import require_new
from counterpoint.formats.lerobot import layout
from counterpoint.formats.lerobot.layout import EpisodeLocation
from counterpoint.formats.lerobot.statistics import PixelCounts, sampled_steps, vector_stats
from counterpoint.formats.lerobot.tables import CHECKED, as_png, read_table
from counterpoint.progress import ProgressBar

_ANEW = "write the data set anew first: counterpoint data convert DATA OUT"
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
        frames: Function that returns the frames of every new camera, uint8 [T, H, W, 3], for an episode's number.
        about: Notes on the new cameras, stored under the key `counterpoint` of `meta/info.json`.

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
    told = sum(location.length for location in locations)
    require(len(table) == told, source, f"{len(table)} rows", f"{told}, as the metadata say", _ANEW)
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
    """Add the new cameras to all files in which the data set keeps statistics."""
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


def copy_with_feature(root: Path, out: Path, name: str, values: NDArray[np.float32]) -> None:
    """Copy a LeRobot v3 data set and add one number to every frame; media are copied as they are.

    Args:
        root: The data set.
        out: The folder to write; it must not exist, and appears only when complete.
        name: The name of the feature; an existing feature of this name is replaced.
        values: The number of each frame, [N], in the order of the frames' `index`.
    """
    require_new(out)
    with Beside(out) as folder:
        build = Path(folder) / "dataset"
        shutil.copytree(root, build, ignore=shutil.ignore_patterns(".*"))
        for path in sorted((build / "data").rglob("*.parquet")):
            file = pq.ParquetFile(path, page_checksum_verification=True)
            groups = [file.read_row_group(number) for number in range(file.num_row_groups)]
            last = max(int(group["index"].to_numpy().max(initial=-1)) for group in groups)
            require(last < len(values), path, f"index {last}", f"{len(values)} rows in all", _ANEW)
            _write_groups(path, [_with_feature(group, name, values[group["index"].to_numpy()]) for group in groups])
        for path in sorted((build / "meta/episodes").rglob("*.parquet")):
            table = read_table(path).replace_schema_metadata(None)
            spans = zip(table["dataset_from_index"].to_pylist(), table["dataset_to_index"].to_pylist(), strict=True)
            stats = [vector_stats(values[first:last, None]) for first, last in spans]
            for kind in stats[0] if stats else ():
                table = _with_column(table, f"stats/{name}/{kind}", pa.array([one[kind] for one in stats]))
            _write_groups(path, [table])
        for file_name in ("info.json", "stats.json"):
            path = build / "meta" / file_name
            tree = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
            if file_name == "stats.json":
                tree[name] = vector_stats(values[:, None])
            else:
                tree["features"][name] = {"dtype": "float32", "shape": [1], "names": None}
            path.write_text(json.dumps(tree, indent=4, ensure_ascii=False) + "\n", encoding="utf-8")
        require_new(out)
        build.rename(out)


def _with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    at = table.schema.get_field_index(name)
    return table.append_column(name, values) if at < 0 else table.set_column(at, name, values)


def _with_feature(table: pa.Table, name: str, values: NDArray[np.float32]) -> pa.Table:
    """Return rows of data with one more column of numbers, which the Hub's description of the columns lists too."""
    metadata = dict(table.schema.metadata or {})
    if b"huggingface" in metadata:
        tree = json.loads(metadata[b"huggingface"])
        tree["info"]["features"][name] = {"dtype": "float32", "_type": "Value"}
        metadata[b"huggingface"] = json.dumps(tree).encode()
    return _with_column(table, name, pa.array(values)).replace_schema_metadata(metadata)


def _write_groups(path: Path, groups: Sequence[pa.Table]) -> None:
    """Write a parquet file of these row groups, replacing an existing file."""
    with pq.ParquetWriter(path, groups[0].schema, **CHECKED) as writer:
        for group in groups:
            writer.write_table(group, row_group_size=len(group))
