"""The reader of ROS 2 recordings in MCAP files, which `ros2 bag record` writes; ROS is not needed.

Each file is an episode. `topics.json`, next to the files or in the folder that is opened, names the topics to read;
every key may be left out::

    {"cameras": {"front": "/front/image_raw/compressed", "wrist": "/wrist/image_raw"},
     "state": ["/joint_states"], "actions": ["/command", "/gripper/command"],
     "instruction": "put the cup on the plate"}

Messages that are read: images of `sensor_msgs` (`CompressedImage` as JPEG or PNG, `Image` of the encodings rgb8, bgr8,
rgba8, bgra8 and mono8), and the vectors of `_VECTORS` below.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoint.data.episode import Array, EpisodeInfo
from counterpoint.errors import BadInputError, import_extra, require, require_known
from counterpoint.formats.base import OnBadRow, Reader, raise_error, read_alike, stack_images
from counterpoint.formats.boundary import (
    MOST_BYTES,
    MOST_PIXELS,
    as_list,
    as_mapping,
    decode_image,
    parsing,
    read_bytes,
    require_size,
)
from counterpoint.formats.lru import LRUCache
from counterpoint.formats.recognition import ROS_TOPICS, mcap_files

_EXPECTED, _HINT = "a whole MCAP file of ROS 2", "try: mcap recover FILE -o OUT, or record it again"
_SECOND = 10**9  # times are whole nanoseconds
_COMPRESSED, _PLAIN, _JOINTS = "sensor_msgs/CompressedImage", "sensor_msgs/Image", "sensor_msgs/JointState"
_CHANNELS = {"rgb8": [0, 1, 2], "bgr8": [2, 1, 0], "rgba8": [0, 1, 2, 3], "bgra8": [2, 1, 0, 3], "mono8": [0]}
"""Encoding of an image -> the positions of its channels in the order red, green, blue."""
_DEPTH = re.compile(r"16UC1|32FC1|mono16|compressedDepth")
_UNSEEN = re.compile(f"{_DEPTH.pattern}|Video|h26[45]|hevc|av1", re.IGNORECASE)
"""Encodings and types of pictures that are not read."""
_IMAGES = (_COMPRESSED, _PLAIN)
_COLOURS = ("jpeg", "jpg", "png", *_CHANNELS)
_SECTIONS = ("cameras", "state", "actions", "instruction")

Labelled = Mapping[str, float]
"""The numbers of a message by name, such as the position of each joint."""
Integers = NDArray[np.int64]


def _axes(name: str, value: Any, axes: str) -> Labelled:
    return {f"{name}.{axis}": getattr(value, axis) for axis in axes}


def _joints(message: Any) -> Labelled:
    names, positions = message.name, message.position
    if len(set(names)) != len(positions):
        raise ValueError(f"joint states of {len(names)} names and {len(positions)} positions")
    return dict(sorted(zip(names, positions, strict=True)))  # publishers may change the order


def _array(message: Any) -> Labelled:
    return {f"{at:03d}": number for at, number in enumerate(message.data)}


def _pose(pose: Any) -> Labelled:
    return {**_axes("position", pose.position, "xyz"), **_axes("orientation", pose.orientation, "xyzw")}


def _twist(twist: Any) -> Labelled:
    return {**_axes("linear", twist.linear, "xyz"), **_axes("angular", twist.angular, "xyz")}


_VECTORS: Mapping[str, Callable[[Any], Labelled]] = MappingProxyType(
    {
        _JOINTS: _joints,
        "std_msgs/Float64MultiArray": _array,
        "std_msgs/Float32MultiArray": _array,
        "std_msgs/Float64": lambda message: {"data": message.data},
        "std_msgs/Float32": lambda message: {"data": message.data},
        "geometry_msgs/Pose": _pose,
        "geometry_msgs/PoseStamped": lambda message: _pose(message.pose),
        "geometry_msgs/Twist": _twist,
        "geometry_msgs/TwistStamped": lambda message: _twist(message.twist),
    }
)
"""Type of a message -> a function that returns its numbers (of a JointState, the positions)."""


@dataclass(frozen=True)
class _Topics:
    """The contents of `topics.json`; `None` for a key that it leaves out."""

    where: Path
    cameras: Mapping[str, str] | None = None
    state: Sequence[str] | None = None
    actions: Sequence[str] | None = None
    instruction: str = ""


@dataclass
class _Track:
    """The contents of a topic: its type, the time and place of each message, and the numbers of vectors."""

    kind: str
    schema: Any
    times: list[int] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)  # byte in the file, number in the chunk at it
    numbers: list[Labelled] = field(default_factory=list)
    coding: str = ""  # encoding of the first image


@dataclass(frozen=True)
class _Bag:
    """One episode, which is one file.

    Attributes:
        path: The file.
        cameras: Names of the cameras; the first sets the clock.
        schemas: For each camera, the definition of its messages.
        places: For each camera, the place of its image at each step: [T, 2].
        times: Nanoseconds, [T].
        vectors: State and actions, float64 [T, n]; left out if they have no topic.
        labels: The names of the numbers in `vectors`.
        instruction: The task in words.
        late: The largest age of a message when the image of its step was recorded, in seconds, and the message's topic.
        skipped: Number of images before the first message of another topic.
        unread: Topics of images and vectors that are not read -> the encoding or the type.
    """

    path: Path
    cameras: tuple[str, ...]
    schemas: tuple[Any, ...]
    places: tuple[Integers, ...]
    times: Integers
    vectors: Mapping[str, Array]
    labels: tuple[str, ...]
    instruction: str
    late: tuple[float, str]
    skipped: int
    unread: Mapping[str, str]


class McapStore(Reader):
    """Episodes of ROS 2 recordings, their images decoded on demand.

    - The first camera is the clock: each of its images is a step. From every other topic, the step takes the last
      message recorded up to the time of that image. Times are recording times (`log_time`), which come from one clock.
      Images before the first message of another topic are left out.
    - Without `topics.json`, cameras are all topics of colour images, the state is the one topic of joint states, and
      there are no actions. If there are several topics of joint states, `topics.json` must say which is the state,
      since one may be the action.
    - Joints are in the alphabetical order of their names, since their order in messages may change. Several topics are
      joined in the order of `topics.json`.

    Opening reads each file once. Chunks and their checksums are verified whenever they are read.

    Args:
        path: An .mcap file, a folder of them, or a folder of rosbag2's folders.
        on_bad_row: Called with the error of each file that cannot be used and is left out; by default the first error
            is raised.

    Raises:
        BadInputError: When a file is damaged, lacks a topic, or has other cameras or joints than the first file.
        MissingExtraError: When `mcap-ros2-support` is not installed.
    """

    def __init__(self, path: str | Path, *, on_bad_row: OnBadRow = raise_error) -> None:
        self.path = Path(path)
        import_extra("mcap_ros2.decoder", "mcap")
        self._bags = read_alike(mcap_files(self.path), self._read, on_bad_row, "cameras", "labels")
        self.cameras = self._bags[0].cameras if self._bags else ()
        self.episodes = tuple(EpisodeInfo(len(bag.times), bag.instruction, _rate(bag.times)) for bag in self._bags)
        self.names = self.files = [bag.path for bag in self._bags]
        self.identity = [bag.labels for bag in self._bags], self.cameras
        if self._bags:
            late, topic = max(bag.late for bag in self._bags)
            self.facts = {"oldest message of a step": f"{late:.3f} s before its image ({topic})"} if topic else {}
            self.facts |= {"names": ", ".join(self._bags[0].labels)} if self._bags[0].labels else {}
        skipped = sum(bag.skipped for bag in self._bags)
        others = {topic: coding for bag in reversed(self._bags) for topic, coding in bag.unread.items()}
        self.unread = tuple(topic for topic, coding in others.items() if _UNSEEN.search(coding))
        told = (f"{topic} ({coding})" for topic, coding in others.items())
        self.left_out = (*told, *([f"{skipped} images before other topics begin"] if skipped else []))

    def findings(self) -> Iterator[BadInputError]:
        """Yield the files whose first camera has uneven intervals, since training treats all steps as equally long.

        Also yield files in which a topic pauses while images go on, so that steps repeat an old message.
        """
        for bag in self._bags:
            steps = np.diff(bag.times) / _SECOND
            if len(steps) and bag.late[0] > max(1.0, 10 * float(np.median(steps))):
                found = f"{bag.late[1]} that is up to {bag.late[0]:.3g} s older than the image of its step"
                hint = "cut the recording where all topics go on (mcap filter), or leave the topic out of topics.json"
                yield BadInputError(bag.path, found, "messages of every topic throughout", hint)
            if len(steps) and (np.abs(steps / np.median(steps) - 1) > 0.5).mean() > 0.05:
                found = f"intervals of {steps.min():.3g} to {steps.max():.3g} s between images"
                hint = "leave it: every step keeps its own time; or record it again"
                yield BadInputError(bag.path, found, "even ones", hint)

    def read(self, episode: int, steps: Array, camera: str) -> Array:
        """Return the images, uint8 [N, H, W, 3]."""
        bag, number = self._bags[episode], self.cameras.index(camera)
        places = bag.places[number][steps].tolist()
        return stack_images((bag.path, _image(bag.path, bag.schemas[number], *place)) for place in places)

    def vectors(self, episode: int, name: str) -> Array | None:
        """Return the actions or the state, [T, n]; `None` if no topic is named for them."""
        return self._bags[episode].vectors.get(name)

    def timestamps(self, episode: int) -> Array:
        """Return the time of each step, float64 [T], in seconds since the first step."""
        times = self._bags[episode].times
        seconds: Array = (times - times[0]) / _SECOND
        return seconds

    def _read(self, path: Path) -> _Bag:
        parts = sorted(path.parent.glob("*.mcap"))
        whole = len(parts) < 2 or not (path.parent / "metadata.yaml").is_file()
        hint = f"join them: mcap merge {parts[0].name} ... -o whole.mcap, in a folder without metadata.yaml"
        require(whole, path, f"one of {len(parts)} parts of a recording", "a whole recording in one file", hint)
        return _bag(path, _topics(path, self.path))


def _rate(times: Integers) -> float:
    """Return the steps per second; 10 for a single step."""
    return float((len(times) - 1) * _SECOND / (times[-1] - times[0])) if len(times) > 1 else 10.0


def _topics(file: Path, root: Path) -> _Topics:
    """Return the content of `topics.json`, from the recording's folder or else from `root`; empty without that file."""
    path = next((each for each in (file.parent / ROS_TOPICS, root / ROS_TOPICS) if each.is_file()), None)
    if path is None:
        return _Topics(file.parent / ROS_TOPICS)
    with parsing(path, "a JSON object of topics", "see docs/data.md"):
        tree = dict(as_mapping(json.loads(read_bytes(path))))
        for key in tree:
            require_known(key, _SECTIONS, f"{path}, key", expected="some of {}")
        if "cameras" in tree:
            tree["cameras"] = {str(name): str(topic) for name, topic in as_mapping(tree["cameras"]).items()}
        for key in ("state", "actions"):
            if key in tree:
                tree[key] = [str(topic) for topic in as_list(tree[key])]
        return _Topics(path, **{**tree, "instruction": str(tree.get("instruction", "")).strip()})


