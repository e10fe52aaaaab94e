from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_table_of_the_study_comes_from_its_result_file() -> None:
    spec = importlib.util.spec_from_file_location("occupancy_tables", ROOT / "benchmarks" / "occupancy_tables.py")
    assert spec is not None
    assert spec.loader is not None
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    page = (ROOT / "docs" / "studies" / "occupancy.md").read_text()
    assert tables.fill(page) == page
    assert page.count("<!-- table ") == len(tables.TABLES)
