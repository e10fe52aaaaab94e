from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from counterpoint.cli.data.doctor import examine
from counterpoint.cli.data.info import info
from counterpoint.cli.data.manifest import write_manifest
from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset
from counterpoint.formats.video import encode_video, has_uneven_rate, read_frames
from counterpoint.formats.video_folder import FrameFolderStore, TaskFolderStore, VideoFolderStore
from tests.data.reading import read_episode
from tests.formats.made import smooth_frames, write_frames, write_tasks, write_variable_rate, write_videos

WIDOWX = Path(__file__).resolve().parents[3] / ".." / "shared" / "data" / "widowx"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_videos(tmp_path / "data")


def manifest(folder: Path, text: str) -> Path:
    (folder / "manifest.csv").write_text(text)
    return folder


def test_reads_whole_videos(folder: Path) -> None:
    store = VideoFolderStore(folder)
    assert isinstance(store, EpisodeStore)
    assert [(e.length, e.instruction, e.fps) for e in store.episodes] == [(12, "task 0", 10), (12, "task 1", 10)]
    episode = read_episode(store, 1)
    assert episode.actions is None
    np.testing.assert_allclose(episode.timestamps, np.arange(12) / 10)
    expected = smooth_frames(12, 32, 48, seed=1).astype(float)
    assert np.abs(episode.frames["camera"] - expected).mean() < 6
    assert store.frames(0, np.array([11, 0, 11])).shape == (3, 32, 48, 3)


def test_segments_of_one_video(folder: Path) -> None:
    manifest(
        folder,
        "video,instruction,start,end\nvideos/0.mp4,first,,0.5\nvideos/0.mp4,second,0.5,1.2\nvideos/0.mp4,all,,\n",
    )
    store = VideoFolderStore(folder)
    assert [(e.instruction, e.length) for e in store.episodes] == [("first", 5), ("second", 7), ("all", 12)]
    whole = store.frames(2, np.arange(12))
    np.testing.assert_array_equal(store.frames(0, np.arange(5)), whole[:5])
    np.testing.assert_array_equal(store.frames(1, np.arange(7)), whole[5:])
    assert store.timestamps(1)[0] == 0


def test_segments_of_a_variable_frame_rate_follow_presentation_times(tmp_path: Path) -> None:
    times = write_variable_rate(tmp_path / "phone.mp4")
    manifest(
        tmp_path,
        "video,instruction,start,end\nphone.mp4,slow,1.0,\nphone.mp4,fast,,1\nphone.mp4,both,0.9,1.5\nphone.mp4,end,2,3\n",
    )
    store = VideoFolderStore(tmp_path)
    assert [info.length for info in store.episodes] == [10, 30, 6, 5]
    whole = read_frames(tmp_path / "phone.mp4", range(40))
    np.testing.assert_array_equal(store.frames(0, np.arange(10)), whole[30:])
    np.testing.assert_array_equal(store.frames(2, np.arange(6)), whole[27:33])
    np.testing.assert_allclose(store.timestamps(2), times[27:33] - times[27], atol=1e-4)
    np.testing.assert_allclose([info.fps for info in store.episodes], [5, 30, 6 / 0.7, 5], rtol=0.02)
    manifest(tmp_path, "video,instruction,start,end\nphone.mp4,late,2,3.3\n")
    with pytest.raises(BadInputError, match="the video's end"):
        VideoFolderStore(tmp_path)


@pytest.mark.slow
def test_doctor_finds_a_variable_frame_rate(tmp_path: Path) -> None:
    write_variable_rate(tmp_path / "phone.mp4")
    (finding,) = examine(manifest(tmp_path, "video,instruction\nphone.mp4,open\n"))
    assert "variable frame rate" in finding.found
    assert finding.where.endswith("phone.mp4")


