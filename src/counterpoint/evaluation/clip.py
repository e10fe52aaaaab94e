"""A video or an episode on a page of `counterpoint view`: read, embedded by every run, and charted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from counterpoint.rewards.curves import axis_label, form_of
from counterpoint.rewards.embedding import embed_text
from counterpoint.rewards.model import RewardModel, gains
from counterpoint.rewards.page import Line, Panel
from counterpoint.rewards.sources import FunctionReward

Array = NDArray[Any]

OWN_END = "its own last frame"


@dataclass(frozen=True)
class Clip:
    """A video or an episode, read and embedded.

    Attributes:
        title: The clip's instruction, or the name of its file.
        seconds: Time of each of the T scored frames.
        steps: Step number of each of the T frames.
        length: Number of all frames of the video.
        images: JPEGs of some frames, keyed by the frame's index among the T.
        embeddings: For each run, the embeddings of the frames, [T, D]; for a model of others the frames, [T, H, W, 3].
    """

    title: str
    seconds: list[float]
    steps: list[int]
    length: int
    images: dict[int, bytes]
    embeddings: dict[str, Float[Array, T * D]]

    @property
    def bytes(self) -> int:
        """The clip's memory in bytes."""
        return sum(map(len, self.images.values())) + sum(values.nbytes for values in self.embeddings.values())


def panels_of(name: str, model: RewardModel | FunctionReward, clip: Clip, texts: Sequence[str]) -> list[Panel]:
    """Return the charts of a run's reward and, if it is calibrated, of its progress.

    Args:
        name: The run's name.
        model: The run's reward, or a model of others.
        clip: The video.
        texts: The instruction, and its rivals, of which the one with the highest end is shown; not used by a reward
            that needs a goal, which gets the video's last frame.
    """
    frames, form = clip.embeddings[name], form_of(model)
    labels = [OWN_END] if form == "goal" else list(texts)
    if isinstance(model, FunctionReward):
        curves = np.stack([model.predict({"": frames}, text).progress for text in labels])
        charts: list[tuple[str, Array, dict[str, Any]]] = [(axis_label(form), curves, {"title": name})]
    else:
        targets = frames[-1:] if form == "goal" else embed_text(model.encoder, labels)
        curves = gains(model.score(model.form, frames, targets), model.form)
        charts = [(axis_label(form), curves, {"title": name})]
        if known := model.calibration:
            gained = gains(model.score(known.form, frames, targets), known.form)
            charts.append(("progress, as calibrated", known.progress_of(gained), {"y_range": (-0.02, 1.02)}))
    rows = [0, *([1 + int(np.argmax(curves[1:, -1]))] if len(labels) > 1 else [])]
    order = list(enumerate(rows))[::-1]
    panels = []
    for meaning, values, options in charts:
        lines = [Line(clip.seconds, values[row].tolist(), f"c{at}", labels[row], live=True) for at, row in order]
        summary = f"{meaning} of {clip.title} by {name}: {', '.join(labels[row] for row in rows)}"
        panels.append(Panel(lines, meaning, summary[:1].upper() + summary[1:], **options))
    return panels
