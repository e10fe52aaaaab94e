"""Typed, frozen configurations: recipe TOML plus command-line overrides; an unknown key is an error."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from counterpoint.errors import BadInputError

__all__ = ["FrozenConfig", "override", "parse_overrides", "read_recipe", "recipe_names", "recipe_title", "validate"]

Config = TypeVar("Config", bound="FrozenConfig")
Tree = dict[str, Any]


class FrozenConfig(BaseModel):
    """Base of every configuration: immutable, and an unknown or ill-typed key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    folder = resources.files("counterpoint") / "recipes"
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


def read_recipe(recipe: str) -> Tree:
    """A recipe by name, or any TOML file by path.

    Raises:
        BadInputError: When there is no such recipe or file, or it is not TOML.
    """
    path = Path(recipe)
    if path.suffix == ".toml":
        if not path.is_file():
            raise BadInputError(path, "no file", "a recipe in TOML", "check the path")
        text = path.read_text()
    elif recipe in recipe_names():
        text = (resources.files("counterpoint") / "recipes" / f"{recipe}.toml").read_text()
    else:
        close = difflib.get_close_matches(recipe, recipe_names(), n=1)
        raise BadInputError(
            f"recipe {recipe!r}",
            "no such recipe",
            f"one of {', '.join(recipe_names())}, or the path of a .toml file",
            f"did you mean {close[0]}?" if close else "choose one of these",
        )
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInputError(recipe, f"broken TOML ({error})", "TOML", "repair it") from None


def recipe_title(name: str) -> str:
    """The first line of a recipe, which says what it is."""
    text = (resources.files("counterpoint") / "recipes" / f"{name}.toml").read_text()
    return text.splitlines()[0].removeprefix("# ")


def parse_overrides(arguments: Iterable[str]) -> Tree:
    """`["train.steps=100", "--data.camera=corner2"]` as `{"train.steps": 100, "data.camera": "corner2"}`.

    Values are read as JSON where they are JSON (numbers, true, null, lists) and as text elsewhere.

    Raises:
        BadInputError: When an argument is not of that form.
    """
    overrides: Tree = {}
    for argument in arguments:
        name, equals, text = argument.removeprefix("--").partition("=")
        if not equals or not name:
            raise BadInputError(f"argument {argument!r}", "no value", "--section.key=value", "write it so")
        try:
            overrides[name.replace("-", "_")] = json.loads(text)
        except json.JSONDecodeError:
            overrides[name.replace("-", "_")] = text
    return overrides


def override(tree: Tree, overrides: Mapping[str, Any]) -> Tree:
    """A copy of `tree` with dotted keys set; whether a key exists is for `validate` to say."""
    changed: Tree = json.loads(json.dumps(tree))
    for dotted, value in overrides.items():
        *sections, last = dotted.split(".")
        node = changed
        for section in sections:
            node = node.setdefault(section, {})
            if not isinstance(node, dict):
                raise BadInputError(f"--{dotted}", f"{section} is a value", "a section", "check the key")
        node[last] = value
    return changed


def validate(kind: type[Config], tree: Mapping[str, Any], where: str) -> Config:
    """`tree` as a configuration of the given kind.

    Raises:
        BadInputError: Naming the first key that is unknown, missing or ill-typed.
    """
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = _known_keys(kind, first["loc"][:-1])
            close = difflib.get_close_matches(str(first["loc"][-1]), known, n=1)
            raise BadInputError(
                where,
                f"unknown key {key!r}",
                f"one of {', '.join(known)}" if known else "a known key",
                f"did you mean {close[0]!r}?" if close else "remove it",
            ) from None
        raise BadInputError(
            where, f"{key} = {first.get('input')!r}", first["msg"].removeprefix("Value error, "), f"correct {key}"
        ) from None


def _known_keys(kind: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    model: Any = kind
    for part in path:
        field = getattr(model, "model_fields", {}).get(part)
        model = field.annotation if field is not None else None
    return sorted(getattr(model, "model_fields", {}))
