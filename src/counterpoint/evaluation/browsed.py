"""The contents of `counterpoint view`: data sets to browse, and videos that every run has embedded, with their charts.

A filtered or sorted list keeps the number that each episode has in the whole data set. Flagged episodes are kept in a
JSON file, by their `episode_index`.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError, require, require_known
from counterpoint.evaluation.embedded import spread
from counterpoint.evaluation.overlays import SIGNS, open_overlays
from counterpoint.files import read_object, write_atomically
from counterpoint.folder import lock
from counterpoint.formats import open_dataset, split_names
from counterpoint.rewards.curves import axis_label, form_of
from counterpoint.rewards.embedding import embed_frames, embed_text
from counterpoint.rewards.model import RewardModel, gains
from counterpoint.rewards.page import Line, Panel, jpeg
from counterpoint.rewards.sources import FunctionReward

Array = NDArray[Any]

TRAINED_ON, HELD_OUT = "used in training", "held out"
"""Names of two groups of episodes: episodes that a run was trained on, and episodes that all runs held out."""
OWN_END = "its own last frame"
SUCCESS = {True: "yes", False: "no", None: "unknown"}
FLAGGED = {True: "yes", False: "no"}
IMAGES = 64
"""Maximum number of images of a clip."""


class BrowsedSet:
    """A data set, its splits, and the episodes that runs were trained on.

    Args:
        path: The data set.
        configs: The configurations of the runs that were trained on it.
        dialect: The dialect of HDF5 files; by default as in the runs.
        overlay: Files and columns whose curves are laid over the episodes; see `open_overlays`.
        flags: The file of flagged episodes; by default PATH.flags.json, for a URL or a Hub id in the working folder.

    Attributes:
        store: The whole data set.
        overlays: The curves by name.
        flags: The flagged episodes.
        marks: Numbers of the episodes under the keys `TRAINED_ON` and `HELD_OUT`; keys without episodes are missing.
        splits: Names of splits.

    Raises:
        BadInputError: If the data set does not exist, or has no camera, or a curve or a flag does not fit it.
    """

    def __init__(
        self,
        path: Path,
        configs: Sequence[Mapping[str, Any]] = (),
        *,
        dialect: str | None = None,
        overlay: Sequence[str] = (),
        flags: Path | None = None,
    ) -> None:
        self._dialect = dialect or next((config["data"].get("dialect") for config in configs), None)
        self.path, self.store, self.splits = path, open_dataset(path, dialect=self._dialect), split_names(path)
        require(self.store.cameras, path, "no camera", "images to show", "view another data set")
        self.overlays = open_overlays(self.store, overlay)
        beside = path.resolve().parent if path.exists() else Path.cwd()
        self.flags = Flags(flags or beside / f"{path.resolve().name}.flags.json", self.store)
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

    def matching(
        self, find: str = "", success: str = "", split: str = "", flag: str = "", sort: str = "", order: str = ""
    ) -> list[int]:
        """Return the numbers of a split's episodes that match, sorted.

        Empty strings match all episodes.

        Args:
            find: A part of the instruction.
            success: One of the values of `SUCCESS`.
            split: A split, or one of `marks`.
            flag: One of the values of `FLAGGED`.
            sort: One of `sorts`; by default episodes are in the order of their numbers.
            order: `down` for the largest values first; episodes without a value are always last.

        Raises:
            BadInputError: If the split or the curve does not exist.
        """
        episodes, flagged = self.store.episodes, self.flags.episodes() if flag else set[int]()
        found = [
            at
            for at in self.numbers(split)
            if find.casefold() in episodes[at].instruction.casefold()
            and success in ("", SUCCESS[episodes[at].success])
            and flag in ("", FLAGGED[at in flagged])
        ]
        if not sort:
            return found[::-1] if order == "down" else found
        require_known(sort, self.sorts, "sort")
        sign, _, name = sort.partition(":")
        values = {at: self.overlays[name].signs(at)[sign] for at in found}
        known = [at for at in found if not math.isnan(values[at])]
        rest = [at for at in found if math.isnan(values[at])]
        return sorted(known, key=values.__getitem__, reverse=order == "down") + rest

    @property
    def sorts(self) -> dict[str, str]:
        """The names in words of everything that sorts episodes, under the keys `SIGN:CURVE`."""
        return {f"{sign}:{name}": f"{name}, {words}" for name in self.overlays for sign, words in SIGNS.items()}

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


class Flags:
    """The flagged episodes of a data set, in a file that is read at every look, since several pages may write it.

    The file is JSON: `flags` is a list of objects with `episode_index` (LeRobot's number), `frames` (the episode's
    length) and `time` (of the flag, in UTC).

    Args:
        path: The file; it is written at the first flag.
        store: The data set.

    Raises:
        BadInputError: If the file holds something else, or flags of episodes that the data set does not have.
    """

    def __init__(self, path: Path, store: EpisodeStore) -> None:
        self.path, self._writing = path, threading.Lock()
        numbers = getattr(store, "numbers", range(len(store.episodes)))
        self._facts = [(int(number), info.length) for number, info in zip(numbers, store.episodes, strict=True)]
        self._places = {fact: place for place, fact in enumerate(self._facts)}
        self.episodes()

    def episodes(self) -> set[int]:
        """Return the flagged episodes, by their places in the data set."""
        return {self._places[flag["episode_index"], flag["frames"]] for flag in self._read()}

    def put(self, episode: int, *, flagged: bool) -> int:
        """Flag an episode or take its flag away; other flags stay. Return the number of flagged episodes.

        Raises:
            BadInputError: If the file cannot be written, or has been damaged.
        """
        number, length = self._facts[episode]
        now = datetime.now(UTC).isoformat(timespec="seconds")
        guard = self.path.with_name(f".{self.path.name}.lock")
        try:
            with self._writing, lock(guard, "flags episodes", wait=True):  # this process's threads, other processes
                kept = [flag for flag in self._read() if flag["episode_index"] != number]
                if flagged:
                    kept.append({"episode_index": number, "frames": length, "time": now})
                kept.sort(key=lambda flag: int(flag["episode_index"]))
                write_atomically(self.path, json.dumps({"flags": kept}, indent=1) + "\n")
                guard.unlink()
        except OSError as error:
            hint = "name another file: --flags FILE"
            raise BadInputError(self.path, str(error.strerror), "a file that can be written", hint) from error
        return len(kept)

    def _read(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        expected, hint = "flags of this data set's episodes", "name another file: --flags FILE"
        found = read_object(self.path, expected, hint).get("flags")
        require(isinstance(found, list), self.path, "no list of flags", expected, hint)
        flags: list[dict[str, Any]] = found or []
        for flag in flags:
            fact = (flag.get("episode_index"), flag.get("frames")) if isinstance(flag, dict) else ()
            known = all(type(part) is int for part in fact) and fact in self._places
            require(known, self.path, f"{json.dumps(flag):.80}, which the data set does not have", expected, hint)
        return flags


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


def embed_clip(
    runs: Mapping[str, RewardModel | FunctionReward],
    title: str,
    length: int,
    steps: NDArray[np.int64],
    seconds: NDArray[np.float64],
    chunks: Iterable[Mapping[str, Array]],
) -> Clip:
    """Embed frames and states with every run's encoder, one chunk at a time, and make images of some frames.

    Args:
        runs: The rewards by name.
        title: The clip's title.
        length: Number of all frames of the video.
        steps: Step numbers of the T scored frames.
        seconds: Times of these frames, [T].
        chunks: The frames under the key "", uint8 [n, H, W, 3], and possibly states, in order.
    """
    shown = set(spread(len(steps), IMAGES).tolist())
    embeddings: dict[str, list[Array]] = {name: [] for name in runs}
    images: dict[int, bytes] = {}
    done = 0
    for seen in chunks:
        frames = seen[""]
        for name, model in runs.items():
            if isinstance(model, FunctionReward):  # it reads the whole video
                embeddings[name].append(frames)
            else:
                embeddings[name].append(embed_frames(model.encoder, seen, model.batch_size))
        images |= {at: jpeg(frame) for at, frame in enumerate(frames, done) if at in shown}
        done += len(frames)
    joined = {name: np.concatenate(parts) for name, parts in embeddings.items()}
    return Clip(title, seconds.tolist(), steps.tolist(), length, images, joined)


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
            charts.append(("progress, as calibrated", known.progress_of(gained, labels), {"y_range": (-0.02, 1.02)}))
    rows = [0, *([1 + int(np.argmax(curves[1:, -1]))] if len(labels) > 1 else [])]
    order = list(enumerate(rows))[::-1]
    panels = []
    for meaning, values, options in charts:
        lines = [Line(clip.seconds, values[row].tolist(), f"c{at}", labels[row], live=True) for at, row in order]
        summary = f"{meaning} of {clip.title} by {name}: {', '.join(labels[row] for row in rows)}"
        panels.append(Panel(lines, meaning, summary[:1].upper() + summary[1:], **options))
    return panels
