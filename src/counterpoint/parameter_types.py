"""Types that decide how a function's parameters appear on the command line.

A command is a function of the package; `counterpoint.cli.main` reads its parameters, defaults and docstring. A
parameter becomes an option of the same name unless its type, defined here, says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from tyro.conf import UseAppendAction, arg

T = TypeVar("T")


@dataclass(frozen=True)
class Typed:
    """A mark for a parameter that accepts more types from Python than from the command line.

    Attributes:
        kind: The type on the command line.
        default: The default on the command line, if it differs from the function's default.
    """

    kind: Any
    default: Any = ...


def default_or_none(default: str) -> str:
    """Return the help text for the default of a tuple, for use in `arg(help_behavior_hint=default_or_none)`."""
    return f"(default: {default or 'none'})"


PythonOnly = Annotated[T, "Python only"]
"""A parameter that the command line does not have."""
Listed = Annotated[T, arg(help_behavior_hint=default_or_none)]
"""A tuple that is empty by default."""

Model = Annotated[str | Path, arg(metavar="RUN")]
Computes = Annotated[str, arg(metavar="DEVICE")]
Device = Annotated[str | None, arg(metavar="DEVICE")]
Number = Annotated[int | None, arg(metavar="INT")]
Decimal = Annotated[float | None, arg(metavar="FLOAT")]
Name = Annotated[str | None, arg(metavar="NAME")]
Repository = Annotated[str | None, arg(metavar="OWNER/NAME")]
Names = Annotated[Sequence[str], arg(metavar="NAME...")]
Repeated = Annotated[Sequence[str], UseAppendAction, arg(metavar="NAME")]
Text = Annotated[str | None, arg(metavar="TEXT")]
File = Annotated[Path | None, arg(metavar="FILE")]
Image = Annotated[Path | None, arg(metavar="IMAGE")]
Environment = Annotated[str | None, arg(metavar="ID")]
