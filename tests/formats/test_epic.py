from __future__ import annotations

import io
import os
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from counterpoint.cli.data.doctor import examine
from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError
from counterpoint.formats.epic import EpicKitchensStore
from tests.data.reading import read_episode
from tests.formats.made import EPIC_HEADER, epic_row, smooth_frames, write_epic

SAMPLE = Path(__file__).resolve().parents[3] / ".." / "shared" / "data" / "epic_kitchens_sample"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_epic(tmp_path / "epic")


def open_root(root: Path, *, strict: bool = False) -> EpicKitchensStore:
    return EpicKitchensStore(root / "EPIC_100_train.csv", root, strict=strict)


def annotate(root: Path, *rows: str) -> Path:
    (root / "EPIC_100_train.csv").write_text(EPIC_HEADER + "".join(rows))
    return root


def test_opens_segments_whose_frames_are_there(root: Path) -> None:
    store = open_root(root)
    assert isinstance(store, EpisodeStore)
    assert [(e.instruction, e.length) for e in store.episodes] == [
        ("open door", 4),
        ("take plate", 4),
        ("open door", 8),
    ]
    assert [e.fps for e in store.episodes] == pytest.approx([50, 50, 59.94], abs=1e-3)
    assert store.skipped == ("P03_01_0",)
    assert store.cameras == ("rgb",)


def test_stop_frame_belongs_to_the_segment(root: Path) -> None:
    store, images = open_root(root), smooth_frames(8, 24, 32).astype(float)
    episode = read_episode(store, 0)  # frames 3 to 6 of P01_01; frame 1 is images[0]
    assert np.abs(episode.frames["rgb"] - images[2:6]).mean() < 6
    np.testing.assert_allclose(episode.timestamps, np.arange(4) / 50)


def test_tar_and_folder_give_the_same_frames(root: Path) -> None:
    store = open_root(root)
    np.testing.assert_array_equal(store.frames(2, np.arange(2, 6)), store.frames(0, np.arange(4)))
    np.testing.assert_array_equal(store.frames(2, np.array([7, 4])), store.frames(1, np.array([3, 0])))


def test_strict_names_the_missing_frames(root: Path) -> None:
    with pytest.raises(BadInputError, match=r"row 5: found 0 of 4 frames of P03_01"):
        open_root(root, strict=True)


def test_segment_with_a_gap_is_skipped(root: Path) -> None:
    (root / "P01" / "rgb_frames" / "P01_01" / "frame_0000000007.jpg").unlink()
    store = open_root(root)
    assert len(store.episodes) == 2
    assert store.skipped == ("P01_01_1", "P03_01_0")


def test_several_annotation_files(root: Path) -> None:
    (root / "EPIC_100_validation.csv").write_text(EPIC_HEADER + epic_row("P01_01", 7, 1, 2, "close door"))
    store = EpicKitchensStore([root / "EPIC_100_train.csv", root / "EPIC_100_validation.csv"], root)
    assert [info.instruction for info in store.episodes][-1] == "close door"


def test_nothing_there_says_where_frames_belong(root: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="PXX/rgb_frames"):
        EpicKitchensStore(root / "EPIC_100_train.csv", tmp_path)


def test_fingerprint_follows_the_frames_used(root: Path) -> None:
    before = open_root(root).fingerprint
    os.utime(root / "P01" / "rgb_frames" / "P01_01" / "frame_0000000001.jpg", ns=(1, 1))  # in no segment
    assert open_root(root).fingerprint == before
    os.utime(root / "P01" / "rgb_frames" / "P01_01" / "frame_0000000003.jpg", ns=(1, 1))
    folder_touched = open_root(root).fingerprint
    os.utime(root / "P02" / "rgb_frames" / "P02_03.tar", ns=(1, 1))
    assert len({before, folder_touched, open_root(root).fingerprint}) == 3


def test_doctor_compares_the_table_of_rates_with_frames_and_narrations(root: Path) -> None:
    assert examine(root) == []
    info = root / "EPIC_100_video_info.csv"
    info.write_text(info.read_text().replace("59.9400599400599", "29.97"))
    (finding,) = examine(root)
    assert finding.where == f"{info}, P02_03"
    assert re.search(r"stop_frame 8 at 0\.13 s .*row 4.* and 8 frames in 0\.13 s: 6\d\.\d frames a sec", finding.found)
    assert finding.expected == "29.97, as fps says"
    annotate(root, epic_row("P01_01", 0, 3, 6, "open door", 25))  # frames were extracted at 50
    (finding,) = examine(root)
    assert "stop_frame 6 at 0.24 s" in finding.found
    assert "frames in" not in finding.found
    info.write_text("video_id,fps\nP01_01,25\n")
    assert examine(root) == []


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (epic_row("P01_01", 0, 6, 3, "open door"), "start_frame"),
        (epic_row("P01_01", 0, 3, 6, ""), "narration"),
        (epic_row("P01_01", 0, 3, 6, "open door").replace(",3,", ",three,"), "start_frame = 'three'"),
        (epic_row("P01_01", 0, 3, 6, "open door").replace(",3,", ",-3,"), "start_frame"),
        (epic_row("P01_01", 0, 3, 6, "open door").replace(",P01_01,", ",P02_01,"), "participant 'P01'"),
        (epic_row("P01_01", 0, 3, 6, "open door").replace("P01", "../"), "video_id"),
        ("P01_01_0,P01,P01_01\n", "3 fields"),
    ],
)
def test_bad_row_is_named(root: Path, row: str, message: str) -> None:
    annotate(root, epic_row("P01_01", 0, 3, 6, "open door"), row)
    with pytest.raises(BadInputError, match=rf"EPIC_100_train.csv, row 3: .*{message}"):
        open_root(root)


