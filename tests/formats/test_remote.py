from __future__ import annotations

import os
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from huggingface_hub import HfFileSystem

from counterpoint.data.draws import StartGoal
from counterpoint.data.resize import ResizedStore
from counterpoint.data.spec import Spec
from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError, MissingExtraError
from counterpoint.formats import open_dataset, recognise, remote, split_names
from counterpoint.formats.remote import Part, Stream, absolute, located, may_exist, opened, read_ranges, url_of, whole
from counterpoint.provenance import provenance
from tests.data.reading import read_episode
from tests.data.sampling import sampler
from tests.formats.made import memory_store, write_epic, write_frames, write_lerobot, write_tasks, write_videos
from tests.formats.remote_made import s3_double, upload, write_shards
from tests.hub_here import COMMIT, OTHER, hub_cache


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "cache"))
    yield
    fsspec.filesystem("memory").store.clear()


def same(one: EpisodeStore, other: EpisodeStore) -> None:
    assert one.episodes == other.episodes
    assert one.cameras == other.cameras
    for number in range(len(one.episodes)):
        left, right = read_episode(one, number), read_episode(other, number)
        for camera in one.cameras:
            np.testing.assert_array_equal(left.frames[camera], right.frames[camera])
        for name in ("actions", "state", "timestamps"):
            np.testing.assert_array_equal(getattr(left, name), getattr(right, name))


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("s3://bucket/set", "s3://bucket/set"),
        (Path("s3://bucket/set"), "s3://bucket/set"),
        ("hf://datasets/ORG/NAME/", "hf://datasets/ORG/NAME"),
        (Path("hf://datasets/ORG/NAME"), "hf://datasets/ORG/NAME"),
        ("file:///data/set", "file:///data/set"),
        (Path("file:///data/set"), "file:///data/set"),
        ("/data/set", None),
        ("data/set:1/x", None),
        ("C:/data", None),
    ],
)
def test_urls_are_known_as_paths_too(path: str | Path, url: str | None) -> None:
    assert url_of(path) == url
    assert absolute(path) == (url or str(Path(path).resolve()))


def test_a_file_url_is_its_path(tmp_path: Path) -> None:
    data = write_videos(tmp_path / "data")
    assert located(f"file://{data}") == data
    assert len(open_dataset(f"file://{data}").episodes) == 2


def shards(root: Path) -> Path:
    return write_shards(root, memory_store(cameras=("camera",)))


def frames(root: Path) -> Path:
    write_frames(root / "run")
    return root


@pytest.mark.parametrize("write", [write_lerobot, write_videos, write_tasks, frames, write_epic, shards])
def test_a_data_set_behind_a_url_reads_as_the_local_one(write: Any, tmp_path: Path) -> None:
    data = write(tmp_path / "data")
    url = upload(data, "memory://sets/data")
    local, there = open_dataset(data), open_dataset(Path(url))
    same(local, there)
    assert split_names(url) == split_names(data)
    copied = [path for path in (tmp_path / "cache" / "remote").rglob("*") if path.stat().st_blocks]
    assert not [path for path in copied if path.suffix in (".mp4", ".tar", ".jpg")]


def test_images_in_parquet_are_read_by_ranges(tmp_path: Path) -> None:
    data = write_lerobot(tmp_path / "data", image_cameras=["top", "wrist"])
    same(open_dataset(data), open_dataset(upload(data, "memory://sets/images")))


def test_another_version_is_another_fingerprint(tmp_path: Path) -> None:
    url = upload(shards(tmp_path / "data"), "memory://sets/versions")
    before = open_dataset(url).fingerprint
    remote._mirrored.cache_clear()
    assert open_dataset(url).fingerprint == before
    upload(write_shards(tmp_path / "other", memory_store(cameras=("camera",), seed=1)), url)
    system = fsspec.filesystem("memory")
    system.rm("/sets/versions/clips-000001.tar")
    remote._mirrored.cache_clear()
    store = open_dataset(url)
    assert store.fingerprint != before
    assert len(store.episodes) == 2


def test_one_file_has_a_url(tmp_path: Path) -> None:
    upload(shards(tmp_path / "data"), "memory://sets/one")
    assert len(open_dataset("memory://sets/one/clips-000001.tar").episodes) == 1


def test_little_more_is_read_than_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = memory_store(lengths=(40,) * 4, size=(64, 64), cameras=("camera",), vectors=False)
    url, read = upload(write_shards(tmp_path / "data", store, images=True), "memory://sets/much"), list[int]()
    plain = remote.read_ranges

    def counted(path: Path, ranges: Any) -> list[bytes]:
        read.extend(size for _, size in ranges)
        return plain(path, ranges)

    opened_store = open_dataset(url)
    monkeypatch.setattr("counterpoint.formats.webdataset.read_ranges", counted)
    opened_store.frames(2, np.array([3, 30]))
    assert len(read) == 2


def test_blocks_of_a_stream_are_those_of_the_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = rng.bytes(10_000)
    (tmp_path / "data.bin").write_bytes(data)
    whole, part = Stream(tmp_path / "data.bin", 64), Stream(Part(tmp_path / "data.bin", 1000, 5000, "part"), 999)
    for stream, content in ((whole, data), (part, data[1000:6000])):
        for _ in range(100):
            at, count = (int(number) for number in rng.integers(0, len(content) + 10, 2))
            assert stream.seek(at) == at
            assert stream.read(count) == content[at : at + count]
        stream.seek(-10, os.SEEK_END)
        assert stream.read() == content[-10:]
    assert opened(tmp_path / "data.bin") == str(tmp_path / "data.bin")