def test_json_lines_and_a_manifest_named_itself(folder: Path) -> None:
    rows = [{"video": "videos/0.mp4", "instruction": 'a, "quoted" task', "start": 0.25, "end": None}]
    (folder / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    (info,) = VideoFolderStore(folder / "rows.jsonl").episodes
    assert (info.instruction, info.length) == ('a, "quoted" task', 9)


def test_fingerprint_follows_manifest_and_videos(folder: Path) -> None:
    before = VideoFolderStore(folder).fingerprint
    assert VideoFolderStore(folder).fingerprint == before
    os.utime(folder / "videos" / "0.mp4", ns=(1, 1))
    touched = VideoFolderStore(folder).fingerprint
    manifest(folder, "video,instruction\nvideos/0.mp4,other\nvideos/1.mp4,task 1\n")
    assert len({before, touched, VideoFolderStore(folder).fingerprint}) == 3


BAD_ROWS = {
    "videos/9.mp4,task": r"no file 'videos/9.mp4'",
    "../data/videos/0.mp4,task": "leaves the folder",
    "/etc/passwd,task": "an absolute path",
    "videos/0.MP4,task": "name it 'videos/0.mp4'",
    "videos/0,task": "name it 'videos/0.mp4'",
    "# the rest is of Monday": "remove comments",
    "link.mp4,task": "leaves the folder",
    "loop.mp4,task": "loop.mp4",
    "vid\0eo.mp4,task": "video",
    f"{'x' * 5000}.mp4,task": "video",
    ",task": "nothing in column 'video'",
    "videos/1.mp4,": "nothing in column 'instruction'",
    "videos/1.mp4,   ": "instruction",
    "videos/1.mp4": "1 fields; expected 2",
    "videos/1.mp4,put it down, slowly": "3 fields; expected 2",
    'videos/1.mp4,"unclosed': "comma-separated",
    "notes.txt,task": "notes.txt",
    "truncated.mp4,task": "truncated.mp4",
    "headless.mp4,task": "headless.mp4",
}


@pytest.mark.parametrize("row", BAD_ROWS, ids=lambda row: row[:20].replace("\0", "0"))
def test_bad_row_is_named(folder: Path, row: str) -> None:
    whole = (folder / "videos" / "0.mp4").read_bytes()
    (folder / "truncated.mp4").write_bytes(whole[: len(whole) // 2])
    (folder / "headless.mp4").write_bytes(whole[: whole.rindex(b"moov") - 4])
    (folder / "notes.txt").write_text("no video")
    shutil.copy(folder / "videos" / "0.mp4", folder.parent / "outside.mp4")
    (folder / "link.mp4").symlink_to(folder.parent / "outside.mp4")
    (folder / "loop.mp4").symlink_to(folder / "loop.mp4")
    manifest(folder, f"video,instruction\nvideos/0.mp4,good\n{row}\n")
    with pytest.raises(BadInputError, match=BAD_ROWS[row]) as caught:
        VideoFolderStore(folder)
    assert f"{folder / 'manifest.csv'}, row 3" in caught.value.where
    assert caught.value.expected
    assert caught.value.hint


@pytest.mark.parametrize(
    ("start", "end"),
    [("0.5", "0.5"), ("0.8", "0.2"), ("0", "1.31"), ("1.2", ""), ("-1", ""), ("soon", ""), ("", "inf")],
)
def test_bad_times_are_named(folder: Path, start: str, end: str) -> None:
    manifest(folder, f"video,instruction,start,end\nvideos/0.mp4,task,{start},{end}\n")
    with pytest.raises(BadInputError, match="row 2"):
        VideoFolderStore(folder)


@pytest.mark.parametrize(
    "value", [5, None, True, ["open"], "", " "], ids=["number", "null", "truth", "list", "empty", "blank"]
)
def test_instruction_in_json_must_be_text(folder: Path, value: object) -> None:
    (folder / "rows.jsonl").write_text(json.dumps({"video": "videos/0.mp4", "instruction": value}))
    with pytest.raises(BadInputError, match=r"row 1.*instruction"):
        VideoFolderStore(folder / "rows.jsonl")


@pytest.mark.parametrize("line", ["{", "[1]", "3", '{"video": "videos/0.mp4"}', "[" * 100_000])
def test_json_row_must_be_an_object_with_both_keys(folder: Path, line: str) -> None:
    (folder / "rows.jsonl").write_text(line)
    with pytest.raises(BadInputError, match="row 1"):
        VideoFolderStore(folder / "rows.jsonl")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "columns"),
        (b"video,instruction\n", "no rows"),
        (b"path,text\nvideos/0.mp4,task\n", "column 'video'"),
        (b"video,video,instruction\na,b,c\n", "column 'video', once"),
        (b"video,instruction\nvideos/0.mp4,caf\xe9\n", r"row 2.*UTF-8"),
    ],
)
def test_bad_manifest(folder: Path, data: bytes, message: str) -> None:
    (folder / "manifest.csv").write_bytes(data)
    with pytest.raises(BadInputError, match=message):
        VideoFolderStore(folder)


def test_no_manifest_or_two(folder: Path) -> None:
    (folder / "manifest.jsonl").write_text("{}")
    with pytest.raises(BadInputError, match="both"):
        VideoFolderStore(folder)
    with pytest.raises(BadInputError, match="no manifest"):
        VideoFolderStore(folder / "videos")


