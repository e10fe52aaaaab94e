from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from counterpoint import repositories
from counterpoint.errors import BadInputError
from counterpoint.evaluation.held_out import open_training, open_unseen
from tests.evaluation.fake_run import write_data
from tests.formats.lerobot.made import episode as lerobot_episode
from tests.formats.lerobot.made import write_v30
from tests.hub_here import COMMIT, OTHER, hub_cache


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "balls")


def test_held_out_episodes_are_those_of_the_split(data: Path) -> None:
    config = {"data": {"path": str(data)}}
    source, about, trained = open_unseen([config], data, None, most=100, seed=0)
    assert about == {
        "data": str(data),
        "split": "val",
        "held_out": "the split val",
        "episodes_left_out": 0,
        "episodes_drawn_from": 8,
    }
    assert trained == [False]
    assert source.frames(0, np.array([0])).shape == (1, 64, 64, 3)
    source, about, _ = open_unseen([config], data, None, most=3, seed=0)
    assert (len(source.episodes), about["episodes_drawn_from"]) == (3, 8)
    with pytest.raises(BadInputError, match="elsewhere"):
        open_unseen([config], data, "elsewhere", most=3, seed=0)


def test_episodes_that_training_held_out_are_reported_on_and_named(tmp_path: Path) -> None:
    data = write_data(tmp_path / "whole", split=False, each=2)
    config = {"data": {"path": str(data)}, "held_out": [3, 1]}
    source, about, trained = open_unseen([config], data, None, most=9, seed=0)
    assert len(source.episodes) == 2
    assert about["held_out"] == "2 of 16 episodes, left out of training by task: 1, 3"
    assert trained == [False]
    other = {"data": {"path": str(tmp_path)}}  # a run on other data has seen none of these
    source, _, trained = open_unseen([other], data, None, most=99, seed=0)
    assert (len(source.episodes), trained) == (16, [False])


def test_runs_on_segments_are_shown_segments(tmp_path: Path) -> None:
    parts = ((0, "reach"), (2, "grasp"))
    made = [replace(lerobot_episode(n, sizes={}), instruction="reach; grasp", segments=parts) for n in range(2)]
    data = write_v30(tmp_path / "set", made, splits={"train": "0:1", "val": "1:2"})
    config = {"data": {"path": str(data), "train_split": "train", "segments": "task"}}
    source, about, _ = open_unseen([config], data, None, most=9, seed=0)
    assert [info.instruction for info in source.episodes] == ["reach", "grasp"]
    assert about["held_out"] == "the split val, each segment for itself"
    opened = open_training(config)
    assert opened is not None
    assert opened[0].lengths.tolist() == [2, 3]
    with pytest.raises(BadInputError, match="found episode and task"):
        open_unseen([config, {"data": {"path": str(data)}}], data, None, most=9, seed=0)


def test_data_without_held_out_episodes_is_refused_or_owned_up_to(tmp_path: Path) -> None:
    data = write_data(tmp_path / "whole", split=False, each=1)
    config = {"data": {"path": str(data)}}
    with pytest.raises(BadInputError, match="--split"):
        open_unseen([config], data, None, most=9, seed=0)
    assert open_unseen([config], data, "train", most=9, seed=0)[2] == [True]


def test_a_run_on_a_data_set_of_the_hub_is_known_by_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, cache = write_data(tmp_path / "whole", split=False, each=2), hub_cache(monkeypatch, tmp_path / "hub")
    cache.add("me/balls", data)
    config = {"data": {"path": f"me/balls@{COMMIT}"}, "held_out": [3, 1]}
    source, _, _ = open_unseen([config], Path("me/balls"), None, most=9, seed=0)
    assert len(source.episodes) == 2
    opened = open_training(config)
    assert opened is not None
    assert len(opened[1]) == 14
    cache.add("me/balls", data, commit=OTHER)  # the branch moved: held-out episodes may have other numbers
    repositories._downloaded.cache_clear()  # as another process
    with pytest.raises(BadInputError, match=rf"found the commit {OTHER}; .*--data me/balls@{COMMIT}"):
        open_unseen([config], Path("me/balls"), None, most=9, seed=0)
    assert open_training({"data": {"path": "me/gone@main"}, "held_out": []}) is None
