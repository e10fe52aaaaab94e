"""The command line: a table of commands, each a function of the package that is imported only when it runs.

A command's parameters, defaults and help are those of its function. Bad input ends in one message and exit code 2.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module, metadata
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import arg

from counterpoint.cli.arguments import parsed_as, with_one_message
from counterpoint.cli.signature import signature_of, summary_of
from counterpoint.config import recipe_names, recipe_title
from counterpoint.errors import CONTINUES, BadInputError, one_message, require_extras, require_known


@dataclass(frozen=True)
class Command:
    """A function of the package as a command. The paths that it returns are printed.

    Attributes:
        work: The function, "module:function".
        continues: True if the same command continues an interrupted one.
        needs: Modules that are optional in the package, checked before the work -> the extra that installs them.
        says: A function of a path that was written, which returns what is printed beside it.
    """

    work: str
    continues: bool = False
    needs: Mapping[str, str] = field(default_factory=dict)
    says: str = ""


@dataclass(frozen=True)
class Group:
    """Commands under one word.

    Attributes:
        help: The group's line in the help.
        kind: The noun for a member, for messages.
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
    "pointmaze": _collect("goal.collect:collect_pointmaze", gymnasium_robotics="sim", minari="minari", h5py="minari"),
}

DATA: dict[str, Command | Group] = {
    "info": Command("counterpoint.cli.data.commands:info"),
    "doctor": Command("counterpoint.cli.data.commands:doctor"),
    "convert": Command("counterpoint.cli.data.commands:convert"),
    "masks": Command("counterpoint.cli.data.masks:write_masks"),
}

COMMANDS = Group(
    "Learn representations of trajectories by contrast, and put them to work.",
    "command",
    {
        "collect": Group("Record scripted experts of a simulator as data sets.", "simulator", SUITES),
        "data": Group("Inspect, check and convert data sets.", "command", DATA),
        "train": Command("counterpoint.training.train:train", continues=True),
        "evaluate": Command("counterpoint.evaluation.evaluate:evaluate", needs=STATISTICS, says=EVALUATED),
        "plan": Command("counterpoint.evaluation.plan:plan", continues=True, needs=STATISTICS),
        "reward": Command("counterpoint.rewards.curves:reward_command", needs=PAGES),
        "label": Command("counterpoint.rewards.label:label", continues=True),
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
    """Run the command line; bad input ends in one message and exit code 2."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    again = CONTINUES if _continues(given) else "the same command starts anew"
    try:
        with warnings.catch_warnings(), one_message(again):
            if not sys.warnoptions:  # python -W and PYTHONWARNINGS show those of libraries
                warnings.simplefilter("ignore")
            try:
                _run(given)
            finally:
                sys.stdout.flush()
    except BrokenPipeError:  # `counterpoint ... | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _continues(given: list[str]) -> bool:
    """Return whether a command goes on where it was stopped."""
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
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


def _called(command: Command, arguments: Mapping[str, Any]) -> Any:
    require_extras(command.needs)
    return _function(command.work)(**arguments)


def _train(command: Command, name: str, arguments: Sequence[str]) -> None:
    """Train a recipe; its keys are options beside those of `train`."""
    from counterpoint.training.recipe import load_recipe

    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)  # which keys there are depends on these
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
