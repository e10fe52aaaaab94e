"""`counterpoint data convert`: write a data set of any format in LeRobot's format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from tyro.conf import Positional, arg

from counterpoint.cli.data.info import DataSet, further_columns, sizes_in_words, splits_in_words, unread_parts
from counterpoint.data.episode import Array, Episode, says_nothing, task_of, visible
from counterpoint.data.resize import resize
from counterpoint.data.robot_masks import binary_mask, mask_camera, mask_frames, masked_cameras
from counterpoint.data.store import EpisodeStore, frames_in_chunks, vectors
from counterpoint.errors import BadInputError, require, require_known
from counterpoint.formats import open_dataset, recognise
from counterpoint.formats.base import SAMPLE, Column, Reader
from counterpoint.formats.hdf5.reader import Hdf5Store
from counterpoint.formats.lerobot import layout
from counterpoint.formats.lerobot.reader import LeRobotStore
from counterpoint.formats.lerobot.writer import LeRobotWriter
from counterpoint.formats.video import Media, has_uneven_rate
from counterpoint.formats.video_folder import ClipsStore
from counterpoint.formats.webdataset import WebDatasetStore
from counterpoint.parameter_types import Name, Number, Repeated
from counterpoint.progress import ProgressBar

_NOTHING = (
    "neither images nor a state that are read",
    "one of them, as every episode in LeRobot's format has",
    "counterpoint data info names what is left out: give it a name or a form that is read",
)


def convert(
    path: Positional[DataSet],
    out: Positional[Annotated[str | Path, arg(metavar="OUT")]],
    *,
    size: Number = None,
    fps: Number = None,
    dialect: Name = None,
    instruction_key: Name = None,
    instruction: Annotated[str | None, arg(metavar="TEXT")] = None,
    retime: bool = False,
    drop: Repeated = (),
) -> Path:
    """Convert a data set of any readable format to LeRobot v3.0.

    Columns that this library does not use are kept unchanged, with their names, and so is depth. Columns that cannot be
    kept raise an error before any work, unless `drop` leaves them out.

    A LeRobot data set has one frame rate, which is a whole number of frames a second. If the rates of all episodes
    round to the same number, every frame is kept and the true rate is noted in `meta/info.json`. If they do not, or if
    a video's rate varies, `fps` must be given, and videos are resampled to the frames nearest in time. `retime`
    corrects the timestamps of a LeRobot data set and keeps every frame.

    Time on two cores: some hundred frames a second at 112 pixels, mostly for encoding video. Disk: about as much as the
    source, if the source is video too.

    Args:
        path: The data set to read, of any format.
        out: The folder to write; must not exist.
        size: Height and width to resize frames to, in pixels; by default they stay as they are.
        fps: Frames a second to write, needed if the rates of the episodes differ; by default the episodes' own rate,
            rounded. With `retime`, the true rate, if timestamps and `meta/info.json` contradict each other.
        dialect: The dialect of HDF5 files, if the files do not identify it.
        instruction_key: Key of the instructions to write, if the data record several per episode (`counterpoint data
            info` lists the keys); by default the first instruction that is not empty.
        instruction: The instruction of the episodes that have none, or only a placeholder such as "none".
        retime: Write frame_index / fps instead of stored timestamps that jitter, and print how far they moved. This
            raises an error if a frame is missing.
        drop: A column or a depth camera to leave out; may be given several times.

    Raises:
        BadInputError: When the source is damaged, its rates differ or vary, its sizes differ, it has columns that
            cannot be kept, or `out` exists.
    """
    hint = "name one of the keys that `counterpoint data info` lists"
    require(instruction_key != SAMPLE, "--instruction-key", repr(SAMPLE), "the key of one instruction to write", hint)
    store = open_dataset(path, dialect=dialect, instruction_key=instruction_key)
    columns, depth = _kept(path, store, drop)
    nameless = sum(says_nothing(info.instruction) for info in store.episodes)
    if instruction is not None:
        found, expected = f"{instruction!r} for {nameless} episodes without an instruction", "a text, and such episodes"
        require(visible(instruction) and nameless, "--instruction", found, expected, "leave --instruction out")
    others = [key for key in (store.instructions if isinstance(store, Reader) else ()) if key != instruction_key]
    splits, fingerprint = splits_in_words(path, store, dialect), store.fingerprint
    raw: Mapping[str, Any] = store.info.raw if isinstance(store, LeRobotStore) else {}
    order: Sequence[int] = range(len(store.episodes))
    if isinstance(store, Hdf5Store):
        order, splits = _train_first(store)
    if isinstance(store, LeRobotStore):
        splits = _renumbered(store)
    moved = _retimed(path, store, fps) if retime else None
    rate = _rate(store, None if retime else fps)
    convert_one = partial(
        _episode,
        store,
        rate=rate,
        size=size,
        resample=fps is not None and not retime,
        depth=depth,
        instruction=instruction or "",
        judged=layout.SUCCESS not in drop,
    )
    require(store.cameras or store.state(0) is not None, path, *_NOTHING)
    for camera in store.cameras if size is None else ():
        sizes = store.sizes(camera)
        hint = f"bring all to one, of N x N pixels: --size {min(sizes.most_common(1)[0][0])}"
        where, expected = f"{path}, {camera}", "one size, as LeRobot data sets have"
        require(len(sizes) == 1, where, f"images of {sizes_in_words(sizes)}", expected, hint)
    first, _ = convert_one(order[0])
    about = {"converted_from": Path(path).name, "source_fingerprint": fingerprint}
    rates = {"source_fps": sorted({episode.fps for episode in store.episodes})}
    writer = LeRobotWriter(
        out,
        fps=rate,
        cameras={camera: (frames.shape[1], frames.shape[2]) for camera, frames in first.frames.items()},
        action_dim=None if first.actions is None else first.actions.shape[1],
        state_dim=None if first.state is None else first.state.shape[1],
        environment_dim=None if first.environment_state is None else first.environment_state.shape[1],
        depth={camera: (images.shape[1], images.shape[2]) for camera, images in first.depth.items()},
        columns=columns,
        robot_type=str(raw.get("robot_type") or "unknown"),
        info=dict(raw.get("counterpoint") or {}) | about | rates,
        image_cameras=_lossless_cameras(store),
        subtasks=any(info.segments and info.instruction != task_of(info.segments) for info in store.episodes),
    )
    with ProgressBar("Converting", len(order), "episodes") as bar:
        for number in order:
            episode, steps = convert_one(number)
            for camera, frames in episode.frames.items():
                (_, *own, _), (_, *wanted, _) = frames.shape, first.frames[camera].shape
                found, expected = f"frames of {own[0]}x{own[1]}", f"{wanted[0]}x{wanted[1]}, as in episode 0"
                require(own == wanted, f"{path}, episode {number}", found, expected, "bring all to one --size")
            for name in ("actions", "state", "rewards"):
                _require_alike(f"{path}, episode {number}", name, getattr(episode, name), getattr(first, name))
            values = (
                {name: store.recorded(number, name)[steps] for name in columns} if isinstance(store, Reader) else {}
            )
            writer.add_episode(episode, columns=values)
            bar.advance()
    writer.finalize(splits or None)
    sources = ", ".join(f"{source:g}" for source in sorted({round(fps, 2) for fps in rates["source_fps"]}))
    print(f"Converted {len(order)} episodes at {rate} frames a second (source: {sources})")
    if others:
        kept = f"those of {instruction_key}" if instruction_key else "the first that is not empty"
        print(f"Of several instructions an episode, {kept} were written; the keys were {', '.join(others)}")
    if nameless and instruction is None:
        print(f"{nameless} of {len(order)} episodes have no instruction: give one with --instruction TEXT")
    if isinstance(store, Reader) and (left_out := unread_parts(store)):
        print(f"Left out: {', '.join(left_out)}")
    if moved is not None:
        print(f"The largest move of a timestamp was {moved:.6f} s")
    return Path(out)


def _require_alike(where: str, name: str, found: Array | None, first: Array | None) -> None:
    """Raise a `BadInputError` unless a vector has as many dimensions as in the first episode, or both lack it."""
    own, wanted = ("none" if values is None else f"{values[0].size} dimensions" for values in (found, first))
    hint = "keep robots of each kind, and episodes with the same parts, in a data set of their own"
    require(own == wanted, f"{where}, {name}", own, f"{wanted}, as in the first episode", hint)


def _retimed(path: str | Path, store: EpisodeStore, fps: int | None) -> float:
    """Give a LeRobot data set evenly spaced timestamps; return the largest change, in seconds."""
    found, hint = f"a {recognise(path).title} data set", "leave --retime out"
    require(isinstance(store, LeRobotStore), "--retime", found, "a LeRobot data set, which stores timestamps", hint)
    assert isinstance(store, LeRobotStore)
    return store.retime(fps)


def _kept(path: str | Path, store: EpisodeStore, drop: Sequence[str]) -> tuple[Mapping[str, Column], tuple[str, ...]]:
    """Return the columns and depth cameras to convert; parts that cannot be kept must be in `drop`."""
    unread = store.unread if isinstance(store, Reader) else ()
    if len({info.success is None for info in store.episodes}) > 1:  # LeRobot records it for all or none
        unread = (*unread, layout.SUCCESS)
    for name in drop:
        require_known(name, [*unread, *further_columns(store), *store.depth_cameras], "--drop", hint="leave it out")
    lost = [name for name in unread if name not in drop]
    found, hint = f"{', '.join(lost)}, which cannot be kept", " ".join(f"--drop {name}" for name in lost)
    require(not lost, path, found, "columns that can be kept, or --drop", f"leave them out by {hint}")
    columns = store.columns if isinstance(store, Reader) else {}
    kept = {name: column for name, column in columns.items() if name not in drop}
    return kept, tuple(camera for camera in store.depth_cameras if camera not in drop)


def _renumbered(store: LeRobotStore) -> dict[str, str]:
    """Return the ranges of splits after episodes are renumbered from 0 without gaps; drop splits that are empty."""
    own = {name: np.searchsorted(store.numbers, span).tolist() for name, span in store.info.splits.items()}
    return {name: f"{first}:{stop}" for name, (first, stop) in own.items() if first < stop}


def _train_first(store: Hdf5Store) -> tuple[Sequence[int], dict[str, str]]:
    """Return episodes in the order `train`, `valid`, rest, and the ranges of `train` and `valid`; drop other splits."""
    train, valid = (store.splits.get(name, ()) for name in ("train", "valid"))
    if others := [name for name in store.splits if name not in ("train", "valid")]:
        print(f"Left out: the splits {', '.join(others)}, since LeRobot's splits are ranges of episodes")
    if not train:
        return range(len(store.episodes)), {}
    if shared := sorted(set(train) & set(valid)):
        print(f"The splits are left out, since train and valid share the episodes {', '.join(map(str, shared))}")
        return range(len(store.episodes)), {}
    rest = sorted(set(range(len(store.episodes))) - {*train, *valid})
    splits = {"train": f"0:{len(train)}"}
    if valid:
        splits["valid"] = f"{len(train)}:{len(train) + len(valid)}"
    return (*train, *valid, *rest), splits


def _lossless_cameras(store: EpisodeStore) -> list[str]:
    """Return the cameras that the source keeps as images rather than video, and the masks."""
    masks = [mask_camera(camera) for camera in masked_cameras(store.cameras)]
    if not isinstance(store, LeRobotStore):
        return masks
    kept = [name for name in store.cameras if store.is_lossless(name)]
    return [*kept, *(camera for camera in masks if camera not in kept)]


def _rate(store: EpisodeStore, fps: int | None) -> int:
    rates = Counter(max(1, round(episode.fps)) for episode in store.episodes)
    videos: Sequence[Media] = ()
    if isinstance(store, ClipsStore):
        videos = [source.path for source in store.sources if source.variable]
    elif isinstance(store, WebDatasetStore):
        videos = store.videos
    variable, acts = any(map(has_uneven_rate, videos)), store.actions(0) is not None
    if fps is None and (len(rates) > 1 or variable):
        found = "a rate that varies" if variable else ", ".join(f"{r} ({n} episodes)" for r, n in rates.most_common())
        hint = f"give --fps {rates.most_common(1)[0][0]} to take the frames nearest in time"
        if acts:
            hint = "use the data unconverted, where each step keeps its own time: an action cannot be resampled"
        raise BadInputError("frames a second", found, "one rate, as LeRobot data sets have", hint)
    expected = "videos alone: an action belongs to its own time step"
    require(fps is None or not acts, "--fps", "data with actions", expected, "leave --fps out")
    return fps or next(iter(rates))


def _episode(
    store: EpisodeStore,
    number: int,
    *,
    rate: int,
    size: int | None,
    resample: bool,
    depth: Sequence[str],
    instruction: str,
    judged: bool,
) -> tuple[Episode, Array]:
    """Return one episode at the target's rate and size, and its steps in the source.

    An episode without an instruction gets `instruction`. Only a few frames at a time are held at full size.
    """
    info = store.episodes[number]
    steps = np.arange(info.length)
    if resample:
        times = store.timestamps(number)
        seconds = np.arange(int(times[-1] * rate) + 1) / rate
        steps = np.rint(np.interp(seconds, times, steps)).astype(np.int64)
    frames = {camera: _frames(store, number, steps, camera, size) for camera in store.cameras}
    distances = {camera: _distances(store, number, steps, camera, size) for camera in depth}
    known: dict[str, Any] = {name: values[steps] for name, values in vectors(store, number).items()}
    known["timestamps"] = np.arange(len(steps)) / rate
    segments = {int(np.searchsorted(steps, first)): words for first, words in info.segments}  # the last at each step
    parts = tuple((first, words) for first, words in segments.items() if first < len(steps))
    known |= {"success": info.success if judged else None, "segments": parts, "depth": distances}
    named = instruction if says_nothing(info.instruction) and instruction else info.instruction
    return Episode(frames, named, **known), steps


def _distances(store: EpisodeStore, number: int, steps: Array, camera: str, size: int | None) -> Array:
    """Return depth images, resized by the nearest pixel, because the mean of two distances may lie on no surface."""
    images = np.concatenate(list(frames_in_chunks(store, number, camera, steps, read=store.depth)))
    if size is None:
        return images
    rows, columns = ((np.arange(size) * 2 + 1) * length // (2 * size) for length in images.shape[1:])
    return images[:, rows[:, None], columns]


def _frames(store: EpisodeStore, number: int, steps: Array, camera: str, size: int | None) -> Array:
    chunks = frames_in_chunks(store, number, camera, steps)
    if size is None:
        return np.concatenate(list(chunks))
    resized = np.concatenate([resize(chunk, size) for chunk in chunks])
    masks = [mask_camera(masked) for masked in masked_cameras(store.cameras)]
    return mask_frames(binary_mask(resized)) if camera in masks else resized
