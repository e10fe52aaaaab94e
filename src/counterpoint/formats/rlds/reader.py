"""The reader of RLDS data sets: TFRecord shards, read by index, with their checksums verified."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from counterpoint.data.episode import Array, EpisodeInfo
from counterpoint.errors import BadInputError, require, require_known
from counterpoint.formats.base import OnBadRow, Reader, raise_error, read_each
from counterpoint.formats.boundary import decode_image, parsing
from counterpoint.formats.kinds import RLDS_FEATURES, RLDS_INFO, rlds_folder
from counterpoint.formats.lru import LRUCache
from counterpoint.formats.rlds.layout import Shard, missing_split, read_layout, read_splits
from counterpoint.formats.rlds.records import HINT, Example, parse_example, read_record, record_spans, values_of

_FPS = 5.0  # BridgeData's; RLDS does not say
_LOOKED_AT = 8  # episodes whose first images show which cameras are empty
_EXPECTED = "an episode with the features of features.json"
_examples: LRUCache[Example] = LRUCache(limit=256 * 1024**2)


@dataclass(frozen=True, slots=True)
class _Record:
    """An episode's place, and what is read without its images."""

    path: Path
    where: str
    offset: int
    size: int
    length: int
    instruction: str
    success: bool | None
    reward: float | None  # the highest


class RldsStore(Reader):
    """Episodes of an RLDS data set, their images decoded on demand; TensorFlow is not needed.

    Opening walks through the records without touching an image. A record's checksum is verified whenever it is read.

    - Step t holds observation t and the action taken on it, all as the file has them.
    - Cameras are the colour images of `observation`; cameras on the hand come last. One whose images are of a
      single colour in all of eight episodes is an empty slot and left out.
    - An action in several parts is put together in the alphabetical order of their names. The state is
      `observation/state`, else all vectors of floats in `observation`, but for embeddings.
    - The instruction is `language_instruction` or `natural_language_instruction`, of the step, the observation or the
      episode; where it changes within an episode, the first one that is not empty.
    - Success is a feature `success` where there is one. Otherwise an episode succeeded when a reward reached 1, and
      failed when none did but another episode's did; where no reward reaches 1, success is unknown.
    - RLDS has no frame rate: 5 frames a second, BridgeData's rate, are assumed.

    Args:
        path: The folder of a version, or one above it.
        split: A split; by default all those whose files are there.
        on_bad_row: Called for each shard or record that cannot be used, which is then left out; by default the first
            one raises.

    Attributes:
        missing: The splits that `dataset_info.json` names and whose files are not there.
        empty: Names of the empty camera slots.

    Raises:
        BadInputError: When a file is damaged, or no split's files are there.
        MissingExtraError: When `google-crc32c` is not installed.
    """

    rate_recorded = False

    def __init__(self, path: str | Path, *, split: str | None = None, on_bad_row: OnBadRow = raise_error) -> None:
        folder = rlds_folder(Path(path))
        if folder is None:
            raise BadInputError(
                path, "no RLDS data set", f"a folder with {RLDS_INFO} and {RLDS_FEATURES}", "check the path"
            )
        self.path, self.split, self._layout = folder, split, read_layout(folder)
        splits = read_splits(folder)
        if split is not None:
            require_known(split, splits, f"split of {path}")
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
        self.episodes = tuple(EpisodeInfo(r.length, r.instruction, _FPS, _success(r, rewarded)) for r in self._records)
        self.names = [record.where for record in self._records]
        self.files = [folder / RLDS_INFO, folder / RLDS_FEATURES, *(shard.path for shard in shards)]
        self.identity = split
        self.cameras, self.empty = self._look()
        self.left_out = (
            *(f"split {name} (its files are not there)" for name in gone),
            *(f"camera {name} (empty)" for name in self.empty),
        )

    def read(self, episode: int, steps: Array, camera: str) -> Array:
        """Return uint8 [N, H, W, 3]."""
        where, name = f"{self.names[episode]}, {camera}", self._layout.cameras[camera].name
        with parsing(where, "one JPEG or PNG image a step", HINT):
            images = _texts(self._example(episode), name)
            require(len(images) == self.episodes[episode].length, where, f"{len(images)} images", "one a step", HINT)
            wanted, rows = np.unique(steps, return_inverse=True)
            return np.stack(list(_decoded(where, [images[step] for step in wanted])))[rows]

    def vectors(self, episode: int, name: str) -> Array | None:
        """Return actions, state or rewards as the file has them."""
        layout, length = self._layout, self.episodes[episode].length
        rewards = () if layout.reward is None else (layout.reward,)
        features = {"actions": layout.actions, "state": layout.state, "rewards": rewards}.get(name, ())
        example = self._example(episode) if features else {}
        parts = [_numbers(example, leaf.name).reshape(length, leaf.size) for leaf in features]
        return np.concatenate(parts, axis=1, dtype=np.float32, casting="unsafe") if parts else None

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
            texts = _texts(example, layout.instruction.name) if layout.instruction else ()
            words = (str(text, "utf-8").strip() for text in texts)
            instruction = next(filter(None, words), "")
            success, reward = (
                None if leaf is None else _numbers(example, leaf.name).astype(np.float64)
                for leaf in (layout.success, layout.reward)
            )
            return _Record(
                path, where, offset, size, length, instruction,
                None if success is None else bool(success.any()),
                None if reward is None else float(reward.max(initial=0)),
            )  # fmt: skip

    def _look(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the cameras that show something, and the others, by the first images of some episodes."""
        some = np.unique(np.linspace(0, len(self._records) - 1, _LOOKED_AT).astype(int)) if self._records else ()

        def shows(camera: str, episode: int) -> bool:
            try:
                return bool(np.ptp(self.read(episode, np.array([0]), camera)) > 0)
            except BadInputError:
                return True  # an error that names the camera's image is worth more than a camera less

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


def _decoded(where: str, images: list[memoryview]) -> Iterator[Array]:
    shape: tuple[int, ...] | None = None
    for content in images:
        image = decode_image(where, content)
        shape = shape or image.shape
        require(image.shape == shape, where, f"images of {shape} and {image.shape}", "one size", HINT)
        yield image


def _success(record: _Record, rewarded: bool) -> bool | None:
    if record.success is not None or record.reward is None or not rewarded:
        return record.success
    return record.reward >= 1


def _no_episode(folder: Path) -> BadInputError:
    return BadInputError(folder, "no episode", "at least one", "download the data set again")
