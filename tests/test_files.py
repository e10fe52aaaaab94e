from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from counterpoint.errors import BadInputError
from counterpoint.files import Beside, read_object, remove, write_atomically

KILLED = """
import os, signal, sys
from pathlib import Path
from counterpoint.files import Beside
made = Beside(Path(sys.argv[1]))
Path(made.name, "half").write_text("half")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_beside_a_path_is_removed_and_what_a_living_one_makes_stays(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (tmp_path / ".out.parts").mkdir()  # finished work of somebody else
    died = subprocess.run([sys.executable, "-c", KILLED, str(out)], check=False)
    assert died.returncode == -signal.SIGKILL
    (left,) = tmp_path.glob(".out.building-*")
    with Beside(out) as first, Beside(out) as second:
        assert not left.exists()
        assert Path(first).is_dir()
        assert Path(second).is_dir()
    assert [path.name for path in tmp_path.iterdir()] == [".out.parts"]


def test_a_file_is_replaced_whole_and_a_folder_removed_at_once(tmp_path: Path) -> None:
    write_atomically(tmp_path / "made" / "file", "old")
    write_atomically(tmp_path / "made" / "file", b"new")
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["file"]
    assert (tmp_path / "made" / "file").read_text() == "new"
    for _ in range(2):
        remove(tmp_path / "made")
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "found"), [(b'{"a": 1', "no JSON object"), (b"\xff{}", "no JSON object"), (b"[1]", "list")]
)
def test_damaged_json_is_one_message(tmp_path: Path, content: bytes, found: str) -> None:
    path = tmp_path / "collect.json"
    path.write_bytes(content)
    with pytest.raises(BadInputError, match=rf"collect\.json: found .*{found}.*; expected settings\. Hint: start anew"):
        read_object(path, "settings", "start anew")
    path.write_text('{"a": 1}')
    assert read_object(path, "settings", "start anew") == {"a": 1}
