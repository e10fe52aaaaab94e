from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from counterpoint.cli.data.convert import convert
from counterpoint.cli.data.doctor import examine
from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset, recognise, split_names
from counterpoint.formats.tar import indexed, members
from counterpoint.formats.video import encode_video
from counterpoint.formats.webdataset import WebDatasetStore
from tests.formats.made import memory_store, smooth_frames, write_variable_rate
from tests.formats.remote_made import add, write_shards


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def source() -> EpisodeStore:
    return memory_store(lengths=(5, 7, 3, 4, 6), cameras=("camera",))


def png(value: int, size: tuple[int, int] = (8, 6)) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", size, (value, 0, 0)).save(data, "PNG")
    return data.getvalue()


def shard(path: Path, **members: bytes | str) -> Path:
    """Write members whose names have `__` for dots."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            add(tar, name.replace("__", "."), data if isinstance(data, bytes) else data.encode())
    return path


def test_depth_and_members_that_are_not_read(tmp_path: Path) -> None:
    depth = np.random.default_rng(0).integers(0, 1 << 16, (2, 6, 8), dtype=np.uint16)
    deep = []
    for frame in depth:
        data = io.BytesIO()
        Image.fromarray(frame).save(data, "PNG")
        deep.append(data.getvalue())
    colours: dict[str, Any] = {
        "a__top__0__png": png(9),
        "a__top__1__png": png(10),
        "a__json": "{}",
        "a__ir__0__tiff": b"",
        "a__ir__1__tiff": b"",
    }
    path = shard(tmp_path / "set/clips-000000.tar", **colours, a__deep__0__png=deep[0], a__deep__1__png=deep[1])
    store = open_dataset(path.parent)
    assert isinstance(store, WebDatasetStore)
    assert (store.cameras, store.depth_cameras, store.unread) == (("top",), ("deep",), ("ir.tiff",))
    np.testing.assert_array_equal(store.depth(0, np.array([1, 0])), depth[::-1])
    with pytest.raises(BadInputError, match=r"--drop ir\.tiff"):
        convert(path.parent, tmp_path / "out")
    out = open_dataset(convert(path.parent, tmp_path / "out", drop=["ir.tiff"]))
    np.testing.assert_array_equal(out.depth(0, np.arange(2)), depth)
    mixed = shard(tmp_path / "mixed/clips-000000.tar", **colours, a__top__2__png=deep[0])
    with pytest.raises(BadInputError, match="an image with 16 bits a channel; expected 8 bits"):
        open_dataset(mixed.parent).frames(0, np.array([2]))


@pytest.mark.parametrize("cameras", [pytest.param(("camera",), marks=pytest.mark.slow), ("top", "wrist")])
def test_images_are_read_as_they_were_written(cameras: tuple[str, ...], tmp_path: Path) -> None:
    source = memory_store(lengths=(5, 7, 3, 4, 6), cameras=cameras)
    root = write_shards(tmp_path / "set", source, images=True)
    assert recognise(root).name == "webdataset"
    store = open_dataset(root)
    assert store.cameras == cameras
    assert [(info.length, info.instruction, info.fps) for info in store.episodes] == [
        (info.length, info.instruction, info.fps) for info in source.episodes
    ]
    for number, info in enumerate(source.episodes):
        for camera in cameras:
            steps = np.array([info.length - 1, 0, 1, 0])
            np.testing.assert_array_equal(store.frames(number, steps, camera), source.frames(number, steps, camera))
        np.testing.assert_array_equal(store.state(number), source.state(number))
        assert store.actions(number) is None
    assert examine(root) == []


def test_videos_are_read_by_their_place(source: EpisodeStore, tmp_path: Path) -> None:
    store = open_dataset(write_shards(tmp_path / "set", source))
    for number, info in enumerate(source.episodes):
        steps = np.arange(info.length)
        close = np.abs(store.frames(number, steps).astype(int) - source.frames(number, steps)).mean()
        assert close < 8
        np.testing.assert_array_equal(store.frames(number, steps[::-1]), store.frames(number, steps)[::-1])
    with pytest.raises(BadInputError, match="0001"):
        store.frames(1, np.array([7]))


def test_folders_are_splits(source: EpisodeStore, tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_shards(tmp_path / "set" / split, source)
    assert split_names(tmp_path / "set") == ("train", "val")
    assert len(open_dataset(tmp_path / "set").episodes) == 10
    assert len(open_dataset(tmp_path / "set", split="val").episodes) == 5
    assert len(open_dataset(tmp_path / "set" / "val" / "clips-000000.tar").episodes) == 2
    with pytest.raises(BadInputError, match="'test'"):
        open_dataset(tmp_path / "set", split="test")


def test_texts_are_instructions(tmp_path: Path) -> None:
    one: dict[str, Any] = {"0__jpg": png(1)}
    about = b"\xef\xbb\xbf" + json.dumps({"instruction": "push", "fps": 5, "success": True, "place": "sink"}).encode()
    one |= {"0__json": about, "0__txt": "push\n", "1__jpg": png(2), "1__txt": "pull\n", "2__png": png(3)}
    other: dict[str, Any] = {"a/0__jpg": png(4), "a/0__cls": "7", "0__0__jpg": png(5), "0__10__jpg": png(6)}
    shard(tmp_path / "s-0.tar", **one)
    shard(tmp_path / "s-1.tar", **other)
    store = open_dataset(tmp_path)
    facts = [(info.length, info.instruction, info.fps, info.success) for info in store.episodes]
    assert isinstance(store, WebDatasetStore)
    assert store.unread == ("json:place",)
    first, rest = (1, "push", 5, True), [(1, "pull"), (1, ""), (1, "7"), (2, "")]
    assert facts == [first, *((*known, 10, None) for known in rest)]
    assert store.frames(4, np.array([1, 0]))[:, 0, 0, 0].tolist() == [6, 5]


def test_a_video_s_own_times_count(tmp_path: Path) -> None:
    times = write_variable_rate(tmp_path / "v.mp4")
    encode_video(tmp_path / "even.mp4", smooth_frames(5, 32, 48), 10)
    videos = [(tmp_path / name).read_bytes() for name in ("v.mp4", "even.mp4")]
    (tmp_path / "set").mkdir()
    shard(tmp_path / "set" / "s.tar", **{"0__mp4": videos[0], "1__mp4": videos[1], "1__json": b'{"fps": 30}'})
    store = open_dataset(tmp_path / "set")
    assert isinstance(store, WebDatasetStore)
    np.testing.assert_allclose(store.timestamps(0), times, atol=1e-4)
    assert store.episodes[1].fps == 10
    varies, told = store.findings()
    assert varies.found == "a variable frame rate: 5 to 30 frames a second"
    assert (told.found, told.expected) == ("10 frames a second", "30, as fps says")


def test_a_video_of_variable_rate_is_converted_at_a_given_rate_alone(tmp_path: Path) -> None:
    times = write_variable_rate(tmp_path / "v.mp4")
    video, acted = (tmp_path / "v.mp4").read_bytes(), io.BytesIO()
    np.save(acted, np.zeros((len(times), 2), np.float32))
    members: dict[str, bytes | str] = {"0__mp4": video, "0__txt": "open"}
    path = shard(tmp_path / "set/s.tar", **members)
    with pytest.raises(BadInputError, match=r"found a rate that varies.*give --fps 13 to take"):
        convert(path.parent, tmp_path / "out")
    out = open_dataset(convert(path.parent, tmp_path / "out", fps=10))
    assert out.episodes[0].length == int(times[-1] * 10) + 1
    change = out.frames(0, np.array([20])).astype(float) - open_dataset(path.parent).frames(0, np.arange(len(times)))
    assert np.abs(change).mean(axis=(1, 2, 3)).argmin() == np.abs(times - 2.0).argmin()
    acting = shard(tmp_path / "acting/s.tar", **members, **{"0__actions__npy": acted.getvalue()})
    with pytest.raises(BadInputError, match="use the data unconverted"):
        convert(acting.parent, tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_packed_shards_name_the_command_that_unpacks_them(tmp_path: Path) -> None:
    (tmp_path / "s-0.tar.gz").write_bytes(b"packed")
    with pytest.raises(BadInputError, match=r"unpack shards: gunzip .*\*\.tar\.gz"):
        open_dataset(tmp_path)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"0__txt": "push"}, "expected a video or images"),
        ({"0__jpg": png(0), "0__mp4": b""}, "an empty file"),
        ({"0__mp4": b"no video at all"}, "0"),
        ({"0__jpg": png(0), "0__json": "{"}, "JSON"),
        ({"0__jpg": png(0), "0__json": "[1]"}, "JSON"),
        ({"0__jpg": png(0), "0__json": '{"instruction": ["a"]}'}, "a text"),
        ({"0__jpg": png(0), "0__json": '{"fps": -1}'}, "above 0"),
        ({"0__a__0__jpg": png(0), "0__b__0__jpg": png(0), "0__b__1__jpg": png(0)}, "one length"),
        ({"0__jpg": png(0), "0__txt": "öffne".encode("latin-1")}, "byte 0xf6 at 0 of txt, which is not UTF-8"),
        ({"0__jpg": png(0), "0__txt": "pull", "0__json": '{"instruction": "push"}'}, "'push' in 0.json and 'pull' in"),
        ({"0__1__jpg": png(0), "0__a__jpg": png(0), "0__a__json": "{}"}, "a text for each of a.*keys without dots"),
    ],
)
def test_bad_samples_are_named_and_left_out(members: dict[str, bytes | str], message: str, tmp_path: Path) -> None:
    bad = shard(tmp_path / "set" / "a.tar", **members, **{"9__0__jpg": png(0)})
    for _ in range(2):  # a fault is looked for again
        with pytest.raises(BadInputError, match=message) as caught:
            open_dataset(tmp_path / "set")
        assert bad.name in str(caught.value)
    found: list[BadInputError] = []
    assert len(open_dataset(tmp_path / "set", on_bad_row=found.append).episodes) == 1
    assert len(found) == 1


@pytest.mark.slow
def test_damaged_images_and_other_cameras_are_told(tmp_path: Path) -> None:
    images = {"0__0__jpg": png(0), "0__1__jpg": b"no image", "1__0__jpg": png(0), "1__1__jpg": png(0, (9, 9))}
    shard(tmp_path / "a.tar", **images)
    store = open_dataset(tmp_path)
    with pytest.raises(BadInputError, match="frame 1: found damaged"):
        store.frames(0, np.arange(2))
    with pytest.raises(BadInputError, match=r"frame 1: found images of several sizes: \(9, 9, 3\)"):
        store.frames(1, np.arange(2))
    assert len(examine(tmp_path)) == 2
    shard(tmp_path / "b.tar", **{"2__top__0__jpg": png(0)})
    with pytest.raises(BadInputError, match="top"):
        open_dataset(tmp_path)


@pytest.mark.parametrize("cut", [0, 300, 1500])
def test_damaged_shards_are_told(cut: int, source: EpisodeStore, tmp_path: Path) -> None:
    root = write_shards(tmp_path / "set", source)
    path = root / "clips-000001.tar"
    path.write_bytes(b"x" * 2000 if not cut else path.read_bytes()[:cut])
    with pytest.raises(BadInputError, match=r"clips-000001\.tar"):
        open_dataset(root)
    found: list[BadInputError] = []
    assert len(open_dataset(root, on_bad_row=found.append).episodes) == 3
    assert len(found) == 1


def test_an_archive_that_ends_early_is_told(source: EpisodeStore, tmp_path: Path) -> None:
    # tarfile takes a damaged header, or a file that ends between members, for the end.
    path = write_shards(tmp_path / "set", source, images=True) / "clips-000000.tar"
    places = [place for _, place, _ in members(path)]
    sound = path.read_bytes()
    header = places[3] - tarfile.BLOCKSIZE
    for damaged in (sound[:header] + bytes(512) + sound[places[3] :], sound[:header] + b"x" + sound[header + 1 :]):
        path.write_bytes(damaged)
        with pytest.raises(BadInputError, match=f"a damaged header at byte {header}"):
            list(members(path))
    path.write_bytes(sound[:header])
    with pytest.raises(BadInputError, match=f"an end at byte {header}"):
        list(members(path))


def test_an_index_is_kept_until_its_file_changes(source: EpisodeStore, tmp_path: Path) -> None:
    path, made = write_shards(tmp_path / "set", source) / "clips-000000.tar", []

    def make() -> list[str]:
        made.append(path)
        return [name for name, _, _ in members(path)]

    assert indexed(path, "names", make) == indexed(path, "names", make)
    assert len(made) == 1
    (kept,) = (tmp_path / "cache" / "indexes").iterdir()
    kept.write_text("[")
    indexed(path, "names", make)
    assert len(made) == 2
    with tarfile.open(path, "a") as tar:
        add(tar, "9.txt", b"more")
    assert indexed(path, "names", make)[-1] == "9.txt"


def test_members_are_those_of_tarfile(source: EpisodeStore, tmp_path: Path) -> None:
    path = write_shards(tmp_path / "set", source, images=True) / "clips-000000.tar"
    with tarfile.open(path, "a") as tar:
        add(tar, "long/" * 40 + "name.txt", b"long")
        tar.add(tmp_path, "folder", recursive=False)

    def listed() -> Iterator[tuple[str, int, int]]:
        with tarfile.open(path) as tar:
            yield from ((one.name, one.offset_data, one.size) for one in tar.getmembers() if one.isreg())

    assert list(members(path)) == list(listed())
