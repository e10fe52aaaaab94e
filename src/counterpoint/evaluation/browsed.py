"""The contents of `counterpoint view`: data sets to browse, and videos that every run has embedded, with their charts.

A filtered list keeps the number that each episode has in the whole data set.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from counterpoint.data.store import EpisodeStore
from counterpoint.errors import require
from counterpoint.formats import open_dataset, split_names
from counterpoint.rewards.curves import axis_label, form_of
from counterpoint.rewards.embedding import embed_text
from counterpoint.rewards.model import RewardModel, gains
from counterpoint.rewards.page import Line, Panel
from counterpoint.rewards.sources import FunctionReward

Array = NDArray[Any]

TRAINED_ON, HELD_OUT = "used in training", "held out"
"""Names of two groups of episodes: episodes that a run was trained on, and episodes that all runs held out."""
OWN_END = "its own last frame"
SUCCESS = {True: "yes", False: "no", None: "unknown"}


class BrowsedSet:
    """A data set, its splits, and the episodes that runs were trained on.

    Args:
        path: The data set.
        configs: The configurations of the runs that were trained on it.
        dialect: The dialect of HDF5 files; by default as in the runs.

    Attributes:
        store: The whole data set.
        marks: Numbers of the episodes under the keys `TRAINED_ON` and `HELD_OUT`; keys without episodes are missing.
        splits: Names of splits.

    Raises:
        BadInputError: If the data set does not exist, or has no camera.
    """

    def __init__(self, path: Path, configs: Sequence[Mapping[str, Any]] = (), *, dialect: str | None = None) -> None:
        self._dialect = dialect or next((config["data"].get("dialect") for config in configs), None)
        self.path, self.store, self.splits = path, open_dataset(path, dialect=self._dialect), split_names(path)
        require(self.store.cameras, path, "no camera", "images to show", "view another data set")
        self._opening, self._numbers = threading.Lock(), dict[str, list[int]]()
        self.marks: dict[str, list[int]] = {}
        trained, held_out = set[int](), list[set[int]]()
        for config in configs:
            inside = config["data"].get("train_split", "train")
            numbers = self.numbers(inside if inside in self.splits else "")
            held_out.append({numbers[at] for at in config.get("held_out", ())})
            trained |= set(numbers) - held_out[-1]
        both = {TRAINED_ON: trained, HELD_OUT: set.intersection(*held_out) if held_out else set[int]()}
        self.marks = {name: sorted(found) for name, found in both.items() if found}

    def numbers(self, split: str = "") -> list[int]:
        """Return the numbers, in the whole data set, of the episodes of a split or of one of `marks`.

        Raises:
            BadInputError: If the split does not exist.
        """
        if not split:
            return list(range(len(self.store.episodes)))
        if split in self.marks:
            return self.marks[split]
        with self._opening:
            if split not in self._numbers:
                part = open_dataset(self.path, split=split, dialect=self._dialect)
                self._numbers[split] = _places(self.store, part)
            return self._numbers[split]

    def matching(self, find: str, success: str, split: str) -> list[int]:
        """Return the numbers of a split's episodes that have `find` in the instruction and the outcome `success`.

        Empty strings match all episodes.

        Raises:
            BadInputError: If the split does not exist.
        """
        episodes = self.store.episodes
        return [
            at
            for at in self.numbers(split)
            if find.casefold() in episodes[at].instruction.casefold() and success in ("", SUCCESS[episodes[at].success])
        ]

    def counted(self, numbers: Sequence[int]) -> str:
        """Return a text with the number of these episodes, and how many of them were used in training or held out."""
        counts = {name: len(set(numbers) & set(marked)) for name, marked in self.marks.items()}
        parts = [f"{count} {name}" for name, count in counts.items() if count]
        return f"{len(numbers)} of {len(self.store.episodes)} episodes" + (f": {', '.join(parts)}" if parts else "")

    def about(self, at: int) -> str:
        """Return a description of an episode as text."""
        info = self.store.episodes[at]
        success = {True: ", success", False: ", failure", None: ""}[info.success]
        marks = [name for name, numbers in self.marks.items() if at in numbers]
        return ", ".join([f"episode {at}, {info.length} frames{success}", *marks])

    @property
    def instructions(self) -> list[str]:
        """The distinct instructions, in order of appearance."""
        return [text for text in dict.fromkeys(info.instruction for info in self.store.episodes) if text]


def _places(whole: EpisodeStore, part: EpisodeStore) -> list[int]:
    """Return the numbers of a part's episodes in the whole data set; episodes with equal names keep their order."""
    places: dict[str, list[int]] = {}
    for number, name in enumerate(getattr(whole, "names", ())):
        places.setdefault(str(name), []).append(number)
    numbers = []
    for name in getattr(part, "names", ()):
        found = places[str(name)]
        numbers.append(found.pop(0) if len(found) > 1 else found[0])
    return numbers


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
