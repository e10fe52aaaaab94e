"""Which episodes a replay buffer holds, oldest first, as arrays that grow at one end and shrink at the other."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["EpisodeTable"]

FIELDS = ("start", "length", "terminated", "checksum")


class EpisodeTable:
    """Four numbers an episode: `start` (its first row), `length` (T), `terminated` (0 or 1), `checksum`."""

    def __init__(self) -> None:
        self._data = np.zeros((64, len(FIELDS)), dtype=np.int64)
        self._first = self._end = 0

    def __len__(self) -> int:
        return self._end - self._first

    def __getitem__(self, field: str) -> NDArray[np.int64]:
        return self._data[self._first : self._end, FIELDS.index(field)]

    def append(self, start: int, length: int, terminated: bool, checksum: int) -> None:
        """Add the youngest episode."""
        if self._end == len(self._data):
            live = self._data[self._first : self._end]
            self._data = np.concatenate([live, np.zeros((max(64, len(live)), len(FIELDS)), dtype=np.int64)])
            self._first, self._end = 0, len(live)
        self._data[self._end] = start, length, terminated, checksum
        self._end += 1

    def drop_oldest(self, count: int) -> None:
        """Forget the oldest episodes."""
        self._first += count

    def rows(self) -> dict[str, list[int]]:
        """Every field as a list, for JSON."""
        return {field: self[field].tolist() for field in FIELDS}

    @classmethod
    def from_rows(cls, rows: dict[str, Any]) -> EpisodeTable:
        """What `rows` returned, as a table."""
        table = cls()
        for start, length, terminated, checksum in zip(*(rows[field] for field in FIELDS), strict=True):
            table.append(start, length, terminated, checksum)
        return table
