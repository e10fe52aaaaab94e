from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from counterpoint.config import validate
from counterpoint.envs.collect import episode_seed
from counterpoint.envs.kitchen.collect import KitchenCollectConfig, collect_kitchen
from counterpoint.envs.kitchen.env import KitchenEnv
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset


@pytest.mark.slow
@pytest.mark.sim
@pytest.mark.usefixtures("simulator")
def test_demonstrations_are_of_one_length_and_hold_what_was_carried_out(tmp_path: Path) -> None:
    settings = {
        "out": tmp_path / "set",
        "tasks": ["light_on", "sdoor_open"],
        "episodes": 2,
        "size": 32,
        "workers": 1,
        "lossless": True,
    }
    store = open_dataset(collect_kitchen(validate(KitchenCollectConfig, settings, "collect kitchen")))
    assert [info.instruction for info in store.episodes] == ["switch on light"] * 2 + ["slide cabinet"] * 2
    assert [info.length for info in store.episodes] == [50] * 4
    assert store.cameras == ("left",)
    for episode in range(4):
        actions, state, rewards = store.actions(episode), store.state(episode), store.rewards(episode)
        assert actions is not None
        assert state is not None
        assert rewards is not None
        assert actions.shape == state.shape == (50, 9)
        assert np.abs(actions).max() <= 1
        assert rewards[-6:].all()
    actions, state = store.actions(0), store.state(0)
    assert actions is not None
    assert state is not None
    env, frames = KitchenEnv("light_on", size=32), store.frames(0, np.arange(50), "left")
    observation, _ = env.reset(seed=episode_seed(0, "light_on", "train", 0))
    for action, before, frame in zip(actions, state, frames, strict=True):
        np.testing.assert_array_equal(observation["state"], before)
        np.testing.assert_array_equal(observation["left"], frame)
        observation, *_, info = env.step(action)
    assert info["is_success"]


@pytest.mark.sim
@pytest.mark.usefixtures("simulator")
def test_an_unknown_task_is_refused(tmp_path: Path) -> None:
    settings = {"out": tmp_path / "set", "tasks": ["micro-opn"]}
    with pytest.raises(BadInputError, match="micro_open"):
        collect_kitchen(validate(KitchenCollectConfig, settings, "collect kitchen"))
    assert not (tmp_path / "set").exists()


@pytest.mark.slow
@pytest.mark.sim
@pytest.mark.usefixtures("simulator")
def test_a_pair_is_one_episode_whose_segments_are_its_tasks(tmp_path: Path) -> None:
    settings = {
        "out": tmp_path / "set",
        "tasks": ["light_on", "sdoor_open"],
        "pairs": True,
        "episodes": 0,
        "test_episodes": 1,
        "after_success": 2,
        "size": 32,
        "workers": 1,
    }
    store = open_dataset(collect_kitchen(validate(KitchenCollectConfig, settings, "collect kitchen")))
    texts = ["switch on light; slide cabinet", "slide cabinet; switch on light"]
    assert [info.instruction for info in store.episodes] == texts
    for episode, info in enumerate(store.episodes):
        (first, one), (boundary, two) = info.segments
        assert (first, [one, two]) == (0, info.instruction.split("; "))
        rewards = store.rewards(episode)
        assert rewards is not None
        assert rewards[boundary - 6 : boundary].all()
        assert not rewards[boundary : boundary + 6].any()
        assert rewards[-6:].all()


@pytest.mark.sim
@pytest.mark.usefixtures("simulator")
def test_pairs_need_two_tasks(tmp_path: Path) -> None:
    settings = {"out": tmp_path / "set", "tasks": ["light_on"], "pairs": True}
    with pytest.raises(BadInputError, match="at least two"):
        collect_kitchen(validate(KitchenCollectConfig, settings, "collect kitchen"))
