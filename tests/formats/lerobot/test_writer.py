from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from counterpoint.data.episode import Episode
from counterpoint.errors import BadInputError
from counterpoint.formats.lerobot.reader import LeRobotStore
from counterpoint.formats.lerobot.writer import LeRobotWriter
from counterpoint.formats.video import encode_video, read_frames
from tests.data.reading import read_episode
from tests.formats.lerobot.made import FPS, SIZES, episode, write_v30


def assert_same(found: Episode, given: Episode, lossless: tuple[str, ...] = ()) -> None:
    """Equal, but for what the video codec changed."""
    assert found.instruction == given.instruction
    assert found.success == given.success
    np.testing.assert_array_equal(found.timestamps, given.timestamps)
    for name in ("actions", "state"):
        np.testing.assert_array_equal(getattr(found, name), getattr(given, name))
    assert found.frames.keys() == given.frames.keys()
    for camera, frames in given.frames.items():
        if camera in lossless:
            np.testing.assert_array_equal(found.frames[camera], frames)
        else:
            assert found.frames[camera].shape == frames.shape
            for step, frame in enumerate(found.frames[camera]):
                assert np.abs(frames.astype(float) - frame).mean((1, 2, 3)).argmin() == step


@given(data=st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_written_is_read_back(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    names = data.draw(st.lists(st.sampled_from(["top", "wrist", "left arm"]), unique=True, max_size=3))
    side = st.integers(8, 20)
    sizes = {name: (data.draw(side), data.draw(side)) for name in names}
    images = tuple(name for name in names if data.draw(st.booleans()))
    dims = st.one_of(st.none(), st.integers(1, 5))
    action_dim = data.draw(dims)
    state_dim = data.draw(dims) if names else data.draw(st.integers(1, 5))
    with_success = data.draw(st.booleans())
    episodes = [
        episode(
            number,
            length,
            sizes=sizes,
            action_dim=action_dim,
            state_dim=state_dim,
            instruction=data.draw(st.sampled_from(["", "push", "pull it", "größer"])),
            success=data.draw(st.booleans()) if with_success else None,
        )
        for number, length in enumerate(data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=5)))
    ]
    root = tmp_path_factory.mktemp("property") / "set"
    write_v30(
        root,
        episodes,
        image_cameras=images,
        data_files_size_in_mb=data.draw(st.sampled_from([0, 0.005, 100])),
        video_files_size_in_mb=data.draw(st.sampled_from([0, 0.003, 200])),
        chunks_size=data.draw(st.integers(1, 3)),
    )
    store = LeRobotStore(root)
    assert store.cameras == tuple(names)
    assert [info.length for info in store.episodes] == [len(each) for each in episodes]
    for number, each in enumerate(episodes):
        assert_same(read_episode(store, number), each, images)


def test_files_and_chunks_roll_over_at_their_size(tmp_path: Path) -> None:
    episodes = [episode(number, 4) for number in range(5)]
    write_v30(tmp_path / "set", episodes, data_files_size_in_mb=0, video_files_size_in_mb=0.004, chunks_size=2)
    data = sorted(p.relative_to(tmp_path / "set/data").as_posix() for p in (tmp_path / "set/data").rglob("*.parquet"))
    assert data == [f"chunk-{n // 2:03d}/file-{n % 2:03d}.parquet" for n in range(5)]
    rows = pq.read_table(tmp_path / "set/meta/episodes/chunk-000/file-000.parquet").to_pylist()
    key = "videos/observation.images.top"
    files = [(row[f"{key}/chunk_index"], row[f"{key}/file_index"]) for row in rows]
    assert 1 < len(set(files)) < 5
    assert files == sorted(files)
    for before, row in pairwise(rows):
        same = before[f"{key}/file_index"] == row[f"{key}/file_index"]
        assert row[f"{key}/from_timestamp"] == (before[f"{key}/to_timestamp"] if same else 0)
    for row in rows:
        assert row[f"{key}/to_timestamp"] - row[f"{key}/from_timestamp"] == pytest.approx(4 / FPS)


