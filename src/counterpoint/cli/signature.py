"""The signatures of commands, read from the source of the functions that do the work.

Importing such a function loads torch, which takes seconds. Help and bad arguments are answered without: the source is
parsed, and only the names in the signature are looked up.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import inspect
import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel
from tyro.conf import arg

from counterpoint.flags import Typed

PACKAGE = "counterpoint"


def summary_of(target: str) -> str:
    """Return the first paragraph of the docstring of "module:function"."""
    return _docstring(target).partition("\n")[0]


def signature_of(target: str, **types: tuple[Any, Any]) -> Callable[..., dict[str, Any]]:
    """Return a function with the parameters and docstring of "module:function", which returns its arguments.

    Args:
        target: The function; its types are built in, imported, or aliases that are assigned in a module.
        types: Types and defaults that take the place of those of the parameters of these names.
    """
    module, node = target.partition(":")[0], _function(target)
    parameters = []
    given = node.args.posonlyargs + node.args.args
    defaults = [None] * (len(given) - len(node.args.defaults)) + node.args.defaults
    for one, default in zip(given + node.args.kwonlyargs, [*defaults, *node.args.kw_defaults], strict=True):
        written = one.annotation
        assert written is not None
        if isinstance(written, ast.Subscript) and ast.unparse(written.value) == "PythonOnly":
            continue
        value = inspect.Parameter.empty if default is None else _evaluated(default, module)
        if one.arg in types:
            kind, value = types[one.arg]
        elif mark := _mark(written, module):
            kind, value = mark.kind, value if mark.default is ... else mark.default
        else:
            kind = _evaluated(written, module)
        if dataclasses.is_dataclass(kind) or (isinstance(kind, type) and issubclass(kind, BaseModel)):
            kind = Annotated[kind, arg(name="")]  # its keys are options without a prefix
        elif value in (None, ()):
            kind = Annotated[kind, arg(help_behavior_hint="")]  # the docstring says what happens by default
        parameters.append(inspect.Parameter(one.arg, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=kind))

    def parsed(**arguments: Any) -> dict[str, Any]:
        return arguments

    parsed.__name__, parsed.__doc__ = node.name, _docstring(target)
    parsed.__annotations__ = {one.name: one.annotation for one in parameters}
    parsed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return parsed


def _mark(written: ast.expr, module: str) -> Typed | None:
    """Return the mark in `Annotated[..., Typed(...)]`; the type beside it is for Python, and is not looked up."""
    calls = [node for node in ast.walk(written) if isinstance(node, ast.Call) and ast.unparse(node.func) == "Typed"]
    return _evaluated(calls[0], module) if calls else None


def _docstring(target: str) -> str:
    """Return a function's docstring, each paragraph and each argument in one line."""
    text = ast.get_docstring(_function(target)) or ""
    return re.sub(r"(?<=\S)\n(?=\S|\s{8})(?!(?:Args|Returns|Raises):)\s*", " ", text)


def _function(target: str) -> ast.FunctionDef:
    module, _, name = target.partition(":")
    found = (node for node in _statements(module) if isinstance(node, ast.FunctionDef) and node.name == name)
    return next(found)


@cache
def _statements(module: str) -> list[ast.stmt]:
    """Return the statements of a module of the package."""
    path = Path(__file__).parents[1].joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8")).body


def _evaluated(expression: ast.expr, module: str) -> Any:
    """Return the value of an expression that stands in a module."""
    names = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
    return eval(ast.unparse(expression), {name: _value(name, module) for name in names})


def _value(name: str, module: str) -> Any:
    """Return what a name means in a module, which is imported only where the name is no alias and no import."""
    for node in _statements(module):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    home = str(node.module)
                    own = home.partition(".")[0] == PACKAGE
                    return _value(alias.name, home) if own else getattr(import_module(home), alias.name)
        elif isinstance(node, ast.Assign) and [ast.unparse(one) for one in node.targets] == [name]:
            return _evaluated(node.value, module)
    return getattr(builtins, name) if hasattr(builtins, name) else getattr(import_module(module), name)
