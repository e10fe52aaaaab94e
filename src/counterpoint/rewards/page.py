"""HTML pages of rewards: line charts, and a video with a cursor on its curve. A page is one file and needs no network.

Lines are SVG paths in a 1000 x 1000 box that is stretched to the figure. Text is HTML, positioned in per cent, so that
letters keep their size on a phone. Colours are CSS classes (`templates/style.css`).
"""

from __future__ import annotations

import base64
import io
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from markupsafe import Markup, escape
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageOps

from counterpoint.errors import import_extra

COLOURS = ("#0072b2", "#c8500a", "#00825f", "#b0568a", "#a86f00", "#3a8fc4")
"""The CSS classes `c0` to `c5`, for images."""
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
LETTERS, LINE_HEIGHT = 14, 7.5
"""Letters per line of a label, and the height of such a line in per cent of a chart's height (`style.css`)."""
FILM_FRAME, FILM_CHART = (480, 400), (720, 400)
"""Largest width and height of the frames of a video with its chart, and the size of the chart, in pixels."""
TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Attributes:
        x: Positions, ascending.
        y: Values.
        kind: CSS class: `c0` to `c5` (colours), `rest` (grey, thin), `ghost` (dashed).
        label: Text at the line's end; an empty text shows no label.
        live: True if a cursor marks the line and the line's label shows the value at the cursor.
    """

    x: Sequence[float]
    y: Sequence[float]
    kind: str
    label: str = ""
    live: bool = False


@dataclass(frozen=True)
class Chart:
    """A chart as HTML, with the ranges of x and y that it spans."""

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
    dots: bool = False,
    rings: bool = False,
) -> Chart:
    """Plot lines over common axes.

    Args:
        lines: The lines; the last one is drawn on top.
        x_label: The meaning of x, with its unit.
        y_label: The meaning of y, with its unit.
        summary: One sentence for a screen reader.
        x_range: Minimum and maximum of x; by default those of the lines.
        y_range: Minimum and maximum of y; by default a range that fits the lines.
        dots: True to mark the last value of each line with a dot.
        rings: True to mark the first value of each line with a ring.
    """
    xs = [x for line in lines for x in line.x]
    ys = [y for line in lines for y in line.y if math.isfinite(y)]
    left, right = x_range or ((min(xs), max(xs)) if min(xs) < max(xs) else (min(xs) - 0.5, min(xs) + 0.5))
    low, high = y_range or padded(min(ys, default=0.0), max(ys, default=1.0))

    def across(x: float) -> float:
        return 1000 * (x - left) / (right - left)

    def down(y: float) -> float:
        return 1000 * (high - y) / (high - low)

    def path(line: Line) -> str:
        """Return an SVG path of straight pieces between the values; NaN interrupts the line."""
        at = [f"{across(x):.1f} {down(y):.1f}" if math.isfinite(y) else "" for x, y in zip(line.x, line.y, strict=True)]
        return "".join(f"{'L' if before else 'M'}{now}" for before, now in itertools.pairwise(["", *at]) if now)

    labelled = [line for line in lines if line.label]
    named = list(zip(labelled, shortened([line.label for line in labelled]), strict=True))
    heights = [LINE_HEIGHT * (math.ceil(len(label) / LETTERS) + 1.4 * line.live) for line, label in named]
    tops = [down(next((y for y in reversed(line.y) if math.isfinite(y)), 0.0)) / 10 for line, _ in named]
    html = render(
        "chart.html.j2",
        x_label=x_label,
        y_label=y_label,
        summary=summary,
        x_ticks=[(across(tick), tick) for tick in nice_ticks(left, right)],
        y_ticks=[(down(tick), tick) for tick in nice_ticks(low, high)],
        paths=[(line.kind, path(line)) for line in lines],
        dots=[(line.kind, across(line.x[-1]), down(line.y[-1])) for line in lines if dots],
        rings=[(line.kind, across(line.x[0]), down(line.y[0])) for line in lines if rings],
        labels=[(line, label, top) for (line, label), top in zip(named, _apart(tops, heights), strict=True)],
    )
    return Chart(Markup(html), (left, right), (low, high))


def line_image(lines: Sequence[Line], *, title: str, y_label: str) -> bytes:
    """Return the lines over seconds as a PNG, the last line on top and first in the legend.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    figure, _ = _figure(lines, title=title, y_label=y_label, figsize=(8, 4.2), dpi=150)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def beside_chart(
    lines: Sequence[Line], *, title: str, y_label: str
) -> Callable[[UInt8[NDArray[np.uint8], "H W 3"], int], UInt8[NDArray[np.uint8], "H2 W2 3"]]:
    """Return a function that draws a frame and, on its right, the lines with a cursor at the frame's position in them.

    All lines have the same x.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    width, height = FILM_CHART
    figure, axes = _figure(lines, title=title, y_label=y_label, figsize=(width / 100, height / 100), dpi=100)
    canvas = import_extra("matplotlib.backends.backend_agg", "report").FigureCanvasAgg(figure)
    canvas.draw()
    chart = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())
    places = [(_colour(line), axes.transData.transform(np.column_stack([line.x, line.y]))) for line in lines]

    def draw(frame: UInt8[NDArray[np.uint8], "H W 3"], position: int) -> UInt8[NDArray[np.uint8], "H2 W2 3"]:
        seen = ImageOps.contain(Image.fromarray(frame), FILM_FRAME)
        left = seen.width + seen.width % 2
        image = Image.new("RGB", (left + width, height), "white")
        image.paste(seen, (0, (height - seen.height) // 2))
        image.paste(chart, (left, 0))
        pen = ImageDraw.Draw(image)
        across = left + places[0][1][position, 0]
        pen.line([(across, height - axes.bbox.y1), (across, height - axes.bbox.y0)], fill="#1d1c1a")
        for colour, of_line in places:
            if math.isfinite(y := height - of_line[position, 1]):
                pen.ellipse((across - 5, y - 5, across + 5, y + 5), fill=colour, outline="white")
        return np.asarray(image)

    return draw


def _figure(lines: Sequence[Line], *, title: str, y_label: str, **size: Any) -> tuple[Any, Any]:
    """Return a figure of matplotlib with the lines over seconds, and its axes."""
    figure = import_extra("matplotlib.figure", "report").Figure(layout="constrained", **size)
    axes = figure.add_subplot(title=title, xlabel="seconds")
    for line in lines:
        width = 2.4 if line is lines[-1] else 1.5
        axes.plot(line.x, line.y, color=_colour(line), linewidth=width, label=line.label or "_")
    axes.set_ylabel(y_label.replace(" and ", "\nand "), fontsize=9)
    axes.legend(reverse=True, frameon=False, loc="upper left", bbox_to_anchor=(0, -0.16))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e0dcd3", linewidth=0.8)
    return figure, axes


def _colour(line: Line) -> str:
    return "#b9b4a9" if line.kind == "rest" else COLOURS[int(line.kind[1:])]


def nice_ticks(low: float, high: float) -> list[float]:
    """Return two to seven round numbers in [low, high], evenly spaced.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    locator = import_extra("matplotlib.ticker", "report").MaxNLocator(6, steps=(1, 2, 2.5, 5, 10))
    return [float(round(tick, 12)) + 0.0 for tick in locator.tick_values(low, high) if low <= tick <= high]


