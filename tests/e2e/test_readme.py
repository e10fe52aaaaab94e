"""The README's commands on one's own data, word for word, with the package installed from its wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from counterpoint.formats.video import encode_video
from tests.conftest import write_robot_set

ROOT = Path(__file__).resolve().parents[2]


def blocks() -> list[list[str]]:
    """The commands of both blocks: rewards from one's own data, and an agent."""
    section = (ROOT / "README.md").read_text().partition("## Your own data")[2]
    found = re.findall(r"```bash\n(.*?)```", section, flags=re.S)[:2]
    return [[line.partition("  #")[0].strip() for line in block.splitlines()] for block in found]


def absent(line: str) -> set[str]:
    """The modules of this environment that a line `pip install -e ".[EXTRA,EXTRA]"` does not install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    todo = [
        *project["dependencies"],
        *(need for extra in re.findall(r"[a-z]+", line.partition("[")[2]) for need in extras[extra]),
    ]
    done: set[tuple[str, frozenset[str]]] = set()
    while todo:
        need = Requirement(todo.pop())
        known = canonicalize_name(need.name), frozenset(need.extras)
        if known in done:
            continue
        done.add(known)
        if known[0] == "counterpoint":
            todo += [other for extra in need.extras for other in extras[extra]]
            continue
        try:
            needs = map(Requirement, metadata.requires(need.name) or [])
        except metadata.PackageNotFoundError:  # of another system or version of Python
            continue
        chosen = [{"extra": extra} for extra in ("", *need.extras)]
        todo += [str(one) for one in needs if not one.marker or any(map(one.marker.evaluate, chosen))]
    installed = {name for name, _ in done} | {"counterpoint"}
    return {
        module
        for module, owners in metadata.packages_distributions().items()
        if not installed & set(map(canonicalize_name, owners))
    }


ABSENT = """
import sys
from importlib.machinery import PathFinder


class Present(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {modules} else super().find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Present
"""


def test_a_line_installs_what_it_names_and_no_more() -> None:
    without = absent('pip install -e ".[vision,text,report,view]"')
    assert {"tensorboard", "wandb", "mujoco", "metaworld", "ray", "pytest"} <= without
    assert not {"torch", "timm", "sentence_transformers", "gymnasium", "jinja2", "starlette"} & without


def run_block(lines: list[str], work: Path) -> None:
    """Run commands from the wheel; what their first line does not install is hidden from them."""
    source, site = work.parent / "source", work.parent / "site"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(source)]
    subprocess.run(pip, check=True)
    (site / "sitecustomize.py").write_text(ABSENT.format(modules=absent(lines[0])))
    environment = os.environ | {"PYTHONPATH": str(site), "COUNTERPOINT_CACHE": str(work / "cache")}
    environment["PATH"] = f"{site / 'bin'}:{os.environ['PATH']}"
    where = [sys.executable, "-c", "import counterpoint; print(counterpoint.__file__)"]
    assert str(site) in subprocess.run(where, cwd=work, env=environment, capture_output=True, text=True).stdout
    for line in lines[1:]:
        done = subprocess.run(line, shell=True, cwd=work, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


def shortened(lines: list[str], steps: str) -> list[str]:
    return [line + steps if " train " in line else line for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("shorter", [" --train.steps 60", pytest.param("", marks=pytest.mark.release)])
def test_the_commands_on_videos_run_from_the_wheel(shorter: str, tmp_path: Path) -> None:
    """The models and judges of a full training take a minute, so it is part of a release."""
    work = tmp_path / "work"
    work.mkdir()
    write_robot_set(work / "DIR", 9, 64, {"train": "0:9"})
    encode_video(work / "VIDEO.mp4", np.random.default_rng(0).integers(0, 256, (12, 64, 64, 3), dtype=np.uint8), fps=5)
    run_block(shortened(blocks()[0], shorter), work)
    assert (work / "RUN" / "report.html").exists()
    assert (work / "curves").is_dir()


@pytest.mark.slow
@pytest.mark.sim
def test_the_commands_of_an_agent_run_from_the_wheel(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    run_block(shortened(blocks()[1], " --train.steps 20"), work)
    assert (work / "runs" / "umaze").is_dir()