def test_a_file_cut_short_is_told(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"12345")
    with pytest.raises(BadInputError, match="5 bytes from 3"):
        read_ranges(tmp_path / "data.bin", [(0, 2), (3, 5)])


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://sets/absent", "nothing there"),
        ("nosuch://bucket/set", "nosuch"),
        ("http://127.0.0.1:9/set", "127.0.0.1"),
    ],
)
def test_a_bad_url_is_one_message(url: str, message: str) -> None:
    with pytest.raises((BadInputError, MissingExtraError), match=message):
        recognise(url)


def test_a_format_that_needs_whole_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "demo.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    url = upload(tmp_path / "data", "memory://sets/hdf5")
    with pytest.raises(BadInputError, match="download it first"):
        open_dataset(url)


def test_a_name_that_leaves_the_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = fsspec.filesystem("memory")
    system.pipe_file("/sets/bad/info.json", b"{}")
    entry = {"name": "/sets/bad/../../x.json", "size": 2, "type": "file"}
    monkeypatch.setattr(type(system), "find", lambda self, path, detail: {"/sets/bad/../../x.json": entry})
    with pytest.raises(BadInputError, match="leaves the folder"):
        located("memory://sets/bad")


class HubDouble(MemoryFileSystem):  # type: ignore[misc]
    """Takes the place of huggingface_hub's file system, whose paths are ORG/NAME without a leading slash."""

    protocol = "hf"
    store: ClassVar[dict[str, Any]] = {}

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("hf://").strip("/")


def test_the_hub_is_read_through_its_file_system(tmp_path: Path) -> None:
    """The Hub itself cannot be asked here."""
    assert fsspec.get_filesystem_class("hf") is HfFileSystem
    data = write_lerobot(tmp_path / "data")
    fsspec.register_implementation("hf", HubDouble, clobber=True)
    try:
        same(open_dataset(data), open_dataset(upload(data, "hf://datasets/ORG/NAME")))
    finally:
        fsspec.register_implementation("hf", HfFileSystem, clobber=True)


def test_a_data_set_of_the_hub_is_read_by_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, data = hub_cache(monkeypatch, tmp_path / "hub"), write_lerobot(tmp_path / "data")
    cache.add("me/cups", data, "v3.0")
    for source in ("me/cups", Path("me/cups"), "me/cups@v3.0", f"me/cups@{COMMIT}"):
        same(open_dataset(data), open_dataset(source))
        assert absolute(source) == f"me/cups@{COMMIT}"
        assert may_exist(source)
    assert set(cache.asked) == {("me/cups", None), ("me/cups", "v3.0"), ("me/cups", COMMIT)}
    assert len(cache.asked) == 3
    assert provenance()["downloads"] == {"datasets/me/cups": COMMIT}
    assert whole("me/cups") == located("me/cups")


def test_a_commit_needs_no_look_at_the_hub_to_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = hub_cache(monkeypatch, tmp_path)
    assert absolute(f"me/cups@{COMMIT}") == f"me/cups@{COMMIT}"
    assert not cache.asked


def test_an_id_that_cannot_be_had_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub_cache(monkeypatch, tmp_path)
    with pytest.raises(BadInputError, match=r"me/absent: found no such path, and no data set of the Hub"):
        open_dataset("me/absent")
    monkeypatch.chdir(tmp_path)
    Path("me").mkdir()
    with pytest.raises(
        BadInputError, match=r"a data set of the Hub, run the command in a folder that has no me/ in it"
    ):
        open_dataset("me/absent")


def test_a_download_has_one_fingerprint_wherever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run continues on another machine, whose files have other times."""
    data, found = write_lerobot(tmp_path / "data"), set[str]()
    for name in ("one", "two"):
        cache = hub_cache(monkeypatch, tmp_path / name)
        snapshot = cache.add("me/cups", data)
        for file in snapshot.rglob("*.*"):
            os.utime(file, (len(found), len(found)))
        found.add(open_dataset("me/cups").fingerprint)
    changed = write_lerobot(tmp_path / "changed")
    video = next(changed.rglob("*.mp4"))
    video.write_bytes(video.read_bytes() + b"\0")
    cache.add("me/cups", changed, "new", commit=OTHER)
    assert len(found) == 1
    assert open_dataset("me/cups@new").fingerprint not in found


def test_files_at_a_url_are_not_copied(tmp_path: Path) -> None:
    url = upload(write_lerobot(tmp_path / "data"), "memory://sets/copied")
    with pytest.raises(BadInputError, match="download it first"):
        whole(url)


def _first(store: EpisodeStore, queue: Any) -> None:
    queue.put(store.frames(0, np.array([0])).sum())


@pytest.mark.slow
def test_s3_is_read_here_and_in_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_lerobot(tmp_path / "lerobot")
    clips = write_shards(tmp_path / "clips", memory_store(lengths=(9, 12, 7, 10), cameras=("camera",)))
    with s3_double(monkeypatch) as bucket:
        same(open_dataset(data), open_dataset(upload(data, f"{bucket}/lerobot")))
        local, there = open_dataset(clips), open_dataset(upload(clips, f"{bucket}/clips"))
        same(local, there)
        batches = [
            list(sampler(ResizedStore(store, 16), Spec.clips(StartGoal()), workers=workers).batches(0, 3))
            for store, workers in ((local, 0), (there, 0), (there, 2))
        ]
        for one in batches[1:]:
            for left, right in zip(batches[0], one, strict=True):
                assert left["frames"].equal(right["frames"])
        queue: Any = get_context("spawn").Queue()
        process = get_context("spawn").Process(target=_first, args=(there, queue))
        process.start()
        assert queue.get(timeout=60) == local.frames(0, np.array([0])).sum()
        process.join()
        with pytest.raises(BadInputError, match="nothing there"):
            open_dataset(f"{bucket}/absent")
