"""The models that label episodes: this library's, in batches that may span episodes, and models of others.

A labeller computes a block of episodes (`counterpoint.blocks`) in any process, and turns the rows of all blocks into
columns of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from numpy.typing import NDArray

from counterpoint.blocks import Block
from counterpoint.data.segments import Segments, by_segments
from counterpoint.data.store import EpisodeStore, FrameBatch, frame_batches, states_of
from counterpoint.encoders.calibration import Calibration
from counterpoint.encoders.embed import Precision, in_precision
from counterpoint.encoders.features import frames_at_once
from counterpoint.encoders.hub import is_foreign, saved_digests
from counterpoint.errors import require
from counterpoint.formats import open_dataset
from counterpoint.formats.torchcodec import VideoBackend, decoded_by
from counterpoint.rewards.embedding import STATE, embed_frames, embed_text, observed, reads_state
from counterpoint.rewards.instructions import never_change
from counterpoint.rewards.model import RewardModel, gains, late_fusion
from counterpoint.rewards.sources import open_function
from counterpoint.workers import IN_PROCESS, Foreign

Array = NDArray[Any]


@dataclass(frozen=True)
class Labelling:
    """The settings that a process needs to label episodes.

    Attributes:
        data: The data set.
        model: A run, a saved encoder or a Hub id.
        cameras: Cameras whose rewards are averaged.
        instructions: The instruction of each episode; empty if there is a goal.
        goal: A goal image that replaces the instructions.
        device: The device that computes.
        batch_size: Number of frames encoded at once; by default a number that suits the model.
        dialect: Dialect of HDF5 files, if the files do not identify it.
        segments: `task` to label each segment of an episode separately; `episode` to label whole episodes.
        foreign: How a model of others runs.
        monotone: Write progress that never falls.
        precision: Precision of matrix products and convolutions.
        video_backend: The library that decodes videos; torchcodec decodes on `device`.
    """

    data: Path
    model: str
    cameras: tuple[str, ...]
    instructions: tuple[str, ...]
    goal: UInt8[NDArray[np.uint8], "H W 3"] | None
    device: str
    batch_size: int | None = None
    dialect: str | None = None
    segments: Segments = "episode"
    foreign: Foreign = IN_PROCESS
    monotone: bool = False
    precision: Precision = "no"
    video_backend: VideoBackend = "pyav"


class Labeller:
    """A model and a data set, opened and checked.

    Args:
        job: The settings of the labelling.
        store: The data set.
        targets: Embedded instructions or goals, one per episode, if they are known already.

    Raises:
        BadInputError: If the model has no calibration, needs a goal instead of instructions (or the reverse), or cannot
            read an instruction.
    """

    def __init__(self, job: Labelling, store: EpisodeStore, targets: Float[Array, "E D"] | None = None) -> None:
        self.job, self.store = job, store
        self.model = RewardModel.from_pretrained(job.model, device=job.device)
        in_precision(job.device, job.precision)  # refuses a precision that is not known
        self.calibration = self.model.check_calibration()
        self.model.check_target(job.goal is not None)
        encoder: Any = self.model.encoder
        self.batch_size = job.batch_size or frames_at_once(encoder)
        if reads_state(encoder):
            states_of(store, 0)  # raises an error before anything is decoded
        if targets is not None:
            self.targets = targets
        elif job.goal is not None:
            self.targets = embed_frames(self.model.encoder, job.goal[None]).repeat(len(self.store.episodes), axis=0)
        else:
            texts = list(dict.fromkeys(job.instructions))
            numbers = {text: number for number, text in enumerate(texts)}
            self.targets = embed_text(self.model.encoder, texts)[[numbers[text] for text in job.instructions]]
        self.identity = saved_digests(job.model)

    def check(self, *, anyway: bool) -> None:
        """Raise an error if labels would be no better than a constant, unless they are wanted `anyway`.

        Raises:
            BadInputError: See above.
        """
        own, other = self.calibration.averaged_error, self.calibration.monotone_error
        error, constant = (other if self.job.monotone else own), self.calibration.error_of_a_constant
        where = f"{self.calibration.measured_episodes} {_where(self.calibration)}"
        hint = "train on more videos or longer, or write them anyway: --anyway"
        if not self.job.monotone and other < constant:
            hint = f"write progress that never falls, whose error is {other:.3f}: --monotone; or {hint}"
        found = f"a mean error of progress of {error:.3f} on {where}"
        worth = anyway or error < constant
        require(worth, self.job.model, found, f"less than the {constant:.3f} of a constant", hint)

    def work(self, block: Block) -> bytes:
        """Return a file with float32 [3, T] for a block's T frames: reward, novelty, and 1 if the episode changes."""
        embedded: dict[tuple[int, int], list[Float[Array, "N D"]]] = {}
        firsts: dict[tuple[int, int], Array] = {}
        still = dict.fromkeys(block.episodes, True)
        found: list[Float[Array, "3 T"]] = []
        views = self.job.cameras
        for batch, vectors in self._embedded(block.episodes):
            start = 0
            for episode, view, count in batch.owners:
                own = slice(start, start + count)
                start += count
                frames = batch.frames[own]
                first = firsts.setdefault((episode, view), frames[0].copy())
                still[episode] = still[episode] and never_change(frames, first)
                embedded.setdefault((episode, view), []).append(vectors[own])
                length, last = self.store.episodes[episode].length, len(views) - 1
                if view == last and sum(map(len, embedded[episode, view])) == length:
                    keys = [(episode, number) for number in range(last + 1)]
                    for key in keys:
                        del firsts[key]
                    found.append(
                        self._rows(episode, [np.concatenate(embedded.pop(key)) for key in keys], still[episode])
                    )
        content = BytesIO()
        np.save(content, np.concatenate(found, axis=1).astype(np.float32))
        return content.getvalue()

    def _embedded(self, episodes: Sequence[int]) -> Iterator[tuple[FrameBatch, Float[Array, "N D"]]]:
        encoder = self.model.encoder
        batches = frame_batches(
            self.store, episodes, self.job.cameras, self.batch_size, with_state=reads_state(encoder)
        )
        with in_precision(self.job.device, self.job.precision):  # around all batches, which share the converted weights
            for batch in batches:
                seen = {"frames": batch.frames} | ({} if batch.state is None else {STATE: batch.state})
                yield batch, embed_frames(encoder, seen, self.batch_size)

    def _rows(self, episode: int, views: Sequence[Float[Array, "T D"]], still: bool) -> Float[Array, "3 T"]:
        embedded = np.stack(views, axis=1)
        reward = self.model.score(self.calibration.form, embedded, self.targets[episode : episode + 1])[0]
        novelty = late_fusion(self.calibration.novelty_of)(embedded)
        return np.stack([reward, novelty, np.full_like(reward, not still)])

    def columns(self, episodes: Sequence[Float[Array, "3 T"]]) -> dict[str, Array]:
        """Return the columns of the table from the rows of each episode."""
        calibration = self.calibration
        each = [reward.astype(np.float64) for reward, _, _ in episodes]
        gained = [gains(reward[None], calibration.form)[0] for reward in each]
        texts = self.job.instructions or [""] * len(gained)
        pairs = list(zip(gained, texts, strict=True))
        progress = [calibration.labels_of(one, text, monotone=self.job.monotone) for one, text in pairs]
        columns = {
            "progress_sparse": np.concatenate(progress).astype(np.float32),
            "reward": np.concatenate(each).astype(np.float32),
            "gain": np.concatenate([reward - reward[0] for reward in each]).astype(np.float32),
            "unlike_training": np.concatenate([novelty for _, novelty, _ in episodes]) > 1,
        }
        if calibration.graded:
            reached = [calibration.success_of(calibration.progress_of(one[None], [text])[0]) for one, text in pairs]
            columns["success"] = np.concatenate(reached)
        return columns

    def about(self) -> dict[str, Any]:
        """Return what the table's metadata say about the model: its digests and its calibration."""
        curves = {f"{prefix}{name}" for prefix in ("", "averaged_", "monotone_") for name in ("rewards", "progress")}
        found = self.calibration.model_dump(mode="json", exclude={*curves, "centre", "scale", "stages"})
        return {"calibration": found, "model": self.identity}

    def in_words(self, columns: Mapping[str, Array], last: NDArray[np.bool_], what: str) -> str:
        """Describe in words the errors of the labels, of a constant and of a clock, and the successes."""
        return labels_in_words(self.calibration, columns, last, what, monotone=self.job.monotone)


