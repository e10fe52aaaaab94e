"""The reader of RLDS data sets written by TensorFlow Datasets; records are read by index and checksums are verified.

::

    NAME/VERSION/dataset_info.json                         splits: name, shardLengths, filepathTemplate
    NAME/VERSION/features.json                             nested dictionaries of features
    NAME/VERSION/NAME-SPLIT.tfrecord-00000-of-00008        one record per episode

An episode's record is a flat `tf.train.Example`: the feature `steps/observation/image` holds the images of all steps,
`steps/action` the actions of all steps, end to end.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.data.episode import Array, EpisodeInfo, visible
from counterpoint.errors import BadInputError, require
from counterpoint.formats.base import (
    Column,
    OnBadRow,
    Reader,
    first_text,
    raise_error,
    read_each,
    require_split,
    stack_images,
)
from counterpoint.formats.boundary import as_list, as_mapping, as_whole, decode_depth, decode_image, parsing, read_bytes
from counterpoint.formats.lerobot.layout import NUMBERS, OWN
from counterpoint.formats.lru import LRUCache
from counterpoint.formats.recognition import RLDS_FEATURES, RLDS_INFO, rlds_folder
from counterpoint.formats.rlds.records import HINT, Example, parse_example, read_record, record_spans, values_of

STEPS, OBSERVATION = "steps", "steps/observation/"
_JSON = "the JSON of a TensorFlow Datasets version folder"
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_INSTRUCTIONS = ("language_instruction", "natural_language_instruction", "instruction")
_PLACES = ("steps/", OBSERVATION, "", "episode_metadata/")
_NO_STATE = re.compile(r"embedding|image|depth|cloud")
_STRINGS = ("string", "object")
_FPS = 5.0  # BridgeData's rate; RLDS records none
_LOOKED_AT = 8  # number of episodes whose first images are examined for empty cameras
_EXPECTED = "an episode with the features of features.json"
_examples: LRUCache[Example] = LRUCache(limit=256 * 1024**2)


# Features, splits and shards


@dataclass(frozen=True, slots=True)
class Feature:
    """A single feature, as opposed to a dictionary of features.

    Attributes:
        name: The feature's name in a record, such as `steps/observation/image`.
        kind: `image`, `text`, `tensor`, or `other` for features that are not read, such as tensors stored as bytes.
        shape: Shape of one step's value; -1 where it varies.
        dtype: numpy's name of the feature's type.
    """

    name: str
    kind: str
    shape: tuple[int, ...] = ()
    dtype: str = ""

    @property
    def size(self) -> int:
        """The number of values in one step; 0 where it varies or is not known."""
        if self.kind != "tensor":
            return int(self.kind != "other")
        return math.prod(self.shape) if all(length > 0 for length in self.shape) else 0

    @property
    def is_text(self) -> bool:
        """True if each step has one text."""
        return self.kind == "text" or (self.dtype in _STRINGS and self.size == 1)

    @property
    def is_column(self) -> bool:
        """True if each step has one text, or numbers of a fixed shape."""
        return self.is_text or (self.kind == "tensor" and self.size > 0 and self.dtype in NUMBERS)

    @property
    def column(self) -> str:
        """The feature's name as a column; slashes are replaced, since LeRobot allows none."""
        of_episode = "" if self.name.startswith(("episode", f"{STEPS}/")) else "episode."
        return of_episode + self.name.removeprefix(f"{STEPS}/").replace("/", ".")


@dataclass(frozen=True)
class Layout:
    """The names of the features that an episode is read from.

    Attributes:
        counted: A feature that every step has; its values give the number of steps.
        cameras: The feature of each camera, the likely main camera first.
        actions: Features that together are the action.
        state: Features that together are the state.
        reward: The reward of each step, or `None`.
        instructions: The features with the task in words, by the last part of their names. DROID's data have
            `language_instruction`, `language_instruction_2` and `language_instruction_3`.
        success: The feature that records success, or `None`.
        depth: The feature of each depth camera.
        columns: Features by name that are no camera, not the reward, and not by themselves the whole action or state.
        unread: Names of the features that are not read.
    """

    counted: Feature
    cameras: dict[str, Feature]
    actions: tuple[Feature, ...]
    state: tuple[Feature, ...]
    reward: Feature | None
    instructions: dict[str, Feature]
    success: Feature | None
    depth: dict[str, Feature]
    columns: dict[str, Feature]
    unread: tuple[str, ...]


@dataclass(frozen=True)
class Shard:
    """A file, and the number of its episodes according to `dataset_info.json`."""

    path: Path
    length: int


