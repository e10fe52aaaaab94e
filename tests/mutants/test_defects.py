"""Every defect of the list still has its line, and a planted one is caught."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.mutants.__main__ import caught
from tests.mutants.defects import DEFECTS, SRC, Defect


@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_the_line_stands_once_and_its_tests_are_there(defect: Defect, tmp_path: Path) -> None:
    copy = tmp_path / "counterpoint" / defect.file
    copy.parent.mkdir(parents=True)
    shutil.copyfile(SRC / "counterpoint" / defect.file, copy)
    defect.plant(tmp_path)
    compile(copy.read_text(), defect.file, "exec")
    assert copy.read_text() != (SRC / "counterpoint" / defect.file).read_text()
    assert (Path(__file__).parents[1] / defect.tests).exists()


def test_a_line_that_is_gone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "counterpoint").mkdir()
    (tmp_path / "counterpoint" / "errors.py").write_text("")
    with pytest.raises(ValueError, match="0 times"):
        Defect("errors.py", "if not ok:", "if ok:", "test_errors.py").plant(tmp_path)


@pytest.mark.slow
def test_a_planted_defect_is_caught() -> None:
    assert "tests/data/test_statistics.py" in caught(next(one for one in DEFECTS if one.file == "data/statistics.py"))