def test_metadata_describe_the_data(tmp_path: Path) -> None:
    episodes = [episode(0, 4, success=True), episode(1, 6, success=False), episode(2, 5, success=True)]
    root = write_v30(
        tmp_path / "set", episodes, image_cameras=["wrist"], info={"seed": 3}, splits={"train": "0:2", "val": "2:3"}
    )
    info = json.loads((root / "meta/info.json").read_text())
    assert info["codebase_version"] == "v3.0"
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"], info["fps"]) == (3, 15, 2, FPS)
    assert info["splits"] == {"train": "0:2", "val": "2:3"}
    assert info["counterpoint"] == {"seed": 3}
    assert info["features"]["action"] == {"dtype": "float32", "shape": [4], "names": None}
    top, wrist = (info["features"][f"observation.images.{name}"] for name in ("top", "wrist"))
    assert (top["dtype"], top["shape"], top["info"]["video.codec"]) == ("video", [24, 32, 3], "h264")
    assert (wrist["dtype"], wrist["shape"]) == ("image", [17, 23, 3])
    tasks = pq.read_table(root / "meta/tasks.parquet")
    assert tasks.to_pydict() == {"task_index": [0, 1], "task": ["task 0", "task 1"]}
    assert json.loads(tasks.schema.metadata[b"pandas"])["index_columns"] == ["task"]
    rows = pq.read_table(root / "data/chunk-000/file-000.parquet")
    assert rows["index"].to_pylist() == list(range(15))
    assert rows["task_index"].to_pylist() == [0] * 4 + [1] * 6 + [0] * 5
    np.testing.assert_array_equal(
        np.array(rows["timestamp"].to_pylist(), dtype=np.float32)[4:10], np.arange(6, dtype=np.float32) / FPS
    )
    assert rows["next.success"].to_pylist() == [False] * 3 + [True] + [False] * 10 + [True]


def test_rewards_are_the_feature_next_reward(tmp_path: Path) -> None:
    given = [replace(episode(n), rewards=np.arange(len(episode(n)), dtype=np.float32) - n) for n in (0, 1)]
    write_v30(tmp_path / "set", given)
    info = json.loads((tmp_path / "set/meta/info.json").read_text())
    assert info["features"]["next.reward"] == {"dtype": "float32", "shape": [1], "names": None}
    stats = json.loads((tmp_path / "set/meta/stats.json").read_text())
    assert stats["next.reward"]["min"] == [-1]
    store = LeRobotStore(tmp_path / "set")
    for number, each in enumerate(given):
        np.testing.assert_array_equal(store.rewards(number), each.rewards)
        np.testing.assert_array_equal(store.actions(number), each.actions)
    write_v30(tmp_path / "bare", [episode(0)])
    assert LeRobotStore(tmp_path / "bare").rewards(0) is None


