from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from counterpoint.progress import ProgressBar

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


class Clock:
    """A clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def in_a_terminal(script: str, columns: int) -> list[str]:
    """Return what a script leaves on a terminal of that width, line by line, without control characters."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
    source = str(Path(__file__).parents[1] / "src")
    told = environment | {"TERM": "xterm-256color", "PYTHONPATH": source}
    with subprocess.Popen([sys.executable, "-c", script], stdout=follower, stderr=follower, stdin=follower, env=told):
        os.close(follower)
        shown = b""
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:  # Linux's way to say that the other end is closed
                break
            if not part:
                break
            shown += part
    os.close(leader)
    return [line for line in CONTROL.sub("", shown.decode()).splitlines() if line.strip()]


def test_lines_say_how_far_it_is_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar("Reading", 4, "files", done=1, every=0) as bar:
        bar.advance(note="b.mp4")
        bar.advance(2)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in lines] == [f"Reading: {done}/4 files" for done in (2, 4)]
    assert "s left, b.mp4" in lines[0]
    assert "left" not in lines[-1]


def test_only_the_last_line_is_written_within_the_interval(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar("Reading", 2, "files") as bar:
        bar.advance()
        bar.advance()
    assert capsys.readouterr().err.startswith("Reading: 2/2 files")


def test_one_of_several_processes_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar("Reading", 2, "files", every=0, shown=False, shorten="--files") as bar:
        bar.advance(2)
    assert not capsys.readouterr().err


def test_a_terminal_shows_a_bar_and_no_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with ProgressBar("Reading", 2, "files", every=0) as bar:
        bar.advance(2)
    shown = capsys.readouterr().err
    assert "2/2" in shown
    assert "Reading: " not in shown


def test_a_bar_within_a_bar_is_its_note(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with ProgressBar("Training", 100, "steps", every=0) as outer:
        clock.now += 10
        outer.advance(50, note="loss 1.0")
        with ProgressBar("Evaluating", 4, "episodes", every=0) as inner:
            clock.now += 2
            inner.advance()
        clock.now += 1
        outer.advance(50)
    assert capsys.readouterr().err.splitlines() == [
        "Training: 50/100 steps, 5.0/s, 10 s left, loss 1.0",
        "Training: 50/100 steps, 5.0/s, 8 s left, evaluating 1/4 episodes, 2.0 s/episode, 6 s left",
        "Training: 100/100 steps, 7.7/s, in 13 s, loss 1.0",
    ]
    with ProgressBar("Reading", 1, "files", every=0) as alone:
        alone.advance()
    assert capsys.readouterr().err.splitlines() == ["Reading: 1/1 files, 1000000000.0/s, in 0 s"]


def test_the_last_line_is_written_once(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    """A last evaluation takes longer than the interval: its line is the end's line too."""
    with ProgressBar("Training", 2, "steps") as bar:
        clock.now += 2
        bar.advance(2, note="loss 1.0")
        clock.now += 60
        bar.advance(0, note="loss 1.0, success 0.50")
    assert capsys.readouterr().err.splitlines() == ["Training: 2/2 steps, 1.0/s, in 2 s, loss 1.0, success 0.50"]


@pytest.mark.parametrize(
    ("seconds", "total", "expected"),
    [
        (0.1, 500_000, "1/500000 episodes, 10.0/s, 13 h 53 min left"),
        (58.0, 10, "1/10 episodes, 58.0 s/episode, 8 min 42 s left"),
        (30.0, 2, "1/2 episodes, 30.0 s/episode, 30 s left"),
    ],
)
def test_the_first_unit_gives_an_estimate(
    capsys: pytest.CaptureFixture[str], clock: Clock, seconds: float, total: int, expected: str
) -> None:
    with ProgressBar("Planning", total, "episodes", every=0) as bar:
        clock.now += seconds
        bar.advance()
    assert capsys.readouterr().err.splitlines() == [f"Planning: {expected}"]


def test_long_work_says_once_how_long_it_takes_and_what_shortens_it(
    capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    with ProgressBar("Training", 500_000, "steps", shorten="--train.steps") as bar:
        for _ in range(60):
            clock.now += 0.1
            bar.advance()
    first, last = capsys.readouterr().err.splitlines()
    assert first == "Training will take 13 h 53 min: 499950 steps at 10.0/s; --train.steps makes it shorter"
    assert last.startswith("Training: 60/500000 steps, 10.0/s")


def test_the_second_slow_unit_says_how_long_the_work_takes(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with ProgressBar("Planning", 50, "episodes", shorten="--episodes") as bar:
        for _ in range(2):
            assert "will take" not in capsys.readouterr().err
            clock.now += 58
            bar.advance()
    said = "Planning will take 46 min 24 s: 48 episodes at 58.0 s/episode; --episodes makes it shorter"
    assert said in capsys.readouterr().err.splitlines()


def test_only_the_outer_bar_names_its_option(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    """`compare` trains recipes; its own option shortens it, and it does not have training's."""
    with ProgressBar("Comparing", 6, "runs", shorten="--seeds") as outer:
        for _ in range(2):
            with ProgressBar("Training", 20, "steps", shorten="--train.steps") as inner:
                for _ in range(20):
                    clock.now += 60
                    inner.advance()
            outer.advance()
    said = [line for line in capsys.readouterr().err.splitlines() if "shorter" in line]
    assert said == ["Comparing will take 1 h 20 min: 4 runs at 1200.0 s/run; --seeds makes it shorter"]


def test_short_work_says_nothing_of_the_kind(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with ProgressBar("Training", 2000, "steps", shorten="--train.steps") as bar:
        for _ in range(60):
            clock.now += 0.1
            bar.advance()
    assert "shorter" not in capsys.readouterr().err


@pytest.mark.parametrize("together", [1, 16])
def test_the_time_in_which_everything_starts_does_not_count_in_the_estimate(
    capsys: pytest.CaptureFixture[str], clock: Clock, together: int
) -> None:
    """Simulators take long to start, and several environments advance together."""
    with ProgressBar("Training", 5000, "steps", shorten="--train.steps") as bar:
        clock.now += 35
        bar.advance(together)
        for _ in range(9):
            clock.now += 0.1 * together
            bar.advance(together)
    lines = capsys.readouterr().err.splitlines()
    assert not any("shorter" in line for line in lines)
    assert lines[-1].startswith(f"Training: {10 * together}/5000 steps, 10.0/s, 8 min ")


LONG_NOTE = "loss 10.518, categorical accuracy 0.015, action error 0.210 unseen (gripper wrong 12%)"


@pytest.mark.parametrize("columns", [70, 80, 120])
def test_a_narrow_terminal_cuts_the_note_and_nothing_before_it(columns: int) -> None:
    """Steps, rate and time left of a long training stand on the line, whatever its metrics are."""
    script = f"""
import time
from counterpoint.progress import ProgressBar
with ProgressBar("Training", 500_000, "environment steps", done=12_000) as bar:
    for _ in range(4):
        time.sleep(0.05)
        bar.advance(1, note={LONG_NOTE!r})
"""
    line = in_a_terminal(script, columns)[-1]
    assert len(line) <= columns
    wanted = r"Training 12004/500000 environment steps, [\d.]+/s, \d+ (h|min) \d+ (min|s) "
    assert re.search(wanted, line), line
    assert "…" in line


def test_the_last_line_shows_the_whole_note() -> None:
    """The last note has the result of the work."""
    script = f"""
from counterpoint.progress import ProgressBar
with ProgressBar("Training", 600, "steps") as bar:
    bar.advance(600, note={LONG_NOTE!r})
"""
    shown = " ".join(" ".join(in_a_terminal(script, 80)[-2:]).split())
    assert shown.endswith(LONG_NOTE)
    assert shown.startswith("Training 600/600 steps, ")


def test_a_terminal_shows_the_time_so_far_before_the_first_unit() -> None:
    script = """
import time
from counterpoint.progress import ProgressBar
with ProgressBar("Planning", 10, "episodes") as bar:
    time.sleep(1.2)
"""
    assert "Planning 0/10 episodes, 1 s so far" in in_a_terminal(script, 80)[-1]
