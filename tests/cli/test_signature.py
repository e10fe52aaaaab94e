from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from itertools import chain
from pathlib import Path

import pytest

from counterpoint.cli.main import COMMANDS, Group, parsed_as, signature_of, summary_of
from counterpoint.errors import BadInputError


def work_of(group: Group) -> list[str]:
    """Return the functions of a group's commands, those of groups in it too."""
    parts = [work_of(entry) if isinstance(entry, Group) else [entry.work] for entry in group.commands.values()]
    return list(chain(*parts))


@pytest.mark.parametrize("work", work_of(COMMANDS))
def test_a_signature_that_is_read_is_that_of_the_function(work: str) -> None:
    module, _, name = work.partition(":")
    function = getattr(import_module(module), name)
    read, real = inspect.signature(signature_of(work)), inspect.signature(function)
    python_only = [one for one, note in function.__annotations__.items() if note.startswith("PythonOnly[")]
    assert list(read.parameters) == [one for one in real.parameters if one not in python_only]
    for one, parameter in read.parameters.items():
        if "Typed(" not in function.__annotations__[one]:
            assert parameter.default == real.parameters[one].default
    assert "".join((signature_of(work).__doc__ or "").split()) == "".join((inspect.getdoc(function) or "").split())


def test_help_and_bad_options_load_no_torch() -> None:
    commands = ["train", "evaluate", "reward", "label", "embed", "compare", "report", "view", "push", "convert"]
    code = f"""
import sys
from contextlib import suppress
from counterpoint.cli import main
for command in {commands}:
    for option in ("--help", "--no-such-option"):
        with suppress(SystemExit):
            main([command, option])
    assert "torch" not in sys.modules, command
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_arguments_are_parsed_by_a_signature_and_returned_by_name() -> None:
    work = "counterpoint.encoders.hub:push"
    given = parsed_as(signature_of(work), ["runs/a", "me/model", "--license", "apache-2.0"], "counterpoint push")
    assert given == {"source": "runs/a", "repo_id": "me/model", "private": False, "license": "apache-2.0"}
    with pytest.raises(BadInputError, match="--token"):  # from Python alone
        parsed_as(signature_of(work), ["runs/a", "me/model", "--token", "x"], "counterpoint push")


def test_a_structure_s_keys_are_options_of_their_own() -> None:
    words = ["data", "--model", "run", "--out", "o", "--engine", "ray", "--workers", "3", "--cameras", "a", "b"]
    given = parsed_as(signature_of("counterpoint.encoders.embed:embed"), words, "counterpoint embed")
    assert (given["engine"].name, given["engine"].workers, given["engine"].address) == ("ray", 3, None)
    assert (given["data"], list(given["cameras"]), given["batch_size"]) == ("data", ["a", "b"], None)


def test_the_command_line_may_take_less_than_python_and_a_type_may_be_replaced() -> None:
    work = "counterpoint.training.train:train"
    given = parsed_as(signature_of(work), ["vip-demo", "--out", "o", "--data", "a", "b"], "counterpoint train")
    assert (given["recipe"], given["data"], given["out"]) == ("vip-demo", (Path("a"), Path("b")), Path("o"))
    replaced = parsed_as(signature_of(work, recipe=(int, 3)), ["--out", "o"], "counterpoint train")
    assert (replaced["recipe"], replaced["data"]) == (3, ())


def test_help_flows_over_the_lines_of_the_source() -> None:
    doc = signature_of("counterpoint.training.compare:compare").__doc__ or ""
    assert summary_of("counterpoint.training.compare:compare") == doc.splitlines()[0]
    for line in doc.partition("Returns:")[0].splitlines():
        assert not line.startswith(" " * 8)