# Records


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn the errors that a damaged file causes, also in the MCAP libraries, into `BadInputError`."""
    with parsing(path, _EXPECTED, _HINT):
        try:
            yield
        except Exception as error:
            if type(error).__module__.partition(".")[0] in ("mcap", "mcap_ros2", "zstandard"):
                raise ValueError(f"{type(error).__name__} {error}") from error
            raise


class _Bounded:
    """A file whose reads are cut at its end: a plain `read` allocates as much memory as a damaged length claims."""

    def __init__(self, file: Any) -> None:
        self._file, self._size = file, os.fstat(file.fileno()).st_size

    def read(self, length: int) -> bytes:
        """Return up to `length` bytes."""
        content: bytes = self._file.read(min(length, self._size - self._file.tell()))
        return content


def _groups(file: Any) -> Iterator[tuple[int, list[Any]]]:
    """Yield each record after the file's position, or all records of a chunk, with the byte at which they begin."""
    library = import_extra("mcap.stream_reader", "mcap")
    start = file.tell()
    stream = library.StreamReader(
        _Bounded(file), skip_magic=start > 0, emit_chunks=True, validate_crcs=True, record_size_limit=MOST_BYTES
    )
    start = start or library.MAGIC_SIZE
    for record in stream.records:
        group = [record]
        if isinstance(record, library.Chunk):
            packed = record.compression == "zstd"
            claimed = import_extra("zstandard", "mcap").frame_content_size(record.data) if packed else 0
            require_size(f"{file.name}, a chunk", max(record.uncompressed_size, claimed))
            group = library.breakup_chunk(record, validate_crc=True)
        yield start, group
        start = file.tell()


