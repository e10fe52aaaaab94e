"""`counterpoint label DATA --model RUN`: the progress of every frame of every episode, written next to the data.

Columns, with one row per frame in the order of the data set:

    index, episode_index, frame_index   LeRobot's numbers
    timestamp                           seconds since the episode's first frame: a video's own presentation times
    progress_sparse                     progress in [0, 1], computed from the reward averaged over about a tenth of an
                                        episode; the name is LeRobot's. With `monotone`, it never falls
    reward                              the raw reward of the calibrated form, the mean over cameras
    gain                                the reward gained since the episode's first frame
    segment                             number of the frame's segment in its episode, if the model was trained on
                                        segments (`data.segments`): each segment is then labelled under its own task
    success                             True once progress reaches the calibrated threshold, until it falls .1 below it;
                                        left out if too few failures were recorded to fix the threshold
    unlike_training                     True if the frame's distance to the training data exceeds a calibrated threshold

A row depends only on its own and earlier frames. Each episode is decoded in one pass. Every core decodes and computes a
block of episodes (`counterpoint.blocks`), in batches that may span several episodes. Finished blocks are kept in a
hidden folder next to the output, so that a repeated call resumes from them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from tyro.conf import Positional, arg

from counterpoint.blocks import HERE, Block, BlockFiles, Engine, blocks_of, work_through
from counterpoint.data.segments import Segments, SegmentStore, by_segments
from counterpoint.data.store import EpisodeStore, camera_names, check_camera
from counterpoint.encoders.calibration import Calibration
from counterpoint.encoders.features import frames_at_once
from counterpoint.encoders.hub import saved_digests
from counterpoint.errors import require
from counterpoint.files import flush, read_object
from counterpoint.folder import claim
from counterpoint.formats import open_dataset, recognise
from counterpoint.formats.base import require_new
from counterpoint.formats.lerobot.additions import copy_with_feature
from counterpoint.formats.lerobot.layout import read_info
from counterpoint.formats.lerobot.reader import LeRobotStore
from counterpoint.formats.lerobot.tables import CHECKED
from counterpoint.parameter_types import Computes, File, Image, Model, Name, Names, Number, Text
from counterpoint.provenance import provenance
from counterpoint.rewards.instructions import given_instructions, instructions_in_words, never_change, read_goal
from counterpoint.rewards.model import (
    STATE,
    RewardModel,
    embed_frames,
    embed_text,
    gains,
    late_fusion,
    reads_state,
    states_of,
)

Array = NDArray[Any]

FRAMES = "frames"
"""Key of the images in a batch, as `STATE` is the key of the state."""


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


def label(
    data: Positional[Path],
    *,
    model: Model,
    out: Annotated[Path | None, arg(metavar="PATH")] = None,
    feature: Name = None,
    cameras: Names = (),
    instruction: Text = None,
    text_file: File = None,
    goal: Image = None,
    device: Computes = "cpu",
    batch_size: Number = None,
    engine: Engine = HERE,
    monotone: bool = False,
    anyway: bool = False,
    overwrite: bool = False,
    dialect: Name = None,
) -> Path:
    """Write progress in [0, 1] of every frame of a data set. A repeated call resumes an interrupted one.

    The mean error of progress, measured on videos that the model did not learn from, is printed with the errors of a
    constant and of a clock, which only counts frames. Labels that are no better than a constant are refused.

    Time on two cores: 2,400 frames per second with the demo's encoder, 72 with EfficientNet-Lite0. Disk: at most 40
    bytes per frame.

    Args:
        data: A data set of any format.
        model: A run's folder, a folder of saved weights or a Hub id; it must have a calibration.
        out: Parquet file to write; by default MODEL_progress.parquet in the folder of a LeRobot data set. With
            `feature`, the folder of the copy.
        feature: Write a copy of a LeRobot v3 data set with progress as this feature, such as next.progress.
        cameras: Cameras whose rewards are averaged; by default the cameras of the run's training, or the data's first
            camera.
        instruction: One instruction for all episodes, overriding their own.
        text_file: Text file with one instruction per line, overriding the data set's instructions.
        goal: Image of the goal, for models that compare frames with goals.
        device: The device that computes, such as cuda.
        batch_size: Number of frames encoded at once; by default a number that suits the model.
        engine: The processes that decode and compute blocks of episodes; threads of this process by default.
        monotone: Write progress that never falls, computed from the largest gain so far.
        anyway: Write labels even if they are no better than a constant.
        overwrite: Replace existing labels.
        dialect: The dialect of HDF5 files, if the files do not identify it: see `counterpoint data info`.

    Returns:
        The file or folder that was written.

    Raises:
        BadInputError: If data, model or arguments cannot be used; this is raised before anything is computed. If an
            episode is damaged; finished blocks are then kept.
        MissingExtraError: If the engine is Ray and Ray is not installed.
    """
    engine.check()
    require(batch_size is None or batch_size > 0, "--batch-size", batch_size, "1 or more", "leave it out")
    trained = _trained(Path(model))
    segments: Segments = "task" if trained.get("segments") == "task" and goal is None else "episode"
    store = by_segments(open_dataset(data, dialect=dialect), segments)
    first = camera_names(None, store)  # data without images are refused
    target = _target(data, str(model), out, feature, overwrite)
    for camera in cameras:
        check_camera(camera, store)
    every, image = range(len(store.episodes)), None if goal is None else read_goal(goal)
    own, names = [info.instruction for info in store.episodes], [f"{data}, {_place(store, number)}" for number in every]
    texts = given_instructions(own, names, instruction, text_file) if image is None else []
    parts = target.with_name(f".{target.name}.parts")
    views = tuple(cameras) or _trained_views(trained, store) or first
    job = Labelling(data, str(model), views, tuple(texts), image, device, batch_size, dialect, segments)
    labeller = Labeller(job, store)
    calibration = labeller.calibration
    if not anyway:
        _require_worth(str(model), calibration, monotone=monotone)
    if words := instructions_in_words(labeller.model.encoder, texts):
        print(words)
    # Finished blocks of another model or of other data are removed.
    with claim(parts, "labelling.json", _identity(job, store), what="labels", does="labels", discard=True):
        files = BlockFiles(parts, ".npy", blocks_of(store.lengths))
        opener = partial(open_labeller, job, labeller.targets)
        started, total = time.perf_counter(), int(store.lengths.sum())
        left = work_through(files, labeller.work, opener, engine, title="Labelling", device=device)
        seconds = time.perf_counter() - started
        table, still = _table(job, files, store, calibration, monotone=monotone)
        if feature is None:
            _write_parquet(table, parts / "whole.parquet", target)
        else:
            copy_with_feature(data, target, feature, table["progress_sparse"].to_numpy())
        shutil.rmtree(parts)
    what = "segments" if segments == "task" else "episodes"
    print(f"Labelled {len(every)} {what}, {total} frames" + (f"; {left / seconds:.0f} frames a second" if left else ""))
    print(in_words(table, calibration, monotone=monotone))
    if still:
        print(f"Nothing changes in {'; '.join(_place(store, one) for one in still)}: the labels say nothing")
    return target


def _target(data: Path, model: str, out: Path | None, feature: str | None, overwrite: bool) -> Path:
    """Return the file or folder to write; raise an error if it exists, unless it may be overwritten."""
    kind = recognise(data)
    if feature is not None:
        found, hint = f"a {kind.title} data set", f"convert it first: counterpoint data convert {data} OUT"
        info = read_info(data) if kind.name == "lerobot" else None
        require(info and info.version[0] == 3, "--feature", found, "a LeRobot data set of version 3", hint)
        require(out is not None, "--out", "nothing", "the folder of the copy", "name a new folder")
        assert out is not None
        assert info is not None
        require_new(out)
        where, hint = f"feature {feature!r} of {data}", "replace them in the copy: --overwrite"
        require(overwrite or feature not in info.features, where, "labels already there", "none", hint)
        return out
    if out is None:
        hint = "name a file: --out labels.parquet"
        require(kind.name == "lerobot", "--out", f"nothing, for a {kind.title}", "a file to write", hint)
        out = data / f"{Path(model_name(model)).name}_progress.parquet"
    require(out.suffix == ".parquet", "--out", str(out), "a .parquet file", "name one")
    require(overwrite or not out.exists(), out, "labels already there", "none", "replace them: --overwrite")
    return out


def _trained(model: Path) -> Mapping[str, Any]:
    """Return the settings of a run's data; empty for other models."""
    file = model / "config.json"
    if not (model / "model").is_dir() or not file.is_file():
        return {}
    found: Mapping[str, Any] = read_object(file, "a run's configuration", "restore the file").get("data", {})
    return found


