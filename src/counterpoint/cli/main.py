"""The command line: a table of commands, each a function of the package that is imported only when it runs.

A command takes its parameters, defaults and help from its function. Bad input ends with one message and exit code 2.
"""

from __future__ import annotations

import argparse
import ast
import atexit
import builtins
import contextlib
import dataclasses
import gc
import inspect
import io
import os
import re
import shutil
import sys
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro
from pydantic import BaseModel, ValidationError
from tyro.conf import AvoidSubcommands, arg

from counterpoint.config import FrozenConfig, bad_setting, recipe_names, recipe_title
from counterpoint.errors import (
    CONTINUES,
    BadInputError,
    importing,
    one_message,
    require_extras,
    require_known,
    suggestion,
)
from counterpoint.parameter_types import Typed


@dataclass(frozen=True)
class Command:
    """A command that calls a function of the package. The paths that the function returns are printed.

    Attributes:
        work: The function, as "module:function".
        continues: True if repeating the same command continues an interrupted run.
        needs: Optional modules that are checked before the work, each with the extra that installs it.
        says: A function that takes a written path and returns the text to print next to it.
    """

    work: str
    continues: bool = False
    needs: Mapping[str, str] = field(default_factory=dict)
    says: str = ""


@dataclass(frozen=True)
class Group:
    """Commands that share a first word, such as `data`.

    Attributes:
        help: The line that describes the group in the help.
        kind: The noun for one member, for messages.
        commands: The members by name.
    """

    help: str
    kind: str
    commands: Mapping[str, Command | Group]


STATISTICS = {"scipy": "report"}
PAGES = {"jinja2": "report", "matplotlib": "report"}
REPORTS = {**STATISTICS, **PAGES, "sklearn": "report"}
VIEWER = {"uvicorn": "view", "starlette": "view", **PAGES}
COLLECTED = "counterpoint.envs.collect:summary"
EVALUATED = "counterpoint.evaluation.rollout:main_number"


def _collect(work: str, **needs: str) -> Command:
    return Command(f"counterpoint.envs.{work}", continues=True, needs=needs, says=COLLECTED)


SUITES = {
    "metaworld": _collect("metaworld.collect:collect_metaworld", metaworld="sim"),
    "robosuite": _collect("robosuite.collect:collect_robosuite", robosuite="robosuite"),
    "kitchen": _collect("kitchen.collect:collect_kitchen", gymnasium_robotics="sim"),
    "dmc": _collect("dmc.collect:collect_dmc", dm_control="sim"),
    "ogbench": _collect("goal.ogbench_data:collect_ogbench", ogbench="sim"),
    "pointmaze": _collect("goal.collect:collect_pointmaze", gymnasium_robotics="sim", minari="minari", h5py="minari"),
}

DATA: dict[str, Command | Group] = {
    "info": Command("counterpoint.cli.data.info:info"),
    "doctor": Command("counterpoint.cli.data.doctor:doctor"),
    "convert": Command("counterpoint.cli.data.convert:convert"),
    "manifest": Command("counterpoint.cli.data.manifest:write_manifest"),
    "masks": Command("counterpoint.cli.data.masks:write_masks"),
}