def test_byte_order_mark_and_quotes_of_a_spreadsheet(folder: Path) -> None:
    (folder / "manifest.csv").write_bytes('\ufeffvideo,instruction\r\nvideos/0.mp4,"first, then ""that"""\r\n'.encode())
    assert VideoFolderStore(folder).episodes[0].instruction == 'first, then "that"'


def test_paths_as_windows_writes_them(folder: Path) -> None:
    manifest(folder, "video,instruction\nvideos\\0.mp4,open\n")
    assert [file.name for file in VideoFolderStore(folder).files] == ["0.mp4"]
    (folder / "videos\\0.mp4").write_bytes((folder / "videos" / "1.mp4").read_bytes())  # a name of its own elsewhere
    assert [file.name for file in VideoFolderStore(folder).files] == ["videos\\0.mp4"]
    for row, message in (("..\\data\\videos\\0.mp4", "leaves the folder"), ("C:\\videos\\0.mp4", "no file 'C:/videos")):
        with pytest.raises(BadInputError, match=message):
            VideoFolderStore(manifest(folder, f"video,instruction\n{row},open\n"))


def test_a_missing_column_names_the_command_that_writes_a_manifest(folder: Path) -> None:
    with pytest.raises(BadInputError, match=r"counterpoint data manifest .* --columns video=NAME instruction=NAME"):
        VideoFolderStore(manifest(folder, "FILE,TASK\nvideos/0.mp4,open\n"))


# Folders of frames


def test_a_folder_of_frames_in_a_manifest(tmp_path: Path) -> None:
    images = write_frames(tmp_path / "run", count=12)  # frame_10 comes after frame_9
    manifest(tmp_path, "video,instruction,start,end,fps\nrun,open,,,\nrun,half,0.2,0.4,20\n")
    store = VideoFolderStore(tmp_path)
    assert [(e.length, e.instruction, e.fps) for e in store.episodes] == [(12, "open", 10), (4, "half", 20)]
    assert not store.rate_recorded
    np.testing.assert_array_equal(store.frames(0, np.arange(12)), images)
    np.testing.assert_array_equal(store.frames(1, np.arange(4)), images[4:8])
    np.testing.assert_allclose(store.timestamps(1), np.arange(4) / 20)
    before = store.fingerprint
    os.utime(tmp_path / "run" / "frame_5.png", ns=(1, 1))
    assert VideoFolderStore(tmp_path).fingerprint != before
    assert VideoFolderStore(manifest(tmp_path, "video,instruction,fps\nrun,open,15\n")).rate_recorded


def test_frames_alone_are_one_episode_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = [write_frames(tmp_path / f"run{number}", count=3 + number, seed=number) for number in range(2)]
    (tmp_path / "run0" / ".DS_Store").write_text("litter")
    (tmp_path / "run0" / "Thumbs.db").write_text("litter")
    (tmp_path / "__MACOSX").mkdir()
    store = open_dataset(tmp_path)
    assert isinstance(store, FrameFolderStore)
    assert [(e.length, e.instruction, e.fps) for e in store.episodes] == [(3, "", 10), (4, "", 10)]
    np.testing.assert_array_equal(store.frames(1, np.arange(4)), images[1])
    np.testing.assert_array_equal(open_dataset(tmp_path / "run0").frames(0, np.array([2])), images[0][2:])
    info(tmp_path)
    said = " ".join(capsys.readouterr().out.split())
    assert "10 (assumed: the data do not say)" in said
    assert "none: folders of frames have no words" in said


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ("frame_01.png", "two names have the same number"),
        ("frame_9.jpg", "'frame_9.jpg' is beside frame_NUMBER.png"),
        ("depth_9.png", "'depth_9.png' is beside frame_NUMBER.png"),
        ("notes.txt", "'notes.txt' is beside frame_NUMBER.png"),
        ("sub/frame_9.png", "'sub' is beside frame_NUMBER.png"),
    ],
)
def test_only_frames_of_one_name_are_an_episode(other: str, why: str, tmp_path: Path) -> None:
    write_frames(tmp_path / "run", count=3)
    (tmp_path / "run" / other).parent.mkdir(exist_ok=True)
    (tmp_path / "run" / other).write_bytes((tmp_path / "run" / "frame_1.png").read_bytes())
    with pytest.raises(BadInputError, match=f"known format.*must hold only .png or only .jpg images.*{why}"):
        open_dataset(tmp_path / "run")
    with pytest.raises(BadInputError, match=rf"row 2, .*run: found {why}.*numbered images alone"):
        VideoFolderStore(manifest(tmp_path, "video,instruction\nrun,open\n"))


