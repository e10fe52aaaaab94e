"""Tests of all baseline agents: acting, resuming, refusing bad input and keeping losses apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from counterpoint.agents import make_agent
from counterpoint.agents.base import Agent
from counterpoint.data.episode import Spaces
from counterpoint.errors import BadInputError
from tests.agents.baseline_batches import (
    CHOICE,
    IMAGE,
    SMALL,
    STATE,
    WHOLE,
    assert_acts,
    assert_losses_are_apart,
    assert_refuses,
    assert_resumes,
    batch_of,
)

SETTINGS: dict[str, dict[str, Any]] = {
    "gcbc": {"lr": 3e-3},
    "qrl": {"latent": 16, "projector": 32, "components": 8, "component_width": 4},
}
NAMES = ["gcbc", "ddpg_her", "qrl", "td3_bc", "iql"]
LOSSES = {
    "ddpg_her": {"critic": "loss", "actor": "actor/loss"},
    "qrl": {"critic": "loss", "actor": "actor/loss", "dual": "dual/loss"},
    "td3_bc": {"critic": "loss", "actor": "actor/loss"},
    "iql": {"critic": "loss", "value": "value/loss", "actor": "actor/loss"},
}


def make(name: str, spaces: Spaces, seed: int = 0) -> Agent:
    return make_agent({"name": name, "hidden": SMALL, **SETTINGS.get(name, {})}, spaces, seed=seed)


@pytest.mark.parametrize("spaces", [STATE, IMAGE], ids=["state", "image"])
@pytest.mark.parametrize("name", NAMES)
def test_it_acts(name: str, spaces: Spaces) -> None:
    assert_acts(make(name, spaces))


@pytest.mark.parametrize("spaces", [STATE, WHOLE], ids=["coordinates", "whole state"])
@pytest.mark.parametrize("name", NAMES)
def test_it_resumes(name: str, spaces: Spaces, tmp_path: Path) -> None:
    assert_resumes(lambda seed: make(name, spaces, seed), tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_it_refuses(name: str) -> None:
    assert_refuses(make(name, STATE))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "gcbc"])
def test_agents_of_continuous_actions_refuse_discrete_ones(name: str) -> None:
    with pytest.raises(BadInputError, match="discrete"):
        make(name, CHOICE)


def test_cloning_serves_discrete_actions(tmp_path: Path) -> None:
    assert_acts(make("gcbc", CHOICE))
    assert_resumes(lambda seed: make("gcbc", CHOICE, seed), tmp_path)
    assert_refuses(make("gcbc", CHOICE))


@pytest.mark.parametrize("spaces", [STATE, IMAGE], ids=["state", "image"])
@pytest.mark.parametrize("name", LOSSES)
def test_each_network_descends_its_own_loss_alone(name: str, spaces: Spaces) -> None:
    agent = make(name, spaces)
    batch = agent._inputs(batch_of(spaces, 32 if spaces is STATE else 4), agent.generator("update", 0))
    assert_losses_are_apart(agent, agent.losses(batch), LOSSES[name])
