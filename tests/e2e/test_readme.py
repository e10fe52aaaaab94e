"""The README's commands on one's own data, word for word, with the package installed from its wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from counterpoint.formats.video import encode_video
from tests.conftest import write_robot_set

ROOT = Path(__file__).resolve().parents[2]


def commands() -> list[str]:
    section = (ROOT / "README.md").read_text().partition("## Your own data")[2]
    block = re.search(r"```bash\n(.*?)```", section, flags=re.S)
    assert block is not None
    return [line.partition("  #")[0].strip() for line in block[1].splitlines()]


def test_the_extras_that_are_named_exist() -> None:
    (line,) = (line for line in commands() if line.startswith("pip install"))
    extras = re.findall(r"[a-z]+", line.partition("[")[2])
    text = (ROOT / "pyproject.toml").read_text()
    assert extras
    assert all(re.search(rf"^{extra} = \[", text, flags=re.M) for extra in extras)


@pytest.mark.slow
@pytest.mark.parametrize("shorter", [" --train.steps 60", pytest.param("", marks=pytest.mark.release)])
def test_the_commands_run_from_the_wheel(shorter: str, tmp_path: Path) -> None:
    """Dependencies are those of this environment; only the package itself comes from the wheel.

    The models and judges of a full training take a minute, so it is part of a release.
    """
    source = tmp_path / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    site, work = tmp_path / "site", tmp_path / "work"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(source)]
    subprocess.run(pip, check=True)
    work.mkdir()
    write_robot_set(work / "DIR", 9, 64, {"train": "0:9"})
    encode_video(work / "VIDEO.mp4", np.random.default_rng(0).integers(0, 256, (12, 64, 64, 3), dtype=np.uint8), fps=5)
    environment = os.environ | {"PYTHONPATH": str(site), "COUNTERPOINT_CACHE": str(work / "cache")}
    environment["PATH"] = f"{site / 'bin'}:{os.environ['PATH']}"
    where = [sys.executable, "-c", "import counterpoint; print(counterpoint.__file__)"]
    assert str(site) in subprocess.run(where, cwd=work, env=environment, capture_output=True, text=True).stdout
    for line in commands():
        if not line.startswith("pip"):
            line += shorter if " train " in line else ""
            done = subprocess.run(line, shell=True, cwd=work, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    assert (work / "RUN" / "report.html").exists()
    assert (work / "curves").is_dir()
