"""Line charts as HTML that stays sharp and legible at any width, in light and dark.

Lines are SVG paths in a 1000 x 1000 box that is stretched to the figure; everything written is HTML placed
in per cent, so that letters keep their size on a phone. Colours are CSS classes (`templates/style.css`).

A page with a video under a cursor on its reward curve: one file, no network, nothing to install.
"""

from __future__ import annotations

import base64
import io
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
from jaxtyping import UInt8
from markupsafe import Markup, escape
from numpy.typing import NDArray
from PIL import Image

from counterpoint.rewards.extras import report_package

__all__ = [
    "Chart",
    "Line",
    "PlayerView",
    "Point",
    "jpeg",
    "line_chart",
    "make_player",
    "nice_ticks",
    "padded",
    "render",
    "signed",
    "write_whole",
]


BOX = 1000.0
LETTERS, LINE_HEIGHT = 14, 7.5
"""Letters in a line of a label, and the per cent of a chart's height that a line takes (`style.css`)."""


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Attributes:
        x: Places, ascending.
        y: Values.
        kind: CSS class: `c0` to `c5` (colours), `rest` (grey, thin), `ghost` (dashed).
        label: Written at the line's end; none when empty.
        live: Whether a cursor marks the line and its label tells the value there.
    """

    x: Sequence[float]
    y: Sequence[float]
    kind: str
    label: str = ""
    live: bool = False


@dataclass(frozen=True)
class Point:
    """A marked place; `kind` is a CSS class, as of `Line`."""

    x: float
    y: float
    kind: str


@dataclass(frozen=True)
class Chart:
    """A drawn chart.

    Attributes:
        html: The figure's inside.
        x_range: Least and greatest place: what a pointer's position means.
        y_range: Least and greatest value.
    """

    html: Markup
    x_range: tuple[float, float]
    y_range: tuple[float, float]


def line_chart(
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    summary: str,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    points: Sequence[Point] = (),
) -> Chart:
    """Draw lines over common axes.

    Args:
        lines: Drawn in order: the last lies on top.
        x_label: What x is, with its unit.
        y_label: What y is, with its unit.
        summary: One sentence for those who do not see the picture.
        x_range: Least and greatest place; by default the lines' own.
        y_range: Least and greatest value; by default what the lines need.
        points: Marked places.
    """
    xs = [x for line in lines for x in line.x]
    ys = [y for line in lines for y in line.y if math.isfinite(y)]
    left, right = x_range or ((min(xs), max(xs)) if min(xs) < max(xs) else (min(xs) - 0.5, min(xs) + 0.5))
    low, high = y_range or padded(min(ys, default=0.0), max(ys, default=1.0))
    parts = [f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img" aria-label="{escape(summary)}">']
    for tick in nice_ticks(low, high, 5):
        y = _down(tick, low, high)
        kind = "zero" if tick == 0.0 else "grid"
        parts.append(f'<path class="{kind}" d="M0 {y:.1f}H1000"/>')
    for line in lines:
        parts.append(f'<path class="line {escape(line.kind)}" d="{_path(line, left, right, low, high)}"/>')
    for point in points:  # a stroke of no length with round ends: a dot that stretching leaves round
        x, y = _across(point.x, left, right), _down(point.y, low, high)
        parts.append(f'<path class="point {escape(point.kind)}" d="M{x:.1f} {y:.1f}h.01"/>')
    parts.append("</svg>")
    parts += [
        f'<span class="tick y" style="top:{_down(tick, low, high) / 10:.2f}%">{_number(tick)}</span>'
        for tick in nice_ticks(low, high, 5)
    ]
    parts += [
        f'<span class="tick x" style="left:{_across(tick, left, right) / 10:.2f}%">{_number(tick)}</span>'
        for tick in nice_ticks(left, right, 5)
    ]
    labelled = [line for line in lines if line.label]
    texts = [shorten(line.label, width=38, placeholder=" \N{HORIZONTAL ELLIPSIS}") for line in labelled]
    heights = [
        LINE_HEIGHT * (math.ceil(len(text) / LETTERS) + 1.4 * line.live)
        for text, line in zip(texts, labelled, strict=True)
    ]
    places = _apart([_down(_last(line), low, high) / 10 for line in labelled], heights)
    for line, text, place in zip(labelled, texts, places, strict=True):
        live = '<b class="now"></b>' if line.live else ""
        kind = f"end {line.kind}{' live' if line.live else ''}"
        parts.append(f'<span class="{escape(kind)}" style="--y:{place:.2f}%">{live}{escape(text)}</span>')
    html = (
        f'<p class="axis y">{escape(y_label)}</p><div class="plot{" labelled" if labelled else ""}">'
        f'{"".join(parts)}</div><p class="axis x">{escape(x_label)}</p>'
    )
    return Chart(Markup(html), (left, right), (low, high))


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers in [low, high], a step of 1, 2, 2.5 or 5 times a power of ten apart."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(step * number, 12) for number in range(first, last + 1)]


def padded(low: float, high: float) -> tuple[float, float]:
    """A range with a little air, for values from `low` to `high`."""
    air = 0.06 * (high - low) or 0.1 * abs(high) or 0.1
    return low - air, high + air


def signed(value: float, digits: int = 3) -> str:
    """A number with a true minus sign; a dash where it is not defined."""
    if not math.isfinite(value):
        return "\N{EM DASH}"
    rounded = round(value, digits) + 0.0  # plus zero, so that nothing reads as minus zero
    return f"{rounded:.{digits}f}".replace("-", "\N{MINUS SIGN}")


def _path(line: Line, left: float, right: float, low: float, high: float) -> str:
    """Straight pieces between values; a value that is no number breaks the line."""
    pieces, pen = [], "M"
    for x, y in zip(line.x, line.y, strict=True):
        if not math.isfinite(y):
            pen = "M"
            continue
        pieces.append(f"{pen}{_across(x, left, right):.1f} {_down(y, low, high):.1f}")
        pen = "L"
    return "".join(pieces)


def _across(x: float, left: float, right: float) -> float:
    return BOX * (x - left) / (right - left)


def _down(y: float, low: float, high: float) -> float:
    return BOX * (high - y) / (high - low)


def _last(line: Line) -> float:
    return next((y for y in reversed(line.y) if math.isfinite(y)), 0.0)


def _apart(places: Sequence[float], heights: Sequence[float]) -> list[float]:
    """The same places, pushed apart downwards and then back up so that none leaves the chart's foot."""
    order = sorted(range(len(places)), key=lambda at: places[at])
    moved = list(places)
    for before, at in itertools.pairwise(order):
        moved[at] = max(moved[at], moved[before] + (heights[before] + heights[at]) / 2)
    foot = 100.0 + LINE_HEIGHT
    for at in reversed(order):
        moved[at] = min(moved[at], foot - heights[at] / 2)
        foot = moved[at] - heights[at] / 2
    return moved


