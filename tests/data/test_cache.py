from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoint.data.build import build as build_store
from counterpoint.data.build import digest_starts
from counterpoint.data.cache import CachedStore, cached
from counterpoint.data.episode import Array, Episode
from counterpoint.data.resize import resize
from counterpoint.data.store import EpisodeStore, MemoryStore
from counterpoint.errors import BadInputError
from counterpoint.files import cache_root
from counterpoint.folder import digests_of, seal
from tests.data.numbered import numbered_store
from tests.data.reading import read_episode
from tests.formats.made import memory_store


def build(store: EpisodeStore, root: Path, size: int = 16) -> CachedStore:
    return cached(store, size=size, root=root, progress=False)


def built_folders(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_dir()]


def test_holds_what_the_source_holds(tmp_path: Path) -> None:
    source = memory_store()
    store = build(source, tmp_path)
    assert isinstance(store, EpisodeStore)
    assert store.episodes == source.episodes
    assert store.cameras == source.cameras
    for number, info in enumerate(source.episodes):
        steps = np.arange(info.length)
        np.testing.assert_array_equal(store.timestamps(number), source.timestamps(number))
        np.testing.assert_array_equal(store.actions(number), source.actions(number))
        np.testing.assert_array_equal(store.state(number), source.state(number))
        for camera in source.cameras:
            expected = resize(source.frames(number, steps, camera), 16)
            np.testing.assert_array_equal(store.frames(number, steps, camera), expected)
    assert store.frames(1, np.array([6, 0, 6])).shape == (3, 16, 16, 3)
    store.verify()


def test_rewards_are_held_where_the_source_has_them(tmp_path: Path) -> None:
    source = numbered_store([5, 3])
    store = build(source, tmp_path)
    for number in range(2):
        np.testing.assert_array_equal(store.rewards(number), source.rewards(number))
    assert build(numbered_store([5, 3], rewards=False), tmp_path).rewards(0) is None


def test_frames_of_that_size_are_kept_bit_for_bit(tmp_path: Path) -> None:
    source = memory_store(size=(16, 16))
    steps = np.arange(5)
    np.testing.assert_array_equal(build(source, tmp_path).frames(0, steps), source.frames(0, steps))


def test_resize_averages_areas_and_states_its_shape() -> None:
    checkers = (np.indices((64, 96)).sum(axis=0) % 2 * 255).astype(np.uint8)
    frames = np.repeat(checkers[None, :, :, None], 3, axis=3)
    square = resize(frames, 8)
    assert square.shape == (1, 8, 8, 3)
    assert abs(int(square.min()) - 127) <= 2  # picking single pixels instead would leave 0 and 255
    assert abs(int(square.max()) - 127) <= 2
    assert resize(frames, 8, "shorter").shape == (1, 8, 12, 3)


def test_second_opening_builds_nothing(tmp_path: Path) -> None:
    first = build(memory_store(), tmp_path)
    before = (first.path / "store.json").stat().st_mtime_ns
    again = build(memory_store(), tmp_path)
    assert again.fingerprint == first.fingerprint == first.path.name
    assert (again.path / "store.json").stat().st_mtime_ns == before


def test_a_training_store_of_that_size_is_taken_as_it_is(tmp_path: Path) -> None:
    store = build(memory_store(), tmp_path)
    assert build(store, tmp_path) is store
    assert build(store, tmp_path, size=8).frames(0, np.array([0])).shape == (1, 8, 8, 3)


def test_key_follows_source_size_fit_and_cameras(tmp_path: Path) -> None:
    source = memory_store()
    stores = [
        build(source, tmp_path),
        build(memory_store(seed=1), tmp_path),
        build(source, tmp_path, size=8),
        cached(source, size=16, fit="shorter", root=tmp_path, progress=False),
        cached(source, size=16, cameras=["wrist"], root=tmp_path, progress=False),
    ]
    assert len({store.fingerprint for store in stores}) == 5
    assert stores[4].cameras == ("wrist",)
    np.testing.assert_array_equal(stores[4].frames(0, np.arange(5)), stores[0].frames(0, np.arange(5), "wrist"))


def test_chunks_of_a_long_episode_join(tmp_path: Path) -> None:
    source = memory_store(lengths=(150,), cameras=("top",), size=(8, 8))
    np.testing.assert_array_equal(
        build(source, tmp_path, size=8).frames(0, np.arange(150)), source.frames(0, np.arange(150))
    )


