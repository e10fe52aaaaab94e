"""Lazy tables: nothing is imported before it is looked up, and installed packages add names of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

from counterpoint import registry
from counterpoint.encoders.config import IMAGE_TOWERS
from counterpoint.envs.make import SUITES
from counterpoint.errors import BadInputError
from counterpoint.formats import FORMATS
from counterpoint.objectives import OBJECTIVES
from counterpoint.registry import LazyTable, imported
from tests.test_docs import ROOT, blocks

PAGE = ROOT / "docs" / "add_a_format.md"


def added(monkeypatch: pytest.MonkeyPatch, **places: str) -> None:
    points = [EntryPoint(name, place, "counterpoint.things") for name, place in places.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == "counterpoint.things" else [])


def test_own_names_come_first_and_are_imported_when_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    added(monkeypatch, join="os.path:join", sep="nowhere:nothing")
    table = LazyTable("thing", {"sep": "os:sep", "broken": "nowhere:nothing"}, "counterpoint.things")
    assert list(table) == ["sep", "broken", "join"]
    assert len(table) == 3
    assert table["sep"] == os.sep  # a package cannot replace it
    assert table["join"] is os.path.join
    assert list(LazyTable("thing", {"sep": "os:sep"})) == ["sep"]


def test_a_name_of_the_running_program_is_added() -> None:
    table = LazyTable("thing", {})
    table["own"] = test_own_names_come_first_and_are_imported_when_looked_up
    assert table.find("own", "here") is test_own_names_come_first_and_are_imported_when_looked_up


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    table = LazyTable("thing", {"separator": "os:sep"})
    with pytest.raises(KeyError):
        table["x"]
    message = r"here: found thing 'seperator'; expected one of separator. Hint: did you mean 'separator'"
    with pytest.raises(BadInputError, match=message):
        table.find("seperator", "here")
    with pytest.raises(BadInputError, match=r"thing None.*choose one of these"):
        table.find(None, "here")


@pytest.mark.parametrize("place", ["nowhere:nothing", "os:nothing"])
def test_a_package_that_cannot_be_imported_is_named(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    added(monkeypatch, other=place)
    message = f"thing 'other' of an installed package: found {place} .*uninstall"
    with pytest.raises(BadInputError, match=message):
        LazyTable("thing", {}, "counterpoint.things").find("other", "here")


def test_places_are_imported() -> None:
    assert imported("os.path:join") is os.path.join
    with pytest.raises(ModuleNotFoundError):
        imported("nowhere:nothing")


@pytest.mark.parametrize(
    ("table", "group"), [(FORMATS, "formats"), (SUITES, "envs"), (IMAGE_TOWERS, "encoders"), (OBJECTIVES, "objectives")]
)
def test_packages_extend_four_tables(table: LazyTable, group: str) -> None:
    assert table.group == f"counterpoint.{group}"
    assert f"`{table.group}`" in PAGE.read_text()


@pytest.mark.slow
def test_the_package_of_the_page_is_built_installed_and_read(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    (settings,), (code,) = blocks(PAGE, "toml"), blocks(PAGE, "python")
    assert sum(bool(line.strip()) for line in (settings + code).splitlines()) <= 40
    package, target, data = tmp_path / "package", tmp_path / "installed", tmp_path / "data"
    package.mkdir()
    (package / "pyproject.toml").write_text(settings)
    (package / "image_stacks.py").write_text(code)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    alone = ["--no-deps", "--no-index", "--no-cache-dir"]
    subprocess.run([*pip, "wheel", *alone, "--no-build-isolation", "--wheel-dir", tmp_path, package], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([*pip, "install", *alone, "--target", target, wheel], check=True)
    data.mkdir()
    np.save(data / "push_the_cube.npy", np.random.default_rng(0).integers(0, 256, (7, 24, 32, 3), np.uint8))
    paths = [str(target), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, "-m", "counterpoint", "data", "info", str(data)]
    run = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)}, capture_output=True, text=True, check=True
    )
    for words in ("image stacks", "1, of 7 to 7 frames", "camera 32x24", "push the cube"):
        assert words in run.stdout
