"""`counterpoint label DATA --model RUN`: the progress of every frame of every episode, written next to the data.

Columns, with one row per frame in the order of the data set:

    index, episode_index, frame_index   LeRobot's numbers
    timestamp                           seconds since the episode's first frame: a video's own presentation times
    progress_sparse                     progress in [0, 1], computed from the reward averaged over about a tenth of an
                                        episode; the name is LeRobot's. With `monotone`, it never falls
    reward                              the raw reward of the calibrated form, the mean over cameras
    gain                                the reward gained since the episode's first frame
    segment                             number of the frame's segment in its episode, if the model was trained on
                                        segments (`data.segments`): each segment is then labelled under its own task,
                                        and `progress_sparse` is the progress of that task
    progress_dense                      with segments: progress of the whole episode, whose segments add up
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
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float
from numpy.typing import NDArray
from tyro.conf import Positional, arg

from counterpoint.blocks import HERE, BlockFiles, Engine, blocks_of, work_through
from counterpoint.data.segments import Segments, SegmentStore, by_segments, mean_shares
from counterpoint.data.store import EpisodeStore, camera_names, check_camera
from counterpoint.encoders.embed import Precision
from counterpoint.errors import require
from counterpoint.files import flush, read_object
from counterpoint.folder import claim
from counterpoint.formats import open_dataset, recognise
from counterpoint.formats.base import require_new
from counterpoint.formats.lerobot.additions import copy_with_feature
from counterpoint.formats.lerobot.layout import read_info
from counterpoint.formats.lerobot.reader import LeRobotStore
from counterpoint.formats.lerobot.signals import FOLDER, Signal, write_signals
from counterpoint.formats.lerobot.tables import CHECKED
from counterpoint.formats.remote import absolute, whole
from counterpoint.formats.torchcodec import VideoBackend
from counterpoint.parameter_types import Computes, File, Image, Model, Name, Names, Number, Repository, Text
from counterpoint.provenance import provenance
from counterpoint.repositories import check_upload, hub_id, upload
from counterpoint.rewards.instructions import given_instructions, instructions_in_words, read_goal
from counterpoint.rewards.labeller import FunctionLabeller, Labeller, Labelling, labeller_of, open_labeller, work_of
from counterpoint.rewards.weighting import spread_in_words
from counterpoint.workers import IN_PROCESS, Foreign

Array = NDArray[Any]


def label(
    data: Positional[Path],
    *,
    model: Model,
    out: Annotated[Path | None, arg(metavar="PATH")] = None,
    feature: Name = None,
    signals: bool = False,
    cameras: Names = (),
    instruction: Text = None,
    text_file: File = None,
    goal: Image = None,
    device: Computes = "cpu",
    batch_size: Number = None,
    precision: Precision = "no",
    video_backend: VideoBackend = "pyav",
    engine: Engine = HERE,
    foreign: Foreign = IN_PROCESS,
    monotone: bool = False,
    anyway: bool = False,
    overwrite: bool = False,
    dialect: Name = None,
    push: Repository = None,
) -> Path:
    """Write progress in [0, 1] of every frame of a data set. A repeated call resumes an interrupted one.

    The mean error of progress, measured on videos that the model did not learn from, is printed with the errors of a
    constant and of a clock, which only counts frames. Labels that are no better than a constant are refused.

    Time on two cores: 2,600 frames per second with the demo's encoder, 87 with EfficientNet-Lite0. Disk: at most 40
    bytes per frame.

    Args:
        data: A data set of any format.
        model: A run's folder, a folder of saved weights or a Hub id, which must have a calibration; or a model of
            others whose values are progress: the folder of a LeRobot reward model, or module:function.
        out: Parquet file to write; by default MODEL_progress.parquet in the folder of a LeRobot data set, or in the
            working folder for a LeRobot data set of the Hub or at a URL. With `feature`, the folder of the copy.
        feature: Write a copy of a LeRobot v3 data set with progress as this feature, such as next.progress.
        signals: Write LeRobot's proposed sidecar reward_signals/MODEL.parquet instead, with signals such as
            reward.counterpoint.progress, their descriptions and their provenance.
        cameras: Cameras whose rewards are averaged; by default the cameras of the run's training, or the data's first
            camera.
        instruction: One instruction for all episodes, overriding their own.
        text_file: Text file with one instruction per line, overriding the data set's instructions.
        goal: Image of the goal, for models that compare frames with goals.
        device: The device that computes, such as cuda.
        batch_size: Number of frames encoded at once; by default a number that suits the model.
        precision: `no` (float32), or `bf16`, which is faster on processors and GPUs with bfloat16; calibration may
            turn its rounding into a visible step of progress in some frames.
        video_backend: The library that decodes videos. torchcodec decodes on `device`; on a graphics card its colours
            differ by rounding.
        engine: The processes that decode and compute blocks of episodes; threads of this process by default.
        foreign: How a model of others runs.
        monotone: Write progress that never falls, computed from the largest gain so far.
        anyway: Write labels even if they are no better than a constant.
        overwrite: Replace existing labels.
        dialect: The dialect of HDF5 files, if the files do not identify it: see `counterpoint data info`.
        push: Upload the file, or the copy with `feature`, to this data set of the Hub when it is written.

    Returns:
        The file or folder that was written.

    Raises:
        BadInputError: If data, model or arguments cannot be used, or the account may not upload; this is raised before
            anything is computed. If an episode is damaged; finished blocks are then kept. If the upload fails; the
            labels are then kept.
        MissingExtraError: If Ray or torchcodec is asked for and not installed.
    """
    engine.check()
    foreign.check()
    require(batch_size is None or batch_size > 0, "--batch-size", batch_size, "1 or more", "leave it out")
    trained = _trained(Path(model))
    segments: Segments = "task" if trained.get("segments") == "task" and goal is None else "episode"
    store = by_segments(open_dataset(data, dialect=dialect), segments)
    first = camera_names(None, store)  # data without images are refused
    target = _target(data, str(model), out, feature, overwrite, signals=signals)
    sent = None
    if push is not None:
        version = read_info(whole(data)).raw["codebase_version"] if feature else None
        sent = _Upload(push, target, FOLDER if signals else "", version)
        check_upload(push, "--push", sent.command)
    for camera in cameras:
        check_camera(camera, store)
    every, image = range(len(store.episodes)), None if goal is None else read_goal(goal)
    own, names = [info.instruction for info in store.episodes], [f"{data}, {_place(store, number)}" for number in every]
    texts = given_instructions(own, names, instruction, text_file) if image is None else []
    parts = target.with_name(f".{target.name}.parts")
    views = tuple(cameras) or _trained_views(trained, store) or first
    job = Labelling(
        data,
        str(model),
        views,
        tuple(texts),
        image,
        device,
        batch_size,
        dialect,
        segments,
        foreign,
        monotone,
        precision,
        video_backend,
    )
    labeller = labeller_of(job, store)
    work = work_of(labeller)
    labeller.check(anyway=anyway)
    if isinstance(labeller, Labeller) and (said := instructions_in_words(labeller.model.encoder, texts)):
        print(said)
    # Finished blocks of another model or of other data are removed.
    with claim(parts, "labelling.json", _identity(labeller, store), what="labels", does="labels", discard=True):
        files = BlockFiles(parts, ".npy", blocks_of(store.lengths))
        opener = partial(open_labeller, job, labeller.targets)
        started, total = time.perf_counter(), int(store.lengths.sum())
        left = work_through(files, work, opener, engine, title="Labelling", device=device)
        seconds = time.perf_counter() - started
        table, words, still = _table(labeller, files, store)
        if feature is None:
            _write_parquet(table, parts / "whole.parquet", target, data if signals else None)
        else:
            copy_with_feature(whole(data), target, feature, table["progress_sparse"].to_numpy())
        shutil.rmtree(parts)
    what = "segments" if segments == "task" else "episodes"
    print(f"Labelled {len(every)} {what}, {total} frames" + (f"; {left / seconds:.0f} frames a second" if left else ""))
    print(words)
    print(spread_in_words(np.split(table["progress_sparse"].to_numpy(), np.cumsum(store.lengths)[:-1])))
    if still:
        print(f"Nothing changes in {'; '.join(_place(store, one) for one in still)}: the labels say nothing")
    if sent is not None:
        print(f"Uploaded to {sent.run(model_name(str(model)))}")
    return target


@dataclass(frozen=True)
class _Upload:
    """An upload of labels to a data set of the Hub.

    Attributes:
        repo_id: The data set's id.
        labels: The file, or the folder of a copy.
        folder: The folder of the file in the repository.
        tag: The tag under which LeRobot looks for a data set, for a copy.
    """

    repo_id: str
    labels: Path
    folder: str
    tag: str | None

    @property
    def place(self) -> str:
        """The path in the repository."""
        return "." if self.tag else str(PurePosixPath(self.folder, self.labels.name))

    @property
    def command(self) -> str:
        """The command that does the same."""
        written = f"hf upload {self.repo_id} {quote(str(self.labels))} {quote(self.place)} --repo-type dataset"
        tagged = f" && hf repos tag create {self.repo_id} {self.tag} --repo-type dataset" if self.tag else ""
        return written + tagged

    def run(self, model: str) -> str:
        """Upload, and return the address of the commit."""
        hint, message = f"the labels are in {self.labels}; upload them later: {self.command}", f"Add labels by {model}"
        options: dict[str, Any] = {"message": message, "hint": hint, "tag": self.tag}
        return upload(self.labels, self.repo_id, kind="dataset", place=self.place, **options)


def _target(
    data: Path, model: str, out: Path | None, feature: str | None, overwrite: bool, *, signals: bool = False
) -> Path:
    """Return the file or folder to write; raise an error if it exists, unless it may be overwritten."""
    kind = recognise(data)
    require(not (signals and feature), "--signals", f"--feature {feature} beside it", "one of them", "leave one out")
    if feature is not None:
        found, hint = f"a {kind.title} data set", f"convert it first: counterpoint data convert {data} OUT"
        info = read_info(whole(data)) if kind.name == "lerobot" else None
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
        name = Path(model_name(model)).name
        home = data if data.is_dir() else Path()
        out = home / FOLDER / f"{name}.parquet" if signals else home / f"{name}_progress.parquet"
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


def _identity(labeller: Labeller | FunctionLabeller, store: EpisodeStore) -> dict[str, Any]:
    """Return all settings that decide the content of finished blocks."""
    job = labeller.job
    return {
        "model": labeller.identity,
        "data": store.fingerprint,
        "cameras": list(job.cameras),
        "segments": job.segments,
        "precision": job.precision,
        "video_backend": job.video_backend,
        "instructions": hashlib.sha256(json.dumps(job.instructions).encode()).hexdigest(),
        "goal": None if job.goal is None else hashlib.sha256(job.goal.tobytes()).hexdigest(),
    }


def _table(
    labeller: Labeller | FunctionLabeller, files: BlockFiles, store: EpisodeStore
) -> tuple[pa.Table, str, list[int]]:
    """Return all labels as a table, what they say in words, and the numbers of episodes whose images never change."""
    rows = np.concatenate([np.load(files.path(block)) for block in files.blocks], axis=1)
    parts = np.split(rows, np.cumsum(store.lengths)[:-1], axis=1)
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
    }
    found = labeller.columns(parts)
    if isinstance(store, SegmentStore):
        columns["segment"] = np.repeat(own - np.searchsorted(owner, owner), lengths)
        columns["progress_dense"] = dense_progress(store, found["progress_sparse"])
    job = labeller.job
    about = {
        "cameras": job.cameras,
        "monotone": job.monotone,
        "precision": job.precision,
        "video_backend": job.video_backend,
        "data": store.fingerprint,
        **labeller.about(),
    }
    metadata = {
        "reward_model_path": model_name(job.model),
        "counterpoint": json.dumps(about | {"provenance": provenance()}),
    }
    last = np.zeros(int(lengths.sum()), bool)
    last[np.cumsum(lengths) - 1] = True
    words = labeller.in_words(found, last, "segments" if isinstance(store, SegmentStore) else "episodes")
    still = [number for number, part in enumerate(parts) if not part[-1][0]]
    return pa.table(columns | found, metadata=metadata), words, still


def dense_progress(store: SegmentStore, progress: Float[Array, " N"]) -> Float[NDArray[np.float32], " N"]:
    """Return the progress of whole episodes from that of their segments, as LeRobot's `progress_dense` is defined.

    A segment adds its mean share of the episodes (`counterpoint.data.segments.mean_shares`).

    Args:
        store: The segments.
        progress: Progress of the task of each step's segment, in [0, 1], segment after segment.
    """
    share = mean_shares(store)
    before = np.cumsum(share) - share - store.owner  # the shares of each episode add up to 1
    whole = np.repeat(before, store.lengths) + np.repeat(share, store.lengths) * progress
    return np.clip(whole, 0, 1).astype(np.float32)


def model_name(model: str) -> str:
    """Return a model's Hub id, or the name of its folder, without the path, which differs between machines."""
    folder = Path(model).expanduser()
    if not folder.exists():
        return model
    folder = folder.resolve()
    inside = folder.name == "model" and (folder.parent / "config.json").is_file()  # a run's model
    return folder.parent.name if inside else folder.name


