"""A page with a video under a cursor on its reward curve: one file, no network, nothing to install."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from counterpoint.rewards.chart import Line, line_chart
from counterpoint.rewards.extras import report_package

__all__ = ["PlayerView", "jpeg", "make_player", "render", "write_whole"]

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
        "lines": [
            {"kind": line.kind, "values": [round(float(y), 5) for y in line.y]} for line in lines if line.live
        ],
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
