from __future__ import annotations

from pathlib import Path
from typing import Any

from counterpoint.agents import AGENTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "methods" / "contrastive_agents.md"


def shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def test_the_page_of_contrastive_agents_shows_their_defaults() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text().splitlines()
        if line.startswith(("| setting |", "| `"))
    ]
    names = rows[0][1:]
    assert names == ["td_infonce", "contrastive_rl", "contrastive_rl_nce", "c_learning"]
    for head, *cells in rows[1:]:
        key = head.split("`")[1]
        for name, cell in zip(names, cells, strict=True):
            value = getattr(AGENTS[name].config(), key, None)
            assert cell == ("-" if value is None else shown(value)), (key, name)
