"""RLDS data sets as TensorFlow Datasets writes them, made by the rules of protobuf and of TFRecord."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from counterpoint.data.episode import Array
from counterpoint.formats.rlds.records import masked_crc

Value = Sequence[bytes] | Array
Node = Mapping[str, Any]


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative numbers take ten bytes
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def part(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def encoded(value: Value, *, packed: bool = True) -> bytes:
    """A `tf.train.Feature`."""
    if not isinstance(value, np.ndarray):
        return part(1, b"".join(part(1, item) for item in value))
    flat = value.reshape(-1)
    if value.dtype.kind == "f":
        numbers, kind, key = [struct.pack("<f", number) for number in flat], 2, varint(1 << 3 | 5)
    else:
        numbers, kind, key = [varint(int(number)) for number in flat], 3, varint(1 << 3)
    return part(kind, part(1, b"".join(numbers)) if packed else b"".join(key + number for number in numbers))


def example(features: Mapping[str, Value], *, packed: bool = True) -> bytes:
    """A `tf.train.Example`."""
    entries = (part(1, name.encode()) + part(2, encoded(value, packed=packed)) for name, value in features.items())
    return part(1, b"".join(part(1, entry) for entry in entries))


def write_records(path: Path, records: Iterable[bytes]) -> None:
    with path.open("wb") as file:
        for data in records:
            length = struct.pack("<Q", len(data))
            file.write(length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data)))


def tensor(dtype: str, *shape: int) -> Node:
    size = {"dimensions": [str(length) for length in shape]} if shape else {}
    return {"pythonClassName": "tfds.Tensor", "tensor": {"shape": size, "dtype": dtype, "encoding": "none"}}


def image(size: int = 16, channels: int = 3, dtype: str = "uint8") -> Node:
    shape = {"dimensions": [str(size), str(size), str(channels)]}
    return {"pythonClassName": "tfds.Image", "image": {"shape": shape, "dtype": dtype, "encodingFormat": "png"}}


def text() -> Node:
    return {"pythonClassName": "tfds.Text", "text": {}}


def nested(**features: Node) -> Node:
    return {"pythonClassName": "tfds.FeaturesDict", "featuresDict": {"features": features}}


def dataset(steps: Node) -> Node:
    return {"pythonClassName": "tfds.Dataset", "sequence": {"feature": steps, "length": "-1"}}


def picture(frame: Array, kind: str = "png") -> bytes:
    out = io.BytesIO()
    Image.fromarray(frame).save(out, kind)
    return out.getvalue()


@dataclass
class Made:
    """An episode, and its record's features."""

    frames: Array
    actions: Array
    state: Array
    instruction: str
    features: dict[str, Value] = field(default_factory=dict)


def made_episode(length: int, seed: int, instruction: str = "put the carrot on the plate") -> Made:
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, 256, (length, 16, 16, 3), dtype=np.uint8)
    actions, state = (rng.normal(size=(length, n)).astype(np.float32) for n in (7, 5))
    last = np.arange(length) == length - 1
    features: dict[str, Value] = {
        "steps/action": actions,
        "steps/is_first": np.arange(length) == 0,
        "steps/is_last": last,
        "steps/reward": last.astype(np.float32),
        "steps/language_instruction": [instruction.encode()] * length,
        "steps/language_embedding": rng.normal(size=(length, 8)).astype(np.float32),
        "steps/observation/image_0": [picture(frame) for frame in frames],
        "steps/observation/image_1": [picture(np.zeros((16, 16, 3), np.uint8))] * length,
        "steps/observation/wrist_image": [picture(255 - frame) for frame in frames],
        "steps/observation/depth": [picture(frame[..., 0]) for frame in frames],
        "steps/observation/state": state,
        "episode_metadata/file_path": [f"episode_{seed}.npy".encode()],
    }
    return Made(frames, actions, state, instruction, features)


FEATURES = nested(
    steps=dataset(
        nested(
            action=tensor("float32", 7),
            is_first=tensor("bool"),
            is_last=tensor("bool"),
            reward=tensor("float32"),
            language_instruction=text(),
            language_embedding=tensor("float32", 8),
            observation=nested(
                image_0=image(),
                image_1=image(),
                wrist_image=image(),
                depth=image(channels=1),
                state=tensor("float32", 5),
            ),
        )
    ),
    episode_metadata=nested(file_path=text()),
)


def write_rlds(
    root: Path,
    splits: Mapping[str, Sequence[Sequence[Made]]] | None = None,
    *,
    features: Node = FEATURES,
    absent: Sequence[str] = ("val",),
) -> Path:
    """Write shards of episodes by split, and name the splits `absent` without writing their files."""
    splits = splits or {"train": [[made_episode(4, 0), made_episode(6, 1)], [made_episode(3, 2, "open the drawer")]]}
    root.mkdir(parents=True)
    for split, shards in splits.items():
        for number, shard in enumerate(shards):
            name = f"toys-{split}.tfrecord-{number:05d}-of-{len(shards):05d}"
            write_records(root / name, (example(episode.features) for episode in shard))
    known = {split: [str(len(shard)) for shard in shards] for split, shards in splits.items()}
    template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    info = {
        "name": "toys",
        "fileFormat": "tfrecord",
        "splits": [
            {"name": name, "shardLengths": lengths, "filepathTemplate": template}
            for name, lengths in {**known, **{name: ["2"] for name in absent}}.items()
        ],
        "version": "1.0.0",
    }
    (root / "dataset_info.json").write_text(json.dumps(info))
    (root / "features.json").write_text(json.dumps(features))
    return root