def read_splits(folder: Path) -> dict[str, tuple[Shard, ...]]:
    """Return the shards of each split, whether their files exist or not."""
    path = folder / RLDS_INFO
    with parsing(path, _JSON):
        info = as_mapping(json.loads(read_bytes(path)))
        kind = info.get("fileFormat", "tfrecord")
        found, hint = f"fileFormat {kind!r}", "write the data set as tfrecord"
        require(kind == "tfrecord", path, found, "'tfrecord', the one file format that is read", hint)
        return {
            str(split["name"]): tuple(_shards(folder, info, split, kind))
            for split in map(as_mapping, as_list(info["splits"]))
        }


def present_splits(path: Path) -> tuple[str, ...]:
    """Return the splits whose files exist."""
    splits = read_splits(rlds_folder(path) or path)
    return tuple(name for name, shards in splits.items() if any(shard.path.exists() for shard in shards))


def _shards(folder: Path, info: Mapping[str, Any], split: Mapping[str, Any], kind: str) -> Iterator[Shard]:
    lengths = [as_whole(length) for length in as_list(split["shardLengths"])]
    template = str(split.get("filepathTemplate") or _TEMPLATE)
    for number, length in enumerate(lengths):
        parts = {"DATASET": info["name"], "SPLIT": split["name"], "FILEFORMAT": kind}
        parts |= {"SHARD_INDEX": f"{number:05d}", "NUM_SHARDS": f"{len(lengths):05d}"}
        parts |= {"SHARD_X_OF_Y": f"{number:05d}-of-{len(lengths):05d}"}
        name = reduce(lambda text, part: text.replace(f"{{{part[0]}}}", str(part[1])), parts.items(), template)
        where, found = f"{folder / RLDS_INFO}, split {split['name']}", f"the file name {name!r}"
        require(name == Path(name).name, where, found, "a file in this folder", "do not trust this data set")
        yield Shard(folder / name, length)


def read_layout(folder: Path) -> Layout:
    """Choose the features in `features.json` from which the parts of an episode are read."""
    path = folder / RLDS_FEATURES
    with parsing(path, _JSON):
        features = {leaf.name: leaf for leaf in _leaves(json.loads(read_bytes(path)), "")}
    steps = [leaf for name, leaf in features.items() if name.startswith(f"{STEPS}/") and leaf.size > 0]
    order = sorted(steps, key=lambda leaf: (("tensor", "text", "image").index(leaf.kind), leaf.size, leaf.name))
    require(order, path, f"the features {sorted(features)}", "RLDS: a data set `steps`", "name an RLDS data set")
    tensors = {name: leaf for name, leaf in features.items() if leaf.kind == "tensor" and leaf.size > 0}
    numbers = {name: leaf for name, leaf in tensors.items() if leaf.dtype not in _STRINGS}
    actions = [leaf for name, leaf in sorted(numbers.items()) if re.match(r"steps/action(/|$)", name)]
    seen = {name.removeprefix(OBSERVATION): leaf for name, leaf in numbers.items() if name.startswith(OBSERVATION)}
    state = [
        leaf
        for name, leaf in sorted(seen.items())
        if leaf.dtype.startswith("float") and len(leaf.shape) < 2 and not _NO_STATE.search(name)
    ]
    texts = [name for name, leaf in features.items() if leaf.kind == "text" or leaf.dtype in _STRINGS]
    used = (seen["state"],) if "state" in seen else tuple(state)
    reward, cameras, depth = numbers.get("steps/reward"), _cameras(features), _depth_cameras(features)
    whole = {*(actions if len(actions) == 1 else ()), *(used if len(used) == 1 else ()), reward}
    columns = [leaf for leaf in features.values() if leaf not in whole and leaf.is_column]
    read = {*whole, *columns, *cameras.values(), *depth.values()}
    success = (f"{place}{name}" for place in ("", "episode_metadata/", "steps/") for name in ("success", "is_success"))
    return Layout(
        counted=order[0],
        cameras=cameras,
        actions=tuple(actions),
        state=used,
        reward=reward,
        instructions=_instructions({name: features[name] for name in texts}),
        success=next((numbers[name] for name in success if name in numbers), None),
        depth=depth,
        columns={leaf.column: leaf for leaf in columns},
        unread=tuple(leaf.column for leaf in features.values() if leaf not in read),
    )


def _instructions(texts: dict[str, Feature]) -> dict[str, Feature]:
    """Return the first known feature that holds an instruction, then features of the same name with a number."""
    first = next((f"{at}{name}" for name in _INSTRUCTIONS for at in _PLACES if f"{at}{name}" in texts), None)
    alike = [name for name in texts if first and re.fullmatch(rf"{re.escape(first)}(_\d+)?", name)]
    return {name.rpartition("/")[2]: texts[name] for name in sorted(alike, key=lambda name: (len(name), name))}