def test_without_vectors_or_without_cameras(tmp_path: Path) -> None:
    videos = build(memory_store(vectors=False), tmp_path)
    assert videos.actions(0) is None
    assert videos.state(0) is None
    states = MemoryStore([Episode({}, "", np.arange(3.0), state=np.ones((3, 2), np.float32))])
    assert build(states, tmp_path).state(0) is not None


def test_frames_of_many_episodes_are_gathered_at_once(tmp_path: Path) -> None:
    store = build(numbered_store([5, 7, 3]), tmp_path, 4)
    episodes, steps = np.array([2, 0, 2, 1]), np.array([[0, 2], [4, 4], [1, 0], [6, 0]])
    for camera in (None, "back"):
        out = np.empty((4, 2, 4, 4, 3), np.uint8)
        store.gather("frames", episodes, steps, camera=camera, out=out)
        for row, (episode, wanted) in enumerate(zip(episodes, steps, strict=True)):
            np.testing.assert_array_equal(out[row], store.frames(episode, wanted, camera))
    with pytest.raises(BadInputError, match="camera"):
        store.gather("frames", episodes, steps, camera="side", out=out)


def test_gathering_finds_a_changed_bit_in_the_episodes_it_touches(tmp_path: Path) -> None:
    path = build(numbered_store([5, 7, 3]), tmp_path, 4).path
    data = bytearray((path / "frames-0.bin").read_bytes())
    data[6 * 48] ^= 1  # of episode 1
    (path / "frames-0.bin").write_bytes(data)
    store, out = CachedStore(path), np.empty((1, 1, 4, 4, 3), np.uint8)
    step = np.zeros((1, 1), np.int64)
    store.gather("frames", np.array([0]), step, camera=None, out=out)
    store.gather("frames", np.array([2]), step, camera=None, out=out)
    with pytest.raises(BadInputError, match="of episode 1"):
        store.gather("frames", np.array([1]), step, camera=None, out=out)


@pytest.mark.parametrize("name", ["frames-0.bin", "frames-1.bin", "timestamps.bin", "actions.bin", "state.bin"])
def test_one_changed_bit_is_found_at_first_touch(tmp_path: Path, name: str) -> None:
    folder = build(memory_store(), tmp_path).path
    data = bytearray((folder / name).read_bytes())
    data[-1] ^= 1  # in the last episode
    (folder / name).write_bytes(data)
    store = CachedStore(folder)
    read_episode(store, 1)
    with pytest.raises(BadInputError, match=rf"{name}.*episode 2.*delete .*{folder.name}"):
        read_episode(store, 2)
    with pytest.raises(BadInputError, match=name):
        store.verify()


@pytest.mark.parametrize("name", ["store.json", "SHA256SUMS", "frames-0.bin", "timestamps.bin"])
@pytest.mark.parametrize("harm", ["delete", "truncate", "append"])
def test_damage_seen_at_opening_is_mended_by_cached(tmp_path: Path, name: str, harm: str) -> None:
    path = build(memory_store(), tmp_path).path / name
    data = path.read_bytes()
    path.unlink()
    if harm != "delete":
        path.write_bytes(data[:-1] if harm == "truncate" else data + b" ")
    with pytest.raises(BadInputError, match="built again"):
        CachedStore(path.parent)
    build(memory_store(), tmp_path).verify()


def test_other_layout_is_refused(tmp_path: Path) -> None:
    folder = build(memory_store(), tmp_path).path
    text = json.dumps({**json.loads((folder / "store.json").read_bytes()), "layout": "older"}).encode()
    (folder / "store.json").write_bytes(text)
    seal(folder, digests_of(folder))
    with pytest.raises(BadInputError, match="layout 'older'"):
        CachedStore(folder)


def test_digests_are_those_of_sha256sum(tmp_path: Path) -> None:
    folder = build(memory_store(), tmp_path).path
    subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=folder, check=True, capture_output=True)
    digest = digests_of(folder)["frames-0.digests"]
    told = subprocess.run(["sha256sum", "frames-0.digests"], cwd=folder, check=True, capture_output=True, text=True)
    assert told.stdout.split()[0] == digest


def test_digests_cover_64_kilobytes_of_an_episode_or_one_larger_step(tmp_path: Path) -> None:
    source = memory_store(lengths=(9, 12), size=(16, 16))
    for size, rows in ((64, 5), (160, 1)):
        store = build(source, tmp_path, size)
        frames, digests = ((store.path / f"frames-0.{kind}").read_bytes() for kind in ("bin", "digests"))
        step, expected = size * size * 3, b""
        for first, stop in ((0, 9), (9, 21)):
            for start in range(first, stop, rows):
                expected += hashlib.sha256(frames[start * step : min(start + rows, stop) * step]).digest()
        assert digests == expected


