from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from counterpoint.data.episode import GoalEpisode
from counterpoint.errors import BadInputError
from counterpoint.formats.minari.files import is_minari
from counterpoint.formats.minari.reader import episode_success, load_minari, read_minari
from counterpoint.formats.minari.writer import write_minari
from tests.formats.minari.made import goal_episodes

minari = pytest.importorskip("minari")
pytest.importorskip("h5py")

ABOUT: dict[str, Any] = {"env_id": "PointMaze_UMaze-v3", "description": "Made by a test."}


def assert_equal(read: GoalEpisode, written: GoalEpisode) -> None:
    for name in ("observations", "achieved", "commanded", "actions", "rewards", "success"):
        np.testing.assert_array_equal(getattr(read, name), getattr(written, name))
        if name != "success":
            assert getattr(read, name).dtype == getattr(written, name).dtype
    assert read.terminated == written.terminated


def test_what_is_written_is_read(tmp_path: Path) -> None:
    episodes = goal_episodes()
    out = write_minari(tmp_path / "maze", episodes, **ABOUT)
    assert is_minari(out)
    for read, written in zip(read_minari(out), episodes, strict=True):
        assert_equal(read, written)
    assert episode_success(out).tolist() == [True, False, True]
    assert load_minari(out).transitions == 12
    assert [path.name for path in tmp_path.iterdir()] == ["maze"]


def test_minari_itself_opens_it_by_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    episodes = goal_episodes()
    write_minari(tmp_path / "maze" / "made-v3", episodes, dataset_id="maze/made-v3", algorithm="waypoints", **ABOUT)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    data = minari.load_dataset("maze/made-v3")
    assert (data.total_episodes, data.total_steps) == (3, 12)
    assert data.spec.dataset_id == "maze/made-v3"
    assert data.storage.metadata["env_id"] == "PointMaze_UMaze-v3"
    assert data.storage.metadata["algorithm_name"] == "waypoints"
    assert "maze/made-v3" in minari.list_local_datasets()
    first = data[0]
    np.testing.assert_array_equal(first.observations["achieved_goal"], episodes[0].achieved)
    assert data.observation_space["observation"].contains(first.observations["observation"][0])
    assert [bool(data[place].terminations[-1]) for place in range(3)] == [False, True, False]
    assert [bool(data[place].truncations[-1]) for place in range(3)] == [True, False, True]
    assert len(load_minari("maze/made-v3")) == 3


def test_images_and_discrete_actions_keep_every_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    episodes = []
    for _ in range(3):
        images = rng.integers(256, size=(6, 16, 16, 3), dtype=np.uint8)
        actions = rng.integers(4, size=5)
        rewards, success = np.zeros(5, np.float32), np.zeros(5, np.bool_)
        episodes.append(GoalEpisode(images, images, images[3], actions, rewards, success))
    out = write_minari(tmp_path / "images", episodes, discrete=4, **ABOUT)
    for read, written in zip(read_minari(out), episodes, strict=True):
        assert_equal(read, written)
    buffer = load_minari(out)
    assert buffer.spaces.discrete
    assert buffer.spaces.action == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observations": np.full((5, 4), np.nan, np.float32)}, "episode 1, observations: found NaN"),
        ({"actions": np.full((4, 2), 2.0, np.float32)}, "episode 1, actions, step 0: found 2"),
        ({"achieved": np.zeros((5, 3), np.float32)}, "episode 1, goals: found shape"),
    ],
)
def test_a_bad_episode_leaves_nothing_behind(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    episodes = goal_episodes((4, 4))
    with pytest.raises(BadInputError, match=message):
        write_minari(tmp_path / "maze", [episodes[0], replace(episodes[1], **change)], **ABOUT)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no episode"):
        write_minari(tmp_path / "maze", [], **ABOUT)
    with pytest.raises(BadInputError, match="an existing path"):
        write_minari(tmp_path, goal_episodes(), **ABOUT)
    with pytest.raises(BadInputError, match="dataset_id"):
        write_minari(tmp_path / "maze", goal_episodes(), dataset_id="no version", **ABOUT)
    with pytest.raises(BadInputError, match="with and without success"):
        write_minari(tmp_path / "maze", goal_episodes() + goal_episodes(success=False), **ABOUT)
    assert not list(tmp_path.iterdir())


def test_a_disk_that_is_too_small_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDF5 ends its process where one fills up."""
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=1000))
    with pytest.raises(BadInputError, match=r"0\.0 MB free; expected 1\.\d MB for the data set"):
        write_minari(tmp_path / "data", goal_episodes(), **ABOUT)
    assert not any(tmp_path.iterdir())