SIGNALS = {
    "progress_sparse": ("progress", Signal("progress of the episode's task", "higher", (0.0, 1.0))),
    "progress_dense": ("progress_dense", Signal("progress of the whole episode", "higher", (0.0, 1.0))),
    "reward": ("reward", Signal("raw reward of the calibrated form", "higher")),
    "gain": ("gain", Signal("reward gained since the first frame", "higher")),
    "segment": ("segment", Signal("number of the frame's segment in its episode")),
    "stage": ("stage", Signal("number of the stage that the frame belongs to")),
    "success": ("success", Signal("true once the task counts as done", "higher")),
    "unlike_training": ("unlike_training", Signal("true for a frame unlike the training data", "lower")),
}
"""Columns of labels as signals: their names, which begin with `reward.counterpoint.`, and descriptions."""


def _write_parquet(table: pa.Table, made: Path, path: Path, signals_of: Path | None) -> None:
    """Write labels by way of the file `made`, as signals of a data set if one is given."""
    path.parent.mkdir(exist_ok=True)
    if signals_of is not None:
        columns = {name: table[name].to_numpy() for name in table.column_names}
        told = {f"reward.counterpoint.{name}": signal for key, (name, signal) in SIGNALS.items() if key in columns}
        columns |= {f"reward.counterpoint.{name}": columns[key] for key, (name, _) in SIGNALS.items() if key in columns}
        about = json.loads(table.schema.metadata[b"counterpoint"])
        named = {"type": "counterpoint", "id": table.schema.metadata[b"reward_model_path"].decode()}
        scoring = {"model": named | {"files": about.pop("model")}, "scorer": {"version": 1, "options": about}}
        place = absolute(signals_of)
        name, _, revision = place.partition("@") if hub_id(signals_of) else (Path(place).name, "", "")
        write_signals(made, columns, told, scoring, name, revision or None)
    else:
        pq.write_table(table, made, **CHECKED)
    flush(made)
    made.replace(path)
