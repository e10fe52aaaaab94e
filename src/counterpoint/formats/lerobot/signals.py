"""LeRobot's proposed sidecar of signals of every frame, `ROOT/reward_signals/NAME.parquet` (pull request 4554).

    index, episode_index, frame_index    int64
    one column per signal                bool, int64 or float32, in order of their names

A row group is an episode. The file's metadata hold its version, its provenance and a description of every signal, as
JSON with sorted keys. The layout is that of September 2026 (commit fe446b2), which was not merged then.

`read_signals` reads it, and the progress files of LeRobot 0.6 and of `counterpoint label`, which have the same places.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from counterpoint.data.episode import Array
from counterpoint.errors import BadInputError, require
from counterpoint.formats.lerobot.tables import CHECKED, as_array, as_matrix, read_table, reading
from counterpoint.provenance import provenance

FOLDER = "reward_signals"
PLACES = ("index", "episode_index", "frame_index")


@dataclass(frozen=True)
class Signal:
    """The description of a signal.

    Attributes:
        description: The signal in words.
        direction: `higher` or `lower` is better, or `none`.
        bounds: Its smallest and largest value, if they are known.
        unit: Its unit.
        allow_nan: True if values may be missing.
    """

    description: str
    direction: Literal["higher", "lower", "none"] = "none"
    bounds: tuple[float, float] | None = None
    unit: str | None = None
    allow_nan: bool = False


def write_signals(
    path: Path,
    columns: Mapping[str, Array],
    signals: Mapping[str, Signal],
    scoring: Mapping[str, Any],
    repo_id: str,
    revision: str | None = None,
) -> None:
    """Write a sidecar.

    Args:
        path: The file.
        columns: `PLACES` and the signals, one value a frame, episode after episode.
        signals: The description of every signal.
        scoring: The model and the settings that made the signals.
        repo_id: The data set's name.
        revision: The commit of a data set of the Hub.
    """
    episodes = np.asarray(columns["episode_index"])
    ends = [*(np.flatnonzero(np.diff(episodes)) + 1).tolist(), len(episodes)]
    facts = {"repo_id": repo_id, "revision": revision, "total_episodes": len(ends), "total_frames": len(episodes)}
    version = provenance()["packages"].get("lerobot")
    content = {
        "format": "lerobot.frame_signals",
        "schema_version": "1",
        "provenance": _json({"lerobot_version": version, "dataset": facts, "scoring": scoring}),
        "descriptors": _json({name: asdict(signals[name]) for name in signals}),
    }
    about = {f"lerobot.scores.{key}": value for key, value in content.items()}
    table = pa.table({name: columns[name] for name in [*PLACES, *sorted(signals)]}, metadata=about)
    with pq.ParquetWriter(path, table.schema, **CHECKED) as writer:
        for start, end in zip([0, *ends], ends, strict=False):
            writer.write_table(table.slice(start, end - start))


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def read_signals(path: Path, numbers: Sequence[int], lengths: Sequence[int]) -> dict[str, dict[int, Array]]:
    """Read the numbers of every frame from a sidecar or a progress file, whose rows may have any order.

    Args:
        path: The parquet file: `episode_index`, `frame_index` or `index`, and columns of numbers.
        numbers: The `episode_index` of each of the data set's E episodes.
        lengths: The number of frames T of each episode.

    Returns:
        Under the name of each column of numbers except places and timestamps: the values of each episode that the file
        has, float64 [T], under the episode's place among the E; NaN where a value is missing.

    Raises:
        BadInputError: If the columns are others, the data set lacks an episode of the file, or an episode has another
            number of frames in the file than in the data set.
    """
    require(path.is_file(), path, "no such file", "a progress file", "check the path")
    table, hint = read_table(path), "it belongs to other data, or to this data before an edit: compute it again"
    order = next((name for name in ("frame_index", "index") if name in table.column_names), "")
    missing = [name for name in ("episode_index", order or "frame_index") if name not in table.column_names]
    expected = "columns episode_index, frame_index and some of numbers"
    require(not missing, path, f"no column {' and '.join(missing)}", expected, "name a progress file")
    episode, frame = (as_matrix(path, table, name)[:, 0] for name in ("episode_index", order))
    rows = np.lexsort((frame, episode))
    found, starts = np.unique(episode[rows], return_index=True)
    places, spans = {number: place for place, number in enumerate(numbers)}, dict[int, Array]()
    for number, own in zip(found.tolist(), np.split(rows, starts[1:]), strict=True):
        if number not in places:
            raise BadInputError(path, f"episode {number}", f"episodes from {min(numbers)} to {max(numbers)}", hint)
        length, where = lengths[places[number]], f"{path}, episode {number}"
        require(len(own) == length, where, f"{len(own)} frames", f"{length}, as in the data set", hint)
        counted = order == "index" or bool((frame[own] == np.arange(length)).all())
        require(counted, where, "a frame_index that does not count its frames", f"0 to {length - 1}", hint)
        spans[places[number]] = own
    values = dict[str, Array]()
    for name, kind in zip(table.column_names, table.schema.types, strict=True):
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        if number and name not in (*PLACES, "timestamp"):
            with reading(path, f"numbers in {name}"):
                values[name] = as_array(pc.fill_null(table[name].cast(pa.float64()), np.nan))
    require(values, path, "no column of numbers beside the places", expected, "name a progress file")
    return {name: {place: column[own] for place, own in spans.items()} for name, column in values.items()}
