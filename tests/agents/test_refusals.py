"""What no agent can be made of: one message each. And which agents live on rewards."""

from __future__ import annotations

from typing import Any

import pytest

from counterpoint.agents import AGENTS, agent_config, make_agent
from counterpoint.data.draws import Spaces
from counterpoint.errors import BadInputError


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize("hidden", [[], [64, 0], [-3]])
def test_hidden_layers_must_exist(name: str, hidden: list[int]) -> None:
    with pytest.raises(BadInputError, match="hidden"):
        agent_config({"name": name, "hidden": hidden}, "agent")


@pytest.mark.parametrize("name", [name for name in AGENTS if name != "decision_transformer"])
@pytest.mark.parametrize(
    ("shapes", "told"),
    [
        ({"observation": (32, 40, 3), "goal": (2,)}, "32 x 40 pixels"),
        ({"observation": (64, 64), "goal": (2,)}, r"observations: found shape \(64, 64\)"),
        ({"observation": (4,), "goal": ()}, r"goals: found shape \(\)"),
    ],
)
def test_what_is_seen_must_be_a_state_or_a_picture_of_some_size(name: str, shapes: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInputError, match=told):
        make_agent({"name": name, "hidden": [8]}, Spaces(**shapes, action=2, success_distance=0.1))


def test_the_smallest_picture() -> None:
    shape = (36, 36, 3)
    make_agent({"name": "gcbc", "hidden": [8]}, Spaces(observation=shape, goal=shape, action=2))


def test_agents_that_need_rewards_say_so() -> None:
    needing = {name for name, entry in AGENTS.items() if entry.agent.needs_reward}
    assert needing == {"td3_bc", "iql", "decision_transformer"}
