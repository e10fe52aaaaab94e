"""The folder a policy is saved in: `config.json` and `model.safetensors`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from torch import nn

from counterpoint.config import FrozenConfig
from counterpoint.encoders.hub import CONFIG, WEIGHTS
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.encoders.weights import fit_weights, read_weights, write_weights
from counterpoint.errors import BadInputError

__all__ = ["fill_from", "policy_folder", "read_config", "read_tree", "rebuilt_encoder", "write_policy"]

Config = TypeVar("Config", bound=FrozenConfig)
Module = TypeVar("Module", bound=nn.Module)


def policy_folder(path: str | Path) -> Path:
    """`path` itself, or what a run keeps in `policy/`."""
    folder = Path(path).expanduser()
    return folder / "policy" if (folder / "policy").is_dir() else folder


def write_policy(policy: nn.Module, config: FrozenConfig, folder: Path) -> Path:
    """Write both files, the folder made when absent; a reader sees whole files alone."""
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(policy.state_dict(), folder / WEIGHTS)
    draft = folder / f"{CONFIG}.tmp"
    draft.write_text(config.model_dump_json(indent=2) + "\n", encoding="utf-8")
    draft.replace(folder / CONFIG)
    return folder


def read_tree(folder: Path) -> dict[str, Any]:
    """What `config.json` says.

    Raises:
        BadInputError: It is not there, or no JSON.
    """
    where = folder / CONFIG
    if not where.is_file():
        raise BadInputError(
            where,
            "no such file",
            "a policy written by save_pretrained, or a run that holds one in policy/",
            "check the path; a run writes policy/ when it ends",
        )
    try:
        found = json.loads(where.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError(type(found).__name__)
    except ValueError as error:
        raise _damaged(where, error) from None
    return found


def read_config(folder: Path, kind: type[Config]) -> Config:
    """The configuration of a policy of one kind.

    Raises:
        BadInputError: There is none, or a damaged one, or one of another kind.
    """
    tree = read_tree(folder)
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise _damaged(folder / CONFIG, error) from None


def rebuilt_encoder(config: ObservationConfig) -> ObservationEncoder:
    """An encoder to be filled: the saved weights replace a pretrained model's, whose file is not needed again."""
    encoder = ObservationEncoder(config.model_copy(update={"checkpoint": None}))
    encoder.config = encoder.config.model_copy(update={"checkpoint": config.checkpoint})
    return encoder


def fill_from(policy: Module, folder: Path) -> Module:
    """The policy with the folder's weights.

    Raises:
        BadInputError: No weights, damaged ones, or another policy's.
    """
    fit_weights(policy, read_weights(folder / WEIGHTS), folder / WEIGHTS)
    return policy


def _damaged(where: Path, error: ValueError) -> BadInputError:
    return BadInputError(
        where,
        str(error).splitlines()[0],
        "a policy's configuration",
        "copy the folder again, or train the policy again",
    )
