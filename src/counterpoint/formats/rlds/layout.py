"""The layout of a data set that TensorFlow Datasets wrote: features, splits and the files of their shards.

::

    NAME/VERSION/dataset_info.json                         splits: name, shardLengths, filepathTemplate
    NAME/VERSION/features.json                             nested dictionaries of features
    NAME/VERSION/NAME-SPLIT.tfrecord-00000-of-00008        one record an episode

An episode's record is a flat `tf.train.Example`: the feature `steps/observation/image` holds the images of all steps,
`steps/action` the actions of all steps, end to end.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from counterpoint.errors import BadInputError, require
from counterpoint.formats.boundary import as_list, as_mapping, as_whole, parsing, read_bytes
from counterpoint.formats.kinds import RLDS_FEATURES, RLDS_INFO, rlds_folder

STEPS, OBSERVATION = "steps", "steps/observation/"
_EXPECTED = "the JSON of a TensorFlow Datasets version folder"
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_INSTRUCTIONS = ("language_instruction", "natural_language_instruction", "instruction")
_PLACES = ("steps/", OBSERVATION, "", "episode_metadata/")
_NO_STATE = re.compile(r"embedding|image|depth|cloud")
_STRINGS = ("string", "object")


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature that is no dictionary.

    Attributes:
        name: Its name in a record, such as `steps/observation/image`.
        kind: `image`, `text` or `tensor`.
        shape: Shape of one step's value; -1 where it varies.
        dtype: numpy's name of its type.
    """

    name: str
    kind: str
    shape: tuple[int, ...] = ()
    dtype: str = ""

    @property
    def size(self) -> int:
        """The number of values in one step; 0 where it varies."""
        if self.kind != "tensor":
            return 1
        return math.prod(self.shape) if all(length > 0 for length in self.shape) else 0


@dataclass(frozen=True)
class Layout:
    """The names of the features that an episode is read from.

    Attributes:
        counted: A feature of every step, by which steps are counted.
        cameras: Camera -> its feature, the likely main camera first.
        actions: Features that together are the action.
        state: Features that together are the state.
        reward: The reward of each step, or `None`.
        instruction: The task in words, or `None`.
        success: The record of success, or `None`.
    """

    counted: Feature
    cameras: dict[str, Feature]
    actions: tuple[Feature, ...]
    state: tuple[Feature, ...]
    reward: Feature | None
    instruction: Feature | None
    success: Feature | None


@dataclass(frozen=True)
class Shard:
    """A file and the number of its episodes by `dataset_info.json`."""

    path: Path
    length: int


def read_splits(folder: Path) -> dict[str, tuple[Shard, ...]]:
    """Return each split's shards, whether their files are there or not."""
    path = folder / RLDS_INFO
    with parsing(path, _EXPECTED):
        info = as_mapping(json.loads(read_bytes(path)))
        kind = info.get("fileFormat", "tfrecord")
        found, hint = f"fileFormat {kind!r}", "write the data set as tfrecord"
        require(kind == "tfrecord", path, found, "'tfrecord', the one file format that is read", hint)
        return {
            str(split["name"]): tuple(_shards(folder, info, split, kind))
            for split in map(as_mapping, as_list(info["splits"]))
        }


def present_splits(path: Path) -> tuple[str, ...]:
    """Return the splits of which files are there."""
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
    """Choose an episode's parts among the features of `features.json`."""
    path = folder / RLDS_FEATURES
    with parsing(path, _EXPECTED):
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
    success = (f"{place}{name}" for place in ("", "episode_metadata/", "steps/") for name in ("success", "is_success"))
    return Layout(
        counted=order[0],
        cameras=_cameras(features),
        actions=tuple(actions),
        state=(seen["state"],) if "state" in seen else tuple(state),
        reward=numbers.get("steps/reward"),
        instruction=next(
            (features[f"{at}{name}"] for name in _INSTRUCTIONS for at in _PLACES if f"{at}{name}" in texts), None
        ),
        success=next((numbers[name] for name in success if name in numbers), None),
    )


def _cameras(features: dict[str, Feature]) -> dict[str, Feature]:
    """Return the colour images of an observation; cameras on the hand behind the others."""
    images = {
        name.removeprefix(OBSERVATION): leaf
        for name, leaf in features.items()
        if name.startswith(OBSERVATION) and leaf.kind == "image" and leaf.dtype == "uint8" and leaf.shape[-1:] == (3,)
    }
    names = sorted(images, key=lambda name: (bool(re.search(r"wrist|hand|gripper", name)), name))
    return {name: images[name] for name in names}


def _leaves(value: object, name: str) -> Iterator[Feature]:
    """Yield the features of nested dictionaries; lists of varying length inside a step are left out."""
    node = as_mapping(value)
    if "featuresDict" in node:
        for key, child in as_mapping(as_mapping(node["featuresDict"])["features"]).items():
            yield from _leaves(child, f"{name}/{key}" if name else key)
    elif "sequence" in node and name == STEPS:
        yield from _leaves(as_mapping(node["sequence"])["feature"], name)
    elif "text" in node:
        yield Feature(name, "text")
    elif "image" in node or str(as_mapping(node.get("tensor", {})).get("encoding", "none")).lower() == "none":
        kind = "image" if "image" in node else "tensor"
        if content := as_mapping(node.get(kind) or {}):
            shape = tuple(map(as_whole, as_list(as_mapping(content.get("shape", {})).get("dimensions", []))))
            yield Feature(name, kind, shape, str(content.get("dtype") or "uint8"))


def missing_split(name: str, shards: tuple[Shard, ...]) -> BadInputError:
    """Return the error for a split that `dataset_info.json` names and whose files are not there."""
    files = shards[0].path.name + (f" and {len(shards) - 1} more" if len(shards) > 1 else "")
    where = f"{shards[0].path.parent}, split {name}"
    return BadInputError(
        where, f"no file {files}", f"the files that {RLDS_INFO} names", "download it, or use another split"
    )
