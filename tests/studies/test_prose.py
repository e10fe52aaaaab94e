from __future__ import annotations

from pathlib import Path

import pytest

from studies import prose
from studies.harness import markdown, write_rows
from studies.prose import fill_marks, unbacked

TABLE = markdown(
    ["task", "method", "success"], [["Lift", "a", "0.41 [0.34, 0.48]"], ["Lift", "b less a", "+0.45, 2 seeds"]]
)


@pytest.mark.parametrize(
    ("mark", "filled"),
    [
        ("cell t :: a :: success", ".41 [.34, .48]"),
        ("number t :: a :: success", ".41"),
        ("cell t :: b :: success", "+.45"),
    ],
)
def test_a_mark_is_filled_from_its_cell(mark: str, filled: str) -> None:
    assert (
        fill_marks(f"of <!-- {mark} -->.9<!-- end -->.", lambda name: TABLE)
        == f"of <!-- {mark} -->{filled}<!-- end -->."
    )


def test_a_mark_may_be_broken_over_lines() -> None:
    text = "<!-- cell\nt :: b less\n a :: success\n-->?<!-- end -->"
    assert fill_marks(text, lambda name: TABLE).endswith("+.45<!-- end -->")


@pytest.mark.parametrize(
    "mark", ["cell t :: c :: success", "cell t :: Lift :: success", "cell t :: a :: x", "cell t :: a :: task"]
)
def test_a_mark_that_names_no_one_number_is_refused(mark: str) -> None:
    with pytest.raises(ValueError, match="'t'"):
        fill_marks(f"<!-- {mark} -->?<!-- end -->", lambda name: TABLE)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page of results whose first section has the table, beside a page of claims and the rows of a result."""
    monkeypatch.setattr(prose, "CLAIMS", tmp_path / "index.md")
    monkeypatch.setattr(prose, "RESULTS", tmp_path)
    prose.CLAIMS.write_text(
        "<!-- table claims -->\n| a | b |\n| --- | --- |\n| x | +0.10 [-0.20, +0.40] |\n<!-- end -->\n"
    )
    write_rows(tmp_path / "kept.parquet", [{"trial": "one", "curve": [0.128, {"end": 0.5}]}], {})
    return tmp_path / "page.md"


def results(page: Path, text: str) -> list[str]:
    page.write_text(f"# Page\n\n## First\n\n<!-- table t -->\n{TABLE}\n<!-- end -->\n\n{text}\n")
    return unbacked(page)


@pytest.mark.parametrize(
    "text",
    [
        "It solves .41 [.34, .48], .4 or 41 % of the scenes.",
        "It is -.10 [-.40, .20] in section 4.2, Tables 1 and 2.3, with 95 % intervals and mujoco 3.3.7.",
        "`0.77`, [a link](x-0.77.md) and\n\n```\n0.77\n```\n",
        "<!-- stated: the paper -->.77<!-- end --> and <!-- from kept -->.13 to .50<!-- end -->",
        "2,500 steps of 16, three seeds",
    ],
)
def test_numbers_of_tables_results_papers_and_code_are_backed(page: Path, text: str) -> None:
    assert results(page, text) == []


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("It solves .42 of the scenes.", [".42"]),
        ("It solves .41 [.33, .48].", [".41 [.33, .48]"]),
        ("It solves 42 % of them, 7 times as many.", ["42", "7"]),
        ("<!-- from kept -->.14<!-- end -->", [".14"]),
        ("<!-- table u -->\n| a |\n| --- |\n| 1.5 |\n<!-- end -->\n\n## Second\n\nIt solves .41.", []),
        ("## Second\n\n<!-- table u -->\n| a |\n| --- |\n| 1.5 |\n<!-- end -->\n\nIt solves .41.", [".41"]),
    ],
)
def test_a_number_that_nothing_backs_is_found(page: Path, text: str, missing: list[str]) -> None:
    assert results(page, text) == missing


def test_elsewhere_every_number_needs_a_mark(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("It solves .41, and <!-- number t :: a :: success -->.41<!-- end -->.")
    assert unbacked(tmp_path / "README.md") == [".41"]