_cached: LRUCache[list[Any]] = LRUCache(limit=256 * 1024**2)
_decoders: LRUCache[Any] = LRUCache(limit=64)


def _group(path: Path, start: int) -> list[Any]:
    """Return the record, or the records of the chunk, that begins at a byte."""

    def read() -> tuple[list[Any], int]:
        with path.open("rb") as file:
            file.seek(start)
            _, group = next(_groups(file))
        return group, sum(len(getattr(record, "data", b"")) for record in group)

    return _cached.get((str(path), path.stat().st_mtime_ns, start), read)


def _decoded(schema: Any, message: Any) -> Any:
    """Return a message as an object with its fields."""

    def make() -> tuple[Any, int]:
        factory = import_extra("mcap_ros2.decoder", "mcap").DecoderFactory()
        return factory.decoder_for("cdr", schema), 1

    return _decoders.get((schema.name, schema.data), make)(message.data)


def _scan(path: Path, wanted: Callable[[str, str], bool]) -> dict[str, _Track]:
    """Return the contents of each topic; `wanted(topic, type)` says whether the messages of a topic are noted."""
    tracks: dict[str, _Track] = {}
    schemas: dict[int, Any] = {}
    channels: dict[int, str] = {}
    with path.open("rb") as file:
        for start, group in _groups(file):
            for number, record in enumerate(group):
                match type(record).__name__:
                    case "Schema":
                        schemas[record.id] = record
                    case "Channel":
                        channels[record.id] = record.topic
                        kind, schema = _kind(record, schemas.get(record.schema_id)), schemas.get(record.schema_id)
                        known = tracks.setdefault(record.topic, _Track(kind, schema)).kind
                        where, found = f"{path}, {record.topic}", f"messages of {known} and {kind}"
                        require(known == kind, where, found, "one type a topic", _HINT)
                    case "Message":
                        topic = channels[record.channel_id]
                        if wanted(topic, tracks[topic].kind):
                            _add(tracks[topic], record, (start, number))
    return tracks