def test_frame_rates_are_needed(root: Path) -> None:
    info = root / "EPIC_100_video_info.csv"
    info.write_text("video_id,fps\nP02_03,50\n")
    with pytest.raises(BadInputError, match=r"row 2.*'P01_01'.*EPIC_100_video_info.csv"):
        open_root(root)
    info.write_text("video_id,fps\nP01_01,0\n")
    with pytest.raises(BadInputError, match="fps"):
        open_root(root)
    info.unlink()
    with pytest.raises(BadInputError, match=r"EPIC_100_video_info.csv"):
        open_root(root)


def test_damaged_frame_is_named(root: Path) -> None:
    frame = root / "P01" / "rgb_frames" / "P01_01" / "frame_0000000004.jpg"
    whole = frame.read_bytes()
    for damaged in (b"", b"no image", whole[: len(whole) // 2]):
        frame.write_bytes(damaged)
        with pytest.raises(BadInputError, match=r"frame_0000000004.jpg"):
            open_root(root).frames(0, np.arange(4))
    store = open_root(root)
    frame.unlink()
    with pytest.raises(BadInputError, match=r"frame_0000000004.jpg"):
        store.frames(0, np.arange(4))


def test_frames_of_other_size_are_named(root: Path) -> None:
    data = io.BytesIO()
    Image.new("RGB", (8, 8)).save(data, "JPEG")
    (root / "P01" / "rgb_frames" / "P01_01" / "frame_0000000004.jpg").write_bytes(data.getvalue())
    with pytest.raises(BadInputError, match=r"frame_0000000004.jpg: found images of several sizes: \(8, 8, 3\)"):
        open_root(root).frames(0, np.arange(4))


def test_damaged_tar_is_named(root: Path) -> None:
    tar = root / "P02" / "rgb_frames" / "P02_03.tar"
    tar.write_bytes(b"no tar at all" * 100)
    with pytest.raises(BadInputError, match=r"P02_03.tar"):
        open_root(root)


def test_links_inside_a_tar_are_no_frames(root: Path) -> None:
    with tarfile.open(root / "P02" / "rgb_frames" / "P02_03.tar", "w") as tar:
        for number in range(1, 9):
            member = tarfile.TarInfo(f"frame_{number:010d}.jpg")
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(member)
    assert "P02_03_0" in open_root(root).skipped


@pytest.mark.skipif(not SAMPLE.is_dir(), reason="needs ../shared/data/epic_kitchens_sample")
@pytest.mark.parametrize("as_tar", [False, True])
def test_real_sample_in_the_official_layout(tmp_path: Path, as_tar: bool) -> None:
    frames = sorted((SAMPLE / "frames").glob("frame_*.jpg"))
    folder = tmp_path / "P01" / "rgb_frames" / "P01_14"
    folder.mkdir(parents=True)
    for frame in frames:
        (folder / frame.name).symlink_to(frame.resolve())
    if as_tar:
        with tarfile.open(folder.with_suffix(".tar"), "w", dereference=True) as tar:
            tar.add(folder, arcname=".")
        folder.rename(tmp_path / "elsewhere")
    (tmp_path / "EPIC_100_train.csv").write_text(
        EPIC_HEADER + epic_row("P01_14", 0, 33545, 33601, "open microwave") + epic_row("P01_14", 1, 1, 9, "walk")
    )
    store = EpicKitchensStore(
        tmp_path / "EPIC_100_train.csv", tmp_path, video_info_csv=SAMPLE / "EPIC_100_video_info.csv"
    )
    (info,) = store.episodes
    assert (info.length, info.instruction) == (57, "open microwave")
    assert info.fps == pytest.approx(59.94, abs=0.01)
    np.testing.assert_array_equal(store.frames(0, np.array([56]))[0], np.asarray(Image.open(frames[56])))
    assert read_episode(store, 0).frames["rgb"].shape == (57, 256, 456, 3)


@pytest.mark.skipif(not SAMPLE.is_dir(), reason="needs ../shared/data/epic_kitchens_sample")
def test_every_official_row_is_understood(tmp_path: Path) -> None:
    # None of the 9,668 segments has its frames here: reading all of them ends in the message that says so.
    with pytest.raises(BadInputError, match="none of 9668 segments"):
        EpicKitchensStore(SAMPLE / "EPIC_100_validation.csv", tmp_path)
