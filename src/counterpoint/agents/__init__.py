"""Goal-conditioned agents, one file each, the loops that train them, and the replay buffer they share.

`AGENTS` names what `counterpoint train` trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from counterpoint.agents.base import Agent, AgentConfig, Spaces
from counterpoint.agents.c_learning import CLearning, CLearningConfig
from counterpoint.agents.contrastive_rl import (
    ContrastiveRLConfig,
    ContrastiveRLInfoNCE,
    ContrastiveRLInfoNCEConfig,
    ContrastiveRLNCE,
)
from counterpoint.agents.ddpg_her import DDPGHER, DDPGHERConfig
from counterpoint.agents.decision_transformer import DecisionTransformer, DecisionTransformerConfig
from counterpoint.agents.gcbc import GCBC, GCBCConfig
from counterpoint.agents.iql import IQL, IQLConfig
from counterpoint.agents.qrl import QRL, QRLConfig
from counterpoint.agents.td3_bc import TD3BC, TD3BCConfig
from counterpoint.agents.td_infonce import TDInfoNCE, TDInfoNCEConfig
from counterpoint.config import validate
from counterpoint.errors import BadInputError

__all__ = ["AGENTS", "Agent", "AgentConfig", "Entry", "Spaces", "agent_config", "make_agent"]


@dataclass(frozen=True)
class Entry:
    """An agent, its configuration, and what of it changes where there are only data (TD InfoNCE's Table 3)."""

    agent: type[Agent]
    config: type[AgentConfig]
    offline: Mapping[str, Any] = field(default_factory=dict)


CLONED = {"actor_goals": "future", "behaviour_cloning": 0.1}


AGENTS: dict[str, Entry] = {
    "td_infonce": Entry(TDInfoNCE, TDInfoNCEConfig, CLONED),
    "contrastive_rl": Entry(ContrastiveRLInfoNCE, ContrastiveRLInfoNCEConfig, CLONED),
    "contrastive_rl_nce": Entry(ContrastiveRLNCE, ContrastiveRLConfig, CLONED),
    "c_learning": Entry(CLearning, CLearningConfig, CLONED),
    "gcbc": Entry(GCBC, GCBCConfig),
    "ddpg_her": Entry(DDPGHER, DDPGHERConfig),
    "qrl": Entry(QRL, QRLConfig, {"entropy": False, "cloning": 0.05}),
    "td3_bc": Entry(TD3BC, TD3BCConfig),
    "iql": Entry(IQL, IQLConfig),
    "decision_transformer": Entry(DecisionTransformer, DecisionTransformerConfig),
}


def agent_config(tree: Mapping[str, Any], where: str) -> tuple[str, AgentConfig]:
    """The agent's name and its checked configuration.

    Args:
        tree: `name` and the configuration's keys.
        where: Told in errors.

    Raises:
        BadInputError: When there is no such agent, or a key is unknown or ill-typed.
    """
    name = tree.get("name")
    if name not in AGENTS:
        raise BadInputError(where, f"agent {name!r}", f"one of {', '.join(AGENTS)}", "choose one of these")
    settings = {key: value for key, value in tree.items() if key != "name"}
    return name, validate(AGENTS[name].config, settings, f"{where}, [agent]")


def make_agent(tree: Mapping[str, Any], spaces: Spaces, *, seed: int = 0, device: torch.device | str = "cpu") -> Agent:
    """An agent with fresh weights.

    Args:
        tree: `name` and the configuration's keys.
        spaces: What it sees and does.
        seed: Of weights and random numbers.
        device: Where it lives.
    """
    name, config = agent_config(tree, "agent")
    return AGENTS[name].agent(config, spaces, seed=seed, device=device)
