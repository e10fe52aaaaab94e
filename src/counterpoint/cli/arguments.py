"""Arguments of the command line, parsed by tyro, with one message for bad ones."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

import tyro
from pydantic import ValidationError
from tyro.conf import AvoidSubcommands

from counterpoint.config import FrozenConfig, bad_setting
from counterpoint.errors import BadInputError, suggestion

Parsed = TypeVar("Parsed")


def parsed_as(
    parse: Callable[..., Parsed], arguments: Sequence[str], prog: str, description: str | None = None
) -> Parsed:
    """Parse arguments as a function's signature and call it; bad arguments are one `BadInputError`."""

    def parsed() -> Parsed:
        found: Parsed = tyro.cli(parse, args=arguments, prog=prog, description=description, config=(AvoidSubcommands,))
        return found

    try:
        return with_one_message(parsed)
    except ValidationError as error:  # of the settings as a whole
        raise bad_setting(error, FrozenConfig, prog.partition(" ")[2]) from None


def with_one_message(parse: Callable[[], Parsed]) -> Parsed:
    """Run a parser; turn the box in which tyro reports bad arguments into a `BadInputError`."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return parse()
    except SystemExit as ended:
        if ended.code != 2:
            raise
    lines = re.sub("[\u2500-\u257f]|-{3,}", " ", printed.getvalue()).splitlines()
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
"""Patterns of tyro's messages; the first that fits is taken."""
