from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from counterpoint.cli.data.doctor import _batches, _decode_all, doctor, examine, examine_lerobot
from counterpoint.data.cache import cached
from counterpoint.data.episode import Array
from counterpoint.data.store import MemoryStore
from counterpoint.errors import BadInputError
from counterpoint.formats.video import encode_video
from tests.formats.made import memory_store, smooth_frames, write_epic, write_lerobot, write_lerobot_v21, write_videos

Edit = Callable[[Any], Any]
DATA, EPISODES = "data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet"
VIDEO = "videos/observation.images.top/chunk-000/file-000.mp4"


def lerobot(folder: Path) -> Path:
    return write_lerobot(folder / "data", splits={"train": "0:2", "val": "2:3"})


@pytest.mark.parametrize(
    "make",
    [lerobot, *(pytest.param(make, marks=pytest.mark.slow) for make in (write_lerobot_v21, write_videos, write_epic))],
)
def test_whole_data_has_no_findings(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    assert examine(make(tmp_path)) == []


def break_image(path: Path) -> None:
    """Overwrite the coded images of an mp4 and leave its tables."""
    data = bytearray(path.read_bytes())
    start = data.index(b"mdat") + 1000
    data[start : start + 400] = bytes(400)
    path.write_bytes(data)


@pytest.mark.slow
def test_images_that_cannot_be_decoded(tmp_path: Path) -> None:
    folder = write_videos(tmp_path, count=3)
    break_image(folder / "videos" / "1.mp4")
    (finding,) = examine(folder)
    assert "1.mp4" in finding.where
    assert "episode 1" in finding.where


def test_a_recording_that_shows_nothing(tmp_path: Path) -> None:
    folder = write_videos(tmp_path, count=2)
    black = np.zeros((20, 48, 64, 3), np.uint8)
    encode_video(folder / "videos" / "1.mp4", black, fps=10)
    (finding,) = examine(folder)
    assert finding.where == f"{folder}, camera, episode 1"
    assert finding.found == "images without any difference between pixels"


def test_every_bad_row_of_a_manifest(tmp_path: Path) -> None:
    folder = write_videos(tmp_path)
    with (folder / "manifest.csv").open("a") as manifest:
        manifest.write("videos/9.mp4,nowhere\nvideos/0.mp4,\n")
    assert [finding.where.rpartition(", ")[2] for finding in examine(folder)] == ["row 4", "row 5"]


@pytest.mark.slow
def test_every_damaged_epic_frame_and_row(tmp_path: Path) -> None:
    root = write_epic(tmp_path)
    (root / "P01/rgb_frames/P01_01/frame_0000000003.jpg").write_bytes(b"no image")
    with (root / "EPIC_100_train.csv").open("a") as table:
        table.write("P01_01_9,P01,P01_01\n")
    row, frame = examine(root)
    assert "row 6" in row.where
    assert "frame_0000000003.jpg, episode 0" in frame.where


def test_training_store_tells_each_damaged_episode(tmp_path: Path) -> None:
    folder = cached(memory_store(), size=16, root=tmp_path, progress=False).path
    assert examine(folder) == []
    data = bytearray((folder / "frames-1.bin").read_bytes())
    data[0] ^= 1
    data[-1] ^= 1
    (folder / "frames-1.bin").write_bytes(data)
    assert [finding.found.rpartition(" of ")[2] for finding in examine(folder)] == ["episode 0", "episode 2"]
    (folder / "store.json").unlink()
    with pytest.raises(BadInputError):
        examine(folder)


class CrashingStore(MemoryStore):
    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        if episode == 1:
            os.abort()
        return super().frames(episode, indices, camera)


@pytest.mark.slow
def test_a_decoder_that_dies_is_pinned_to_its_episode(tmp_path: Path) -> None:
    store = CrashingStore(memory_store(lengths=(3, 3), size=(8, 8), cameras=("top",))._episodes)
    (finding,) = _decode_all(tmp_path, store)
    assert finding.where == f"{tmp_path}, episode 1"
    assert "crash" in finding.found


def test_batches_cover_every_episode_once() -> None:
    lengths = np.random.default_rng(0).integers(1, 900, 50).tolist()
    batches = _batches(lengths)
    assert [episode for first, stop in batches for episode in range(first, stop)] == list(range(50))
    assert _batches([5000]) == [(0, 1)]


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="LeRobot"):
        examine(tmp_path)


def remove(path: Path) -> None:
    path.write_bytes(b"")


def edit_json(path: Path, edit: Edit) -> None:
    path.write_text(json.dumps(edit(json.loads(path.read_text()))))


def edit_column(path: Path, name: str, edit: Edit) -> None:
    """Change one column of a parquet file, given and taken back as a list of rows."""
    table = pq.read_table(path)
    place = table.column_names.index(name)
    column = pa.array(edit(table[name].to_pylist()), table[name].type)
    pq.write_table(table.set_column(place, name, column), path)


def setting(place: int, value: object) -> Edit:
    return lambda values: [*values[:place], value, *values[place + 1 :]]


