"""The scripts of `examples/`, each run as its reader runs it, on little data and for few steps."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "cache"))


def run(name: str, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    monkeypatch.syspath_prepend(str(EXAMPLES))
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_scripts_are_short() -> None:
    for script in EXAMPLES.glob("*.py"):
        assert len(script.read_text().splitlines()) <= 55, script.name


@pytest.mark.sim
def test_reach_goals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("minari")
    run(
        "reach_goals.py",
        "--out",
        "out",
        "--episodes",
        "10",
        "--steps",
        "20",
        "--rollouts",
        "4",
        monkeypatch=monkeypatch,
    )
    assert json.loads(Path("out/gcbc/evaluation.json").read_text())["success"]["n"] == 4
    assert "of 4 goals" in capsys.readouterr().out


@pytest.mark.sim
def test_diffusion_policy(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("diffusers")
    pytest.importorskip("timm")
    run(
        "diffusion_policy.py",
        "--out",
        "out",
        "--episodes",
        "3",
        "--steps",
        "2",
        "--rollouts",
        "3",
        monkeypatch=monkeypatch,
    )
    assert len(list(Path("out/policy/videos").glob("*.mp4"))) == 3
    assert "select_action" in capsys.readouterr().out