def padded(low: float, high: float) -> tuple[float, float]:
    """Return the range with a margin."""
    margin = 0.06 * (high - low) or 0.1 * abs(high) or 0.1
    return low - margin, high + margin


def signed(value: float, digits: int = 3) -> str:
    """Return a number with a true minus sign, or a dash if the number is not defined."""
    if not math.isfinite(value):
        return "\N{EM DASH}"
    rounded = round(value, digits) + 0.0  # plus zero, so that nothing reads as minus zero
    return f"{rounded:.{digits}f}".replace("-", "\N{MINUS SIGN}")


def shortened(labels: Sequence[str], most: int = 38) -> list[str]:
    """Return labels of at most `most` letters, shortened so that the words that distinguish them stay.

    Words that a label shares with another label, at its beginning or end, are dropped first, starting next to the words
    that differ. If this is not enough (there is only one label, or the words that differ are too long), letters are
    dropped from the label's middle.
    """
    split = [label.split() for label in labels]
    found = []
    for at, words in enumerate(split):
        others = [other for number, other in enumerate(split) if number != at and other != words]
        head = max((_common(words, other) for other in others), default=0)
        tail = max((_common(words[head:][::-1], other[::-1]) for other in others), default=0)
        parts, text = [words[:head], words[head : len(words) - tail], words[len(words) - tail :]], labels[at]
        while len(text) > most and (len(parts[0]) > 1 or len(parts[2]) > 1):
            longer = 0 if len(parts[0]) >= len(parts[2]) else 2
            parts[longer] = parts[longer][:-1] if longer == 0 else parts[longer][1:]
            gaps = [ELLIPSIS if len(parts[0]) < head else "", ELLIPSIS if len(parts[2]) < tail else ""]
            text = " ".join(word for word in [*parts[0], gaps[0], *parts[1], gaps[1], *parts[2]] if word)
        found.append(text if len(text) <= most else _without_middle(text, most))
    return found


