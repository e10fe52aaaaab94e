"""Goal-conditioned agents, one file per agent; `AGENTS` maps names to agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoint.agents.base import Agent, AgentConfig
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
from counterpoint.agents.ogbench.base import OGBenchConfig
from counterpoint.agents.ogbench.crl import OGBenchCRL, OGBenchCRLConfig
from counterpoint.agents.ogbench.gcbc import OGBenchGCBC
from counterpoint.agents.ogbench.gciql import GCIQL, GCIQLConfig
from counterpoint.agents.ogbench.gcivl import GCIVL, GCIVLConfig
from counterpoint.agents.ogbench.hiql import HIQL, HIQLConfig
from counterpoint.agents.ogbench.qrl import OGBenchQRL, OGBenchQRLConfig
from counterpoint.agents.ogbench.td_infonce import OGBenchTDInfoNCE, OGBenchTDInfoNCEConfig
from counterpoint.agents.qrl import QRL, QRLConfig
from counterpoint.agents.td3_bc import TD3BC, TD3BCConfig
from counterpoint.agents.td_infonce import TDInfoNCE, TDInfoNCEConfig
from counterpoint.config import validate
from counterpoint.data.episode import Spaces
from counterpoint.encoders.card import Description
from counterpoint.encoders.hub import SavedModel, read_model
from counterpoint.errors import BadInputError, require_known
from counterpoint.objectives.base import NonFiniteError

__all__ = ["AGENTS", "Agent", "AgentConfig", "AgentEntry", "SavedAgent", "Spaces", "agent_config", "make_agent"]


@dataclass(frozen=True)
class AgentEntry:
    """An agent's class, its configuration's class, and settings for offline training (TD InfoNCE's Table 3)."""

    agent: type[Agent]
    config: type[AgentConfig]
    offline: Mapping[str, Any] = field(default_factory=dict)


CLONED = {"actor_goals": "future", "behaviour_cloning": 0.1}


AGENTS: dict[str, AgentEntry] = {
    "td_infonce": AgentEntry(TDInfoNCE, TDInfoNCEConfig, CLONED),
    "contrastive_rl": AgentEntry(ContrastiveRLInfoNCE, ContrastiveRLInfoNCEConfig, CLONED),
    "contrastive_rl_nce": AgentEntry(ContrastiveRLNCE, ContrastiveRLConfig, CLONED),
    "c_learning": AgentEntry(CLearning, CLearningConfig, CLONED),
    "gcbc": AgentEntry(GCBC, GCBCConfig),
    "ddpg_her": AgentEntry(DDPGHER, DDPGHERConfig),
    "qrl": AgentEntry(QRL, QRLConfig, {"entropy": False, "cloning": 0.05}),
    "td3_bc": AgentEntry(TD3BC, TD3BCConfig),
    "iql": AgentEntry(IQL, IQLConfig),
    "ogbench_gcbc": AgentEntry(OGBenchGCBC, OGBenchConfig),
    "ogbench_crl": AgentEntry(OGBenchCRL, OGBenchCRLConfig),
    "ogbench_qrl": AgentEntry(OGBenchQRL, OGBenchQRLConfig),
    "ogbench_td_infonce": AgentEntry(OGBenchTDInfoNCE, OGBenchTDInfoNCEConfig),
    "gcivl": AgentEntry(GCIVL, GCIVLConfig),
    "gciql": AgentEntry(GCIQL, GCIQLConfig),
    "hiql": AgentEntry(HIQL, HIQLConfig),
    "decision_transformer": AgentEntry(DecisionTransformer, DecisionTransformerConfig),
}


def agent_config(tree: Mapping[str, Any], where: str) -> tuple[str, AgentConfig]:
    """Return the agent's name and its checked configuration.

    Args:
        tree: A mapping with the agent's `name` and keys of its configuration.
        where: The file or argument to name in error messages.

    Raises:
        BadInputError: If the agent's name or a key is unknown, or a value has the wrong type.
    """
    name = str(tree.get("name"))
    require_known(name, AGENTS, where, f"agent {name!r}")
    settings = {key: value for key, value in tree.items() if key != "name"}
    return name, validate(AGENTS[name].config, settings, f"{where}, [agent]")


def make_agent(tree: Mapping[str, Any], spaces: Spaces, *, seed: int = 0, device: torch.device | str = "cpu") -> Agent:
    """Return a new agent from a `tree` as in `agent_config`; for the other arguments see `Agent`."""
    name, config = agent_config(tree, "agent")
    return AGENTS[name].agent(config, spaces, seed=seed, device=device)


@dataclass(frozen=True)
class SavedAgent(SavedModel):
    """An agent with the settings that it needs to act.

    Attributes:
        agent: The agent, whose actions lie in [-1, 1].
        env: The configuration of the environment that the agent was trained for; `None` after training only on data.
        action_bounds: The data's values for actions -1 and 1, [2, A]; `None` if the data's actions lie in [-1, 1].
    """

    agent: Agent
    kind = "agent"
    env: dict[str, Any] | None = None
    action_bounds: NDArray[np.float64] | None = None

    def contents(self) -> tuple[Mapping[str, Any], Mapping[str, Tensor]]:
        """Return the configuration and the weights.

        Raises:
            BadInputError: If losses or parameters are not finite.
        """
        try:
            exports = self.agent.exports()
        except NonFiniteError as error:
            hint = "lower the learning rates, or save the agent of an earlier checkpoint"
            raise BadInputError(f"agent {self.agent.name!r}", str(error), "finite parameters", hint) from None
        config = {
            "agent": {"name": self.agent.name, **self.agent.config.model_dump(mode="json")},
            "spaces": asdict(self.agent.spaces),
            "env": self.env,
            "action_bounds": None if self.action_bounds is None else np.asarray(self.action_bounds).tolist(),
        }
        return config, torch.nn.ModuleDict(exports).state_dict()

    def describe(self) -> Description:
        """Return the agent's description for the model card."""
        spaces = self.agent.spaces
        usage = "action = model.agent.act(observations, rows=[0])  # a goal-reaching environment's observations"
        env = (self.env or {}).get("name", "none: trained on data alone")
        facts: dict[str, object] = {"Agent": f"`{self.agent.name}`", "Environment": env}
        facts |= {"Observation": list(spaces.observation), "Goal": list(spaces.goal), "Action": spaces.action}
        return Description(usage, facts, {})

    @classmethod
    def from_pretrained(
        cls, path_or_hub_id: str | Path, *, map_location: torch.device | str = "cpu", **hub: Any
    ) -> Self:
        """Load a saved agent, ready to act; arguments and errors are those of `counterpoint.load`."""
        saved = read_model(path_or_hub_id, "agent", str(map_location), **hub)
        try:
            shapes = saved.config["spaces"]
            spaces = Spaces(**shapes | {"observation": tuple(shapes["observation"]), "goal": tuple(shapes["goal"])})
            agent = make_agent(saved.config["agent"], spaces, device=map_location)
        except (KeyError, TypeError) as error:
            found = f"no agent's configuration ({type(error).__name__}: {error})"
            raise BadInputError(saved.file, found, "agent and spaces", "train the agent again") from None
        saved.fill(torch.nn.ModuleDict(agent.exports()), str(map_location))
        bounds = saved.config["action_bounds"]
        return cls(agent, saved.config["env"], None if bounds is None else np.array(bounds))
