"""`counterpoint reward VIDEO...`: a video's reward, frame by frame, as a table, an image and a page."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from counterpoint.data.video import in_worker, probe_video, read_frames
from counterpoint.encoders.dual import RewardForm
from counterpoint.errors import BadInputError, import_extra, require
from counterpoint.files import write_atomically
from counterpoint.progress import ProgressBar
from counterpoint.rewards.model import RewardModel, check_instructions, embed_frames, embed_text
from counterpoint.rewards.page import COLOURS, Line, jpeg, make_player, render, signed

Array = NDArray[np.float64]

CHUNK_BYTES = 192 * 2**20
"""Decoded frames held at once."""
IMAGES = 120
"""Images on a page: about a megabyte."""
MEANING: dict[RewardForm, str] = {
    "potential": "cosine of the frame and the instruction",
    "transition": "cosine of the change since the first frame and the instruction",
    "goal": "similarity of the frame and the goal image",
    "language": "progress of the instruction since the first frame, by R3M's language reward",
}


def gains(curve: Float[Array, "L T"], form: RewardForm) -> Float[Array, "L T"]:
    """Return a curve as it is plotted: a potential (or distance to a goal) as its gain since the first frame.

    Only differences of a potential are rewards; its level means little.
    """
    return curve - curve[:, :1] if form in ("potential", "goal") else curve


@dataclass(frozen=True)
class RewardCurve:
    """A scored video.

    Attributes:
        video: The file.
        form: The meaning of the values.
        fps: Frames a second.
        labels: L instructions, or the goal image's name.
        values: [L, T], one row a label.
        images: Frame -> JPEG, for some frames.
    """

    video: Path
    form: RewardForm
    fps: float
    labels: tuple[str, ...]
    values: Float[Array, "L T"]
    images: dict[int, bytes]

    @property
    def seconds(self) -> Float[Array, " T"]:
        """The time of each frame."""
        return np.arange(self.values.shape[1]) / self.fps

    @property
    def axis(self) -> str:
        """The label of the plotted values."""
        gained = "gain of the " if self.form in ("potential", "goal") else ""
        return f"reward: {gained}{MEANING[self.form]}"


def reward_command(
    videos: Sequence[Path],
    instruction: str | None = None,
    *,
    model: str | Path,
    out: Path,
    against: Sequence[str] = (),
    goal: Path | None = None,
    form: RewardForm | None = None,
    device: str = "cpu",
) -> list[Path]:
    """Write `NAME.csv`, `NAME.png` and `NAME.html` for each video into `out`; return the files.

    A video that cannot be read is skipped; the files of the others stay.

    Args:
        videos: Files.
        instruction: The task that the videos should show; this or `goal`.
        model: A run, a saved encoder or a Hub id.
        out: The folder to write to.
        against: Other instructions, plotted beside it.
        goal: An image of the goal, for a reward without words.
        form: The reward, where it is not the one that the encoder was trained for.
        device: The device that computes.

    Raises:
        BadInputError: No video, an empty instruction or one given twice, a form or model that cannot be used, or, after
            all others are done, videos that could not be read.
    """
    one = (instruction is None) == (goal is not None)
    require(one, "reward", "both or none", "--instruction or --goal", "give one")
    texts = [] if instruction is None else check_instructions([instruction, *against])
    require(len(set(texts)) == len(texts), "--against", "the same instruction twice", "different ones", "drop one")
    require(videos, "videos", "none", "one or more files", "name a video")
    require(not out.exists() or out.is_dir(), out, "a file", "a folder", "choose another --out")
    image = None
    if goal is not None:
        try:
            image = np.array(Image.open(goal).convert("RGB"))
        except (OSError, UnidentifiedImageError) as error:
            raise BadInputError(goal, str(error), "an image", "give a PNG or JPEG of the goal") from None
    rewards = RewardModel.from_pretrained(model, device=device, form=form)
    if image is None:
        rewards.check_form(rewards.form, instructed=True)
    written: list[Path] = []
    failed: list[BadInputError] = []
    with ProgressBar("Rewards", len(videos), "videos") as progress:
        for number, video in enumerate(videos):
            earlier = sum(other.stem == video.stem for other in videos[:number])
            name = f"{video.stem}-{earlier + 1}" if earlier else video.stem
            try:
                curve = score_video(rewards, video, texts or [f"goal {goal}"], goal=image)
                page = curve_page(curve, model=str(model), csv_name=f"{name}.csv")
                for ending, content in (("csv", curve_csv(curve)), ("png", curve_png(curve)), ("html", page)):
                    write_atomically(out / f"{name}.{ending}", content)
                    written.append(out / f"{name}.{ending}")
            except BadInputError as error:
                failed.append(error)
            progress.advance()
    where, found = ("; ".join(getattr(error, part) for error in failed) for part in ("where", "found"))
    hint = f"replace or leave out {len(failed)} of {len(videos)}; the others are done, in {out}"
    require(not failed, where, found, "videos that can be read", hint)
    return written


def score_video(
    rewards: RewardModel, video: Path, labels: Sequence[str], *, goal: NDArray[np.uint8] | None = None
) -> RewardCurve:
    """Score every frame of a video, some frames at a time, decoded in a process that may die.

    Args:
        rewards: The reward.
        video: The file.
        labels: L instructions, or the name of the goal.
        goal: The goal image [H, W, 3], where it replaces the instructions.

    Raises:
        BadInputError: A video that cannot be read.
    """
    require(video.is_file(), video, "no such file", "a video", "check the path")
    encoder = rewards.encoder
    targets = embed_text(encoder, labels) if goal is None else embed_frames(encoder, goal[None])
    info = in_worker(probe_video, video)
    chunk = max(1, CHUNK_BYTES // (info.height * info.width * 3))
    wanted = set(np.linspace(0, info.frames - 1, min(IMAGES, info.frames)).round().astype(int).tolist())
    embeddings: list[Array] = []
    images: dict[int, bytes] = {}
    for start in range(0, info.frames, chunk):
        numbers = np.arange(start, min(start + chunk, info.frames))
        frames = in_worker(read_frames, video, numbers, timeout=300.0)
        embeddings.append(embed_frames(encoder, frames, rewards.batch_size))
        images |= {int(n): jpeg(frames[n - start]) for n in numbers if int(n) in wanted}
    form: RewardForm = rewards.form if goal is None else "goal"
    values = rewards.score(form, np.concatenate(embeddings), targets)
    return RewardCurve(video, form, info.fps, tuple(labels), values, images)


def curve_csv(curve: RewardCurve) -> str:
    """Return one row a frame: `frame`, `seconds`, and one column a label."""
    buffer = io.StringIO(newline="")
    table = csv.writer(buffer, lineterminator="\n")
    table.writerow(["frame", "seconds", *curve.labels])
    rows = np.vstack([curve.seconds, curve.values]).T
    table.writerows([frame, *(f"{value:.6f}" for value in row)] for frame, row in enumerate(rows))
    return buffer.getvalue()


def curve_png(curve: RewardCurve) -> bytes:
    """Return the plotted curve.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure = import_extra("matplotlib.figure", "report").Figure(figsize=(8, 4.2), dpi=150, layout="constrained")
    axes = figure.add_subplot(title=curve.video.name, xlabel="seconds")
    for row, values in reversed(list(enumerate(gains(curve.values, curve.form)))):
        colour = COLOURS[row] if row < len(COLOURS) else "#b9b4a9"
        axes.plot(curve.seconds, values, color=colour, linewidth=1.5 if row else 2.4, label=curve.labels[row])
    axes.set_ylabel(curve.axis.replace(" and ", "\nand "), fontsize=9)
    axes.legend(reverse=True, frameon=False, loc="upper left", bbox_to_anchor=(0, -0.16))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e0dcd3", linewidth=0.8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def curve_page(curve: RewardCurve, *, model: str, csv_name: str) -> str:
    """Return the video under a cursor on its curve, as one HTML file.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    kinds = [f"c{row}" if row < len(COLOURS) else "rest" for row in range(len(curve.labels))]
    seconds = curve.seconds.tolist()
    lines = [
        Line(seconds, values.tolist(), kind, text if kind != "rest" else "", live=kind != "rest")
        for values, kind, text in zip(gains(curve.values, curve.form), kinds, curve.labels, strict=True)
    ]
    summary = f"Reward of {curve.video.name} over time: {', '.join(curve.labels)}"
    steps = range(len(seconds))
    view = make_player(lines[::-1], seconds, steps, curve.images, y_label=curve.axis, summary=summary)
    columns = (curve.values[:, 0], curve.values[:, -1], curve.values[:, -1] - curve.values[:, 0])
    return render(
        "curve.html.j2",
        title=curve.video.name,
        labels=curve.labels,
        meaning=MEANING[curve.form],
        axis=curve.axis,
        view=view,
        rows=[(text, kind, *map(signed, row)) for text, kind, *row in zip(curve.labels, kinds, *columns, strict=True)],
        fps=f"{curve.fps:g}",
        model=model,
        csv=csv_name,
    )
