from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

import pytest

from counterpoint.errors import BadInputError
from counterpoint.files import sha256_of
from counterpoint.folder import (
    DIGESTS,
    FORMAT,
    append,
    check_part,
    claim,
    digests_of,
    first_difference,
    lock,
    mend,
    read_part,
    seal,
    write_part,
)

SRC = Path(__file__).resolve().parents[1] / "src"
PARTS = {"a": b"first", "b": b"second", "deep/c": b"third"}


def take(folder: Path, identity: dict[str, Any] | None = None, **options: Any) -> IO[str]:
    return claim(folder, "note.json", identity or {"seed": 0}, what="numbers", does="counts", **options)


def fill(folder: Path) -> list[str]:
    """Write the parts that are not whole yet; return their names."""
    whole = mend(folder)
    for name, content in PARTS.items():
        if name not in whole:
            write_part(folder, name, content)
    return [name for name in PARTS if name not in whole]


def visible(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


@pytest.fixture
def whole(tmp_path: Path) -> dict[str, bytes]:
    with take(tmp_path / "whole"):
        fill(tmp_path / "whole")
        mend(tmp_path / "whole")
    return visible(tmp_path / "whole")


KILLED = """
import os, signal, sys
from pathlib import Path
left, folder = int(sys.argv[1]), Path(sys.argv[2])

def counted(name, call):
    def before(*arguments, **more):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **more)
    return before

from counterpoint.folder import claim, mend, write_part
for name in ("open", "write", "fsync", "mkdir", "rename", "replace", "unlink"):
    setattr(os, name, counted(name, getattr(os, name)))
with claim(folder, "note.json", {"seed": 0}, what="numbers", does="counts"):
    whole = mend(folder)
    for name, content in (("a", b"first"), ("b", b"second"), ("deep/c", b"third")):
        if name not in whole:
            write_part(folder, name, content)
    mend(folder)
print("done")
"""


def test_a_kill_before_any_file_operation_loses_nothing(tmp_path: Path, whole: dict[str, bytes]) -> None:
    """Each operation ends one process; the next one goes on, and readers never see a half."""
    environment = os.environ | {"PYTHONPATH": str(SRC)}
    folder, at, ended = tmp_path / "cut", 0, -signal.SIGKILL
    while ended == -signal.SIGKILL:
        child = os.fork()
        if not child:
            sys.argv = ["", str(at), str(folder / str(at))]
            status = 1
            try:
                exec(compile(KILLED, "killed", "exec"), {"__name__": "killed"})
                status = 0
            finally:
                os._exit(status)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        cut = folder / str(at)
        for name in PARTS:
            assert not (cut / name).exists() or (cut / name).read_bytes() == PARTS[name]
        for name, digest in digests_of(cut).items():
            assert sha256_of(cut / name) == digest
        with take(cut):
            fill(cut)
            mend(cut)
        assert visible(cut) == whole
        at += 1
    assert ended == 0
    assert at > 15
    told = [sys.executable, "-c", KILLED, "5", str(tmp_path / "other")]  # also in a process of its own
    assert subprocess.run(told, env=environment, check=False).returncode == -signal.SIGKILL


@pytest.mark.parametrize("cut", range(1, 75, 9))
def test_a_torn_last_line_costs_its_own_part_alone(tmp_path: Path, cut: int, whole: dict[str, bytes]) -> None:
    with take(tmp_path / "torn"):
        fill(tmp_path / "torn")
        journal = tmp_path / "torn" / DIGESTS
        journal.write_bytes(journal.read_bytes()[:-cut])
        assert fill(tmp_path / "torn") == ["deep/c"]
        mend(tmp_path / "torn")
    assert visible(tmp_path / "torn") == whole


@pytest.mark.parametrize("name", PARTS)
def test_a_flipped_byte_costs_its_own_part_alone(tmp_path: Path, name: str, whole: dict[str, bytes]) -> None:
    folder = tmp_path / "flipped"
    with take(folder):
        fill(folder)
        for spoiled in (folder / name, folder / DIGESTS):
            content = bytearray(spoiled.read_bytes())
            content[2] ^= 4
            spoiled.write_bytes(content)
            assert fill(folder) == [name if spoiled.name != DIGESTS else sorted(PARTS)[0]]
            assert fill(folder) == []
        mend(folder)
    assert visible(folder) == whole


def test_a_full_disk_at_any_write_leaves_what_the_next_call_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, bytes]
) -> None:
    folder = tmp_path / "full"
    with take(folder):
        for room in (0, 7, 70, 80):
            written = os.write

            def half(descriptor: int, data: Any, room: int = room, written: Any = written) -> int:
                if room < 70:
                    raise OSError(28, "No space left on device")
                return int(written(descriptor, bytes(data)[: room - 69]))  # the system may take less than it was given

            with monkeypatch.context() as patch:
                patch.setattr(os, "write", half)
                if room < 70:
                    with pytest.raises(OSError, match="No space"):
                        fill(folder)
                else:
                    fill(folder)
        assert fill(folder) == []
        mend(folder)
    assert visible(folder) == whole


def test_a_second_process_is_refused_until_the_first_is_done(tmp_path: Path) -> None:
    with take(tmp_path / "out"), pytest.raises(BadInputError, match=f"a run that process {os.getpid()} counts"):
        take(tmp_path / "out")
    take(tmp_path / "out").close()


def test_a_lock_is_waited_for_where_that_is_asked(tmp_path: Path) -> None:
    first, done = lock(tmp_path / "file.lock", "builds"), list[IO[str]]()

    def take_it() -> None:
        done.append(lock(tmp_path / "file.lock", "builds", wait=True))

    thread = threading.Thread(target=take_it)
    thread.start()
    thread.join(0.1)
    assert not done
    first.close()
    thread.join(10)
    assert done