class FunctionLabeller:
    """A model of others and a data set; arguments as for `Labeller`.

    Raises:
        BadInputError: If the model's values are not progress, or a goal or a precision is given.
    """

    targets = None

    def __init__(self, job: Labelling, store: EpisodeStore) -> None:
        require(job.goal is None, "--goal", "a goal for a model of others", "instructions", "leave it out")
        require(job.precision == "no", "--precision", job.precision, "no, for a model of others", "leave it out")
        self.job, self.store = job, store
        self.reward = open_function(job.model, device=job.device, foreign=job.foreign)
        hint = "LeRobot's say so (reward_output); a function does by its attribute: function.progress = True"
        require(self.reward.progress, job.model, "values that are not progress", "progress in [0, 1]", hint)
        self.identity = self.reward.files
        if self.reward.reads_state:
            states_of(store, 0)  # raises an error before anything is decoded

    def check(self, *, anyway: bool) -> None:
        """Do nothing: the error of a model of others was not measured."""

    def work(self, block: Block) -> bytes:
        """Return a file with float32 [4, T] of a block: progress, success, stage (NaN if unknown), 1 if it changes."""
        found = []
        for episode in block.episodes:
            steps = np.arange(self.store.episodes[episode].length)
            seen = observed(self.reward, self.store, episode, steps, self.job.cameras)
            changes = not all(never_change(seen[camera], seen[camera][0]) for camera in self.job.cameras)
            said = self.reward.predict(seen, self.job.instructions[episode])
            unknown = np.full(len(steps), np.nan)
            rows = [said.progress, *(unknown if one is None else one for one in (said.success, said.stage))]
            found.append(np.stack([*rows, np.full(len(steps), changes)]))
        content = BytesIO()
        np.save(content, np.concatenate(found, axis=1).astype(np.float32))
        return content.getvalue()

    def columns(self, episodes: Sequence[Float[Array, "4 T"]]) -> dict[str, Array]:
        """Return the columns of the table from the rows of each episode."""
        progress = [np.maximum.accumulate(rows[0]) if self.job.monotone else rows[0] for rows in episodes]
        columns = {"progress_sparse": np.concatenate(progress)}
        for at, name, kind in ((1, "success", bool), (2, "stage", np.int64)):
            values = np.concatenate([rows[at] for rows in episodes])
            if not np.isnan(values).any():
                columns[name] = values.astype(kind)
        return columns

    def about(self) -> dict[str, Any]:
        """Return what the table's metadata say about the model: the digest of its files."""
        return {"model": self.identity}

    def in_words(self, columns: Mapping[str, Array], last: NDArray[np.bool_], what: str) -> str:
        """Describe in words where progress begins and ends."""
        progress = columns["progress_sparse"]
        begins, ends = progress[np.roll(last, 1)].mean(), progress[last].mean()
        return (
            f"Progress of {last.sum()} {what}: mean {begins:.2f} in their first frames, {ends:.2f} in their last; "
            "the model's error was not measured"
        )