def _trained_views(trained: Mapping[str, Any], store: EpisodeStore) -> tuple[str, ...]:
    """Return the cameras of the store that a run was trained on; empty for other models."""
    names = trained.get("cameras") or []
    return tuple(name for name in store.cameras if name in names or names == ["all"])


def _place(store: EpisodeStore, number: int) -> str:
    """Return the name of an episode or segment, for messages."""
    if not isinstance(store, SegmentStore):
        return f"episode {number}"
    return f"episode {store.owner[number]} from step {store.first[number]}"


def _identity(job: Labelling, store: EpisodeStore) -> dict[str, Any]:
    """Return all settings that decide the content of finished blocks."""
    return {
        "model": saved_digests(job.model),
        "data": store.fingerprint,
        "cameras": list(job.cameras),
        "segments": job.segments,
        "instructions": hashlib.sha256(json.dumps(job.instructions).encode()).hexdigest(),
        "goal": None if job.goal is None else hashlib.sha256(job.goal.tobytes()).hexdigest(),
    }


@dataclass(frozen=True)
class _Batch:
    """A batch of images of one size.

    Attributes:
        seen: The images [N, H, W, 3] under `FRAMES`, and, if the model reads the state, the state [N, S] under `STATE`.
        owners: One (episode, view, n) for each n consecutive images of the batch that come from that view, in order.
    """

    seen: dict[str, Array]
    owners: list[tuple[int, int, int]]

    @classmethod
    def of(cls, parts: Sequence[Mapping[str, Array]], owners: list[tuple[int, int, int]]) -> Self:
        """Join the parts into one batch."""
        return cls({name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, owners)


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

    def work(self, block: Block) -> bytes:
        """Return a file with float32 [3, T] for a block's T frames: reward, novelty, and 1 if the episode changes."""
        embedded: dict[tuple[int, int], list[Float[Array, "N D"]]] = {}
        firsts: dict[tuple[int, int], Array] = {}
        still = dict.fromkeys(block.episodes, True)
        found: list[Float[Array, "3 T"]] = []
        for batch in self._batches(block.episodes):
            vectors = embed_frames(self.model.encoder, batch.seen, self.batch_size)
            start = 0
            for episode, view, count in batch.owners:
                own = slice(start, start + count)
                start += count
                frames = batch.seen[FRAMES][own]
                first = firsts.setdefault((episode, view), frames[0].copy())
                still[episode] = still[episode] and never_change(frames, first)
                embedded.setdefault((episode, view), []).append(vectors[own])
                length, last = self.store.episodes[episode].length, len(self.job.cameras) - 1
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

    def _rows(self, episode: int, views: Sequence[Float[Array, "T D"]], still: bool) -> Float[Array, "3 T"]:
        embedded = np.stack(views, axis=1)
        reward = self.model.score(self.calibration.form, embedded, self.targets[episode : episode + 1])[0]
        novelty = late_fusion(self.calibration.novelty_of)(embedded)
        return np.stack([reward, novelty, np.full_like(reward, not still)])

    def _batches(self, episodes: Sequence[int]) -> Iterator[_Batch]:
        """Decode episodes, each view in one pass, and yield batches; all images of a batch have the same size."""
        parts: list[dict[str, Array]] = []
        owners: list[tuple[int, int, int]] = []
        for episode in episodes:
            state = states_of(self.store, episode) if reads_state(self.model.encoder) else None
            for view, camera in enumerate(self.job.cameras):
                start, length = 0, self.store.episodes[episode].length
                while start < length:
                    room = self.batch_size - sum(count for *_, count in owners)
                    steps = np.arange(start, min(length, start + room))
                    frames = self.store.frames(episode, steps, camera)
                    if parts and frames.shape[1:] != parts[0][FRAMES].shape[1:]:
                        yield _Batch.of(parts, owners)
                        parts, owners = [], []
                    parts.append({FRAMES: frames} | ({} if state is None else {STATE: state[steps]}))
                    owners.append((episode, view, len(frames)))
                    start += len(frames)
                    if sum(count for *_, count in owners) >= self.batch_size:
                        yield _Batch.of(parts, owners)
                        parts, owners = [], []
        if parts:
            yield _Batch.of(parts, owners)


def open_labeller(job: Labelling, targets: Float[Array, "E D"]) -> Callable[[Block], bytes]:
    """Open model and data in another process, and return the function `work` of a `Labeller`."""
    return Labeller(job, by_segments(open_dataset(job.data, dialect=job.dialect), job.segments), targets).work


def _require_worth(model: str, calibration: Calibration, *, monotone: bool) -> None:
    """Raise a `BadInputError` if labels would be no better than a constant."""
    own, other = calibration.averaged_error, calibration.monotone_error
    error, constant = (other if monotone else own), calibration.error_of_a_constant
    found = f"a mean error of progress of {error:.3f} on {calibration.measured_episodes} {_where(calibration)}"
    hint = "train on more videos or longer, or write them anyway: --anyway"
    if not monotone and other < constant:
        hint = f"write progress that never falls, whose error is {other:.3f}: --monotone; or {hint}"
    require(error < constant, model, found, f"less than the {constant:.3f} of a constant", hint)


def _where(calibration: Calibration) -> str:
    kinds = {"cross-fitting": "unseen", "validation": "held-out", "training": "training"}
    return f"{kinds[calibration.measured_on]} videos"


def _table(
    job: Labelling, files: BlockFiles, store: EpisodeStore, calibration: Calibration, *, monotone: bool
) -> tuple[pa.Table, list[int]]:
    """Return all labels as a table, and the numbers of the episodes whose images never change."""
    rows = np.concatenate([np.load(files.path(block)) for block in files.blocks], axis=1)
    parts = np.split(rows, np.cumsum(store.lengths)[:-1], axis=1)
    each = [reward.astype(np.float64) for reward, _, _ in parts]
    gained = [gains(reward[None], calibration.form)[0] for reward in each]
    progress = [calibration.labels_of(one, monotone=monotone) for one in gained]
    lengths, own = store.lengths, np.arange(len(store.episodes))
    whole, owner, first = store, own, np.zeros_like(own)
    if isinstance(store, SegmentStore):
        whole, owner, first = store.whole, store.owner, store.first
    numbers = np.array(whole.numbers if isinstance(whole, LeRobotStore) else range(len(whole.episodes)), np.int64)
    columns = {
        "index": np.arange(lengths.sum()),
        "episode_index": np.repeat(numbers[owner], lengths),
        "frame_index": np.concatenate([np.arange(length) for length in lengths]) + np.repeat(first, lengths),
        "timestamp": np.concatenate([store.timestamps(number) for number in range(len(lengths))]).astype(np.float32),
        "progress_sparse": np.concatenate(progress).astype(np.float32),
        "reward": np.concatenate(each).astype(np.float32),
        "gain": np.concatenate([reward - reward[0] for reward in each]).astype(np.float32),
        "unlike_training": np.concatenate([novelty for _, novelty, _ in parts]) > 1,
    }
    if isinstance(store, SegmentStore):
        columns["segment"] = np.repeat(own - np.searchsorted(owner, owner), lengths)
    if calibration.graded:
        reached = [calibration.success_of(calibration.progress_of(one)) for one in gained]
        columns["success"] = np.concatenate(reached)
    curves = {f"{prefix}{name}" for prefix in ("", "averaged_", "monotone_") for name in ("rewards", "progress")}
    found = calibration.model_dump(mode="json", exclude={*curves, "centre", "scale"})
    about = {"cameras": job.cameras, "calibration": found, "monotone": monotone, "data": store.fingerprint}
    about["model"] = saved_digests(job.model)
    metadata = {
        "reward_model_path": model_name(job.model),
        "counterpoint": json.dumps(about | {"provenance": provenance()}),
    }
    still = [number for number, (_, _, changes) in enumerate(parts) if not changes[0]]
    return pa.table(columns, metadata=metadata), still


def model_name(model: str) -> str:
    """Return a model's Hub id, or the name of its folder, without the path, which differs between machines."""
    folder = Path(model).expanduser()
    if not folder.exists():
        return model
    folder = folder.resolve()
    inside = folder.name == "model" and (folder.parent / "config.json").is_file()  # a run's model
    return folder.parent.name if inside else folder.name


def error_in_words(calibration: Calibration, *, monotone: bool = False) -> str:
    """Describe in words the errors of labels by this calibration, of a constant and of a clock."""
    constant, clock = calibration.error_of_a_constant, calibration.error_of_a_ramp
    error = calibration.monotone_error if monotone else calibration.averaged_error
    verdict = " (labels no better than a constant)" if error >= constant else ""
    where = f"{calibration.measured_episodes} {_where(calibration)}"
    return (
        f"Mean error of progress on {where}: {error:.3f}; of a constant {constant:.3f}, of a clock {clock:.3f}{verdict}"
    )


def in_words(table: pa.Table, calibration: Calibration, *, monotone: bool = False) -> str:
    """Describe in words the errors of the labels, of a constant and of a clock, and the successes."""
    words = error_in_words(calibration, monotone=monotone) + "\n"
    if not calibration.graded:
        return words + "No column of success: too few failures among these videos to fix a threshold"
    names = [name for name in ("episode_index", "segment") if name in table.column_names]
    rows = np.stack([table[name].to_numpy() for name in names])
    last = np.append((rows[:, 1:] != rows[:, :-1]).any(0), True)
    what = "segments" if "segment" in names else "episodes"
    solved, frames = (table["success"].to_numpy()[chosen] for chosen in (last, slice(None)))
    return words + (
        f"Success from progress {calibration.success:.3f}: "
        f"{solved.sum()} of {len(solved)} {what} at their end, {frames.sum()} of {len(frames)} frames"
    )


def _write_parquet(table: pa.Table, made: Path, path: Path) -> None:
    pq.write_table(table, made, **CHECKED)
    flush(made)
    made.replace(path)
