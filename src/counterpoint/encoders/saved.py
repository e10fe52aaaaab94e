"""The folder an encoder is saved in: where it is and what its configuration says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from counterpoint.config import FrozenConfig
from counterpoint.errors import BadInputError

__all__ = ["CONFIG", "WEIGHTS", "parse_config", "read_config", "saved_folder"]

CONFIG = "config.json"
WEIGHTS = "model.safetensors"

Config = TypeVar("Config", bound=FrozenConfig)


def saved_folder(path: str | Path) -> Path:
    """The folder of the encoder saved at `path`: `path` itself, or what a run keeps in `pretrained/`.

    Raises:
        BadInputError: No encoder is saved there.
    """
    folder = Path(path).expanduser()
    if (folder / "pretrained").is_dir():
        folder = folder / "pretrained"
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise BadInputError(
                folder / name,
                found="no such file",
                expected="a folder written by save_pretrained, or a run that holds one",
                mend="check the path; a run writes pretrained/ when it ends",
            )
    return folder


def read_config(folder: Path, kind: type[Config]) -> Config:
    """The configuration of the encoder saved in `folder`, of the class `kind`.

    Raises:
        BadInputError: It is damaged, or was written for something else.
    """
    where = folder / CONFIG
    try:
        found = json.loads(where.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadInputError(
            where, found=f"no JSON ({error})", expected="an encoder's configuration", mend="copy it again"
        ) from error
    return parse_config(found, where, kind)


def parse_config(found: Mapping[str, Any], where: str | Path, kind: type[Config]) -> Config:
    """The configuration read from `where`, of the class `kind`.

    Raises:
        BadInputError: An unknown or ill-typed entry.
    """
    try:
        return kind.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInputError(
            where,
            found=f"{'.'.join(map(str, first['loc'])) or 'the whole'}: {first['msg']}",
            expected="an encoder's configuration",
            mend="save the encoder again with this version of the library",
        ) from error
