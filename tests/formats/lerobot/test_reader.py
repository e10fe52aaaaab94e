from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from counterpoint.data.episode import Array
from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError
from counterpoint.formats import remote
from counterpoint.formats.lerobot import reader, tables
from counterpoint.formats.lerobot.reader import LeRobotStore
from counterpoint.formats.lerobot.tables import as_column, as_png, read_table
from counterpoint.formats.lru import LRUCache
from counterpoint.formats.video import encode_video
from tests.formats.lerobot.made import FPS, edit_column, edit_info, episode, write_v30
from tests.formats.made import write_lerobot

EPISODES = tuple(episode(number, 5 + number, success=number != 1) for number in range(4))
DATA = "data/chunk-000/file-000.parquet"
META = "meta/episodes/chunk-000/file-000.parquet"
VIDEO = "videos/observation.images.top/chunk-000/file-000.mp4"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    splits = {"train": "0:3", "val": "3:4"}
    return write_v30(tmp_path_factory.mktemp("lerobot") / "set", EPISODES, image_cameras=["wrist"], splits=splits)


@pytest.fixture
def root(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "set"))


def test_it_is_an_episode_store(pristine: Path) -> None:
    store = LeRobotStore(pristine)
    assert isinstance(store, EpisodeStore)
    assert store.cameras == ("top", "wrist")
    assert [(info.length, info.instruction, info.fps, info.success) for info in store.episodes] == [
        (5, "task 0", FPS, True),
        (6, "task 1", FPS, False),
        (7, "task 0", FPS, True),
        (8, "task 1", FPS, True),
    ]


@pytest.mark.parametrize("indices", [[4, 0, 2], [1, 1], [3], []])
def test_frames_in_any_order_by_either_name(pristine: Path, indices: list[int]) -> None:
    store = LeRobotStore(pristine)
    picked = np.array(indices, dtype=np.int64)
    for camera, default in (("top", None), ("wrist", "wrist")):
        whole = store.frames(2, np.arange(7), camera)
        np.testing.assert_array_equal(store.frames(2, picked, default), whole[picked])
        key = f"observation.images.{camera}"
        np.testing.assert_array_equal(store.frames(2, picked, key), whole[picked])
    np.testing.assert_array_equal(store.frames(2, picked, "wrist"), EPISODES[2].frames["wrist"][picked])


def test_a_split_selects_its_episodes(pristine: Path) -> None:
    whole, val = LeRobotStore(pristine), LeRobotStore(pristine, split="val")
    assert val.episodes == whole.episodes[3:]
    np.testing.assert_array_equal(val.actions(0), whole.actions(3))
    np.testing.assert_array_equal(val.frames(0, np.arange(3)), whole.frames(3, np.arange(3)))
    assert len(LeRobotStore(pristine, split="train").episodes) == 3
    assert val.fingerprint != whole.fingerprint
    with pytest.raises(BadInputError, match=r"'test'; expected one of train, val"):
        LeRobotStore(pristine, split="test")


def test_a_store_crosses_processes(pristine: Path) -> None:
    store = LeRobotStore(pristine)
    store.frames(0, np.arange(2))
    again = pickle.loads(pickle.dumps(store))
    np.testing.assert_array_equal(again.frames(0, np.arange(2)), store.frames(0, np.arange(2)))
    assert again.fingerprint == store.fingerprint


def test_the_fingerprint_follows_the_content(root: Path) -> None:
    before = LeRobotStore(root).fingerprint
    assert LeRobotStore(root).fingerprint == before
    seen = {before}
    for path in (DATA, VIDEO, "meta/stats.json"):
        if path.startswith("meta"):
            (root / path).write_text("{}")
        else:
            os.utime(root / path, ns=(1, 1))
        seen.add(LeRobotStore(root).fingerprint)
    assert len(seen) == 4


