"""Curves that `counterpoint view` lays over episodes: progress files, and columns of the data set.

A progress file is a parquet file of LeRobot's layouts, or of `counterpoint label`; the files of a LeRobot data set,
ROOT/*_progress.parquet and ROOT/reward_signals/*.parquet, are found without being named. Episodes are sorted by the
last value of a curve, or by its largest fall (`rank.largest_fall`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError, require, require_known
from counterpoint.evaluation.rank import largest_fall
from counterpoint.formats.lerobot.reader import LeRobotStore
from counterpoint.formats.lerobot.signals import FOLDER, read_signals
from counterpoint.rewards.page import COLOURS, Line, Panel

Array = NDArray[np.float64]

RECORDED = "recorded reward"
UNIT = (-0.02, 1.02)
"""The range of a chart of progress in [0, 1]."""
SIGNS = {"last": "last value", "fall": "largest fall"}


class Overlay:
    """One number for each step of the episodes of a data set.

    Args:
        name: The name in charts and lists.
        read: Function that returns the values of an episode, [T]; `None` if it has none.
        unit: True if the values are progress in [0, 1]; such curves share a chart.
    """

    def __init__(self, name: str, read: Callable[[int], Float[Array, " T"] | None], *, unit: bool = False) -> None:
        self.name, self.read, self.unit = name, read, unit
        self.signs = cache(self._signs)

    def _signs(self, episode: int) -> dict[str, float]:
        """Return the numbers named in `SIGNS`, from the values that are finite; NaN if there are none.

        A damaged episode has none, so that the list still shows the others; its page shows the error.
        """
        try:
            values = self.read(episode)
        except BadInputError:
            values = None
        known = np.zeros(0) if values is None else values[np.isfinite(values)]
        return {"last": float(known[-1]), "fall": largest_fall(known)} if len(known) else dict.fromkeys(SIGNS, math.nan)


def open_overlays(store: EpisodeStore, asked: Sequence[str] = ()) -> dict[str, Overlay]:
    """Return the overlays of a data set by name: the recorded reward, the progress files found in it, and those asked.

    A found file that does not fit the episodes is left out with a message.

    Args:
        store: The data set.
        asked: Parquet files, which may be followed by `:COLUMN`, and columns, `actions`, `state` or
            `environment_state`; `COLUMN.2` is the third number of a column with several.

    Raises:
        BadInputError: If an asked file cannot be read or does not fit the episodes, or a column does not exist, is no
            number, or has several numbers.
    """
    found: list[Overlay] = []
    stems: dict[str, Path] = {}
    if store.rewards(0) is not None:
        found.append(Overlay(RECORDED, store.rewards))
    for path in _progress_files(store):
        try:
            found += _from_file(path, "", store, stems)
        except BadInputError as error:
            print(f"Left out: {error}")
    for text in asked:
        stem, _, column = text.partition(".parquet:")
        file = Path(f"{stem}.parquet" if column else text)
        if file.suffix == ".parquet":
            require(file.is_file(), "--overlay", f"{file}, which does not exist", "a parquet file", "check the path")
            found += _from_file(file, column, store, stems)
        else:
            found.append(_from_column(text, store))
    return {one.name: one for one in found}


def overlay_panels(
    overlays: Sequence[Overlay], episode: int, seconds: Sequence[float], steps: Sequence[int]
) -> list[Panel]:
    """Return the charts of an episode's overlays: one for each six curves in [0, 1], and one for each other curve.

    Args:
        overlays: The overlays; those without values in the episode are left out.
        episode: The episode.
        seconds: Times of the T shown frames.
        steps: Step numbers of these frames.
    """
    every = [(one, values[list(steps)]) for one in overlays if (values := one.read(episode)) is not None]
    curves = [(one, values) for one, values in every if np.isfinite(values).any()]
    shared = [pair for pair in curves if pair[0].unit]
    groups = [shared[first : first + len(COLOURS)] for first in range(0, len(shared), len(COLOURS))]
    groups += [[pair] for pair in curves if not pair[0].unit]
    panels = []
    for group in groups:
        lines = [
            Line(seconds, values.tolist(), f"c{at if group[0][0].unit else 2}", one.name, live=True)
            for at, (one, values) in enumerate(group)
        ]
        names = ", ".join(one.name for one, _ in group)
        title, label, span = ("Progress files", "progress", UNIT) if group[0][0].unit else (names, "value", None)
        panels.append(Panel(lines[::-1], label, f"Over time: {names}", span, title=title))
    return panels


def _progress_files(store: EpisodeStore) -> list[Path]:
    if not isinstance(store, LeRobotStore):
        return []
    return [*sorted(store.root.glob("*_progress.parquet")), *sorted((store.root / FOLDER).glob("*.parquet"))]


def _numbers(store: EpisodeStore) -> Sequence[int]:
    return getattr(store, "numbers", range(len(store.episodes)))


def _from_file(path: Path, column: str, store: EpisodeStore, stems: dict[str, Path]) -> list[Overlay]:
    """Return a file's columns of progress, or the one that is named; without a column of progress, all.

    `stems` has the files that were read before, by the first part of their curves' names.
    """
    columns = read_signals(path, _numbers(store), store.lengths.tolist())
    if column:
        require_known(column, columns, f"--overlay {path}")
    progress = [name for name in columns if name.rpartition(".")[2].startswith("progress")]
    chosen, stem = [column] if column else progress or list(columns), path.stem.removesuffix("_progress")
    stem = stem if stems.setdefault(stem, path.resolve()) == path.resolve() else str(path)
    named = {name: stem if [name] == progress else f"{stem}: {name.removeprefix('progress_')}" for name in chosen}
    return [Overlay(named[name], columns[name].get, unit=_in_unit(columns[name])) for name in chosen]


def _in_unit(episodes: Mapping[int, Array]) -> bool:
    known = [values[np.isfinite(values)] for values in episodes.values()]
    return all(bool(((values >= 0) & (values <= 1)).all()) for values in known)


def _from_column(text: str, store: EpisodeStore) -> Overlay:
    """Return a column of the data set, or one number of a column that has several."""
    kept = {name: one.shape for name, one in getattr(store, "columns", {}).items() if one.dtype != "string"}
    vectors = {name: getattr(store, name)(0) for name in ("actions", "state", "environment_state")}
    shapes = {name: values.shape[1:] for name, values in vectors.items() if values is not None} | kept
    whole, dot, last = text.rpartition(".")
    name, at = (whole, int(last)) if text not in shapes and dot and last.isdecimal() else (text, -1)
    hint = "name a column of numbers, or a parquet file"
    require_known(name, shapes, "--overlay", found=repr(text), expected="a parquet file, or one of {}", hint=hint)
    size = math.prod(shapes[name])
    expected = f"one: {name}.0 to {name}.{size - 1}"
    require(at < size and (at >= 0 or size == 1), f"--overlay {text}", f"{size} numbers", expected, "choose one")

    def read(episode: int) -> Array:
        values = store.recorded(episode, name) if name in kept else getattr(store, name)(episode)  # type: ignore[attr-defined]
        return np.asarray(values, np.float64).reshape(len(values), -1)[:, max(at, 0)]

    return Overlay(text, read)