def test_a_lock_of_a_folder_that_was_removed_meanwhile_is_taken_anew(tmp_path: Path) -> None:
    first = lock(tmp_path / "out" / ".lock", "builds")
    thread = threading.Thread(target=lambda: lock(tmp_path / "out" / ".lock", "builds", wait=True).close())
    thread.start()
    thread.join(0.1)
    (tmp_path / "out" / ".lock").unlink()
    (tmp_path / "out").rmdir()
    first.close()
    thread.join(10)
    assert (tmp_path / "out" / ".lock").read_text() == str(os.getpid())


def test_another_identity_is_refused_by_its_first_key_and_the_folder_stays(tmp_path: Path) -> None:
    take(tmp_path / "out", {"seed": 0, "model": {"size": [1, 2]}}).close()
    before = visible(tmp_path / "out")
    message = r"out: found numbers with another \[model\]: model\.size = \[1, 2\]; expected model\.size = \[1, 3\]"
    with pytest.raises(BadInputError, match=message):
        take(tmp_path / "out", {"seed": 0, "model": {"size": (1, 3)}})
    take(tmp_path / "out", {"seed": 0, "model": {"size": (1, 2)}}).close()  # freed by the refusal
    assert visible(tmp_path / "out") == before


def test_content_of_another_identity_is_discarded_where_that_is_asked(tmp_path: Path) -> None:
    with take(tmp_path / "out"):
        fill(tmp_path / "out")
    with take(tmp_path / "out", discard=True):
        assert fill(tmp_path / "out") == []
    with take(tmp_path / "out", {"seed": 1}, discard=True):
        assert list(visible(tmp_path / "out")) == ["note.json"]
        assert fill(tmp_path / "out") == list(PARTS)


@pytest.mark.parametrize("written", [{"format": 2, "seed": 0}, {"seed": 0}, {"format": FORMAT + 1, "seed": 0}])
def test_another_version_s_folder_is_refused_with_what_to_do(tmp_path: Path, written: dict[str, int]) -> None:
    (tmp_path / "note.json").write_text(json.dumps(written))
    found = f"format {written['format']}" if "format" in written else "no format"
    hint = r"make it again with this version, or use it with the one that wrote it: 0\.1, for formats before 3"
    with pytest.raises(BadInputError, match=f"found numbers of {found}, of another version; .*Hint: {hint}"):
        take(tmp_path)


def test_folders_of_something_else_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(BadInputError, match=r"files that are not numbers, without note\.json"):
        take(tmp_path)
    with pytest.raises(BadInputError, match="found a file; expected a folder"):
        take(tmp_path / "thesis.tex")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    take(tmp_path, begin=False).close()  # whoever writes the note later may have begun with other files
    assert not (tmp_path / "note.json").exists()


def test_a_damaged_note_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "note.json").write_text("{")
    with pytest.raises(BadInputError, match=r"note\.json: found no JSON object"):
        take(tmp_path)


def test_half_written_files_and_folders_are_removed(tmp_path: Path) -> None:
    with take(tmp_path):
        fill(tmp_path)
    for name in (".hidden", "deep/.c.0123456789ab"):
        (tmp_path / name).write_text("")
    for name in (".step-4.0123456789ab", "deep/.step-4.building-ab_c1"):
        (tmp_path / name / "inner").mkdir(parents=True)
    take(tmp_path).close()
    assert sorted(visible(tmp_path)) == sorted([".hidden", "note.json", DIGESTS, *PARTS])


def test_a_sealed_folder_is_verified_when_it_is_read(tmp_path: Path) -> None:
    for name, content in (("one", b"1"), ("two", b"2"), ("notes", b"3")):
        (tmp_path / name).write_bytes(content)
    seal(tmp_path, ["two", "one"])
    assert list(digests_of(tmp_path)) == ["one", "two"]
    subprocess.run(["sha256sum", "--check", "--strict", DIGESTS], cwd=tmp_path, check=True, capture_output=True)
    assert read_part(tmp_path, "one", "") == b"1"
    assert check_part(tmp_path, "two", "") == tmp_path / "two"
    (tmp_path / "one").write_bytes(b"x")
    for read in (read_part, check_part):
        with pytest.raises(
            BadInputError, match=r"one: found sha256 \w+; expected \w+, as in SHA256SUMS. Hint: copy it"
        ):
            read(tmp_path, "one", "copy it")
        with pytest.raises(BadInputError, match="damaged lines, or no digest of notes"):
            read(tmp_path, "notes", "copy it")
        with pytest.raises(BadInputError, match="three: found no such file"):
            read(tmp_path, "three", "copy it")
    append(tmp_path, {"three": "no digest"})
    with pytest.raises(BadInputError, match="damaged lines"):
        read_part(tmp_path, "two", "copy it")


def test_the_first_difference_names_its_key() -> None:
    then = {"config": {"noise": 0.0, "size": 32}, "versions": {"mujoco": "3.3.0"}}
    assert first_difference(then, then) is None
    now = {"config": {"noise": 0.0, "size": 32}, "versions": {"mujoco": "3.3.1"}}
    assert first_difference(then, now) == ("versions.mujoco", "3.3.0", "3.3.1")
    assert first_difference({**then, "old": 1}, then) == ("old", 1, None)
    gcbc, iql = ({"agent": {"discount": discount, "name": name}} for name, discount in (("gcbc", 0.9), ("iql", 0.99)))
    assert first_difference(gcbc, iql) == ("agent.name", "gcbc", "iql")  # and not by a setting of another agent