COMMANDS = Group(
    "Learn representations of trajectories with contrastive losses, and put them to work.",
    "command",
    {
        "collect": Group("Record scripted experts of a simulator as data sets.", "simulator", SUITES),
        "data": Group("Inspect, check and convert data sets.", "command", DATA),
        "train": Command("counterpoint.training.train:train", continues=True),
        "evaluate": Command("counterpoint.evaluation.evaluate:evaluate", needs=STATISTICS, says=EVALUATED),
        "plan": Command("counterpoint.evaluation.plan:plan", continues=True, needs=STATISTICS),
        "reward": Command("counterpoint.rewards.curves:reward_command", needs=PAGES),
        "label": Command("counterpoint.rewards.label:label", continues=True),
        "rank": Command("counterpoint.evaluation.rank:rank", needs=PAGES),
        "embed": Command("counterpoint.encoders.embed:embed", continues=True),
        "compare": Command("counterpoint.training.compare:compare", continues=True, needs=REPORTS),
        "report": Command("counterpoint.evaluation.report:write_report", needs=REPORTS),
        "view": Command("counterpoint.evaluation.view:view", needs=VIEWER),
        "push": Command("counterpoint.encoders.hub:push"),
        "convert": Command("counterpoint.encoders.convert:convert_checkpoint"),
        "recipes": Command("counterpoint.config:list_recipes"),
    },
)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; bad input ends with one message and exit code 2."""
    # Python would look for garbage among the objects of all modules again and again, and once more at its end, which
    # takes two seconds with PyTorch. Frozen objects are left out.
    gc.freeze()
    atexit.register(gc.freeze)
    given = sys.argv[1:] if arguments is None else list(arguments)
    again = CONTINUES if _continues(given) else "the same command starts anew"
    try:
        with warnings.catch_warnings(), one_message(again):
            if not sys.warnoptions:  # `python -W` and PYTHONWARNINGS show the warnings of libraries
                warnings.simplefilter("ignore")
                warnings.showwarning = lambda *_, **__: None  # gymnasium adds filters of its own when it is imported
            try:
                _run(given)
            finally:
                sys.stdout.flush()
    except BrokenPipeError:  # as in `counterpoint ... | head`, which does not read the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _continues(given: list[str]) -> bool:
    """Return whether repeating the same command continues its interrupted work."""
    entry: Command | Group | None = COMMANDS
    for word in given:
        if not isinstance(entry, Group):
            break
        entry = entry.commands.get(word)
    return isinstance(entry, Command) and entry.continues


def _run(given: list[str], group: Group = COMMANDS, prog: str = "counterpoint") -> None:
    """Run the command of a group that the first word names, or print the group's help."""
    if given == ["--version"]:
        print(f"counterpoint {metadata.version('counterpoint')}")
        return
    first = given[0] if given else ""
    own = prog.partition(" ")[2] or group.kind
    hint = f"`{prog} --help` lists them"
    if not first:
        raise BadInputError(own, "nothing", f"one of {', '.join(group.commands)}", hint)
    if first.startswith("-"):
        with_one_message(lambda: _listing(group).cli(prog=prog, description=group.help, args=given))
        return
    require_known(first, group.commands, f"{own} {first!r}", f"no such {group.kind}", hint=hint)
    entry, rest, prog = group.commands[first], given[1:], f"{prog} {first}"
    if isinstance(entry, Group):
        _run(rest, entry, prog)
    elif first == "train" and rest and not rest[0].startswith("-"):
        _train(entry, rest[0], rest[1:])
    else:
        result = _called(entry, parsed_as(signature_of(entry.work), rest, prog))
        if isinstance(result, int):
            sys.exit(result)
        for path in result.values() if isinstance(result, dict) else result if isinstance(result, list) else [result]:
            if isinstance(path, str | Path):
                said = _function(entry.says)(path) if entry.says else ""
                print(f"Wrote {path}" + (f": {said}" if said else ""))


def _listing(group: Group) -> tyro.extras.SubcommandApp:
    """Return an app that lists a group's commands and runs none."""
    app = tyro.extras.SubcommandApp()
    for name, entry in group.commands.items():
        text = entry.help if isinstance(entry, Group) else summary_of(entry.work)
        app.command(name=name, help=text)(lambda: None)
    return app


def _function(target: str) -> Callable[..., Any]:
    module, _, name = target.partition(":")
    with importing():
        found: Callable[..., Any] = getattr(import_module(module), name)
    return found


def _called(command: Command, arguments: Mapping[str, Any]) -> Any:
    require_extras(command.needs)
    return _function(command.work)(**arguments)