def _kind(channel: Any, schema: Any) -> str:
    """Return the type of a channel's messages, such as `sensor_msgs/Image`, or their encoding if it is not ROS 2's."""
    if schema is None or (channel.message_encoding, schema.encoding) != ("cdr", "ros2msg"):
        return f"{channel.message_encoding or 'unknown'} messages"
    return _type(schema)


def _type(schema: Any) -> str:
    return str(schema.name).replace("/msg/", "/")


def _add(track: _Track, message: Any, place: tuple[int, int]) -> None:
    if track.kind in _VECTORS:
        track.numbers.append(_VECTORS[track.kind](_decoded(track.schema, message)))
    elif track.kind in _IMAGES and not track.times:
        first = _decoded(track.schema, message)
        track.coding = str(first.format if track.kind == _COMPRESSED else first.encoding)
    track.times.append(message.log_time)
    track.places.append(place)


def _image(path: Path, schema: Any, start: int, number: int) -> Array:
    """Return the image of a message: uint8 [H, W, 3]."""
    with _reading(path):
        image = _decoded(schema, _group(path, start)[number])
        if _type(schema) == _COMPRESSED:
            return decode_image(f"{path}, an image", image.data)
        places = _CHANNELS[image.encoding]
        require_size(f"{path}, an image", image.height * image.width, MOST_PIXELS)
        rows = np.frombuffer(image.data, np.uint8).reshape(image.height, image.step)
        pixels = rows[:, : image.width * len(places)].reshape(image.height, image.width, len(places))
        colours = pixels[..., places[:3]]
        return np.ascontiguousarray(np.broadcast_to(colours, (*colours.shape[:2], 3)))


# Episodes