def _cameras(features: dict[str, Feature]) -> dict[str, Feature]:
    """Return the colour and grey images of an observation: colour first, then grey, then cameras on the hand."""
    images = {}
    for name, leaf in features.items():
        seen = name.startswith(OBSERVATION) and leaf.kind == "image" and leaf.dtype == "uint8"
        if seen and (leaf.shape[-1:] in ((3,), (4,)) or (leaf.shape[-1:] == (1,) and "depth" not in name)):
            images[name.removeprefix(OBSERVATION)] = leaf
    hand = re.compile(r"wrist|hand|gripper")
    names = sorted(images, key=lambda name: (bool(hand.search(name)), images[name].shape[-1] == 1, name))
    return {name: images[name] for name in names}


def _depth_cameras(features: dict[str, Feature]) -> dict[str, Feature]:
    """Return the images of an observation that have one channel of 16 bits."""
    return {
        name.removeprefix(OBSERVATION): leaf
        for name, leaf in features.items()
        if name.startswith(OBSERVATION) and (leaf.kind, leaf.dtype, leaf.shape[-1:]) == ("image", "uint16", (1,))
    }


def _leaves(value: object, name: str) -> Iterator[Feature]:
    """Yield each leaf of a feature description as a `Feature` named by its path.

    Compressed tensors (with an `encoding`), sequences inside a step and further kinds, such as labels of classes, are
    of the kind `other`.
    """
    node = as_mapping(value)
    if "featuresDict" in node:
        for key, child in as_mapping(as_mapping(node["featuresDict"])["features"]).items():
            yield from _leaves(child, f"{name}/{key}" if name else key)
    elif "sequence" in node and name == STEPS:
        yield from _leaves(as_mapping(node["sequence"])["feature"], name)
    elif "text" in node:
        yield Feature(name, "text")
    else:
        kind = "image" if "image" in node else "tensor"
        content = as_mapping(node.get(kind) or {})
        if content and (kind == "image" or str(content.get("encoding", "none")).lower() == "none"):
            shape = tuple(map(as_whole, as_list(as_mapping(content.get("shape", {})).get("dimensions", []))))
            yield Feature(name, kind, shape, str(content.get("dtype") or "uint8"))
        else:
            yield Feature(name, "other")


def missing_split(name: str, shards: tuple[Shard, ...]) -> BadInputError:
    """Return the error for a split that `dataset_info.json` names but whose files are missing."""
    files = shards[0].path.name + (f" and {len(shards) - 1} more" if len(shards) > 1 else "")
    where = f"{shards[0].path.parent}, split {name}"
    return BadInputError(
        where, f"no file {files}", f"the files that {RLDS_INFO} names", "download it, or use another split"
    )


# Episodes


@dataclass(frozen=True, slots=True)
class _Record:
    """The place of an episode, and its contents without the images."""

    path: Path
    where: str
    offset: int
    size: int
    length: int
    texts: tuple[str, ...]  # the text of each instruction in the layout
    success: bool | None
    reward: float | None  # the highest reward