def test_unknown_keys_and_features_are_left_alone(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    info = json.loads((root / "meta/info.json").read_text())
    features = info["features"] | {
        "observation.environment_state": {"dtype": "float32", "shape": [2], "names": None},
        "next.reward": {"dtype": "float32", "shape": [1], "names": None},
        "next.done": {"dtype": "bool", "shape": [1], "names": None},
        "note": {"dtype": "string", "shape": [1], "names": None},
    }
    edit_info(root, features=features, flavour="new", storage_format="parquet", tools=None)
    with caplog.at_level(logging.WARNING):
        LeRobotStore(root)
        store = LeRobotStore(root)
    assert [record.getMessage() for record in caplog.records] == [
        f"{root / 'meta/info.json'}: unknown key 'flavour' is ignored"
    ]
    np.testing.assert_array_equal(store.actions(1), EPISODES[1].actions)


def test_success_is_read_from_the_rows_where_statistics_are_silent(root: Path) -> None:
    edit_column(root / META, "stats/next.success/max", None)
    assert [info.success for info in LeRobotStore(root).episodes] == [True, False, True, True]


def test_success_is_unknown_without_the_feature(tmp_path: Path) -> None:
    store = LeRobotStore(write_v30(tmp_path / "set", [episode(0)]))
    assert store.episodes[0].success is None


def test_depth_maps_are_no_cameras(root: Path) -> None:
    info = json.loads((root / "meta/info.json").read_text())
    info["features"]["observation.images.wrist"]["info"] = {"video.is_depth_map": True}
    edit_info(root, features=info["features"])
    assert LeRobotStore(root).cameras == ("top",)


def test_vectors_without_camera_state_or_action(tmp_path: Path) -> None:
    store = LeRobotStore(write_v30(tmp_path / "bare", [episode(0, sizes={}, action_dim=None, state_dim=1)]))
    assert store.cameras == ()
    assert store.actions(0) is None
    np.testing.assert_array_equal(store.state(0), episode(0, sizes={}, action_dim=None, state_dim=1).state)
    with pytest.raises(BadInputError, match="camera: found data without images"):
        store.frames(0, np.arange(1))


def test_rows_of_one_large_group_and_of_many_read_alike(root: Path) -> None:
    table = pq.read_table(root / DATA)
    expected = [
        (store.actions(e), store.frames(e, np.array([2, 4]), "wrist"))
        for store in [LeRobotStore(root)]
        for e in range(4)
    ]
    for size in (3, 1000):
        pq.write_table(table, root / DATA, row_group_size=size)
        store = LeRobotStore(root)
        for number, (actions, frames) in enumerate(expected):
            np.testing.assert_array_equal(store.actions(number), actions)
            np.testing.assert_array_equal(store.frames(number, np.array([2, 4]), "wrist"), frames)


def test_many_episodes_open_no_more_files_than_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    plain = remote.opened
    monkeypatch.setattr(tables, "opened", lambda path: opened.append(Path(path).name) or plain(path))  # type: ignore[func-returns-value]
    counts = []
    for count in (2, 12):
        LeRobotStore(write_v30(tmp_path / str(count), [episode(number, 3) for number in range(count)]))
        counts.append(len(opened))
        opened.clear()
    assert counts[0] == counts[1]


def test_a_row_group_is_read_once_for_all_vectors(pristine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[str, ...]] = []
    plain = tables._group
    monkeypatch.setattr(tables, "_group", lambda key, group, names: read.append(names) or plain(key, group, names))  # type: ignore[func-returns-value]
    monkeypatch.setattr(reader, "_vectors", LRUCache[Array](limit=0))
    store = LeRobotStore(pristine)
    read.clear()
    for values in (store.actions, store.state, store.timestamps):
        values(0)
    assert len(read) == 3
    assert len(set(read)) == 1


def test_metadata_in_several_files(root: Path) -> None:
    table = pq.read_table(root / META)
    (root / "meta/episodes/chunk-001").mkdir()
    pq.write_table(table.slice(0, 1), root / META)
    pq.write_table(table.slice(1, 1), root / "meta/episodes/chunk-001/file-000.parquet")
    pq.write_table(table.slice(2), root / "meta/episodes/chunk-000/file-001.parquet")
    store = LeRobotStore(root)
    for number, each in enumerate(EPISODES):
        np.testing.assert_array_equal(store.actions(number), each.actions)
        np.testing.assert_array_equal(store.frames(number, np.array([3]), "wrist")[0], each.frames["wrist"][3])


def test_timestamps_within_the_tolerance_are_frame_numbers_over_fps(root: Path) -> None:
    times = np.array(pq.read_table(root / DATA)["timestamp"].to_pylist())
    times[1] += 0.9e-4
    edit_column(root / DATA, "timestamp", times.tolist())
    np.testing.assert_array_equal(LeRobotStore(root).timestamps(0), np.arange(5) / FPS)
    times[1] += 0.3e-4
    edit_column(root / DATA, "timestamp", times.tolist())
    with pytest.raises(
        BadInputError, match=r"episode 0: found a step of 0\.1001\d\d s at step 0; expected steps of 1/10 s"
    ):
        LeRobotStore(root).timestamps(0)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("../data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet", "data_path"),
        ("/data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet", "data_path"),
        ("data/../../{chunk_index}/{file_index}.parquet", "data_path"),
        ("data/{chunk_index.__class__}.parquet", "data_path"),
        ("data/{chunk_index:99999999d}.parquet", "data_path"),
        ("data/{episode_index}.parquet", "data_path"),
        ("", "data_path"),
        ("../{video_key}/{chunk_index}/{file_index}.mp4", "video_path"),
        (None, "video_path"),
    ],
)
def test_a_path_that_leaves_the_folder_is_refused(root: Path, template: str | None, name: str) -> None:
    edit_info(root, **{name: template})
    with pytest.raises(BadInputError, match="expected a path inside the data set's folder"):
        LeRobotStore(root)


