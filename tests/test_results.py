from __future__ import annotations

import json
import platform
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from studies.harness import read_rows
from studies.prose import TABLE, unbacked
from studies.tables import PAGES, ROOT, TABLES, fill, plot

PROGRAMS = (
    "python benchmarks/",
    *(f"python -m {name}" for name in ("studies.", "tests.e2e.faults", "tests.data.fuzzing", "tests.formats.fuzzing")),
)
MEASURED = [page for page in PAGES if page.parent.name == "results" or page.name in ("README.md", "which_method.md")]
MEASURED.append(ROOT / "docs" / "index.md")
RESULTS = sorted(path for path in ROOT.glob("*/results/*") if path.parts[-3] in ("benchmarks", "studies"))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_every_table_of_the_results_comes_from_a_result_file(page: Path) -> None:
    assert fill(page.read_text()) == page.read_text()


def test_every_table_stands_on_one_page() -> None:
    text = "".join(page.read_text() for page in PAGES)
    assert all(text.count(f"<!-- table {name} -->") == 1 for name in TABLES)


@pytest.mark.parametrize("page", MEASURED, ids=lambda path: path.stem)
def test_every_number_in_prose_is_backed_by_a_result_file(page: Path) -> None:
    assert unbacked(page) == []


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_result_file_names_its_source(path: Path) -> None:
    found = read_rows(path)[1] if path.suffix == ".parquet" else json.loads(path.read_text())
    about = found.get("provenance", found)
    assert found["command"].startswith(PROGRAMS)
    assert about["commit"]
    assert about["packages"]
    assert about["hardware"]["cpu"]


MEASURING = import_module("benchmarks.measuring")


@pytest.mark.parametrize("name", sorted(MEASURING.CODE))
def test_no_speed_is_older_than_the_code_it_measures(name: str) -> None:
    found = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    if found["provenance"]["python"].rpartition(".")[0] != platform.python_version().rpartition(".")[0]:
        pytest.skip("digests of code differ between versions of Python")
    assert found["code"] == MEASURING.code_of(name), (
        f"repeat it on a machine with nothing else running: {found['command']}"
    )


def test_every_table_of_speeds_says_which_code_it_measures() -> None:
    text = "".join((ROOT / "docs" / "results" / name).read_text() for name in ("speed.md", "planning.md"))
    shown = {name.partition(": ")[0] for name, _ in TABLE.findall(text) if ": " in name}
    assert shown >= {"losses", "planning", "labelling_convnet"}
    assert shown - {"planning"} <= MEASURING.CODE.keys()


def test_comments_and_docstrings_are_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "src" / "counterpoint" / "a.py"
    file.parent.mkdir(parents=True)
    monkeypatch.setattr(MEASURING, "ROOT", tmp_path)
    monkeypatch.setattr(MEASURING, "CODE", {"a": ("a.py", "a.py:one")})
    found = []
    for text in (
        "def one():\n    return 1\ndef two():\n    return 2\n",
        '"""Doc."""\ndef one():\n    """Doc."""\n    return 1  # why\ndef two():\n    return 2\n',
        "def one():\n    return 1\ndef two():\n    return 3\n",
        "def one():\n    return 2\ndef two():\n    return 2\n",
    ):
        file.write_text(text)
        found.append(MEASURING.code_of("a"))
    assert found[0] == found[1]
    assert found[2]["a.py"] != found[0]["a.py"]
    assert found[2]["a.py:one"] == found[0]["a.py:one"] != found[3]["a.py:one"]


@pytest.mark.slow
def test_figures_are_plotted_from_the_result_files(tmp_path: Path) -> None:
    plot(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert len(names) == 12
    assert names <= {path.name for path in (ROOT / "docs" / "assets").iterdir()}


@pytest.mark.release
def test_the_benchmark_of_acting_names_methods_that_exist(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "benchmarks" / "policy_latency.py"), "--rounds", "1", "--ticks", "9"]
    script += ["--recipe", "diff_c-robosuite-small"]
    subprocess.run([*script, "--out", str(tmp_path / "latency.json")], check=True, timeout=300)
    assert json.loads((tmp_path / "latency.json").read_text())["tables"]
