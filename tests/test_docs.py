from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import pytest

from counterpoint.cli import main
from tests.conftest import write_robot_set
from tests.marks import quick

ROOT = Path(__file__).resolve().parent.parent
TRAINING = (
    *("add_an_objective.md", "comparing.md", "corpora.md", "diffusion_policies.md", "encoders.md", "environments.md"),
    *("gym_rewards.md", "labelling.md", "policies.md"),
)
"""Pages whose examples take seconds, since they embed, train or simulate."""
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.M | re.S)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_robot_set(tmp_path / "data", 15, 64, {"train": "0:12", "val": "12:15"})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize(
    "page",
    quick([page for page in PAGES if page.name not in TRAINING], [page for page in PAGES if blocks(page, "python")]),
    ids=lambda page: page.name,
)
def test_python_on_every_page_runs(page: Path, workplace: Path) -> None:
    scope: dict[str, object] = {"__name__": page.stem}
    for number, code in enumerate(blocks(page, "python")):
        # Future annotations off, as in a reader's own script; jaxtyping shapes are strings.
        exec(compile(code, f"{page.name} block {number}", "exec", dont_inherit=True), scope)


def commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for block in blocks(page, "bash"):
            for line in block.replace("\\\n", " ").splitlines():
                words = line.partition(" #")[0]
                if words.startswith("counterpoint "):
                    found.append((page.name, words))
    return found


@cache
def help_of(*name: str) -> str:
    with redirect_stdout(io.StringIO()) as said, pytest.raises(SystemExit) as done:
        main([*name, "--help"])
    assert done.value.code == 0
    return said.getvalue()


@pytest.mark.parametrize(("page", "line"), commands())
def test_every_command_and_flag_on_a_page_exists(page: str, line: str) -> None:
    words = line.split()[1:]
    name = words[:2] if words[0] in ("data", "collect", "train", "plan") else words[:1]
    if "--env" in words and words[0] == "train":
        name = [*name, "--env", words[words.index("--env") + 1]]
    text = help_of(*name)
    flags = {
        word.lstrip("'").partition("=")[0].replace("_", "-") for word in words if word.lstrip("'").startswith("--")
    }
    assert all(flag in text for flag in flags), f"{page}: {line}"


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
