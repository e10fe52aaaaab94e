from __future__ import annotations

import pytest

from counterpoint.progress import ProgressBar


def test_lines_say_how_far_it_is_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar("Reading", 4, "files", done=1, every=0) as bar:
        bar.advance(note="b.mp4")
        bar.advance(2)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in lines] == [f"Reading: {done}/4 files" for done in (2, 4, 4)]
    assert "s left, b.mp4" in lines[0]
    assert "left" not in lines[-1]


def test_only_the_last_line_is_written_within_the_interval(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar("Reading", 2, "files") as bar:
        bar.advance()
        bar.advance()
    assert capsys.readouterr().err.startswith("Reading: 2/2 files")


def test_one_of_several_processes_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar("Reading", 2, "files", every=0, shown=False) as bar:
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