def _without_middle(text: str, most: int) -> str:
    """Return a text without its middle: cut between words if there is a space on both sides, else within words."""
    begin, end = most // 2, len(text) - (most - 1 - most // 2)
    first, last = text.rfind(" ", 0, begin + 1), text.find(" ", end - 1)
    whole = first > 0 and last > 0
    return f"{text[: first if whole else begin].rstrip()}{ELLIPSIS}{text[last if whole else end :].lstrip()}"


def _common(left: Sequence[str], right: Sequence[str]) -> int:
    """Return the number of words that two lists share at their start."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


def _apart(tops: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Push apart labels that would overlap, as little as possible, and return their tops.

    Labels with the same position are spread around it. No label lies below the chart, or so far above the chart that it
    would cover the axis.
    """
    blocks: list[tuple[list[int], float]] = []  # labels from top to bottom, and the middle of each block
    for at in sorted(range(len(tops)), key=lambda at: tops[at]):
        members, middle = [at], tops[at]
        while True:
            half = sum(heights[one] for one in members) / 2
            middle = min(max(middle, half - LINE_HEIGHT), 100.0 + LINE_HEIGHT - half)
            if not blocks or blocks[-1][1] + sum(heights[one] for one in blocks[-1][0]) / 2 <= middle - half + 1e-9:
                break
            before, _ = blocks.pop()
            members = before + members
            middle = sum(tops[one] for one in members) / len(members)
        blocks.append((members, middle))
    moved = [0.0] * len(tops)
    for members, middle in blocks:
        edge = middle - sum(heights[one] for one in members) / 2
        for one in members:
            moved[one] = edge + heights[one] / 2
            edge += heights[one]
    return moved


@dataclass(frozen=True)
class Panel:
    """One chart of a player.

    Attributes:
        lines: Lines over the player's seconds; the cursor marks the lines with `live`.
        y_label: The meaning of the values.
        summary: One sentence for a screen reader.
        y_range: Minimum and maximum value; by default a range that fits the lines.
        title: A heading, such as the name of a run.
    """

    lines: Sequence[Line]
    y_label: str
    summary: str
    y_range: tuple[float, float] | None = None
    title: str = ""


def make_player(
    panels: Sequence[Panel], seconds: Sequence[float], steps: Sequence[int], images: Mapping[int, bytes]
) -> dict[str, Any]:
    """Return a video and its curves: the `view` of `player.html.j2`.

    Args:
        panels: Charts that share one cursor; without charts, only the video is played.
        seconds: Time of each of the T frames of the curves.
        steps: Frame number in the video of each of these T frames.
        images: JPEGs of some frames, keyed by the index among the T frames; the cursor shows the nearest image.
    """
    charts = [
        line_chart(panel.lines, x_label="seconds", y_label=panel.y_label, summary=panel.summary, y_range=panel.y_range)
        for panel in panels
    ]
    with Image.open(io.BytesIO(next(iter(images.values())))) as first:
        width, height = first.size
    data = {
        "seconds": [round(float(second), 4) for second in seconds],
        "steps": [int(step) for step in steps],
        "shown": list(images),
        "images": [f"data:image/jpeg;base64,{base64.b64encode(image).decode()}" for image in images.values()],
        "charts": [
            {
                "x": chart.x_range,
                "y": chart.y_range,
                "lines": [
                    {"kind": line.kind, "values": [round(float(y), 5) if math.isfinite(y) else None for y in line.y]}
                    for line in panel.lines
                    if line.live
                ],
            }
            for chart, panel in zip(charts, panels, strict=True)
        ],
    }
    titled = [(panel.title, chart.html) for chart, panel in zip(charts, panels, strict=True)]
    return {"charts": titled, "data": data, "width": width, "height": height}


def jpeg(frame: UInt8[NDArray[np.uint8], "H W 3"], *, side: int = 320, quality: int = 74) -> bytes:
    """Return a frame as a JPEG whose longer side has at most `side` pixels."""
    image = Image.fromarray(frame)
    image.thumbnail((side, side))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality, optimize=True)
    return buffer.getvalue()


def breakable(name: str) -> Markup:
    """Return a name as HTML with line breaks allowed only after punctuation, not within words."""
    return Markup(re.sub(r"([:._/-])", r"\1<wbr>", str(escape(name))))


def render(template: str, folders: Sequence[Path] = (), **values: Any) -> str:
    """Fill a template of this folder or of `folders`; the page contains its style and script.

    Raises:
        MissingExtraError: If jinja2 is not installed.
    """
    style, script = (Markup((TEMPLATES / name).read_text()) for name in ("style.css", "player.js"))
    page: str = _environment(*folders, TEMPLATES).get_template(template).render(style=style, script=script, **values)
    return page


@cache
def _environment(*folders: Path) -> Any:
    jinja2 = import_extra("jinja2", "report")
    loader = jinja2.FileSystemLoader(folders)
    settings: dict[str, Any] = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    return jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, **settings)
