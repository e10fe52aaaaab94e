"""WebDataset shards: tars in which all members with the same name form one sample, which is one episode.

`NAME-000000.tar` and so on lie in one folder, or in one folder per split. The name of a member up to the first dot is
its sample's key, and the rest gives its type:

    KEY.mp4, KEY.CAMERA.mp4             a video (.mp4, .mkv, .webm, .mov, .avi), of one of several cameras
    KEY.jpg, KEY.000000.jpg             images (.jpg, .jpeg, .png), frame by frame in the order of their numbers
    KEY.CAMERA.000000.jpg               images of one of several cameras
    KEY.CAMERA.000000.png               depth in millimetres, if the first image is a grey PNG of 16 bits
    KEY.json                            an object: `instruction`, and optionally `fps` and `success`
    KEY.txt, KEY.cls                    the instruction, where there is no KEY.json with one
    KEY.actions.npy, KEY.state.npy      one row per frame; environment_state.npy and rewards.npy too

The headers, texts and video lengths of a shard are read once and kept in the user's cache folder. Pixels are read by
their byte range in the shard.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from counterpoint.data.episode import Array, EpisodeInfo, visible
from counterpoint.data.store import VECTORS
from counterpoint.errors import BadInputError, require
from counterpoint.formats.base import OnBadRow, Reader, raise_error, read_each, require_split, stack_images
from counterpoint.formats.boundary import (
    as_mapping,
    as_number,
    decode_depth,
    decode_image,
    is_depth,
    load_array,
    parsing,
)
from counterpoint.formats.recognition import IMAGE_ENDINGS, VIDEO_ENDINGS, shard_splits, shards
from counterpoint.formats.remote import Part, read_ranges
from counterpoint.formats.tar import indexed, members
from counterpoint.formats.video import frame_times, probe_video, read_frames, uneven_rate

_TEXTS = ("json", "txt", "cls")
_ARRAYS = tuple(f"{name}.npy" for name in VECTORS if name not in ("timestamps", "features"))
_FPS = 10.0  # frames a second of images, unless KEY.json has another rate
_HEADER = 32  # first bytes of an image, which say how many bits it has
_TEXT = 1 << 20  # maximum size of a text, in bytes
_RATES = 0.01  # share by which a video's own rate may differ from the rate in KEY.json
_TOGETHER = 8  # shards that are indexed in parallel
_HINT = "write the shard again; a sample is KEY.mp4 or KEY.000000.jpg ... with KEY.json, KEY.txt or KEY.cls"
_INDEX = "webdataset-2"

Place = tuple[int, int]
"""Offset and size of a member in its shard."""


@dataclass(frozen=True)
class _Sample:
    """One episode: its shard, its key, and the places of its members."""

    shard: Path
    key: str
    cameras: dict[str, list[Place]]  # one place for a video, one per frame for images
    video: bool
    arrays: dict[str, Place]
    others: tuple[str, ...]  # types of the members that are not read, without numbers
    info: EpisodeInfo
    told_fps: float  # the rate in KEY.json, if it has one

    @property
    def where(self) -> str:
        return f"{self.shard}, {self.key}"


class WebDatasetStore(Reader):
    """Episodes of WebDataset shards, local or behind a URL.

    Args:
        path: A folder of shards, a folder with one folder of shards per split, or a single shard.
        split: The name of a split's folder; by default all splits.
        on_bad_row: Called with the error of each shard or sample that cannot be used and is left out; by default the
            first error is raised.

    Raises:
        BadInputError: When there are no shards or no samples.
    """

    def __init__(self, path: str | Path, *, split: str | None = None, on_bad_row: OnBadRow = raise_error) -> None:
        require_split(path, split, shard_splits(Path(path)))
        self.files = shards(Path(path), split)
        require(self.files, path, "no shards", "NAME-000000.tar and so on", "check the path")
        with ThreadPoolExecutor(_TOGETHER) as pool:  # remote shards answer slowly
            index = partial(indexed, kind=_INDEX, keep=_is_sound)
            indexes = {file: pool.submit(index, file, make=partial(_index, file)) for file in self.files}
            opened = list(read_each(self.files, lambda file: indexes[file].result(), on_bad_row))
        rows = [(file, entry) for file, index in opened for entry in index]
        first: _Sample | None = None

        def read(row: tuple[Path, Any]) -> _Sample:
            nonlocal first
            sample = _sample(*row)
            first = first or sample
            names, own = list(first.cameras), list(sample.cameras)
            require(own == names, sample.where, f"cameras {own}", f"{names}, as in {first.key}", _HINT)
            return sample

        self._samples = [sample for _, sample in read_each(rows, read, on_bad_row)]
        require(self._samples, path, "no sample that can be used", "one or more", _HINT)
        cameras = self._samples[0].cameras
        self.depth_cameras = tuple(name for name in cameras if self._is_depth(self._samples[0], name))
        self.cameras = tuple(name for name in cameras if name not in self.depth_cameras)
        self.unread = tuple(sorted({name for sample in self._samples for name in sample.others}))
        self.episodes = tuple(sample.info for sample in self._samples)
        self.names = [sample.where for sample in self._samples]
        self.identity = [sample.key for sample in self._samples]

    @property
    def videos(self) -> list[Part]:
        """The videos of all samples and cameras."""
        found = (sample for sample in self._samples if sample.video)
        return [_part(one.shard, one.key, place) for one in found for (place,) in one.cameras.values()]

    def read(self, episode: int, steps: Array, camera: str) -> Array:
        """Return the images, uint8 [N, H, W, 3]."""
        sample = self._samples[episode]
        places = sample.cameras[camera]
        if sample.video:
            return read_frames(_part(sample.shard, sample.key, places[0]), steps)
        return stack_images((where, decode_image(where, data)) for where, data in self._encoded(sample, steps, camera))

    def read_depth(self, episode: int, steps: Array, camera: str) -> Array:
        """Return the distances in millimetres, uint16 [N, H, W]."""
        found = self._encoded(self._samples[episode], steps, camera)
        return stack_images((where, decode_depth(where, data)) for where, data in found)

    def _encoded(self, sample: _Sample, steps: Array, camera: str) -> Iterator[tuple[str, bytes]]:
        """Yield each image of a camera at some steps: its name for errors, and its encoded content."""
        places = [sample.cameras[camera][step] for step in steps]
        for step, data in zip(steps.tolist(), read_ranges(sample.shard, places), strict=True):
            yield f"{sample.where}, frame {step}", data

    def _is_depth(self, sample: _Sample, camera: str) -> bool:
        """Return whether the header of a camera's first image says that it holds depth."""
        offset, size = sample.cameras[camera][0]
        return not sample.video and is_depth(read_ranges(sample.shard, [(offset, min(size, _HEADER))])[0])

    def findings(self) -> Iterator[BadInputError]:
        """Yield videos whose rate varies, and samples whose KEY.json gives another frame rate than their video has."""
        for video in self.videos:
            yield from uneven_rate(video)
        for sample in self._samples:
            if abs(sample.told_fps / sample.info.fps - 1) > _RATES:
                expected, hint = f"{sample.told_fps:g}, as fps says", "leave fps out: a video has its own"
                yield BadInputError(sample.where, f"{sample.info.fps:.6g} frames a second", expected, hint)

    def timestamps(self, episode: int) -> Array:
        """Return the time of each step, float64 [T]: the video's own times, where its frame rate varies."""
        sample = self._samples[episode]
        if sample.video:
            part = _part(sample.shard, sample.key, next(iter(sample.cameras.values()))[0])
            if probe_video(part).variable:
                return frame_times(part)[:-1]
        return super().timestamps(episode)

    def vectors(self, episode: int, name: str) -> Array | None:
        """Return the array in KEY.NAME.npy, one row per step; `None` if it is missing."""
        sample = self._samples[episode]
        if name not in sample.arrays:
            return None
        (data,) = read_ranges(sample.shard, [sample.arrays[name]])
        return load_array(data)


