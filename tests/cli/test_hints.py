"""Hints that name a command, an option or a key lead somewhere: the names exist, and what is advised then works."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from counterpoint.cli import main
from counterpoint.cli.main import COMMANDS, Group
from counterpoint.config import recipe_names
from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.hub import MAKERS
from counterpoint.formats.video import encode_video
from counterpoint.training.recipe import load_recipe
from tests.evaluation.fake_run import quick_words, write_data
from tests.formats.made import smooth_frames, write_videos
from tests.rewards.labelling import save_model
from tests.test_docs import help_of

SOURCES = Path(__file__).resolve().parents[2] / "src"


def hints() -> Iterator[tuple[str, str]]:
    """The place and the text of every hint in the sources; a computed part of a text is `{}`."""
    for file in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            for text in filter(None, map(_text, _hints_of(node))):
                yield f"{file.relative_to(SOURCES)}:{node.lineno}", text  # type: ignore[attr-defined]


def _hints_of(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call):
        at = {"require": 4, "BadInputError": 3}.get(getattr(node.func, "id", ""), 99)
        yield from node.args[at : at + 1]
        yield from (keyword.value for keyword in node.keywords if keyword.arg == "hint")
    if isinstance(node, ast.AugAssign):
        yield from [node.value] if getattr(node.target, "id", "") == "hint" else []
    if isinstance(node, ast.Assign):
        for target in node.targets:
            both = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            pairs = zip(target.elts, node.value.elts, strict=False) if both else [(target, node.value)]  # type: ignore[attr-defined]
            yield from (value for name, value in pairs if getattr(name, "id", "") == "hint")


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return " or ".join(filter(None, map(_text, [node.body, node.orelse]))) if isinstance(node, ast.IfExp) else ""


def keys_of(kind: type[BaseModel], found: set[str], prefix: str = "") -> None:
    """Add the dotted keys of a configuration to `found`."""
    for name, field in kind.model_fields.items():
        found.add(f"{prefix}{name}")
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                keys_of(part, found, f"{prefix}{name}.")


@cache
def known_keys() -> set[str]:
    found: set[str] = set()
    for name in recipe_names():
        recipe = load_recipe(name)
        keys_of(type(recipe), found)
        for section, value in recipe:
            if isinstance(value, BaseModel):
                keys_of(type(value), found, f"{section}.")
    keys_of(EncoderConfig, found, "encoder.")
    return found


def commands_of(group: Group, prefix: str = "") -> Iterator[str]:
    for name, entry in group.commands.items():
        yield prefix + name
        if isinstance(entry, Group):
            yield from commands_of(entry, f"{prefix}{name} ")


@cache
def options() -> str:
    return "\n".join(help_of(*name.split()) for name in commands_of(COMMANDS)) + help_of("train", "decisionnce_t-demo")


@pytest.mark.slow
def test_every_command_option_and_key_in_a_hint_exists() -> None:
    commands, wrong, seen = {*commands_of(COMMANDS)}, [], 0
    names = {key.rpartition(".")[2] for key in known_keys()}
    for where, text in [*hints(), *MAKERS.items()]:
        for recipe in re.findall(r"counterpoint train ([\w-]+)", text):
            load_recipe(recipe)
        for found in re.findall(r"counterpoint ([a-z]+(?: [a-z]+)?)", text):
            seen += 1
            wrong += [f"{where}: counterpoint {found}"] if not {found, found.partition(" ")[0]} & commands else []
        for option in re.findall(r"(?<!\w)--[a-z][\w.-]*", text.replace("ray start --head", "")):
            seen += 1
            wrong += [f"{where}: {option}"] if option not in options() and option[2:] not in known_keys() else []
        for key in re.findall(r"\b((?:encoder|data|train|optimizer|objective|memory|agent)\.[a-z_]+)\b", text):
            seen += 1
            wrong += [f"{where}: {key}"] if key not in known_keys() else []
        for name in re.findall(r"\b([a-z_]+) = ", text):
            seen += 1
            wrong += [f"{where}: {name} ="] if name not in names else []
    assert seen > 60
    assert not wrong, "\n".join(wrong)


TRAIN = "train decisionnce_t-demo --data data --out run --train.steps 2 --train.batch-size 4 --train.trackers"
FROZEN = f"{TRAIN} --encoder.image timm --encoder.image-model test_resnet --encoder.freeze-image"
CASES: dict[str, tuple[str, list[str]]] = {
    "label videos --model model": (
        "name a file: --out labels.parquet",
        ["label videos --model model --out labels.parquet"],
    ),
    "label data --model model --out model/config.parquet": (
        "replace them: --overwrite",
        ["label data --model model --out model/config.parquet --overwrite"],
    ),
    "label videos --model model --feature progress --out copy": (
        "convert it first: counterpoint data convert videos OUT",
        ["data convert videos new", "label new --model model --feature progress --out copy"],
    ),
    "data convert uneven new": (
        "give --fps 10 to take the frames nearest in time",
        ["data convert uneven new --fps 10"],
    ),
    "data convert unequal new": (
        "bring all to one, of N x N pixels: --size 32",
        ["data convert unequal new --size 32"],
    ),
}
SLOW: dict[str, tuple[str, list[str]]] = {
    "reward data --model model --out out": (
        "name some of its episodes: --episodes 0 1 2",
        ["reward data --model model --out out --episodes 0 1 2"],
    ),
    "reward videos/videos/0.mp4 --model model --out out": (
        "give --instruction TEXT for all",
        ["reward videos/videos/0.mp4 --model model --out out --instruction push"],
    ),
    f"{TRAIN} --encoder.fit crop --encoder.short-side 40": (
        "set encoder.short_side = 64",
        [f"{TRAIN} --encoder.fit crop --encoder.short-side 64"],
    ),
    f"{TRAIN} --data.state=false": ("write --data.no-state", [f"{TRAIN} --data.no-state"]),
    f"{TRAIN} --data.state": ("read images alone: data.state = false", [f"{TRAIN} --data.no-state"]),
    f"{TRAIN} --data.min-length 99": ("lower data.min_length", [f"{TRAIN} --data.min-length 5"]),
    f"{FROZEN} --objective.augment": (
        "set objective.augment = false",
        [f"{FROZEN} --objective.no-augment --data.augmented-rows 2"],
    ),
    f"{TRAIN.replace('--data data', '--data one')}": (
        "give --extra-instructions FILE",
        [f"{TRAIN.replace('--data data', '--data one')} --extra-instructions others.txt"],
    ),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data sets of several kinds and a model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "cache"))
    quick_words(monkeypatch)
    save_model(tmp_path / "model", write_data(tmp_path / "data"))
    (tmp_path / "model" / "config.parquet").write_bytes(b"")
    for name in ("videos", "uneven", "unequal", "one"):
        write_videos(tmp_path / name)
    encode_video(tmp_path / "uneven" / "videos" / "1.mp4", smooth_frames(12, 32, 48), 5)
    encode_video(tmp_path / "unequal" / "videos" / "1.mp4", smooth_frames(12, 48, 48), 10)
    manifest = tmp_path / "one" / "manifest.csv"
    manifest.write_text(manifest.read_text().replace("task 1", "task 0"))
    (tmp_path / "others.txt").write_text("close the box\n")
    return tmp_path


def message(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The message that a command ends with; empty if the command works."""
    try:
        main(command.split())
    except SystemExit as end:
        return capsys.readouterr().err if end.code else ""
    return ""


@pytest.mark.parametrize("command", [*CASES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_what_a_hint_advises_works(command: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    advice, then = (CASES | SLOW)[command]
    assert advice in message(command, capsys).partition(" Hint: ")[2]
    assert [message(one, capsys) for one in then] == [""] * len(then)
