"""The report of a comparison with ICon: one page with its pictures, tables and what to make of them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from counterpoint.bench.icon_cells import UNTRAINED
from counterpoint.bench.icon_figures import draw_all
from counterpoint.bench.icon_measures import Views
from counterpoint.bench.icon_table import interval, success_rows
from counterpoint.rewards.page import render, write_whole

__all__ = ["write_report"]

TEMPLATES = Path(__file__).parent / "templates"
REPORT_STYLE = Path(__file__).parents[1] / "evaluation" / "templates" / "report.css"


def write_report(result: Mapping[str, Any], views: Mapping[str, Views], out: Path) -> Path:
    """Draw the figures and write `icon.html`, which holds them all.

    Args:
        result: What `icon.json` holds.
        views: Task -> the held-out frames whose attention is shown.
        out: The folder.

    Returns:
        The page.

    Raises:
        MissingExtraError: When matplotlib or jinja2 is not installed.
    """
    figures = {name: _embedded(path) for name, path in draw_all(result, views, out).items()}
    head, rows = success_rows(result)
    page = render(
        "icon.html.j2",
        [TEMPLATES],
        report_style=Markup(REPORT_STYLE.read_text()),
        result=result,
        config=result["config"],
        figures=figures,
        maps={name.partition(":")[2]: figure for name, figure in figures.items() if name.startswith("maps:")},
        success=(head, rows),
        interval=interval,
        untrained=UNTRAINED,
    )
    write_whole(out / "icon.html", page.encode())
    return out / "icon.html"


def _embedded(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