def _part(shard: Path, key: str, place: Sequence[int]) -> Part:
    return Part(shard, place[0], place[1], key)


def _index(shard: Path) -> list[dict[str, Any]]:
    """Return an entry for each sample of a shard: places of the members, texts, and length and rate of the video."""
    samples: dict[str, dict[str, Any]] = {}
    for name, *place in members(shard):
        folder, _, base = name.rpartition("/")
        key, _, kind = base.partition(".")
        if key and kind:
            one = samples.setdefault(f"{folder}/{key}" if folder else key, {"places": {}, "texts": {}})
            one["places"][kind.lower()] = place
    texts = [(key, kind) for key, one in samples.items() for kind in one["places"] if kind in _TEXTS]
    places = [samples[key]["places"][kind] for key, kind in texts]
    for (key, kind), (_, size) in zip(texts, places, strict=True):
        found, expected = f"{size} bytes of {key}.{kind}", f"at most {_TEXT}"
        require(size <= _TEXT, shard, found, expected, "keep large values out of the text")
    for (key, kind), data in zip(texts, read_ranges(shard, places), strict=True):
        try:
            samples[key]["texts"][kind] = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            found = f"byte 0x{data[error.start]:02x} at {error.start} of {kind}, which is not UTF-8"
            samples[key]["fault"] = [f"{shard}, {key}", found, "UTF-8 text", "write the texts of the shard as UTF-8"]
    for key, one in samples.items():
        videos = [place for kind, place in one["places"].items() if kind.rpartition(".")[2] in VIDEO_ENDINGS]
        try:
            infos = [probe_video(_part(shard, key, place)) for place in videos]
            one["videos"] = [[info.frames, info.fps] for info in infos]
        except BadInputError as error:
            one["fault"] = [error.where, error.found, error.expected, error.hint]
    return [{"key": key, **one} for key, one in samples.items()]


