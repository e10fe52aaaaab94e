"""Tables as people and spreadsheets write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from counterpoint.errors import BadInputError
from counterpoint.formats.table import Row, read_table


def rows_of(path: Path, content: str | bytes) -> list[Row]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_table(path, ("video", "instruction"))


PLAIN = "video,instruction\na.mp4,open it\n"
FORMS: dict[str, str | bytes] = {
    "commas": PLAIN,
    "semicolons": PLAIN.replace(",", ";"),
    "tabs": PLAIN.replace(",", "\t"),
    "bars": PLAIN.replace(",", "|"),
    "other columns": "video;note, of mine;instruction\na.mp4;1,2,3;open it\n",
    "quoted names": '"video";"instruction"\n"a.mp4";"open it"\n',
    "spaces around names": "video , instruction\na.mp4,open it\n",
    "UTF-8 mark": b"\xef\xbb\xbf" + PLAIN.encode(),
    "UTF-16, little-endian": PLAIN.replace(",", "\t").encode("utf-16"),
    "UTF-16, big-endian": b"\xfe\xff" + PLAIN.encode("utf-16-be"),
    "named separator": "sep=;\r\nvideo;instruction\r\na.mp4;open it\r\n",
    "named tab": "sep=\t\nvideo\tinstruction\na.mp4\topen it\n",
    "quoted separator": '"sep=;"\nvideo;instruction\na.mp4;open it\n',
    "empty rows": "video,instruction\n,\n\na.mp4,open it\n,\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_table_is_read_in_every_form(form: str, tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path / "table.csv", FORMS[form])
    assert (row.text("video"), row.text("instruction")) == ("a.mp4", "open it")
    above = {"named separator": 3, "named tab": 3, "quoted separator": 3, "empty rows": 4}
    assert row.number == above.get(form, 2)


def test_a_spreadsheet_s_quotes_keep_separators_and_lines_inside(tmp_path: Path) -> None:
    content = 'video;instruction\r\na.mp4;"open; then ""close""\r\nit"\r\nb.mp4;wait, then go\r\n'
    first, second = rows_of(tmp_path / "table.csv", content)
    assert first.text("instruction") == 'open; then "close"\r\nit'
    assert (second.text("instruction"), second.number) == ("wait, then go", 4)


def test_numbers_have_decimal_commas_where_semicolons_separate(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path / "table.csv", "video;instruction;start;end;fps\na;b;0,5;1.25;29,97\n")
    assert (row.seconds("start"), row.seconds("end"), row.rate("fps")) == (0.5, 1.25, 29.97)
    (row,) = rows_of(tmp_path / "table.csv", 'video,instruction,start,fps\na,b,"0,5",0\n')
    with pytest.raises(BadInputError, match="start = '0,5'"):
        row.seconds("start")
    with pytest.raises(BadInputError, match="fps = '0'; expected frames a second above 0"):
        row.rate("fps")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("FILE;TASK\na;b\n", r"row 1: found columns FILE, TASK; expected column 'video', once"),
        ("sep=;\nvideo,instruction\na,b\n", r"row 2: found columns video,instruction; .*column 'video'"),
        ("video;video;instruction\na;b;c\n", "column 'video', once"),
        ("video;instruction\na,b\n", r"row 2: found 1 fields; .*with a semicolon in double quotes"),
        ('video\tinstruction\na\t"b\n', "tab-separated values"),
        (b"\xff\xfev\x00i\x00d", "not UTF-16"),
        (b"video,instruction\na,caf\xe9\n", r"row 2.*not UTF-8.*CSV UTF-8"),
    ],
)
def test_what_is_no_table_is_refused(content: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=message):
        rows_of(tmp_path / "table.csv", content)


def test_an_instruction_that_shows_nothing_is_refused(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path / "table.csv", "video,instruction\na.mp4,\u200b\n")
    with pytest.raises(BadInputError, match="text that is not empty"):
        row.text("instruction")
