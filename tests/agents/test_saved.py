from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from counterpoint.agents import AGENTS, SavedAgent, make_agent
from counterpoint.data.episode import Spaces
from counterpoint.encoders.hub import load
from counterpoint.errors import BadInputError
from tests.agents.baseline_batches import acted
from tests.encoders.saved_kinds import write_digests

SPACES = Spaces(observation=(4,), goal=(2,), action=3, success_distance=0.1)


@pytest.mark.parametrize("name", AGENTS)
def test_a_saved_agent_acts_as_before(name: str, tmp_path: Path) -> None:
    agent = make_agent({"name": name, "hidden": [8, 8]}, SPACES, seed=3)
    SavedAgent(agent, {"name": "somewhere"}, np.array([[-2.0] * 3, [4.0] * 3])).save_pretrained(tmp_path / "model")
    saved = load(tmp_path)
    again = saved.agent
    rng = np.random.default_rng(0)
    observation, goal = rng.normal(size=(5, 4)), rng.normal(size=(5, 2))
    for each in (agent, again):
        each.reset(range(5))
    np.testing.assert_array_equal(
        acted(agent, observation, goal, explore=False), acted(again, observation, goal, explore=False)
    )
    assert saved.env == {"name": "somewhere"}
    np.testing.assert_array_equal(saved.action_bounds, [[-2.0] * 3, [4.0] * 3])
    assert again.spaces == SPACES


def test_a_folder_without_an_agent_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="a run writes model/ when it ends"):
        load(tmp_path)


@pytest.mark.parametrize("damage", ["weights", "name", "json"])
def test_damage_is_told(tmp_path: Path, damage: str) -> None:
    agent = make_agent({"name": "gcbc", "hidden": [8]}, SPACES)
    folder = SavedAgent(agent).save_pretrained(tmp_path / "model")
    description = folder / "config.json"
    if damage == "weights":
        whole = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    elif damage == "name":
        found = json.loads(description.read_text())
        found["config"]["agent"]["name"] = "nobody"
        description.write_text(json.dumps(found))
    else:
        description.write_text("{")
    if damage != "weights":
        write_digests(folder)
    with pytest.raises(BadInputError):
        load(tmp_path)


def test_a_wrong_situation_is_told() -> None:
    agent = make_agent({"name": "gcbc", "hidden": [8]}, SPACES)
    with pytest.raises(BadInputError, match="goal: found shape"):
        acted(agent, np.zeros((1, 4)), np.zeros((1, 5)), explore=False)
    with pytest.raises(BadInputError, match="NaN"):
        acted(agent, np.full((1, 4), np.nan), np.zeros((1, 2)), explore=False)