@pytest.mark.parametrize("path", [DATA, VIDEO, META, "meta/info.json", "data", "meta"])
def test_a_link_that_leaves_the_folder_is_refused(root: Path, tmp_path: Path, path: str) -> None:
    outside = tmp_path / "outside" / Path(path).name
    outside.parent.mkdir()
    (root / path).rename(outside)
    (root / path).symlink_to(outside)
    with pytest.raises(BadInputError, match="link that leaves the data set's folder"):
        LeRobotStore(root)


def test_links_of_the_hubs_cache_are_followed(root: Path, tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "hub" / "snapshots" / "a1b2", tmp_path / "hub" / "blobs"
    blobs.mkdir(parents=True)
    for number, path in enumerate(sorted(path for path in root.rglob("*") if path.is_file())):
        (snapshot / path.relative_to(root)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, blobs / str(number))
        (snapshot / path.relative_to(root)).symlink_to(blobs / str(number))
    _read_all(LeRobotStore(snapshot))


def test_a_feature_key_that_leaves_the_folder_is_refused(root: Path) -> None:
    text = (root / "meta/info.json").read_text().replace("observation.images.top", "../../../escape")
    (root / "meta/info.json").write_text(text)
    table = pq.read_table(root / META)
    names = [name.replace("observation.images.top", "../../../escape") for name in table.column_names]
    pq.write_table(table.rename_columns(names), root / META)
    with pytest.raises(BadInputError, match=r"'\.\./\.\./\.\./escape'; expected a path inside"):
        LeRobotStore(root)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"storage_format": "lance"}, "lance"),
        ({"codebase_version": "v1.6"}, r"codebase_version 'v1\.6'; expected v3\.0 or v2\.1"),
        ({"codebase_version": None}, "codebase_version None"),
        ({"fps": 0}, "fps 0"),
        ({"fps": "many"}, "ValueError"),
        ({"features": {"action": {}}}, "KeyError"),
        ({"features": []}, "where an object should be"),
        ({"splits": {"train": "all"}}, "a range a:b of episodes"),
    ],
)
def test_malformed_info_is_refused(root: Path, changes: dict[str, Any], match: str) -> None:
    edit_info(root, **changes)
    with pytest.raises(BadInputError, match=match):
        LeRobotStore(root)


@pytest.mark.parametrize("text", ["", "[]", '{"codebase_version"', None])
def test_unreadable_info_is_refused(root: Path, text: str | None) -> None:
    (root / "meta/info.json").unlink()
    if text is not None:
        (root / "meta/info.json").write_text(text)
    with pytest.raises(BadInputError, match=r"info\.json"):
        LeRobotStore(root)


@pytest.mark.parametrize("path", [DATA, VIDEO, META])
@pytest.mark.parametrize("keep", [None, 0, 0.5, 0.97])
def test_missing_and_truncated_files_are_refused(root: Path, path: str, keep: float | None) -> None:
    content = (root / path).read_bytes()
    (root / path).unlink()
    if keep is not None:
        (root / path).write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(BadInputError, match="Hint:") as caught:
        _read_all(LeRobotStore(root))
    assert caught.value.where.startswith(str(root))
    assert Path(path).name in str(caught.value) or "found 0 episodes" in str(caught.value)


def _nan(values: Array) -> Array:
    values[7, 2] = np.nan
    return values