def test_frames_of_16_bits_are_refused(tmp_path: Path) -> None:
    write_frames(tmp_path / "run", count=3)
    Image.fromarray(np.full((20, 20), 300, np.uint16)).save(tmp_path / "run" / "frame_1.png")
    with pytest.raises(BadInputError, match=r"frame_1\.png: found an image with 16 bits.*leave depth images out"):
        open_dataset(tmp_path).frames(0, np.arange(3))


def test_frames_that_leave_the_folder_or_differ_in_size_are_refused(tmp_path: Path) -> None:
    write_frames(tmp_path / "outside")
    write_frames(tmp_path / "data" / "run", count=3)
    Image.new("RGB", (20, 20)).save(tmp_path / "data" / "run" / "frame_2.png")
    manifest(tmp_path / "data", "video,instruction\nrun,open\n")
    with pytest.raises(BadInputError, match=r"frame_2\.png: found images of several sizes"):
        VideoFolderStore(tmp_path / "data").frames(0, np.arange(3))
    (tmp_path / "data" / "run" / "frame_4.png").symlink_to(tmp_path / "outside" / "frame_4.png")
    for path in (tmp_path / "data", tmp_path / "data" / "run"):
        with pytest.raises(BadInputError, match="link that leaves the folder"):
            open_dataset(path)


def test_doctor_finds_missing_frames_and_a_rate_that_a_video_does_not_have(tmp_path: Path) -> None:
    write_frames(tmp_path / "sparse", step=5)
    write_frames(tmp_path / "run")
    (tmp_path / "run" / "frame_3.png").unlink()
    encode_video(tmp_path / "a.mp4", smooth_frames(5, 32, 48), 10)
    manifest(tmp_path, "video,instruction,fps\nsparse,open,\nrun,open,\na.mp4,open,30\n")
    gap, rate = VideoFolderStore(tmp_path).findings()
    assert (gap.found, gap.expected) == ("frames 2 and 4 in a row, and 1 gaps in all", "numbers that differ by 1")
    assert (rate.found, rate.expected) == ("10 frames a second", "30, as fps says")


# Folders of videos by task


def test_folders_of_videos_are_named_by_their_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_dataset(write_tasks(tmp_path))
    assert isinstance(store, TaskFolderStore)
    found = [(e.instruction, e.length, file.name) for e, file in zip(store.episodes, store.files, strict=True)]
    words = ["close the drawer", "open the drawer", "open the drawer"]
    assert found == list(zip(words, [5, 5, 5], ["a.mp4", "a.mp4", "b.mkv"], strict=True))
    assert np.abs(store.frames(2, np.arange(5)) - smooth_frames(5, 32, 48, seed=2).astype(float)).mean() < 7
    info(tmp_path)
    said = " ".join(capsys.readouterr().out.split())
    assert "videos in a folder per task" in said
    assert "the names of the folders, with spaces for underscores" in said


@pytest.mark.parametrize("name", ["train", "Videos", "0001", "episode_0", "failure", "left wrist"])
def test_a_folder_that_names_no_task_is_refused_or_left_out(name: str, tmp_path: Path) -> None:
    (write_tasks(tmp_path) / "close the drawer").rename(tmp_path / name)
    with pytest.raises(BadInputError, match=rf"{name}: found a folder '{name}' of videos.*rename the folder"):
        open_dataset(tmp_path)
    told: list[BadInputError] = []
    assert len(open_dataset(tmp_path, on_bad_row=told.append).episodes) == 2
    assert len(told) == 1


@pytest.mark.parametrize("other", ["README.md", "close the drawer/notes.txt", "more/a.png", "more/deep/a.mp4"])
def test_folders_that_hold_anything_else_are_not_taken_for_tasks(other: str, tmp_path: Path) -> None:
    (write_tasks(tmp_path) / other).parent.mkdir(exist_ok=True, parents=True)
    (tmp_path / other).write_text("else")
    with pytest.raises(BadInputError, match="known format"):
        open_dataset(tmp_path)


def advice(path: Path) -> str:
    with pytest.raises(BadInputError) as caught:
        open_dataset(path)
    return caught.value.hint


