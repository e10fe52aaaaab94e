"""Progress of long work: a bar with rate and time left on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class ProgressBar:
    """Counts `unit`s from `done` to `total`; a context manager.

    Args:
        title: The work, in a word or two.
        total: Number of units.
        unit: Name of a unit, in the plural.
        done: Units that an interrupted run had done.
        every: Seconds between lines where the output is no terminal.
        shown: False shows nothing, for all but one of several processes at the same work.
    """

    def __init__(
        self, title: str, total: int, unit: str, *, done: int = 0, every: float = 10.0, shown: bool = True
    ) -> None:
        self.console = Console(file=sys.stderr)  # this stream also while others redirect
        self._title, self._total, self._unit, self._every = title, total, unit, every
        self._lines = shown and not self.console.is_terminal
        self._first, self._done, self._note = done, done, ""
        self._start = self._said = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            disable=not (shown and self.console.is_terminal),
        )
        self._task = self._bar.add_task(title, total=total, completed=done, rate="", note="")

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        if self._lines:
            self._say()

    def advance(self, units: int = 1, note: str = "") -> None:
        """Count `units` more; `note` stands at the end of the line."""
        self._done += units
        self._note = note or self._note
        self._bar.update(self._task, completed=self._done, rate=f"{self._rate():.1f}/s", note=self._note)
        if self._lines and time.monotonic() - self._said > self._every:
            self._say()

    def _rate(self) -> float:
        return (self._done - self._first) / max(1e-9, time.monotonic() - self._start)

    def _say(self) -> None:
        self._said = time.monotonic()
        rate = self._rate()
        left = f", {(self._total - self._done) / rate:.0f} s left" if rate > 0 and self._done < self._total else ""
        note = f", {self._note}" if self._note else ""
        print(
            f"{self._title}: {self._done}/{self._total} {self._unit}, {rate:.1f}/s{left}{note}",
            file=self.console.file,
            flush=True,
        )
