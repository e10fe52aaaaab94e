from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))


def test_every_table_on_the_results_page_comes_from_a_result_file() -> None:
    fill = runpy.run_path(str(ROOT / "benchmarks" / "fill_results.py"))["fill"]
    page = (ROOT / "docs" / "results.md").read_text()
    assert fill(page) == page
    assert "<!-- table " in page


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_result_file_says_where_it_comes_from(path: Path) -> None:
    found = json.loads(path.read_text())
    about = found.get("provenance", found)
    assert found["command"].startswith("python benchmarks/")
    assert about["commit"]
    assert about["packages"]
    assert about["hardware"]["cpu"]