def test_unrecognised_videos_are_named_with_what_makes_them_readable(tmp_path: Path) -> None:
    nested = tmp_path / "nested"
    write_tasks(nested / "kitchen")
    (nested / "kitchen/open_the_drawer/a.mp4").rename(nested / "kitchen/open_the_drawer/a.m4v")
    row = "kitchen/close the drawer/a.mp4"
    assert f"write {nested / 'manifest.csv'} with the columns video,instruction, and a row for {row}" in advice(nested)
    manifest(nested, f"video,instruction\n{row},close\nkitchen/open_the_drawer/a.m4v,open\n")
    assert [info.length for info in open_dataset(nested).episodes] == [5, 5]


def test_the_table_of_unrecognised_videos_is_named(tmp_path: Path) -> None:
    encode_video(tmp_path / "a.mp4", smooth_frames(5, 32, 48), 10)
    (tmp_path / "labels.csv").write_text("FILE,TASK\na.mp4,open\n")
    table, out = tmp_path / "labels.csv", tmp_path / "manifest.csv"
    command = f"counterpoint data manifest {table} {out} --columns video=NAME instruction=NAME"
    assert advice(tmp_path) == command
    write_manifest(table, out, columns=["video=FILE", "instruction=TASK"])
    assert open_dataset(tmp_path).episodes[0].instruction == "open"
    (tmp_path / "manifest.csv").unlink()
    (tmp_path / "labels.csv").rename(tmp_path / "clips.xlsx")
    assert advice(tmp_path).startswith("save clips.xlsx as CSV")


def test_unrecognised_frames_are_named_with_what_makes_them_readable(tmp_path: Path) -> None:
    write_frames(tmp_path / "task" / "run", count=3)
    assert "a row for each folder, such as task/run" in advice(tmp_path)
    manifest(tmp_path, "video,instruction\ntask/run,open\n")
    assert open_dataset(tmp_path).episodes[0].length == 3


def test_columns_of_a_manifest_that_are_not_read_are_named(folder: Path) -> None:
    manifest(folder, "video,instruction,start_frame,\nvideos/0.mp4,task,5,\n")
    assert VideoFolderStore(folder).unread == ("start_frame",)
    manifest(folder, "video,instruction,Start\nvideos/0.mp4,task,0.2\n")
    with pytest.raises(BadInputError, match=r"a column 'Start'; expected 'start'.*--columns start=Start"):
        VideoFolderStore(folder)


def test_doctor_finds_frames_that_two_rows_name(folder: Path) -> None:
    manifest(folder, "video,instruction,end\nvideos/0.mp4,open,\nvideos/0.mp4,open,0.5\nvideos/0.mp4,close,\n")
    (finding,) = VideoFolderStore(folder).findings()
    assert finding.found == "the same frames twice, as 'open' and as 'close'"


def test_accents_are_read_in_the_form_of_the_file_system(folder: Path) -> None:
    (folder / "videos" / "0.mp4").rename(folder / "videos" / "Tu\u0308r.mp4")
    store = VideoFolderStore(manifest(folder, "video,instruction\nvideos/T\u00fcr.mp4,open\n"))
    assert store.episodes[0].instruction == "open"


def test_a_json_list_is_turned_into_lines_by_the_command_of_the_hint(folder: Path) -> None:
    (folder / "rows.jsonl").write_text(json.dumps([{"video": "videos/0.mp4", "instruction": "open"}], indent=1))
    with pytest.raises(BadInputError, match="a JSON list; expected JSON lines") as caught:
        VideoFolderStore(folder / "rows.jsonl")
    command = caught.value.hint.replace("python", sys.executable, 1)
    subprocess.run(command, shell=True, check=True, cwd=folder)
    assert VideoFolderStore(folder / "lines.jsonl").episodes[0].instruction == "open"


def test_unknown_camera(folder: Path) -> None:
    with pytest.raises(BadInputError, match="'top'"):
        VideoFolderStore(folder).frames(0, np.array([0]), "top")


@pytest.mark.skipif(not WIDOWX.is_dir(), reason="needs ../shared/data/widowx")
def test_real_rollouts_of_a_robot() -> None:
    store = VideoFolderStore(WIDOWX)
    assert len(store.episodes) == 18
    assert len({info.instruction for info in store.episodes}) == 9
    assert not any(map(has_uneven_rate, store.files))  # two videos have one short interval
    for number, episode in enumerate(store.episodes):
        assert 19 <= episode.length <= 80
        assert 3.3 <= episode.fps <= 3.5
        assert store.frames(number, np.array([0, episode.length - 1])).shape == (2, 480, 640, 3)