def labeller_of(
    job: Labelling, store: EpisodeStore, targets: Float[Array, "E D"] | None = None
) -> Labeller | FunctionLabeller:
    """Return the labeller of this library's model or of a model of others."""
    return FunctionLabeller(job, store) if is_foreign(job.model) else Labeller(job, store, targets)


def work_of(labeller: Labeller | FunctionLabeller) -> Callable[[Block], bytes]:
    """Return a labeller's function `work`, which decodes videos as the labeller's settings say.

    Raises:
        BadInputError: If torchcodec cannot be used.
        MissingExtraError: If torchcodec is not installed.
    """
    return decoded_by(labeller.job.video_backend, labeller.job.device, labeller.work)


def open_labeller(job: Labelling, targets: Float[Array, "E D"] | None) -> Callable[[Block], bytes]:
    """Open model and data in another process, and return the function that labels a block."""
    store = by_segments(open_dataset(job.data, dialect=job.dialect), job.segments)
    return work_of(labeller_of(job, store, targets))


def labels_in_words(
    calibration: Calibration,
    columns: Mapping[str, Array],
    last: NDArray[np.bool_],
    what: str,
    *,
    monotone: bool = False,
) -> str:
    """Describe in words the errors of labels, of a constant and of a clock, and the successes.

    Args:
        calibration: The model's calibration.
        columns: The columns of the labels.
        last: True for the last frame of each episode or segment.
        what: "episodes" or "segments".
        monotone: True if progress never falls.
    """
    words = error_in_words(calibration, monotone=monotone) + "\n"
    if not calibration.graded:
        return words + "No column of success: too few failures among these videos to fix a threshold"
    frames, solved = columns["success"], columns["success"][last]
    return words + (
        f"Success from progress {calibration.success:.3f}: "
        f"{solved.sum()} of {len(solved)} {what} at their end, {frames.sum()} of {len(frames)} frames"
    )


def error_in_words(calibration: Calibration, *, monotone: bool = False) -> str:
    """Describe in words the errors of labels by this calibration, of a constant and of a clock."""
    constant, clock = calibration.error_of_a_constant, calibration.error_of_a_ramp
    error = calibration.monotone_error if monotone else calibration.averaged_error
    verdict = " (labels no better than a constant)" if error >= constant else ""
    where = f"{calibration.measured_episodes} {_where(calibration)}"
    words = f"Mean error of progress on {where}: {error:.3f}"
    if calibration.stages:
        count = len(calibration.stages)
        words += f" by {count} stage{'s' * (count > 1)} ({calibration.error_of_one_map:.3f} with one map for all)"
    return f"{words}; of a constant {constant:.3f}, of a clock {clock:.3f}{verdict}"


def _where(calibration: Calibration) -> str:
    kinds = {"cross-fitting": "unseen", "validation": "held-out", "training": "training"}
    return f"{kinds[calibration.measured_on]} videos"