HARM: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "a timestamp": (lambda r: edit_column(r / DATA, "timestamp", setting(2, 0.2005)), "episode 0", "steps of 1/10 s"),
    "a timestamp that is no number": (
        lambda r: edit_column(r / DATA, "timestamp", setting(2, float("nan"))),
        "episode 0",
        "steps of 1/10 s",
    ),
    "index": (lambda r: edit_column(r / DATA, "index", setting(7, 99)), "episode 1", "7"),
    "frame_index": (lambda r: edit_column(r / DATA, "frame_index", setting(6, 3)), "episode 1", "1"),
    "episode_index": (lambda r: edit_column(r / DATA, "episode_index", setting(14, 1)), "episode 2", "2"),
    "action": (
        lambda r: edit_column(r / DATA, "action", setting(5, [0.0, float("inf"), 0.0, 0.0])),
        "episode 1",
        "finite",
    ),
    "state": (
        lambda r: edit_column(r / DATA, "observation.state", setting(5, [float("nan")] * 3)),
        "episode 1",
        "finite",
    ),
    "stats.json": (
        lambda r: edit_json(r / "meta/stats.json", lambda s: s | {"action": {"mean": [0, float("nan")]}}),
        "meta/stats.json",
        "finite",
    ),
    "statistics of an episode": (
        lambda r: edit_column(r / EPISODES, "stats/action/mean", setting(1, [float("inf")] * 4)),
        "stats/action/mean",
        "finite",
    ),
    "instruction": (lambda r: edit_column(r / EPISODES, "tasks", setting(1, [" "])), "meta", "a task in words"),
    "zero width": (lambda r: edit_column(r / EPISODES, "tasks", setting(1, ["\u200b"])), "meta", "a task in words"),
    "placeholder": (lambda r: edit_column(r / EPISODES, "tasks", setting(1, ["N/A"])), "meta", "a task in words"),
    "split past the end": (
        lambda r: edit_json(r / "meta/info.json", lambda i: i | {"splits": {"train": "0:9"}}),
        "info.json",
        "b <= 3",
    ),
    "splits that overlap": (
        lambda r: edit_json(r / "meta/info.json", lambda i: i | {"splits": {"train": "0:3", "val": "2:3"}}),
        "info.json",
        "no episode in two splits",
    ),
    "number of frames": (
        lambda r: edit_json(r / "meta/info.json", lambda i: i | {"total_frames": 16}),
        "info.json",
        "15",
    ),
    "number of tasks": (
        lambda r: edit_json(r / "meta/info.json", lambda i: i | {"total_tasks": 3}),
        "tasks.parquet",
        "3, as info.json says",
    ),
    "no list of tasks": (lambda r: remove(r / "meta/tasks.parquet"), "tasks.parquet", "parquet"),
    "a video too short": (
        lambda r: encode_video(r / VIDEO, smooth_frames(14, 24, 32), 10),
        VIDEO,
        "15, as many as its episodes have rows",
    ),
    "a video of another rate": (
        lambda r: encode_video(r / VIDEO, smooth_frames(15, 24, 32), 20),
        VIDEO,
        "10, as info.json says",
    ),
    "seconds that are not those of the rows": (
        lambda r: edit_column(r / EPISODES, "videos/observation.images.top/to_timestamp", setting(0, 0.9)),
        VIDEO,
        "0.500 s: 5 rows at 10 frames a second",
    ),
    "another rate": (
        lambda r: edit_column(r / DATA, "timestamp", lambda times: [time / 3 for time in times]),
        "episode 0",
        "10 frames a second",
    ),
    "a missing video": (lambda r: remove(r / VIDEO), VIDEO, "video"),
    "no metadata": (lambda r: remove(r / EPISODES), EPISODES, "parquet"),
}


@pytest.mark.parametrize("harm", HARM)
def test_finding_says_file_and_expectation(tmp_path: Path, harm: str) -> None:
    root = lerobot(tmp_path)
    do, where, expected = HARM[harm]
    do(root)
    findings = examine_lerobot(root)
    named = [finding for finding in findings if where in finding.where and expected in finding.expected]
    assert named, findings
    assert all(finding.found and finding.hint for finding in findings)


def test_all_findings_are_told_not_only_the_first(tmp_path: Path) -> None:
    root = lerobot(tmp_path)
    for harm in ("index", "action", "split past the end", "a timestamp"):
        HARM[harm][0](root)
    assert len({finding.where + finding.found for finding in examine_lerobot(root)}) >= 4


def test_v21_counters_and_statistics(tmp_path: Path) -> None:
    root = write_lerobot_v21(tmp_path)
    edit_column(root / "data/chunk-000/episode_000001.parquet", "index", setting(0, 0))
    stats = root / "meta/episodes_stats.jsonl"
    stats.write_text(stats.read_text().replace('"max": [0.4]', '"max": [NaN]'))
    (root / "meta/tasks.jsonl").write_text("{")
    found = " ".join(str(finding) for finding in examine_lerobot(root))
    for name in ("episode_000001.parquet", "episodes_stats.jsonl, line 1", "tasks.jsonl"):
        assert name in found


def test_reader_and_examination_tell_one_damage_once(tmp_path: Path) -> None:
    root = lerobot(tmp_path)
    (root / VIDEO).unlink()
    assert [finding.where for finding in examine(root)] == [str(root / VIDEO)]


def test_doctor_says_clean_and_ends_in_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(write_videos(tmp_path)) == 0
    assert "nothing wrong" in capsys.readouterr().out


def write_bad_row(folder: Path) -> Path:
    """Write videos, and a manifest whose last row names a file that is not there."""
    write_videos(folder)
    with (folder / "manifest.csv").open("a") as manifest:
        manifest.write("videos/9.mp4,nowhere\n")
    return folder


def test_doctor_tells_findings_and_ends_in_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    folder = write_bad_row(tmp_path)
    assert doctor(folder) == 2
    told = capsys.readouterr().out
    for word in ("1 finding", "manifest.csv, row 4", "no file 'videos/9.mp4'", "remove this row"):
        assert word in told


@pytest.mark.slow
def test_findings_cut_no_word_at_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    folder = write_bad_row(tmp_path)
    (finding,) = examine(folder)
    assert doctor(folder) == 2
    shown = capsys.readouterr().out
    for text in (finding.found, finding.expected, finding.hint):
        words = {word for word in text.split() if len(word) < 60}  # longer paths than a line do not fit in one
        assert words <= set(shown.split())
