"""What is installed, and under which name and version."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_constraints_pin_packages() -> None:
    pins = re.findall(r"^([\w-]+)==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), flags=re.M)
    assert len(pins) > 5


def test_package_changelog_and_citation_name_one_version() -> None:
    (changed, *_) = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.M)
    (cited,) = re.findall(r"^version: (\S+)", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), flags=re.M)
    plugin = tomllib.loads((ROOT / "lerobot_policy_counterpoint/pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert PROJECT["version"] == changed == cited == plugin["version"]
    assert plugin["dependencies"] == []


def test_nobody_is_told_to_install_a_name_that_is_not_ours() -> None:
    """Nothing is published as `counterpoint`: it is installed from a clone or from a git URL."""
    folders = ("src", "docs", "examples", "studies", "benchmarks", "scripts")
    kinds = {".py", ".md", ".ipynb", ".toml", ".sh"}
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in kinds]
    files += [ROOT / name for name in ("README.md", "CHANGELOG.md", "Makefile") if (ROOT / name).exists()]
    named = re.compile(r"pip3? install (?:-\S+ )*[\"'\\]*counterpoint(?![\w-])(?![^\n]*@ git\+)")
    assert len(files) > 100
    assert [str(path) for path in files if named.search(path.read_text(encoding="utf-8"))] == []
    assert named.search("pip install -q 'counterpoint[sim]'")
    assert named.search("pip install counterpoint")
