"""A trained agent as two files: `agent.json` says what it is, `agent.safetensors` holds its networks."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from counterpoint.agents import AGENTS, make_agent
from counterpoint.agents.base import Agent, Spaces
from counterpoint.errors import BadInputError
from counterpoint.files import write_atomically
from counterpoint.objectives.base import NonFiniteError

__all__ = ["SavedAgent", "load_agent", "save_agent"]

DESCRIPTION, WEIGHTS = "agent.json", "agent.safetensors"


@dataclass(frozen=True)
class SavedAgent:
    """An agent and what is needed to put it to work.

    Attributes:
        agent: Acts in [-1, 1].
        env: The configuration of the environment it was trained for; `None` where it knew data alone.
        action_bounds: [2, A], what actions of -1 and 1 stand for in its data; `None` where they were in [-1, 1].
    """

    agent: Agent
    env: dict[str, Any] | None
    action_bounds: NDArray[np.float64] | None

    def in_units(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Actions [N, A] of the agent in the units of the data it learned from."""
        if self.action_bounds is None:
            return actions
        low, high = self.action_bounds
        scaled: NDArray[Any] = low + (actions + 1) / 2 * (high - low)
        return scaled


def save_agent(
    agent: Agent, folder: Path, env: dict[str, Any] | None = None, action_bounds: NDArray[Any] | None = None
) -> Path:
    """Write an agent's networks and what is needed to build it again.

    Args:
        agent: The agent.
        folder: Where the two files go; made when absent.
        env: The configuration of the environment it was trained for, where there is one.
        action_bounds: [2, A], what actions of -1 and 1 stand for, where the data were scaled.

    Returns:
        The folder.

    Raises:
        BadInputError: When its losses or parameters are not finite; nothing is written then.
    """
    try:
        exports = agent.exports()
    except NonFiniteError as error:
        raise BadInputError(
            f"agent {agent.name!r}",
            str(error),
            "finite losses and parameters",
            "lower the learning rates and train again, or save the agent of an earlier checkpoint",
        ) from None
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{name}/{key}": value.detach().cpu().contiguous().clone()
        for name, module in exports.items()
        for key, value in module.state_dict().items()
    }
    temporary = folder / f".{WEIGHTS}"
    save_file(tensors, temporary)
    temporary.replace(folder / WEIGHTS)
    description = {
        "agent": {"name": agent.name, **agent.settings.model_dump(mode="json")},
        "spaces": asdict(agent.spaces),
        "env": env,
        "action_bounds": None if action_bounds is None else np.asarray(action_bounds).tolist(),
    }
    write_atomically(folder / DESCRIPTION, json.dumps(description, indent=1))
    return folder


def load_agent(path: str | Path, *, device: torch.device | str = "cpu") -> SavedAgent:
    """A saved agent, ready to act.

    Args:
        path: The folder `save_agent` wrote, or a run that holds one in `agent/`.
        device: Where the agent shall live.

    Raises:
        BadInputError: When no whole agent is saved there.
    """
    folder = Path(path).expanduser()
    if (folder / "agent").is_dir():
        folder = folder / "agent"
    for name in (DESCRIPTION, WEIGHTS):
        if not (folder / name).is_file():
            raise BadInputError(
                folder / name,
                "no such file",
                f"a folder with {DESCRIPTION} and {WEIGHTS}, or a run that holds one in agent/",
                "check the path; a run writes agent/ when it ends",
            )
    try:
        description = json.loads((folder / DESCRIPTION).read_text())
        shapes = description["spaces"]
        spaces = Spaces(**shapes | {"observation": tuple(shapes["observation"]), "goal": tuple(shapes["goal"])})
        tensors = load_file(folder / WEIGHTS, device=str(device))
        agent = make_agent(description["agent"], spaces, device=device)
        for name, module in agent.exports().items():
            own = {key.removeprefix(f"{name}/"): t for key, t in tensors.items() if key.startswith(f"{name}/")}
            module.load_state_dict(own)
        bounds = description.get("action_bounds")
        return SavedAgent(agent, description.get("env"), None if bounds is None else np.array(bounds))
    except (KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        if isinstance(error, BadInputError):
            raise
        raise BadInputError(
            folder,
            f"{type(error).__name__}: {error}",
            f"an agent among {', '.join(AGENTS)}",
            "copy the folder again, or train the agent again",
        ) from None