def _number(value: float) -> str:
    return f"{value:g}".replace("-", "\N{MINUS SIGN}")


Pixels = NDArray[np.uint8]
TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class PlayerView:
    """What `player.html.j2` shows.

    Attributes:
        chart: The curve.
        data: What `player.js` reads: seconds, steps and line values of every frame, and the pictures.
        width: Of a picture, in pixels.
        height: Of a picture, in pixels.
    """

    chart: Markup
    data: Mapping[str, Any]
    width: int
    height: int


def make_player(
    lines: Sequence[Line],
    seconds: Sequence[float],
    steps: Sequence[int],
    pictures: Mapping[int, bytes],
    *,
    y_label: str,
    summary: str,
    y_range: tuple[float, float] | None = None,
) -> PlayerView:
    """A video beside its curves.

    Args:
        lines: Over `seconds`; the cursor marks the `live` ones.
        seconds: When each of the T frames of the curve was, [T].
        steps: Their numbers in the video, [T].
        pictures: Place among the T -> JPEG; the cursor shows the nearest.
        y_label: What the reward is.
        summary: One sentence for those who do not see the picture.
        y_range: Least and greatest value; by default what the lines need.
    """
    chart = line_chart(lines, x_label="seconds", y_label=y_label, summary=summary, y_range=y_range)
    with Image.open(io.BytesIO(next(iter(pictures.values())))) as first:
        width, height = first.size
    data = {
        "x": chart.x_range,
        "y": chart.y_range,
        "seconds": [round(float(second), 4) for second in seconds],
        "steps": [int(step) for step in steps],
        "shown": list(pictures),
        "pictures": [f"data:image/jpeg;base64,{base64.b64encode(p).decode()}" for p in pictures.values()],
        "lines": [{"kind": line.kind, "values": [round(float(y), 5) for y in line.y]} for line in lines if line.live],
    }
    return PlayerView(chart.html, data, width, height)


def jpeg(frame: UInt8[Pixels, "H W 3"], *, side: int = 320, quality: int = 74) -> bytes:
    """A frame as a small JPEG, `side` pixels on its longer side at most."""
    image = Image.fromarray(frame)
    image.thumbnail((side, side))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality, optimize=True)
    return buffer.getvalue()


def render(template: str, folders: Sequence[Path] = (), **values: Any) -> str:
    """Fill a template of this folder or of `folders`; the page carries its style and script within it.

    Raises:
        MissingExtraError: When jinja2 is not installed.
    """
    jinja2 = report_package("jinja2")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*folders, TEMPLATES]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    style = Markup((TEMPLATES / "style.css").read_text())
    script = Markup((TEMPLATES / "player.js").read_text())
    page: str = environment.get_template(template).render(style=style, script=script, **values)
    return page


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under another name and rename it: nobody ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
