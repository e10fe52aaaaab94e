from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from studies.harness import read_rows
from studies.prose import unbacked
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