def test_only_what_is_read_is_compared(tmp_path: Path) -> None:
    path = build(memory_store(lengths=(9, 12)), tmp_path, 160).path
    data = bytearray((path / "frames-0.bin").read_bytes())
    data[12 * 160 * 160 * 3] ^= 1  # step 3 of episode 1
    (path / "frames-0.bin").write_bytes(data)
    store = CachedStore(path)
    store.frames(1, np.array([0, 2, 4, 11]))
    store.gather("frames", np.array([1, 0]), np.array([[0, 11], [3, 4]]))
    with pytest.raises(BadInputError, match="of episode 1"):
        store.frames(1, np.array([3]))
    with pytest.raises(BadInputError, match="of episode 1"):
        store.gather("frames", np.array([1]), np.array([3]))
    assert len(store.damage()) == 1


def test_changed_digests_are_found(tmp_path: Path) -> None:
    path = build(memory_store(), tmp_path).path
    digests = bytearray((path / "frames-0.digests").read_bytes())
    digests[0] ^= 1
    (path / "frames-0.digests").write_bytes(digests)
    with pytest.raises(BadInputError, match=r"frames-0.digests.*built again"):
        CachedStore(path).frames(0, np.array([0]))


class DyingStore(MemoryStore):
    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        if episode == 1:
            raise KeyboardInterrupt
        return super().frames(episode, indices, camera)


class CountingStore(MemoryStore):
    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        self.__dict__.setdefault("read", set()).add(episode)
        return super().frames(episode, indices, camera)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_interrupted_build_is_continued_to_the_same_bytes(tmp_path: Path) -> None:
    episodes = memory_store(lengths=(5, 7, 3, 20))._episodes
    with pytest.raises(KeyboardInterrupt):
        build(DyingStore(episodes), tmp_path)
    (leftover,) = built_folders(tmp_path)
    with pytest.raises(BadInputError, match="training store"):
        CachedStore(leftover)
    again = CountingStore(episodes)
    store = build(again, tmp_path)
    store.verify()
    assert 1 in again.__dict__["read"]
    assert built_folders(tmp_path) == [store.path]
    assert contents(store.path) == contents(build(MemoryStore(episodes), tmp_path / "whole").path)


def write_journal(building: Path, done: Sequence[int], cut: int = 0) -> None:
    """Give a store the journal of a build that was interrupted after these episodes, `cut` bytes short."""
    meta = json.loads((building / "store.json").read_bytes())
    lengths, lines = np.array([episode["length"] for episode in meta["episodes"]]), b""
    for episode in done:
        own = hashlib.sha256()
        for name, entry in meta["arrays"].items():
            starts = digest_starts(lengths, entry["rows"]) * 32
            own.update((building / f"{name}.digests").read_bytes()[starts[episode] : starts[episode + 1]])
        lines += f"{own.hexdigest()}  {episode}\n".encode()
    (building / "SHA256SUMS").write_bytes(lines[: len(lines) - cut])


def test_what_is_in_the_journal_is_not_decoded_again(tmp_path: Path) -> None:
    episodes = memory_store(lengths=(5, 7, 3, 20))._episodes
    whole = build(MemoryStore(episodes), tmp_path / "whole").path
    building = tmp_path / f"{whole.name}.building"
    shutil.copytree(whole, building)
    write_journal(building, [0, 1, 3, 2], cut=1)  # the last line was cut short
    with (building / "frames-1.bin").open("r+b") as file:
        file.seek(12 * 16 * 16 * 3)
        file.write(bytes(3 * 16 * 16 * 3))  # of episode 2
    store = CountingStore(episodes)
    assert contents(build(store, tmp_path).path) == contents(whole)
    assert store.__dict__["read"] == {0, 2}  # of the first, one frame tells the shapes