def _train(command: Command, name: str, arguments: Sequence[str]) -> None:
    """Train a recipe; the recipe's keys are options in addition to the options of `train`."""
    load_recipe = _function("counterpoint.training.recipe:load_recipe")
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)  # the recipe's keys depend on these options
    early.add_argument("--data", nargs="*", default=())
    for flag in ("--env", "--env.name", AUXILIARY):
        early.add_argument(flag, nargs="?")
    chosen = vars(early.parse_known_args(arguments)[0])
    auxiliary = chosen[AUXILIARY[2:]]
    overrides = {AUXILIARY[2:]: auxiliary} if auxiliary else None
    default = load_recipe(name, overrides, data=chosen["data"], env=chosen["env"] or chosen["env.name"])
    title = recipe_title(name) if name in recipe_names() else str(type(default).__doc__).splitlines()[0]
    parse = signature_of(command.work, recipe=(Annotated[type(default), arg(name="")], default))
    finished = _called(command, parsed_as(parse, arguments, f"counterpoint train {name}", title))
    from counterpoint.training.distributed import leave

    leave()
    if finished.main:
        from counterpoint.evaluation.rollout import RESULT, main_number

        evaluated = finished.folder / RESULT
        print(f"Wrote {finished.model}" + (f": {main_number(evaluated)}" if evaluated.is_file() else ""))


AUXILIARY = "--auxiliary.objective.name"


PACKAGE = "counterpoint"


def summary_of(target: str) -> str:
    """Return the first paragraph of the docstring of "module:function"."""
    return _docstring(target).partition("\n")[0]


def signature_of(target: str, **types: tuple[Any, Any]) -> Callable[..., dict[str, Any]]:
    """Return a function that returns its arguments, with the parameters and docstring of "module:function".

    Args:
        target: The function; its annotations are built-in types, imported types, or aliases assigned in a module.
        types: Types and defaults to use instead, by the name of the parameter.
    """
    module, node = target.partition(":")[0], _definition(target)
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
            kind = Annotated[kind, arg(help_behavior_hint="")]  # the docstring describes the default
        parameters.append(inspect.Parameter(one.arg, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=kind))

    def parsed(**arguments: Any) -> dict[str, Any]:
        return arguments

    parsed.__name__, parsed.__doc__ = node.name, _docstring(target)
    parsed.__annotations__ = {one.name: one.annotation for one in parameters}
    parsed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return parsed


def _mark(written: ast.expr, module: str) -> Typed | None:
    """Return the mark in `Annotated[..., Typed(...)]`; the type before it is for Python only, and is not looked up."""
    calls = [node for node in ast.walk(written) if isinstance(node, ast.Call) and ast.unparse(node.func) == "Typed"]
    return _evaluated(calls[0], module) if calls else None


def _docstring(target: str) -> str:
    """Return a function's docstring, each paragraph and each argument in one line."""
    text = ast.get_docstring(_definition(target)) or ""
    return re.sub(r"(?<=\S)\n(?=\S|\s{8})(?!(?:Args|Returns|Raises):)\s*", " ", text)


def _definition(target: str) -> ast.FunctionDef:
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
    """Return the value of an expression that is written in a module."""
    names = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
    return eval(ast.unparse(expression), {name: _value(name, module) for name in names})


def _value(name: str, module: str) -> Any:
    """Return the value of a name in a module, which is imported only if the name is neither an alias nor an import."""
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


Parsed = TypeVar("Parsed")


def parsed_as(
    parse: Callable[..., Parsed], arguments: Sequence[str], prog: str, description: str | None = None
) -> Parsed:
    """Parse arguments by a function's signature and call the function; bad arguments raise one `BadInputError`."""

    def parsed() -> Parsed:
        found: Parsed = tyro.cli(parse, args=arguments, prog=prog, description=description, config=(AvoidSubcommands,))
        return found

    try:
        return with_one_message(parsed)
    except BadInputError as error:
        option = _before(error.where, arguments) if error.where.lower() in ("true", "false") else None
        if option is None:
            raise
        section, dot, name = option.removeprefix("--").rpartition(".")
        written = f"--{section}{dot}{'no-' if error.where.lower() == 'false' else ''}{name}"
        raise BadInputError(option, f"the value {error.where}", "the option alone", f"write {written}") from None
    except ValidationError as error:  # errors in the settings as a whole, not in one option
        raise bad_setting(error, FrozenConfig, prog.partition(" ")[2]) from None


def _before(value: str, arguments: Sequence[str]) -> str | None:
    """Return the option that has this value, as `--OPTION=VALUE` or `--OPTION VALUE`."""
    for one, following in zip(arguments, [*arguments[1:], ""], strict=True):
        option, _, own = one.partition("=")
        if option.startswith("--") and value in (own, following):
            return option.replace("_", "-")
    return None


