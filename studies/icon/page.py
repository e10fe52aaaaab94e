"""The report of a comparison with ICon: one page with its images, tables and what to make of them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from counterpoint.evaluation.report import TEMPLATES as REPORT_TEMPLATES
from counterpoint.files import write_atomically
from counterpoint.rewards.page import render
from studies.icon.figures import plot_all
from studies.icon.measures import Views
from studies.icon.table import interval, success_rows
from studies.icon.trials import UNTRAINED

TEMPLATES = Path(__file__).parent / "templates"


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
    figures = {name: _embedded(path) for name, path in plot_all(result, views, out).items()}
    head, rows = success_rows(result)
    page = render(
        "icon.html.j2",
        [TEMPLATES],
        report_style=Markup((REPORT_TEMPLATES / "report.css").read_text()),
        result=result,
        config=result["config"],
        figures=figures,
        maps={name.partition(":")[2]: figure for name, figure in figures.items() if name.startswith("maps:")},
        success=(head, rows),
        interval=interval,
        untrained=UNTRAINED,
    )
    write_atomically(out / "icon.html", page)
    return out / "icon.html"


def _embedded(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
