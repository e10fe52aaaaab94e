"""The command line: parses, calls one function of a room, and turns bad input into one message and exit code 2.

Rooms are imported inside the functions, so that `counterpoint --help` loads no torch.
"""

from __future__ import annotations

import sys

import tyro

from counterpoint.cli.agents import evaluate, train
from counterpoint.cli.collect import collect
from counterpoint.cli.data import data
from counterpoint.cli.encoders import convert, pretrain, recipes, report, reward
from counterpoint.errors import BadInputError, MissingExtraError, refused_by_the_system

__all__ = ["main"]

app = tyro.extras.SubcommandApp()
app.command(collect, name="collect", help="Record scripted experts of a simulator.")
app.command(data, name="data", help="Look into, check and convert data sets.")
app.command(pretrain)
app.command(train)
app.command(evaluate)
app.command(report)
app.command(reward)
app.command(recipes)
app.command(convert)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; bad input ends in one message and exit code 2."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        app.cli(prog="counterpoint", description=DESCRIPTION, args=_gather_overrides(given))
    except (BadInputError, MissingExtraError, OSError) as error:
        told = refused_by_the_system(error) if isinstance(error, OSError) else error
        if told is None:
            raise
        print(f"counterpoint: {told}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("counterpoint: interrupted; run the same command again to continue", file=sys.stderr)
        sys.exit(130)


DESCRIPTION = "Learn representations of trajectories by contrast, and put them to work."


def _gather_overrides(arguments: list[str]) -> list[str]:
    """`train R --a.b=c --out O` with the recipe's keys as positionals: they are free, flags are not."""
    if not arguments or arguments[0] not in ("pretrain", "train"):
        return arguments
    plain, overrides = [], []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        key = argument.partition("=")[0]
        if argument.startswith("--") and "." in key:
            value = "" if "=" in argument or not rest else f"={rest.pop(0)}"
            overrides.append(argument.removeprefix("--") + value)
        else:
            plain.append(argument)
    return [plain[0], *plain[1:2], *overrides, *plain[2:]]
