"""`counterpoint reward VIDEO...`: a table, a picture and a page for each video."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from counterpoint.errors import BadInputError
from counterpoint.progress import ProgressBar
from counterpoint.rewards.curves import curve_csv, curve_page, curve_png, score_video
from counterpoint.rewards.model import RewardModel, check_instructions
from counterpoint.rewards.page import write_whole

__all__ = ["reward_command"]


def reward_command(
    videos: Sequence[Path],
    instruction: str,
    *,
    model: str | Path,
    out: Path,
    against: Sequence[str] = (),
    device: str = "cpu",
) -> list[Path]:
    """Write a CSV, a PNG and an HTML page for each video.

    A video that cannot be read is skipped; what was made of the others stays, whole.

    Args:
        videos: Files.
        instruction: What the videos might be for.
        model: A run, a saved encoder or a Hub id.
        out: The folder to write to: `NAME.csv`, `NAME.png`, `NAME.html`.
        against: Other instructions, drawn beside it.
        device: Where to compute.

    Returns:
        The files written.

    Raises:
        BadInputError: When there is no video, an instruction is empty or given twice, the model cannot be
            loaded, or, after all others are done, when some videos could not be read.
    """
    texts = check_instructions([instruction, *against])
    if len(set(texts)) < len(texts):
        raise BadInputError("--against", "the same instruction twice", "different ones", "drop one")
    if not videos:
        raise BadInputError("videos", "none", "one or more files", "name a video")
    if out.exists() and not out.is_dir():
        raise BadInputError(out, "a file", "a folder", "choose another --out")
    rewards = RewardModel.from_pretrained(model, device=device)
    written: list[Path] = []
    troubles: list[BadInputError] = []
    with ProgressBar("Rewards", len(videos), "videos") as progress:
        for video, name in zip(videos, _names(videos), strict=True):
            try:
                curve = score_video(rewards, video, texts)
            except BadInputError as error:
                troubles.append(error)
            else:
                for ending, content in (
                    ("csv", curve_csv(curve).encode()),
                    ("png", curve_png(curve)),
                    ("html", curve_page(curve, model=str(model), csv_name=f"{name}.csv").encode()),
                ):
                    path = out / f"{name}.{ending}"
                    write_whole(path, content)
                    written.append(path)
            progress.advance()
    if troubles:
        raise BadInputError(
            "; ".join(error.where for error in troubles),
            "; ".join(error.found for error in troubles),
            "videos that can be read",
            f"replace or leave out {len(troubles)} of {len(videos)}; the others are done, in {out}",
        )
    return written


def _names(videos: Sequence[Path]) -> list[str]:
    """What each video's files are called: its name, with a number where two share it."""
    names: list[str] = []
    for video in videos:
        name, number = video.stem, 2
        while name in names:
            name, number = f"{video.stem}-{number}", number + 1
        names.append(name)
    return names
