"""Damaged data sets of every reader end in one message or in data, never in a traceback, a hang or a crash.

More of the same: `python -m tests.formats.fuzzing --mutants 2000`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from counterpoint.progress import ProgressBar
from tests.formats.fuzzing import trials
from tests.formats.fuzzing.__main__ import reason, run
from tests.formats.fuzzing.mutations import BYTES, STRUCTURE, Mutant, ending
from tests.formats.fuzzing.sources import SOURCES
from tests.formats.fuzzing.trials import FAILURES, Content, Outcome, Read, Reader, difference
from tests.marks import quick

# One dialect of HDF5, and one way to write a manifest, stand for all; DROID starts a process for each of its files.
LIKE_OTHERS = {
    *("libero", "libero, regenerated", "isaaclab", "robomimic, low_dim", "robocasa", "droid"),
    *("videos, jsonl", "frames, csv", "lerobot v2.1"),
}

for extra in ("h5py", "minari", "zarr"):
    pytest.importorskip(extra)


def failures(name: str, cases: range, scratch: Path) -> list[str]:
    with ProgressBar("Reading", len(cases), "mutants") as bar:
        found = run(name, cases, scratch, 1, bar)
    assert {outcome.kind for _, outcome in found} <= {"refused", "same", "changed", *FAILURES}
    assert all(reason(mutant) for mutant, outcome in found if outcome.kind == "changed")
    return [f"{mutant}: {outcome}" for mutant, outcome in found if outcome.kind in FAILURES]


@pytest.mark.parametrize("name", quick(set(SOURCES) - LIKE_OTHERS, SOURCES))
def test_damage(name: str, tmp_path: Path) -> None:
    assert not failures(name, range(8), tmp_path)


@pytest.mark.release
@pytest.mark.parametrize("name", SOURCES)
def test_much_damage(name: str, tmp_path: Path) -> None:
    assert not failures(name, range(8, 45), tmp_path)


@pytest.mark.parametrize("name", quick(set(SOURCES) - LIKE_OTHERS, SOURCES))
def test_sound_data_is_read_alike(name: str, tmp_path: Path) -> None:
    path = SOURCES[name](tmp_path / "set")
    content = trials.content(path)
    assert content
    assert trials.read(path, content) == Outcome("same", reported=bool(trials.findings(path)))


def test_every_kind_of_file_has_a_mutation_of_its_own(tmp_path: Path) -> None:
    found = set()
    for number, make in enumerate(SOURCES.values()):
        (tmp_path / str(number)).mkdir()
        make(tmp_path / str(number) / "set")
        found |= {ending(file) for file in (tmp_path / str(number) / "set").rglob("*") if file.is_file()}
    assert set(STRUCTURE) <= found


@pytest.mark.parametrize("change", [*BYTES, *STRUCTURE.values()], ids=lambda change: str(change.__name__))
def test_a_case_is_always_the_same_mutant(change: object, tmp_path: Path) -> None:
    kind = next((kind for kind, known in STRUCTURE.items() if known is change), "")
    name = next(
        name for name in ("robomimic", "drq", "rlbench", "epic", "lerobot v2.1") if kind in _kinds(name, tmp_path)
    )
    files = sorted((tmp_path / name).rglob(f"*{kind}"))
    data = next(file for file in files if file.is_file()).read_bytes()
    made = [change(data, np.random.default_rng(case)) for case in range(20)]  # type: ignore[operator]
    if kind != ".hdf5":  # HDF5 notes the time of writing
        assert made == [change(data, np.random.default_rng(case)) for case in range(20)]  # type: ignore[operator]
    assert len(set(made)) > 1


def _kinds(name: str, tmp_path: Path) -> set[str]:
    if not (tmp_path / name).exists():
        SOURCES[name](tmp_path / name)
    return {"", *map(ending, (tmp_path / name).rglob("*"))}


# The harness itself


def _crash(path: Path, sound: Content) -> Outcome:
    os.abort()


def _hang(path: Path, sound: Content) -> Outcome:
    time.sleep(600)
    return Outcome("same")


def _fail(path: Path, sound: Content) -> Outcome:
    raise TypeError


def _fill(path: Path, sound: Content) -> Outcome:
    return Outcome("same", text=str(np.ones(1 << 27).sum()))


@pytest.mark.parametrize(
    ("read", "kind"),
    [
        (_crash, "crash"),
        pytest.param(_hang, "hang", marks=pytest.mark.slow),
        (_fail, "traceback"),
        pytest.param(_fill, "memory", marks=pytest.mark.slow),
    ],
)
def test_what_must_not_be_is_noticed(read: Read, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "SECONDS", 3.0 if kind == "hang" else 60.0)
    monkeypatch.setattr(trials, "PEAK", 1 << 10)
    assert Reader("drq", tmp_path, read).try_case(0)[1].kind == kind


def test_a_change_that_checksums_must_notice_is_a_failure(tmp_path: Path) -> None:
    reader, changed = Reader("drq", tmp_path), Outcome("changed", "frames")
    assert reader.judge(Mutant("0.npz", "flip", True), changed).kind == "unnoticed"
    assert reader.judge(Mutant("0.npz", "npz_array", True), changed).kind == "changed"


def test_differences_are_named() -> None:
    one = {"words": (2, "push"), "numbers": ["a"], "frames": ["b"]}
    assert difference([one], [one]) == ""
    assert difference([one], [one, one]) == "episodes"
    assert difference([one | {"frames": ["c"], "numbers": ["c"]}], [one]) == "frames"
    assert difference([one | {"numbers": ["c"]}], [one]) == "numbers"
    assert difference([one | {"words": (2, "pull")}], [one]) == "words"