@pytest.mark.parametrize(
    ("key", "match"),
    [
        ("action", "episode 1, actions: .* not finite at step 2"),
        ("observation.state", "episode 1, state: .* not finite"),
    ],
)
def test_values_that_are_not_finite_are_refused(root: Path, key: str, match: str) -> None:
    table = pq.read_table(root / DATA)
    values = _nan(np.array(table[key].to_pylist(), dtype=np.float32))
    pq.write_table(table.set_column(table.column_names.index(key), key, as_column(values)), root / DATA)
    store = LeRobotStore(root)
    store.actions(0)
    with pytest.raises(BadInputError, match=match) as caught:
        _read_all(store)
    assert caught.value.where.startswith(str(root / DATA))


def _replace_video(root: Path, count: int) -> None:
    frames = np.concatenate([each.frames["top"] for each in EPISODES])
    encode_video(root / VIDEO, np.concatenate([frames, frames])[:count], FPS)


def _drop_rows(root: Path, count: int) -> None:
    pq.write_table(pq.read_table(root / DATA).slice(0, count), root / DATA)


def _ragged(root: Path) -> None:
    table = pq.read_table(root / DATA)
    values = [[0.0] * (3 if row == 3 else 4) for row in range(len(table))]
    column = pa.array(values, type=pa.list_(pa.float32()))
    pq.write_table(table.set_column(table.column_names.index("action"), "action", column), root / DATA)


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda root: _replace_video(root, 25), r"file-000\.mp4: found 25 frames; expected 26"),
        (lambda root: _replace_video(root, 27), r"file-000\.mp4: found 27 frames; expected 26"),
        (lambda root: _drop_rows(root, 25), r"file-000\.parquet: found 25 rows; expected 26"),
        (lambda root: edit_column(root / DATA, "action", None), "no column 'action'"),
        (lambda root: edit_column(root / DATA, "episode_index", [0] * 26), "other rows where episode 1 should be"),
        (lambda root: edit_column(root / DATA, "frame_index", [1] * 26), "frame_index that does not count"),
        (lambda root: edit_column(root / META, "length", [5, 6, 7, 9]), "episode 3 of length 9 in rows 18 to 26"),
        (lambda root: edit_column(root / META, "length", None), "no sound column 'length'"),
        (
            lambda root: edit_column(root / META, "data/file_index", [0, 0, None, 0]),
            "no sound column 'data/file_index'",
        ),
        (lambda root: edit_column(root / META, "episode_index", [0, 1, 1, 3]), "found 4 episodes, numbered"),
        (
            lambda root: edit_column(
                root / META, "videos/observation.images.top/from_timestamp", [0, 0.5, 1.1, np.nan]
            ),
            "no sound column 'videos/observation.images.top/from_timestamp'",
        ),
        (
            lambda root: edit_column(root / META, "videos/observation.images.top/from_timestamp", [0, 0.5, 1.0, 1.8]),
            r"file-000\.mp4: found an episode from 10, inside another that ends at 11",
        ),
        (_ragged, "lists of several lengths in 'action'"),
    ],
)
def test_files_that_contradict_the_metadata_are_refused(root: Path, damage: Callable[[Path], None], match: str) -> None:
    damage(root)
    with pytest.raises(BadInputError, match=match):
        _read_all(LeRobotStore(root))


def test_images_of_several_sizes_are_refused(root: Path) -> None:
    entries = pq.read_table(root / DATA)["observation.images.wrist"].to_pylist()
    entries[9] = as_png(np.zeros((1, 8, 8, 3), np.uint8)).to_pylist()[0]
    edit_column(root / DATA, "observation.images.wrist", entries)
    with pytest.raises(BadInputError, match="images of several sizes"):
        LeRobotStore(root).frames(1, np.arange(6), "wrist")


@pytest.mark.parametrize("text", ["0:9", "2:2", "3:1"])
def test_a_split_outside_the_episodes_is_refused(root: Path, text: str) -> None:
    edit_info(root, splits={"train": text})
    with pytest.raises(BadInputError, match="split 'train'"):
        LeRobotStore(root, split="train")


def test_words_are_no_actions(root: Path) -> None:
    table = pq.read_table(root / DATA)
    words = pa.array(["push"] * len(table))
    pq.write_table(table.set_column(table.column_names.index("action"), "action", words), root / DATA)
    with pytest.raises(BadInputError, match="string in 'action'; expected numbers"):
        _read_all(LeRobotStore(root))