def _bag(path: Path, asked: _Topics) -> _Bag:
    named = {*(asked.cameras or {}).values(), *(asked.state or ()), *(asked.actions or ())}

    def wanted(topic: str, kind: str) -> bool:
        by_type = (asked.cameras is None and kind in _IMAGES) or (asked.state is None and kind == _JOINTS)
        return topic in named or by_type

    with _reading(path):
        tracks = _scan(path, wanted)
        cameras = _cameras(path, asked, tracks)
        sources = {"state": _states(path, asked, tracks), "actions": list(asked.actions or ())}
        for topic in (topic for topics in sources.values() for topic in topics):
            _require_topic(asked.where, path, topic, tracks, _VECTORS)
        used = [*cameras.values(), *sources["state"], *sources["actions"]]
        orders = {topic: np.argsort(np.array(tracks[topic].times, np.int64), kind="stable") for topic in used}
        sorted_times = {topic: np.array(tracks[topic].times, np.int64)[order] for topic, order in orders.items()}
        clock = np.unique(sorted_times[used[0]])
        at = {topic: np.searchsorted(times, clock, "right") - 1 for topic, times in sorted_times.items()}
        skipped = int(max((rows < 0).sum() for rows in at.values()))
        last = max(used, key=lambda topic: sorted_times[topic][0])
        found, hint = f"{last}, which begins after the last image", f"leave it out of {asked.where.name}"
        require(skipped < len(clock), path, found, "messages of every topic while there are images", hint)
        clock, rows = clock[skipped:], {topic: orders[topic][each[skipped:]] for topic, each in at.items()}
        ages = [
            (float((clock - sorted_times[topic][at[topic][skipped:]]).max()) / _SECOND, topic) for topic in used[1:]
        ]
        vectors, labels = dict[str, Array](), list[str]()
        for name, topics in sources.items():
            parts = [_matrix(path, topic, tracks[topic].numbers) for topic in topics]
            if parts:
                vectors[name] = np.concatenate(
                    [values[rows[topic]] for topic, (values, _) in zip(topics, parts, strict=True)], axis=1
                )
                labels += [
                    f"{name}: {topic} {label}" for topic, (_, each) in zip(topics, parts, strict=True) for label in each
                ]
        seen = {
            topic for topic, track in tracks.items() if track.kind in (*_IMAGES, *_VECTORS) or "Video" in track.kind
        }
        others = sorted(seen - {*used})
        return _Bag(
            path,
            tuple(cameras),
            tuple(tracks[topic].schema for topic in cameras.values()),
            tuple(np.array(tracks[topic].places, np.int64)[rows[topic]] for topic in cameras.values()),
            clock,
            vectors,
            tuple(labels),
            asked.instruction,
            max(ages, default=(0.0, "")),
            skipped,
            {topic: tracks[topic].coding or tracks[topic].kind for topic in others},
        )


def _cameras(path: Path, asked: _Topics, tracks: Mapping[str, _Track]) -> dict[str, str]:
    """Return the topic of each camera, the one that sets the clock first."""
    for topic in (asked.cameras or {}).values():
        _require_topic(asked.where, path, topic, tracks, _IMAGES)
        coding = tracks[topic].coding
        require(
            _in_colour(coding),
            f"{path}, {topic}",
            f"images {coding!r}",
            f"one of {', '.join(_COLOURS)}",
            "name another topic",
        )
    seen = sorted(topic for topic, track in tracks.items() if track.kind in _IMAGES and _in_colour(track.coding))
    cameras = dict(asked.cameras or {topic.strip("/").replace("/", "_"): topic for topic in seen})
    found = ", ".join(f"{topic} ({track.kind})" for topic, track in sorted(tracks.items())) or "nothing"
    video = any(_UNSEEN.search(track.kind + track.coding) for track in tracks.values())
    hint = "write its video as images, or as an mp4 beside a manifest.csv, which is read without ROS" if video else ""
    where, expected = f"no colour images among its topics: {found}", f"{_COMPRESSED} or {_PLAIN}"
    require(cameras, path, where, expected, hint or "record a camera")
    return cameras


def _states(path: Path, asked: _Topics, tracks: Mapping[str, _Track]) -> list[str]:
    if asked.state is not None:
        return list(asked.state)
    joints = sorted(topic for topic, track in tracks.items() if track.kind == _JOINTS and track.times)
    hint = f'write {asked.where}: {{"state": ["{joints[0]}"]}}, and what is commanded under "actions"' if joints else ""
    require(len(joints) < 2, path, f"several topics of joint states: {', '.join(joints)}", "one, or a choice", hint)
    return joints


def _require_topic(where: Path, path: Path, topic: str, tracks: Mapping[str, _Track], kinds: Collection[str]) -> None:
    """Raise a `BadInputError` unless the file has messages of one of the types `kinds` under a topic."""
    there = {name: track.kind for name, track in tracks.items()}
    require_known(topic, there, where, expected=f"a topic of {path.name}: {{}}")
    found, expected = f"{topic} of {there[topic]}", ", ".join(kinds)
    require(there[topic] in kinds, where, found, f"a topic of one of {expected}", "name another topic, or leave it out")
    require(tracks[topic].times, path, f"no message of {topic}", "one or more", f"leave it out of {where.name}")


def _in_colour(coding: str) -> bool:
    return coding.partition(";")[0].strip() in _COLOURS and "compressedDepth" not in coding


def _matrix(path: Path, topic: str, rows: Sequence[Labelled]) -> tuple[Array, list[str]]:
    """Return the numbers of all messages, [n, labels], and the labels."""
    labels = list(rows[0])
    other = next((list(row) for row in rows if row.keys() != rows[0].keys()), labels)
    hint = "name a topic on which one robot alone is recorded"
    require(
        other == labels, f"{path}, {topic}", f"numbers of {other} among {labels}", "the same names throughout", hint
    )
    return np.array([[row[label] for label in labels] for row in rows], np.float64), labels
