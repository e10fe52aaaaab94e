from __future__ import annotations

from pathlib import Path

import pytest

from counterpoint.cli.data.manifest import write_manifest
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset
from tests.formats.made import write_videos


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_videos(tmp_path)
    (tmp_path / "manifest.csv").unlink()
    text = "sep=;\r\nFILE;TASK;start;LAST;who\r\nvideos\\\\0.mp4;open, slowly;;0,5;me\r\nvideos/1.mp4;close;0,2;;me\r\n"
    (tmp_path / "labels.csv").write_text(text.replace("\\\\", "\\"), newline="")
    return tmp_path / "labels.csv"


def test_a_table_with_other_names_becomes_a_manifest(table: Path) -> None:
    columns = ["video=FILE", "instruction=TASK", "end=LAST"]
    written = write_manifest(table, table.with_name("manifest.csv"), columns=columns)
    store = open_dataset(written.parent)
    assert [(info.instruction, info.length) for info in store.episodes] == [("open, slowly", 5), ("close", 10)]


@pytest.mark.parametrize(
    ("out", "columns", "message"),
    [
        ("manifest.csv", ["video=FILE"], r"column 'instruction', once.*name them: --columns video=NAME"),
        ("manifest.csv", ["video=FILE", "instruction=WORDS"], "column 'WORDS', once"),
        ("manifest.csv", ["video"], "COLUMN=NAME"),
        ("manifest.csv", ["videos=FILE"], "did you mean 'video'"),
        ("manifest.csv", ["video=FILE", "video=TASK"], "'video' twice"),
        ("manifest.csv", ["video=FILE", "instruction=TASK", "end=who"], "row 3: found who = 'me'"),
        ("labels.csv", ["video=FILE", "instruction=TASK"], "an existing path"),
        ("manifest.jsonl", ["video=FILE", "instruction=TASK"], "another place or kind"),
        ("elsewhere/manifest.csv", ["video=FILE", "instruction=TASK"], "another place or kind"),
    ],
)
def test_what_gives_no_manifest_is_refused(out: str, columns: list[str], message: str, table: Path) -> None:
    before = sorted(table.parent.rglob("*"))
    with pytest.raises(BadInputError, match=message):
        write_manifest(table, table.parent / out, columns=columns)
    assert sorted(table.parent.rglob("*")) == before
