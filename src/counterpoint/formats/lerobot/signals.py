"""LeRobot's proposed sidecar of signals of every frame, `ROOT/reward_signals/NAME.parquet` (pull request 4554).

    index, episode_index, frame_index    int64
    one column per signal                bool, int64 or float32, in order of their names

A row group is an episode. The file's metadata hold its version, its provenance and a description of every signal, as
JSON with sorted keys. The layout is that of September 2026 (commit fe446b2), which was not merged then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from counterpoint.data.episode import Array
from counterpoint.formats.lerobot.tables import CHECKED
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
    path: Path, columns: Mapping[str, Array], signals: Mapping[str, Signal], scoring: Mapping[str, Any], repo_id: str
) -> None:
    """Write a sidecar.

    Args:
        path: The file.
        columns: `PLACES` and the signals, one value a frame, episode after episode.
        signals: The description of every signal.
        scoring: The model and the settings that made the signals.
        repo_id: The data set's name.
    """
    episodes = np.asarray(columns["episode_index"])
    ends = [*(np.flatnonzero(np.diff(episodes)) + 1).tolist(), len(episodes)]
    facts = {"repo_id": repo_id, "revision": None, "total_episodes": len(ends), "total_frames": len(episodes)}
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
