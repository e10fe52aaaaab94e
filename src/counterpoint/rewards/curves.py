"""A video's reward under instructions, frame by frame: as a table, a picture and a page."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from counterpoint.data.video import in_worker, probe_video, read_frames
from counterpoint.errors import BadInputError
from counterpoint.rewards import scores
from counterpoint.rewards.extras import report_package
from counterpoint.rewards.model import RewardForm, RewardModel, embed_frames, embed_text
from counterpoint.rewards.page import Line, jpeg, make_player, render, signed

__all__ = ["RewardCurve", "curve_csv", "curve_page", "curve_png", "score_video"]

Array = NDArray[np.float64]

CHUNK_BYTES = 192 * 2**20
"""Decoded frames held at once."""
PICTURES = 120
"""Pictures on a page: about a megabyte."""
COLOURS = ("#0072b2", "#c8500a", "#00825f", "#b0568a", "#a86f00", "#3a8fc4")
MEANING: dict[RewardForm, str] = {
    "potential": "cosine of the frame and the instruction",
    "direction": "cosine of the change since the first frame and the instruction",
}


@dataclass(frozen=True)
class RewardCurve:
    """A scored video.

    Attributes:
        video: The file.
        form: What the values are.
        fps: Frames a second.
        instructions: L texts.
        values: [L, T], one row an instruction.
        pictures: Frame -> JPEG, for some frames.
    """

    video: Path
    form: RewardForm
    fps: float
    instructions: tuple[str, ...]
    values: Float[Array, "L T"]
    pictures: dict[int, bytes]

    @property
    def seconds(self) -> Float[Array, " T"]:
        """When each frame was."""
        return np.arange(self.values.shape[1]) / self.fps


def score_video(rewards: RewardModel, video: Path, instructions: Sequence[str]) -> RewardCurve:
    """Score every frame of a video, some frames at a time, decoded in a process that may die.

    Raises:
        BadInputError: When the video cannot be read.
    """
    if not video.is_file():
        raise BadInputError(video, "no such file", "a video", "check the path")
    info = in_worker(probe_video, video)
    chunk = max(1, CHUNK_BYTES // (info.height * info.width * 3))
    wanted = set(np.linspace(0, info.frames - 1, min(PICTURES, info.frames)).round().astype(int).tolist())
    embeddings: list[Array] = []
    pictures: dict[int, bytes] = {}
    for start in range(0, info.frames, chunk):
        numbers = np.arange(start, min(start + chunk, info.frames))
        frames = in_worker(read_frames, video, numbers, timeout=300.0)
        embeddings.append(embed_frames(rewards.encoder, frames, rewards.batch_size))
        pictures |= {int(n): jpeg(frames[n - start]) for n in numbers if int(n) in wanted}
    curve = scores.potential if rewards.form == "potential" else scores.direction
    return RewardCurve(
        video=video,
        form=rewards.form,
        fps=info.fps,
        instructions=tuple(instructions),
        values=curve(np.concatenate(embeddings), embed_text(rewards.encoder, instructions)),
        pictures=pictures,
    )


def curve_csv(curve: RewardCurve) -> str:
    """One row a frame: `frame`, `seconds`, and one column an instruction."""
    buffer = io.StringIO(newline="")
    table = csv.writer(buffer, lineterminator="\n")
    table.writerow(["frame", "seconds", *curve.instructions])
    for frame, (second, values) in enumerate(zip(curve.seconds, curve.values.T, strict=True)):
        table.writerow([frame, f"{second:.6f}", *(f"{value:.6f}" for value in values)])
    return buffer.getvalue()


def curve_png(curve: RewardCurve) -> bytes:
    """The curve as a picture.

    Raises:
        MissingExtraError: When matplotlib is not installed.
    """
    figure = report_package("matplotlib.figure").Figure(figsize=(8, 4.2), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for row in reversed(range(len(curve.instructions))):
        colour = COLOURS[row] if row < len(COLOURS) else "#b9b4a9"
        axes.plot(curve.seconds, curve.values[row], color=colour, linewidth=2.4 if row == 0 else 1.5)
    handles = axes.get_lines()[::-1]
    axes.legend(handles, curve.instructions, frameon=False, loc="upper left", bbox_to_anchor=(0, -0.16))
    axes.set_title(curve.video.name, loc="left", fontsize=11)
    axes.set_xlabel("seconds")
    axes.set_ylabel(MEANING[curve.form].replace(" and ", "\nand "), fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e0dcd3", linewidth=0.8)
    axes.set_axisbelow(True)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def curve_page(curve: RewardCurve, *, model: str, csv_name: str) -> str:
    """The video under a cursor on its curve, as one HTML file.

    Raises:
        MissingExtraError: When jinja2 is not installed.
    """
    kinds = [f"c{row}" if row < len(COLOURS) else "rest" for row in range(len(curve.instructions))]
    seconds = curve.seconds.tolist()
    lines = [
        Line(seconds, values.tolist(), kind, text if kind != "rest" else "", live=kind != "rest")
        for values, kind, text in zip(curve.values, kinds, curve.instructions, strict=True)
    ]
    view = make_player(
        lines[::-1],
        seconds,
        range(len(seconds)),
        curve.pictures,
        y_label=f"reward: {MEANING[curve.form]}",
        summary=f"Reward of {curve.video.name} over time under {len(lines)} instructions",
    )
    rows = [
        {
            "text": text,
            "kind": kind,
            "start": signed(values[0]),
            "end": signed(values[-1]),
            "gain": signed(values[-1] - values[0]),
        }
        for text, kind, values in zip(curve.instructions, kinds, curve.values, strict=True)
    ]
    return render(
        "curve.html.j2",
        title=curve.video.name,
        instructions=curve.instructions,
        explanation=f"How far the video has come with the instruction: the {MEANING[curve.form]}, "
        "from \N{MINUS SIGN}1 to 1. A reward worth having rises while the instruction is carried out, "
        "and does not rise under another instruction.",
        view=view,
        rows=rows,
        fps=f"{curve.fps:g}",
        model=model,
        csv=csv_name,
    )