def test_tasks_open_in_pandas(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    root = write_v30(tmp_path / "set", [episode(0), episode(1)])
    tasks = pandas.read_parquet(root / "meta/tasks.parquet")
    assert tasks.index.name == "task"
    assert list(tasks.index) == ["task 0", "task 1"]
    assert list(tasks.task_index) == [0, 1]


def test_statistics_are_those_of_the_data(tmp_path: Path) -> None:
    episodes = [episode(number, 8) for number in range(3)]
    root = write_v30(tmp_path / "set", episodes, image_cameras=["wrist"])
    stats = json.loads((root / "meta/stats.json").read_text())
    actions = np.concatenate([each.actions for each in episodes if each.actions is not None]).astype(float)
    np.testing.assert_allclose(stats["action"]["mean"], actions.mean(0))
    np.testing.assert_allclose(stats["action"]["std"], actions.std(0))
    np.testing.assert_allclose(stats["action"]["q10"], np.quantile(actions, 0.1, axis=0))
    assert stats["action"]["count"] == [24]
    images = np.concatenate([each.frames["wrist"] for each in episodes]) / 255
    wrist = stats["observation.images.wrist"]
    np.testing.assert_allclose(np.ravel(wrist["mean"]), images.mean((0, 1, 2)))
    np.testing.assert_allclose(np.ravel(wrist["std"]), images.std((0, 1, 2)))
    np.testing.assert_allclose(np.ravel(wrist["q50"]), np.quantile(images, 0.5, axis=(0, 1, 2)), atol=1 / 255)
    assert np.shape(wrist["min"]) == (3, 1, 1)
    every = {"min", "max", "mean", "std", "count", "q01", "q10", "q50", "q90", "q99"}
    assert all(entry.keys() == every for entry in stats.values())
    info = json.loads((root / "meta/info.json").read_text())
    assert stats.keys() == info["features"].keys()
    row = pq.read_table(root / "meta/episodes/chunk-000/file-000.parquet").to_pylist()[1]
    own = episodes[1].actions
    assert own is not None
    np.testing.assert_allclose(row["stats/action/max"], own.max(0))
    assert {name for name in row if name.startswith("stats/")} == {
        f"stats/{feature}/{kind}" for feature in stats for kind in every
    }


def test_encoded_videos_are_taken_as_they_are(tmp_path: Path) -> None:
    episodes = [episode(number, 4 + number) for number in range(3)]
    writer = LeRobotWriter(tmp_path / "set", fps=FPS, cameras=SIZES, action_dim=4, state_dim=3, robot_type="made")
    expected = []
    for number, each in enumerate(episodes):
        part = tmp_path / f"{number}.mp4"
        encode_video(part, each.frames["top"], FPS)
        expected.append(read_frames(part, range(len(each))))
        bare = Episode({"wrist": each.frames["wrist"]}, each.instruction, each.timestamps, each.actions, each.state)
        writer.add_episode(bare, {"top": part})
        part.unlink()  # what was given may go
    writer.finalize()
    store = LeRobotStore(tmp_path / "set")
    for number, frames in enumerate(expected):
        np.testing.assert_array_equal(store.frames(number, np.arange(len(frames)), "top"), frames)


def test_nothing_is_there_before_finalize_and_nothing_is_left_behind(tmp_path: Path) -> None:
    writer = LeRobotWriter(tmp_path / "set", fps=FPS, cameras=SIZES, action_dim=4, state_dim=3, robot_type="made")
    writer.add_episode(episode(0))
    assert not (tmp_path / "set").exists()
    del writer
    assert list(tmp_path.iterdir()) == []
    write_v30(tmp_path / "set", [episode(0)])
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == ["data", "meta", "videos"]


@pytest.mark.parametrize(
    ("bad", "found"),
    [
        (episode(1, sizes={"top": (24, 32)}), "wrist"),
        (episode(1, sizes={**SIZES, "top": (24, 30)}), r"\(24, 30\)"),
        (episode(1, action_dim=5), "found 5"),
        (episode(1, action_dim=None), "found None"),
        (episode(1, success=True), "success"),
        (replace(episode(1), rewards=np.zeros(len(episode(1)), np.float32)), "rewards"),
        (Episode(episode(1).frames, "", np.arange(5) / 9, episode(1).actions, episode(1).state), "0.111111"),
    ],
)
def test_an_episode_that_does_not_fit_is_refused_and_harms_nothing(tmp_path: Path, bad: Episode, found: str) -> None:
    writer = LeRobotWriter(tmp_path / "set", fps=FPS, cameras=SIZES, action_dim=4, state_dim=3, robot_type="made")
    writer.add_episode(episode(0))
    with pytest.raises(BadInputError, match=found):
        writer.add_episode(bad)
    writer.add_episode(episode(2))
    writer.finalize()
    store = LeRobotStore(tmp_path / "set")
    assert_same(read_episode(store, 1), episode(2))


def test_an_encoded_video_of_another_length_is_refused(tmp_path: Path) -> None:
    encode_video(tmp_path / "short.mp4", episode(0).frames["top"][:3], FPS)
    writer = LeRobotWriter(tmp_path / "set", fps=FPS, cameras=SIZES, action_dim=4, state_dim=3, robot_type="made")
    with pytest.raises(BadInputError, match=r"short\.mp4: found \(3, 24, 32\)"):
        writer.add_episode(episode(0), {"top": tmp_path / "short.mp4"})


@pytest.mark.parametrize(("options", "match"), [({"fps": 29.97}, "fps: found 29.97"), ({"fps": 0}, "fps: found 0")])
def test_a_fractional_rate_is_refused(tmp_path: Path, options: dict[str, Any], match: str) -> None:
    with pytest.raises(BadInputError, match=match):
        LeRobotWriter(tmp_path / "set", cameras={}, action_dim=1, state_dim=1, robot_type="made", **options)


@pytest.mark.parametrize("split", ["0:9", "2:1", "a:b", "1", "-1:1"])
def test_a_malformed_split_is_refused(tmp_path: Path, split: str) -> None:
    with pytest.raises(BadInputError, match="split 'train'"):
        write_v30(tmp_path / "set", [episode(0), episode(1)], splits={"train": split})
    assert not (tmp_path / "set").exists()


def test_an_existing_folder_and_an_empty_set_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="existing path"):
        write_v30(tmp_path, [episode(0)])
    writer = LeRobotWriter(tmp_path / "set", fps=FPS, cameras={}, action_dim=1, state_dim=1, robot_type="made")
    with pytest.raises(BadInputError, match="no episode"):
        writer.finalize()