def _is_sound(index: list[dict[str, Any]]) -> bool:
    return not any("fault" in entry for entry in index)


def _sample(shard: Path, entry: dict[str, Any]) -> _Sample:
    """Return an episode from its entry in a shard's index."""
    if "fault" in entry:
        raise BadInputError(*entry["fault"])
    key, places = entry["key"], entry["places"]
    where, cameras, numbered = f"{shard}, {key}", dict[str, list[Place]](), dict[str, dict[int, Place]]()
    for kind, place in places.items():
        *names, ending = kind.split(".")
        if ending in VIDEO_ENDINGS:
            cameras[".".join(names) or "camera"] = [place]
        elif ending in IMAGE_ENDINGS:
            number = int(names.pop()) if names and re.fullmatch(r"\d{1,18}", names[-1]) else 0
            numbered.setdefault(".".join(names) or "camera", {})[number] = place
    expected = "a video or images"
    require(bool(cameras) != bool(numbered), where, f"the members {sorted(places)}", expected, _HINT)
    video = bool(cameras)
    for camera, frames in numbered.items():
        cameras[camera] = [frames[number] for number in sorted(frames)]
    with parsing(where, "a JSON object with an instruction", _HINT):
        about = as_mapping(json.loads(entry["texts"].get("json", "{}")))
        told, plain = about.get("instruction"), visible(entry["texts"].get("txt", ""))
        told = visible(told) if isinstance(told, str) else told
        words = told or plain or entry["texts"].get("cls") or ""
        rates = {fps for _, fps in entry["videos"]}
        fps, rate = as_number(about.get("fps") or (max(rates) if video else _FPS)), max(rates, default=0.0)
        success = about.get("success")
    found, hint = f"the instructions {told!r:.60} in {key}.json and {plain!r:.60} in {key}.txt", "keep one of them"
    require(not (told and plain) or told == plain, where, found, "one instruction", hint)
    lengths = {frames for frames, _ in entry["videos"]} if video else {len(frames) for frames in cameras.values()}
    require(len(lengths) == 1, where, f"cameras of {sorted(lengths)} frames", "one length", _HINT)
    good = isinstance(words, str) and (success is None or isinstance(success, bool)) and 0 < fps < math.inf
    found = f"instruction {words!r:.60}, fps {fps}, success {success!r}"
    require(good, where, found, "a text, a rate above 0, and true or false", _HINT)
    own = {name for name in cameras for text in _TEXTS if f"{name}.{text}" in places}
    hint = "write the shard again, with keys without dots: what follows the first dot names the camera"
    require(not own, where, f"a text for each of {', '.join(sorted(own))}", "one text a sample", hint)
    arrays = {kind.removesuffix(".npy"): place for kind, place in places.items() if kind in _ARRAYS}
    info = EpisodeInfo(lengths.pop(), words.strip(), rate if video else fps, success)
    known = (*VIDEO_ENDINGS, *IMAGE_ENDINGS)
    others = {re.sub(r"\.\d+(?=\.)", "", kind) for kind in places if kind.rpartition(".")[2] not in known}
    others |= {f"json:{name}" for name in about if name not in ("instruction", "fps", "success")}
    others -= {*_TEXTS, *_ARRAYS}
    return _Sample(shard, key, dict(sorted(cameras.items())), video, arrays, tuple(others), info, fps)