def with_one_message(parse: Callable[[], Parsed]) -> Parsed:
    """Run a parser; turn the box in which tyro reports bad arguments into a `BadInputError`."""
    told, printed = _Printed(), io.StringIO()
    try:
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(printed):
            return parse()
    except SystemExit as ended:
        if ended.code != 2:
            text, width = told.getvalue(), shutil.get_terminal_size().columns
            if _COLOUR.sub("", text).startswith("usage:"):  # and not a script for a shell's completion
                text = "".join(f"{_fitting(line, width)}\n" for line in text.splitlines())
            print(text, end="")
            raise
    plain = _COLOUR.sub("", printed.getvalue())  # colours, which tyro adds if stdout is a terminal
    lines = re.sub("[\u2500-\u257f]|-{3,}", " ", plain).splitlines()
    text = " ".join(" ".join(line.strip(" |+") for line in lines).split())
    match = next((match for pattern in BAD_ARGUMENTS if (match := re.search(pattern, text))), None)
    parts = {key: value for key, value in (match.groupdict() if match else {"found": text}).items() if value}
    where = parts.get("where") or "--" + ".".join(parts[key] for key in ("section", "key") if key in parts)
    found = parts.get("found") or ("nothing" if "Missing" in text else "no such option")
    expected = parts.get("expected") or ("a value" if found == "nothing" else "another")
    if near := re.findall(r"--[\w.-]+", text.partition("Perhaps you meant: ")[2]):
        same = dict.fromkeys(option for option in near if option.endswith(f".{where.strip('-')}"))  # in a section
        hint = f"did you mean {' or '.join(map(repr, same or near[:1]))}?"
    else:
        shown = re.search(r".*(counterpoint.*? --help)", text)
        word = where if found == "no such option" else found.strip("'")
        hint = (
            suggestion(word, re.findall(r"[\w-]+", expected)) or f"see `{shown[1] if shown else 'counterpoint --help'}`"
        )
    raise BadInputError(where.replace("_", "-"), found, expected, hint)


class _Printed(io.StringIO):
    """A buffer for tyro's output, with the encoding of standard output; a terminal if standard output is one."""

    encoding = getattr(sys.__stdout__, "encoding", "utf-8")

    def isatty(self) -> bool:
        return sys.__stdout__ is not None and sys.__stdout__.isatty()


_COLOUR = re.compile(r"\x1b\[[\d;]*m")


def _fitting(line: str, width: int) -> str:
    """Return a line of tyro's help wrapped to the terminal's width, since the terminal would break words."""
    plain = _COLOUR.sub("", line)
    if len(plain) <= width:
        return line
    plain = re.sub(r"\{[\w,-]+\}", "COMMAND", plain)  # the help lists the commands below
    return textwrap.fill(plain, width, break_long_words=False, break_on_hyphens=False)


BAD_ARGUMENTS = (
    r"Unrecognized (?:or misplaced )?options: (?P<where>[^\s,=]+)"
    r"(?:.*?Available subcommands: (?P<expected>.+?) For full)?",
    r"Error parsing (?:recipe\.?)?(?P<section>[\w.]*): \d+ validation errors? for \w+ (?:(?P<key>[a-z_\d.]+) )?"
    r"(?:Value error, |Input should be )?(?P<expected>.+?) \[type=\w+, input_value=(?P<found>.+?), input_type",
    r"Error parsing (?P<where>\S+): (?:[^':]*: )?(?P<found>.+?) (?:Argument helptext: \S+ (?P<expected>\S+)|For full)",
    r"invalid choice (?P<found>.+?) for argument '(?P<where>.+?)'. Expected one of \((?P<expected>.+?),?\)",
    r"Missing value for argument '(?P<where>.+?)'",
    r"Missing from [^:]+: (?P<where>\S+)(?: (?P<expected>[A-Z.]{2,}))? ",
    r"Missing (?P<where>subcommand) Expected one of \{(?P<expected>.+?)\}",
)
"""Patterns of tyro's messages; the first pattern that matches is used."""