@pytest.mark.parametrize("name", ["actions.bin", "frames-0.bin", "frames-1.digests"])
def test_what_is_damaged_before_a_build_goes_on_is_made_again(tmp_path: Path, name: str) -> None:
    episodes = memory_store(lengths=(5, 7, 3, 20))._episodes
    whole = build(MemoryStore(episodes), tmp_path / "whole").path
    building = tmp_path / f"{whole.name}.building"
    shutil.copytree(whole, building)
    write_journal(building, [0, 1, 3])
    damaged = bytearray((building / name).read_bytes())
    damaged[len(damaged) * 9 // 10] ^= 4  # of episode 3
    (building / name).write_bytes(damaged)
    store = CountingStore(episodes)
    assert contents(build(store, tmp_path).path) == contents(whole)
    assert store.__dict__["read"] == {0, 2, 3}


def test_episodes_built_side_by_side_give_the_same_bytes(tmp_path: Path) -> None:
    source = memory_store(lengths=tuple(range(3, 40, 4)))
    options: Any = {"key": "k", "size": 16, "fit": "shorter", "cameras": ("wrist", "top"), "progress": False}
    for threads in (1, 4):
        build_store(source, tmp_path / str(threads), threads=threads, **options)
    assert contents(tmp_path / "1") == contents(tmp_path / "4")


def test_the_first_bad_episode_is_named_whichever_fails_first(tmp_path: Path) -> None:
    good, bad = memory_store(lengths=(5,) * 8), memory_store(lengths=(5,) * 8, size=(12, 12))
    episodes = [(bad if number in (3, 5) else good)._episodes[number] for number in range(8)]
    with pytest.raises(BadInputError, match="episode 3, frames-0"):
        cached(MemoryStore(episodes), size=8, fit="shorter", root=tmp_path, progress=False)
    assert built_folders(tmp_path) == []


KILLED = """
import os, signal, sys
from counterpoint.data.cache import cached
from tests.formats.made import memory_store
source = memory_store()
whole = source.frames
def frames(episode, indices, camera=None):
    if episode == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(episode, indices, camera)
source.frames = frames
cached(source, size=16, root=sys.argv[1], progress=False)
"""


def test_killed_build_is_no_store_and_is_continued(tmp_path: Path) -> None:
    checkout = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{checkout / 'src'}:{checkout}"}
    died = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=environment, check=False)
    assert died.returncode == -9
    (leftover,) = built_folders(tmp_path)
    with pytest.raises(BadInputError, match="training store"):
        CachedStore(leftover)
    (leftover / ".store.json.0123456789ab").touch()  # of a kill inside a write
    store = build(memory_store(), tmp_path)
    store.verify()
    assert built_folders(tmp_path) == [store.path]
    assert not list(store.path.glob(".*"))


def _build_and_verify(root: Path) -> str:
    store = build(memory_store(lengths=(20, 20)), root)
    store.verify()
    return store.fingerprint


def test_builders_at_the_same_time_agree(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        keys = pool.map(_build_and_verify, [tmp_path] * 4, chunksize=1)
    assert len(set(keys)) == 1
    assert [path.name for path in built_folders(tmp_path)] == [keys[0]]


def test_crosses_process_borders_by_path(tmp_path: Path) -> None:
    store = build(memory_store(), tmp_path)
    data = pickle.dumps(store)
    assert len(data) < 500
    np.testing.assert_array_equal(pickle.loads(data).frames(0, np.arange(5)), store.frames(0, np.arange(5)))


def test_unknown_camera_and_step_past_the_end(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="'side'"):
        cached(memory_store(), size=16, cameras=["side"], root=tmp_path)
    store = build(memory_store(), tmp_path)
    with pytest.raises(BadInputError, match="'side'"):
        store.frames(0, np.array([0]), "side")
    with pytest.raises(IndexError):
        store.frames(0, np.array([5]))


def test_episodes_that_differ_are_refused(tmp_path: Path) -> None:
    with_vectors, without = memory_store()._episodes[0], memory_store(vectors=False)._episodes[1]
    with pytest.raises(BadInputError, match="episode 1"):
        build(MemoryStore([with_vectors, without]), tmp_path)
    wide, high = memory_store(size=(8, 16))._episodes[0], memory_store(size=(16, 8))._episodes[1]
    with pytest.raises(BadInputError, match="fit='square'"):
        cached(MemoryStore([wide, high]), size=8, fit="shorter", root=tmp_path, progress=False)
    assert built_folders(tmp_path) == []


def test_root_and_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("COUNTERPOINT_CACHE", raising=False)
    assert cache_root() == Path.home() / ".cache" / "counterpoint"
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "here"))
    assert cached(memory_store(), size=8).path.parent == tmp_path / "here"
    assert "Building the training store" in capsys.readouterr().err


def test_a_disk_too_small_is_told_before_work_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from collections import namedtuple

    usage = namedtuple("usage", ["total", "used", "free"])
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(10, 9, 1))
    with pytest.raises(BadInputError, match="COUNTERPOINT_CACHE"):
        build(memory_store(), tmp_path)