@pytest.mark.parametrize("content", [None, b"no png"])
def test_damaged_images_are_refused(root: Path, content: bytes | None) -> None:
    entries = pq.read_table(root / DATA)["observation.images.wrist"].to_pylist()
    entries[9]["bytes"] = content
    edit_column(root / DATA, "observation.images.wrist", entries)
    with pytest.raises(
        BadInputError, match=r"(frame-\d+\.png: found no such file|file-000\.parquet, .*wrist: found .*cannot identify)"
    ):
        _read_all(LeRobotStore(root))


@pytest.mark.parametrize("as_struct", [True, False])
def test_images_named_by_their_path_are_read(root: Path, as_struct: bool) -> None:
    entries = pq.read_table(root / DATA)["observation.images.wrist"].to_pylist()
    (root / "images").mkdir()
    for number, entry in enumerate(entries):
        (root / f"images/{number}.png").write_bytes(entry["bytes"])
    paths = [{"bytes": None, "path": f"images/{number}.png"} for number in range(len(entries))]
    table = pq.read_table(root / DATA)
    at = table.column_names.index("observation.images.wrist")
    column = pa.array(paths if as_struct else [entry["path"] for entry in paths])
    pq.write_table(table.set_column(at, "observation.images.wrist", column), root / DATA)
    store = LeRobotStore(root)
    np.testing.assert_array_equal(store.frames(2, np.arange(7), "wrist"), EPISODES[2].frames["wrist"])
    before = store.fingerprint
    (root / "images/3.png").write_bytes(entries[4]["bytes"])
    assert store.fingerprint != before


@pytest.mark.parametrize("path", ["../outside.png", "/etc/hostname"])
def test_an_image_outside_the_folder_is_refused(root: Path, path: str) -> None:
    (root.parent / "outside.png").write_bytes(b"")
    entries = pq.read_table(root / DATA)["observation.images.wrist"].to_pylist()
    edit_column(root / DATA, "observation.images.wrist", [{"bytes": None, "path": path} for _ in entries])
    with pytest.raises(BadInputError, match="path or link that leaves the data set's folder"):
        LeRobotStore(root).frames(0, np.arange(1), "wrist")


@pytest.mark.parametrize("steps", [[-1], [5], [0, 99]])
def test_steps_outside_the_episode_are_refused(pristine: Path, steps: list[int]) -> None:
    for camera in ("top", "wrist"):
        with pytest.raises(BadInputError, match="expected steps from 0 to 4"):
            LeRobotStore(pristine).frames(0, np.array(steps), camera)


def test_an_unknown_camera_is_refused(pristine: Path) -> None:
    with pytest.raises(BadInputError, match=r"'side'; expected one of top, wrist"):
        LeRobotStore(pristine).frames(0, np.arange(1), "side")


def _read_all(store: LeRobotStore) -> None:
    for number, info in enumerate(store.episodes):
        for camera in store.cameras:
            store.frames(number, np.arange(info.length), camera)
        store.timestamps(number)
        store.actions(number)
        store.state(number)


@pytest.mark.slow
def test_threads_read_one_file_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One open file that several threads read ends the process within some hundred reads."""
    path, rng = tmp_path / "rows.parquet", np.random.default_rng(0)
    with pq.ParquetWriter(path, pa.schema([("bytes", pa.binary())])) as writer:
        for _ in range(8):
            writer.write_table(pa.table({"bytes": [rng.bytes(2000) for _ in range(40)]}))
    monkeypatch.setattr(tables, "_groups", LRUCache(0))  # nothing is kept, so that every read reaches the file
    with ThreadPoolExecutor(8) as pool:
        counts = pool.map(lambda turn: len(tables.read_rows(path, turn % 8 * 40, 40, ["bytes"])), range(4000))
    assert set(counts) == {40}


def test_one_flipped_bit_in_a_page_is_refused(tmp_path: Path) -> None:
    """Every page of every column, one after the other; without checksums a changed number would be taken."""
    root = write_lerobot(tmp_path / "set")
    path = next((root / "data").rglob("*.parquet"))
    whole, pages = path.read_bytes(), pq.ParquetFile(path).metadata
    group = pages.row_group(0)
    for column in map(group.column, range(group.num_columns)):
        start = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
        harmed = bytearray(whole)
        harmed[start + column.total_compressed_size - 1] ^= 1
        path.write_bytes(bytes(harmed))
        with pytest.raises(BadInputError, match="parquet"):
            read_table(path)
    path.write_bytes(whole)
    assert read_table(path).num_rows
