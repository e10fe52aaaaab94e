"""Look for everything that is wrong with a data set, instead of stopping at the first thing as a reader does.

Files are opened and decoded in worker processes that may die, because damaged media can crash a decoder. What is
found is told in the form of errors: the file, what was found, what was expected, and how to mend it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from counterpoint.data.cache import CachedStore
from counterpoint.data.doctor_lerobot import examine_lerobot
from counterpoint.data.formats import Format, open_dataset, recognise
from counterpoint.data.mask_checks import examine_masks
from counterpoint.data.store import EpisodeStore
from counterpoint.data.video import in_worker
from counterpoint.errors import BadInputError
from counterpoint.progress import ProgressBar

__all__ = ["examine"]

_BATCH = 1000  # frames a worker decodes: enough to repay its start, few enough to find a bad one soon
_CHUNK = 64  # frames held at a time
_PATIENCE = 3600.0  # seconds for reading every table of a data set


def examine(path: str | Path) -> list[BadInputError]:
    """Examine a data set of any format, or a training store, to the last frame.

    Args:
        path: What `open_dataset` would open.

    Returns:
        One finding for each thing that is wrong; none where all is well.

    Raises:
        BadInputError: When nothing is there that could be examined.
    """
    path = Path(path)
    if recognise(path) is Format.TRAINING_STORE:
        return _examine_training_store(path)
    try:
        findings, store = in_worker(_examine_tables, path, timeout=_PATIENCE)
    except BadInputError as error:  # the worker died
        return [error]
    return findings if store is None else [*findings, *_decode_all(path, store)]


def _examine_training_store(path: Path) -> list[BadInputError]:
    try:
        return CachedStore(path).damage()
    except BadInputError as error:
        return [error]


def _examine_tables(path: Path) -> tuple[list[BadInputError], EpisodeStore | None]:
    """What can be told without decoding, and the store of what can be opened."""
    findings = examine_lerobot(path) if recognise(path) is Format.LEROBOT else []
    try:
        return findings, open_dataset(path, on_bad_row=findings.append)
    except BadInputError as error:
        known = {finding.where for finding in findings}
        return findings + ([] if error.where in known else [error]), None


def _decode_all(path: Path, store: EpisodeStore) -> list[BadInputError]:
    findings: list[BadInputError] = []
    cameras = len(store.cameras)
    with ProgressBar("Decoding", sum(info.length for info in store.episodes) * cameras, "frames") as bar:
        for first, stop in _batches([info.length for info in store.episodes]):
            findings += _decode_range(path, store, first, stop)
            bar.advance(sum(info.length for info in store.episodes[first:stop]) * cameras)
    return findings


def _batches(lengths: list[int]) -> list[tuple[int, int]]:
    """Ranges of episodes of about `_BATCH` frames."""
    batches, first, frames = [], 0, 0
    for episode, length in enumerate(lengths):
        frames += length
        if frames >= _BATCH or episode == len(lengths) - 1:
            batches.append((first, episode + 1))
            first, frames = episode + 1, 0
    return batches


def _decode_range(path: Path, store: EpisodeStore, first: int, stop: int) -> list[BadInputError]:
    """Decode episodes in a worker; where it dies, halve the range until the culprit is alone."""
    frames = sum(info.length for info in store.episodes[first:stop]) * len(store.cameras)
    try:
        return in_worker(_decode, path, store, first, stop, timeout=60 + 0.1 * frames)
    except BadInputError as error:
        if stop - first == 1:
            where = f"{path}, episode {first}"
            return [BadInputError(where, found=error.found, expected=error.expected, mend=error.mend)]
    middle = (first + stop) // 2
    return _decode_range(path, store, first, middle) + _decode_range(path, store, middle, stop)


def _decode(path: Path, store: EpisodeStore, first: int, stop: int) -> list[BadInputError]:
    findings: list[BadInputError] = []
    for episode in range(first, stop):
        length, before = store.episodes[episode].length, len(findings)
        for camera in store.cameras:
            try:
                for start in range(0, length, _CHUNK):
                    store.frames(episode, np.arange(start, min(start + _CHUNK, length)), camera)
            except BadInputError as error:
                where = f"{error.where}, episode {episode}"
                findings.append(
                    BadInputError(where, found=error.found, expected=error.expected, mend=error.mend)
                )
        if len(findings) == before:  # what cannot be read needs no closer look
            findings += examine_masks(path, store, episode)
    return findings