class RldsStore(Reader):
    """Episodes of an RLDS data set, their images decoded on demand; TensorFlow is not needed.

    Opening walks through the records without decoding an image. A record's checksum is verified whenever it is read.

    - Step t holds observation t and the action taken on it, both as the file has them.
    - Cameras are the images of 8 bits in `observation`; cameras on the hand come last. Depth cameras are those of one
      channel of 16 bits. A grey image with "depth" in its name is not read. A camera whose first image has a single
      value in each of eight episodes, spread over the data, is an empty slot and left out.
    - An action in several parts is joined in the alphabetical order of the parts' names. The state is
      `observation/state`, or else all vectors of floats in `observation` except embeddings.
    - The instruction is `language_instruction` or `natural_language_instruction` of the step, the observation or the
      episode. If it changes within an episode, the first text that is not empty is used. Numbered instructions, such
      as DROID's `language_instruction_2`, are in `instructions`. The first of all these that is not empty is used.
    - Success is the feature `success` if the data have it. Otherwise an episode in which a reward reaches 1 is a
      success, and the others are failures. If no reward in the data reaches 1, success is unknown.
    - All other numbers of a fixed shape, and all texts, are in `columns`; values of a whole episode are repeated for
      each step.
    - RLDS has no frame rate: 5 frames a second, BridgeData's rate, are assumed.

    Args:
        path: The folder of a version, or a folder above it.
        split: A split; by default all splits whose files exist.
        on_bad_row: Called with the error of each shard or record that cannot be used and is left out; by default, the
            first error is raised.

    Attributes:
        missing: The splits that `dataset_info.json` names but whose files are missing.
        empty: Names of the empty camera slots.

    Raises:
        BadInputError: When a file is damaged, or no split has its files.
        MissingExtraError: When `google-crc32c` is not installed.
    """

    rate_recorded = False
    pads_cameras = True

    def __init__(self, path: str | Path, *, split: str | None = None, on_bad_row: OnBadRow = raise_error) -> None:
        folder = rlds_folder(Path(path))
        if folder is None:
            raise BadInputError(
                path, "no RLDS data set", f"a folder with {RLDS_INFO} and {RLDS_FEATURES}", "check the path"
            )
        self.path, self.split, self._layout = folder, split, read_layout(folder)
        splits = read_splits(folder)
        require_split(path, split, splits)
        gone = {name for name, shards in splits.items() if shards and not any(shard.path.exists() for shard in shards)}
        self.missing = tuple(missing_split(name, splits[name]) for name in splits if name in gone)
        chosen = [name for name in splits if split in (None, name) and name not in gone]
        if not chosen:
            raise missing_split(split, splits[split]) if split else next(iter(self.missing), _no_episode(folder))
        shards = [shard for name in chosen for shard in splits[name]]
        self._records = [record for shard in shards for record in self._scan(shard, on_bad_row)]
        if not self._records:
            on_bad_row(_no_episode(folder))
        rewarded = any(record.reward is not None and record.reward >= 1 for record in self._records)
        self.episodes = tuple(
            EpisodeInfo(r.length, first_text(r.texts), _FPS, _success(r, rewarded)) for r in self._records
        )
        if len(keys := list(self._layout.instructions)) > 1:
            self.instructions = {key: [r.texts[at] for r in self._records] for at, key in enumerate(keys)}
        self.names = [record.where for record in self._records]
        self.files = [folder / RLDS_INFO, folder / RLDS_FEATURES, *(shard.path for shard in shards)]
        self.identity = split
        self.cameras, self.empty = self._look()
        self.depth_cameras = tuple(self._layout.depth)
        columns = self._layout.columns.items()
        self._sources = {f"recorded_{name}" if name in OWN else name: leaf for name, leaf in columns}
        self.columns = {
            name: Column("string", (1,)) if leaf.is_text else Column(leaf.dtype, leaf.shape or (1,))
            for name, leaf in self._sources.items()
        }
        alpha = [f"{name}.alpha" for name in self.cameras if self._layout.cameras[name].shape[-1] == 4]
        self.unread = (*alpha, *self._layout.unread)
        self.left_out = (
            *(f"split {name} (its files are not there)" for name in gone),
            *(f"camera {name} (empty)" for name in self.empty),
        )

    def findings(self) -> Iterator[BadInputError]:
        """Yield the splits whose files are missing."""
        yield from self.missing

    def read(self, episode: int, steps: Array, camera: str) -> Array:
        """Return the images, uint8 [N, H, W, 3]."""
        return self._decoded(episode, steps, self._layout.cameras[camera].name, decode_image)

    def read_depth(self, episode: int, steps: Array, camera: str) -> Array:
        """Return the distances in millimetres, uint16 [N, H, W]."""
        return self._decoded(episode, steps, self._layout.depth[camera].name, decode_depth)

    def recorded(self, episode: int, name: str) -> Array:
        """Return one of `columns`, [T, *shape]; texts as an array of objects."""
        leaf, length = self._sources[name], self.episodes[episode].length
        shape = self.columns[name].shape
        with parsing(f"{self.names[episode]}, {name}", f"{leaf.dtype or 'texts'} a step", f"--drop {name}"):
            example = self._example(episode)
            if leaf.is_text:
                values = np.array([str(text, "utf-8") for text in _texts(example, leaf.name)], object)
            else:
                values = _numbers(example, leaf.name).astype(leaf.dtype)
            once = not leaf.name.startswith(f"{STEPS}/")
            rows = values.reshape(1 if once else length, *shape)
            return np.repeat(rows, length, axis=0) if once else rows

    def vectors(self, episode: int, name: str) -> Array | None:
        """Return the actions, the state or the rewards as recorded; `None` if the data lack them."""
        layout, length = self._layout, self.episodes[episode].length
        rewards = () if layout.reward is None else (layout.reward,)
        features = {"actions": layout.actions, "state": layout.state, "rewards": rewards}.get(name, ())
        example = self._example(episode) if features else {}
        parts = [_numbers(example, leaf.name).reshape(length, leaf.size) for leaf in features]
        return np.concatenate(parts, axis=1, dtype=np.float32, casting="unsafe") if parts else None

    def _decoded(self, episode: int, steps: Array, name: str, decode: Callable[[str, memoryview], Array]) -> Array:
        """Return the decoded images of a feature at some steps."""
        where = f"{self.names[episode]}, {name.removeprefix(OBSERVATION)}"
        with parsing(where, "one JPEG or PNG image a step", HINT):
            images = _texts(self._example(episode), name)
            require(len(images) == self.episodes[episode].length, where, f"{len(images)} images", "one a step", HINT)
            return stack_images((where, decode(where, images[step])) for step in steps)

    def _scan(self, shard: Shard, on_bad_row: OnBadRow) -> list[_Record]:
        """Return the episodes of a shard; only their numbers and texts are read."""
        spans: list[tuple[int, int]] = []
        try:
            require(shard.path.is_file(), shard.path, "no file", f"one of the shards that {RLDS_INFO} names", HINT)
            spans.extend(record_spans(shard.path))
            expected = f"{shard.length}, as {RLDS_INFO} says"
            require(len(spans) == shard.length, shard.path, f"{len(spans)} records", expected, HINT)
        except BadInputError as error:
            on_bad_row(error)
        if not spans:
            return []
        with parsing(shard.path, "a readable file", HINT):
            data = np.memmap(shard.path, np.uint8, "r").data
        records = read_each(enumerate(spans), partial(self._summary, shard.path, data), on_bad_row)
        return [record for _, record in records]

    def _summary(self, path: Path, data: memoryview, item: tuple[int, tuple[int, int]]) -> _Record:
        layout, (number, (offset, size)) = self._layout, item
        where = f"{path}, record {number}"
        with parsing(where, _EXPECTED, HINT):
            example = parse_example(data[offset : offset + size])
            length, rest = divmod(len(_values(example, layout.counted.name)), layout.counted.size)
            require(length > 0 == rest, f"{where}, {layout.counted.name}", "no whole step", "at least one", HINT)
            every = (_texts(example, leaf.name) for leaf in layout.instructions.values())
            texts = tuple(first_text(visible(str(text, "utf-8")) for text in each) for each in every)
            success, reward = (
                None if leaf is None else _numbers(example, leaf.name).astype(np.float64)
                for leaf in (layout.success, layout.reward)
            )
            return _Record(
                path, where, offset, size, length, texts,
                None if success is None else bool(success.any()),
                None if reward is None else float(reward.max(initial=0)),
            )  # fmt: skip

    def _look(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the cameras that show something and the empty cameras, judging by first images of some episodes."""
        some = np.unique(np.linspace(0, len(self._records) - 1, _LOOKED_AT).astype(int)) if self._records else ()

        def shows(camera: str, episode: int) -> bool:
            try:
                return bool(np.ptp(self.read(episode, np.array([0]), camera)) > 0)
            except BadInputError:
                return True  # an error that names the camera's image is better than a missing camera

        known = tuple(self._layout.cameras)
        shown = tuple(camera for camera in known if any(shows(camera, int(episode)) for episode in some))
        return shown, tuple(camera for camera in known if camera not in shown)

    def _example(self, episode: int) -> Example:
        record = self._records[episode]

        def parse() -> tuple[Example, int]:
            data = read_record(record.path, record.where, record.offset, record.size)
            with parsing(record.where, _EXPECTED, HINT):
                return parse_example(memoryview(data)), len(data)

        with parsing(record.where, "a readable file", HINT):
            changed = record.path.stat().st_mtime_ns
        return _examples.get((str(record.path), record.offset, changed), parse)


def _values(example: Example, name: str) -> list[memoryview] | Array:
    if name not in example:
        raise ValueError(f"no feature {name}")
    return values_of(example[name])


def _texts(example: Example, name: str) -> list[memoryview]:
    values = _values(example, name)
    if not isinstance(values, list):
        raise ValueError(f"numbers in {name}")
    return values


def _numbers(example: Example, name: str) -> Array:
    values = _values(example, name)
    if isinstance(values, list):
        raise ValueError(f"no numbers in {name}")
    return values


def _success(record: _Record, rewarded: bool) -> bool | None:
    if record.success is not None or record.reward is None or not rewarded:
        return record.success
    return record.reward >= 1


def _no_episode(folder: Path) -> BadInputError:
    return BadInputError(folder, "no episode", "at least one", "download the data set again")
