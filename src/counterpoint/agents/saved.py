"""A trained agent as two files: `agent.json` says what it is, `agent.safetensors` holds its networks."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from counterpoint.agents import AGENTS, make_agent
from counterpoint.agents.base import Agent, Spaces
from counterpoint.errors import BadInputError
from counterpoint.training.checkpoint import write_atomically

__all__ = ["load_agent", "save_agent"]

DESCRIPTION, WEIGHTS = "agent.json", "agent.safetensors"


def save_agent(agent: Agent, folder: Path, env: dict[str, Any] | None = None) -> Path:
    """Write an agent's networks and what is needed to build it again.

    Args:
        agent: The agent.
        folder: Where the two files go; made when absent.
        env: The configuration of the environment it was trained for, where there is one.

    Returns:
        The folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{name}/{key}": value.detach().cpu().contiguous().clone()
        for name, module in agent.exports().items()
        for key, value in module.state_dict().items()
    }
    temporary = folder / f".{WEIGHTS}"
    save_file(tensors, temporary)
    temporary.replace(folder / WEIGHTS)
    description = {
        "agent": {"name": agent.name, **agent.settings.model_dump(mode="json")},
        "spaces": asdict(agent.spaces),
        "env": env,
    }
    write_atomically(folder / DESCRIPTION, json.dumps(description, indent=1))
    return folder


def load_agent(
    path: str | Path, *, device: torch.device | str = "cpu"
) -> tuple[Agent, dict[str, Any] | None]:
    """A saved agent, ready to act, and the environment it was trained for.

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
                found="no such file",
                expected=f"a folder with {DESCRIPTION} and {WEIGHTS}, or a run that holds one in agent/",
                mend="check the path; a run writes agent/ when it ends",
            )
    try:
        description = json.loads((folder / DESCRIPTION).read_text())
        shapes = description["spaces"]
        spaces = Spaces(
            **shapes | {"observation": tuple(shapes["observation"]), "goal": tuple(shapes["goal"])}
        )
        tensors = load_file(folder / WEIGHTS, device=str(device))
        agent = make_agent(description["agent"], spaces, device=device)
        for name, module in agent.exports().items():
            own = {
                key.removeprefix(f"{name}/"): t for key, t in tensors.items() if key.startswith(f"{name}/")
            }
            module.load_state_dict(own)
    except (KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        if isinstance(error, BadInputError):
            raise
        raise BadInputError(
            folder,
            found=f"{type(error).__name__}: {error}",
            expected=f"an agent among {', '.join(AGENTS)}",
            mend="copy the folder again, or train the agent again",
        ) from None
    return agent, description["env"]
