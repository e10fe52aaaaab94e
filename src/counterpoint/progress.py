"""Progress of long work: one line that is redrawn on a terminal, new lines at intervals elsewhere.

The number done, the rate and the time left come first, because a line that is too long is cut at its end.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar as Bar
from rich.table import Table
from rich.text import Text

LONG = 600.0
"""Work that will take more than this number of seconds prints an estimate of its duration."""
_BAR = 10  # columns of the bar
_TRIED_UNITS, _TRIED_SECONDS = 50, 30.0  # after this many units or seconds, the rate is taken as known
_ENOUGH = 4  # the first advance leaves the rate after more than this many times its units, or after `_TRIED_SECONDS`
_open: list[ProgressBar] = []
"""The bars that are shown, from the outermost to the innermost."""


class ProgressBar:
    """A progress bar that counts from `done` to `total`; a context manager.

    While another bar is open, this bar is shown at the end of that bar's line, as for an evaluation during training.

    Args:
        title: The work, in a word or two.
        total: Number of units.
        unit: Name of a unit, in the plural.
        done: Number of units that an interrupted run had done.
        every: Seconds between lines if the output is not a terminal.
        shown: If False, nothing is printed; use this in all but one of several processes that do the same work.
        shorten: The option that shortens the work, such as `--train.steps`; it is suggested if the work will take more
            than ten minutes, unless another bar is open, whose option counts.
    """

    def __init__(
        self,
        title: str,
        total: int,
        unit: str,
        *,
        done: int = 0,
        every: float = 10.0,
        shown: bool = True,
        shorten: str = "",
    ) -> None:
        self.console = Console(file=sys.stderr)  # keep this stream even if others redirect stderr
        self._title, self._total, self._unit, self._every = title, total, unit, every
        self._drawn, self._lines = shown and self.console.is_terminal, shown and not self.console.is_terminal
        self._first, self._done, self._note = done, done, ""
        self._around: ProgressBar | None = None  # the outer bar; `_noted` is its note from before this bar
        self._noted = ""
        self._begun: tuple[int, float] | None = None  # units and seconds of the first advance
        self._shorten = shorten if shown else ""
        self._start = self._advanced = self._said = time.monotonic()
        self._written = (-1, "")
        self._live = Live(console=self.console, get_renderable=self._drawing, refresh_per_second=4)

    def __enter__(self) -> ProgressBar:
        if self._drawn or self._lines:
            if _open:
                self._around, self._noted = _open[-1], _open[-1]._note
            _open.append(self)
        if self._drawn and self._around is None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        if self in _open:
            _open.remove(self)
        if self._around is not None:
            self._around._note = self._noted
        elif self._lines and self._written != (self._done, self._note):
            self._say()

    def advance(self, units: int = 1, note: str = "") -> None:
        """Add `units` to the count; `note` is shown at the end of the line."""
        self._done += units
        self._note = note or self._note
        now = time.monotonic()
        if units:
            self._advanced = now
            self._begun = self._begun or (units, now - self._start)
            self._warn()
        if self._around is not None:
            self._around.advance(0, note=f"{self._title.lower()} {self._text()}")
        elif self._lines and now - self._said > self._every:
            self._say()

    def _text(self) -> str:
        """Return the number done, the rate, and the time left or spent."""
        spent, counted = self._measured()
        parts = [f"{self._done}/{self._total} {self._unit}"]
        since = time.monotonic() - self._advanced
        if counted > 0:
            parts.append(_rate(counted / max(1e-9, spent), self._unit))
        if self._done < self._total:
            left = (self._total - self._done) * spent / max(1, counted) - since
            parts.append(f"{duration(max(0.0, left))} left" if counted > 0 else f"{duration(since)} so far")
        elif counted > 0:
            parts.append(f"in {duration(spent)}")
        return ", ".join(parts)

    def _measured(self) -> tuple[float, int]:
        """Return the seconds and the units that give the rate.

        The first advance includes the time in which everything starts. It is left out as soon as enough units or
        seconds have followed it, until the work is done.
        """
        spent, counted = self._advanced - self._start, self._done - self._first
        units, seconds = self._begun or (0, 0.0)
        if self._running() and self._done < self._total:
            return spent - seconds, counted - units
        return spent, counted

    def _running(self) -> bool:
        """Return True if enough units have followed the first advance, or slow units for long enough."""
        if self._begun is None:
            return False
        units, seconds = self._begun
        counted, slow = self._done - self._first, self._advanced - self._start - seconds >= _TRIED_SECONDS
        return counted > (units if slow else _ENOUGH * units)

    def _drawing(self) -> Table:
        """Return the line, with a bar before it if there is room.

        Until the work is done, the note is cut at the terminal's width. The last note has the result and is not cut.
        """
        text, grid = f"{self._title} {self._text()}", Table.grid(padding=(0, 1))
        whole, cut = f"{text}, {self._note}" if self._note else text, self._done < self._total
        line = Text(whole, no_wrap=cut, overflow="ellipsis" if cut else "fold")
        if len(text if cut else whole) + _BAR < self.console.width:
            grid.add_column(width=_BAR)
            grid.add_row(Bar(max(1, self._total), self._done, width=_BAR), line)
        else:
            grid.add_row(line)
        return grid

    def _say(self) -> None:
        self._said, self._written = time.monotonic(), (self._done, self._note)
        note = f", {self._note}" if self._note else ""
        print(f"{self._title}: {self._text()}{note}", file=self.console.file, flush=True)

    def _warn(self) -> None:
        """If the work will take long, print once how long and how to shorten it."""
        (spent, counted), left = self._measured(), self._total - self._done
        known = self._running() and (self._done - self._first >= _TRIED_UNITS or spent >= _TRIED_SECONDS)
        if self._shorten and self._around is None and known and left * spent > LONG * counted:
            pace = f"{left} {self._unit} at {_rate(counted / spent, self._unit)}"
            text = f"{self._title} will take {duration(left * spent / counted)}: {pace}"
            self.console.print(Text(f"{text}; {self._shorten} makes it shorter"), soft_wrap=True)
            self._shorten = ""


def _rate(rate: float, unit: str) -> str:
    """Return the units per second as text, or the seconds per unit if the rate is below one per second."""
    return f"{rate:.1f}/s" if rate >= 1 else f"{1 / rate:.1f} s/{unit.split()[-1].removesuffix('s')}"


def duration(seconds: float) -> str:
    """Return a time in words: `45 s`, `12 min 5 s`, `13 h 52 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
