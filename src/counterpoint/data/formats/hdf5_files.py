"""HDF5 files of robomimic and LIBERO: how they are opened, and what they say of their environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from counterpoint.errors import BadInputError, MissingExtraError

__all__ = [
    "CONTROL_HZ",
    "damaged",
    "data_group",
    "env_args",
    "import_h5py",
    "json_attribute",
    "open_hdf5",
    "text_of",
]

CONTROL_HZ = 20.0
"""Actions a second where `env_args` does not say; robomimic and LIBERO use no other."""


def import_h5py() -> Any:
    """The package `h5py`.

    Raises:
        MissingExtraError: When it is not installed.
    """
    try:
        import h5py
    except ModuleNotFoundError:
        raise MissingExtraError("h5py", "hdf5") from None
    return h5py


def open_hdf5(path: Path) -> Any:
    """An `h5py.File` to read.

    Raises:
        BadInputError: When there is no such file or it is damaged.
        MissingExtraError: When `h5py` is not installed.
    """
    h5py = import_h5py()
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise BadInputError(
            path,
            found="no file"
            if not path.is_file()
            else f"a file that is no HDF5, or is damaged ({_line(error)})",
            expected="an HDF5 file of robomimic or LIBERO",
            mend="check the path, or download the file again",
        ) from None


def env_args(path: Path) -> dict[str, Any]:
    """What a data set says of the environment it was recorded in: `env_name`, `type`, `env_kwargs`.

    Raises:
        BadInputError: When it does not say.
        MissingExtraError: When `h5py` is not installed.
    """
    with open_hdf5(path) as file:
        args = json_attribute(path, data_group(path, file).attrs, "env_args")
    if not isinstance(args.get("env_name"), str) or not isinstance(args.get("env_kwargs"), dict):
        raise BadInputError(
            f"{path}, data, attribute env_args",
            found=f"the keys {sorted(args)}" if args else "nothing",
            expected="JSON with env_name and env_kwargs",
            mend="name the environment instead, or download the data set again",
        )
    return args


def data_group(path: Path, file: Any) -> Any:
    """The group with a group for each demonstration.

    Raises:
        BadInputError: When there is none.
    """
    if "data" not in file:
        raise damaged(
            path, f"the groups {sorted(file)}", "a group 'data' with a group for each demonstration"
        )
    return file["data"]


def json_attribute(where: str | Path, attributes: Any, name: str) -> dict[str, Any]:
    """A JSON attribute; empty where it is not there.

    Raises:
        BadInputError: When it is no JSON object.
    """
    text = attributes.get(name)
    if text is None:
        return {}
    try:
        value = json.loads(text_of(text))
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise damaged(f"{where}, attribute {name}", f"{text_of(text)[:60]!r}", "a JSON object")
    return value


def text_of(value: Any) -> str:
    """A string that HDF5 keeps as one, or as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


def damaged(where: str | Path, found: str, expected: str) -> BadInputError:
    """What is said of a file that lacks something, or has it in another form."""
    return BadInputError(
        where, found=found, expected=expected, mend="download or record it again, or remove the demonstration"
    )


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")[:120]
