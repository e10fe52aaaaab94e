from __future__ import annotations

import re
from pathlib import Path

import pytest

from studies.claims import CLAIMS
from studies.harness import RESULTS
from studies.prose import MARK, without_zeros
from studies.verdicts import Claim

PAGES = Path(__file__).resolve().parents[2] / "docs" / "results"


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.paper}: {claim.claim}")
def test_every_claim_rests_on_a_page_and_a_result_or_says_why_not(claim: Claim) -> None:
    for page, anchor in re.findall(r"\((\w+\.md)(?:#([\w-]+))?\)", claim.test):
        text = (PAGES / page).read_text()
        headings = [
            re.sub(r"[^\w -]", "", line.lstrip("# ")).lower().replace(" ", "-")
            for line in text.splitlines()
            if line.startswith("#")
        ]
        assert not anchor or anchor in headings, f"{page} has no section {anchor}"
    if claim.result is None:
        assert claim.reason
    elif (RESULTS / f"{claim.result}.parquet").exists():
        assert claim.differences is not None
        assert claim.gate is not None
        assert claim.differences().ndim == 2
        assert claim.gate().text


def test_the_readme_quotes_the_table() -> None:
    readme = (PAGES.parents[1] / "README.md").read_text()
    section = readme.partition("## What the papers claim, tested")[2].partition("\n## ")[0]
    quoted = [found[5] for found in MARK.finditer(section)]
    assert len(quoted) >= 3
    index = without_zeros((PAGES / "index.md").read_text())
    assert all(number in index for number in quoted)
