from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from counterpoint.data.episode import Array
from counterpoint.errors import BadInputError
from counterpoint.formats.rlds.records import masked_crc, parse_example, read_record, record_spans, values_of
from tests.formats.rlds.made import Value, example, write_records


def numbers(dtype: str) -> Array:
    if dtype == "float32":
        return np.array([0, -1.5, 3e38, 1e-30], np.float32)
    return np.array([0, 1, 127, 128, 300, 2**31, 2**63 - 1, -1, -(2**63)], np.int64)


@pytest.mark.parametrize("packed", [True, False])
def test_every_kind_of_feature_comes_back(packed: bool) -> None:
    features: dict[str, Value] = {
        "a/b": numbers("float32"),
        "n": numbers("int64"),
        "ö": [b"", b"x" * 300],
        "none": np.array([], int),
    }
    found = parse_example(memoryview(example(features, packed=packed)))
    assert found.keys() == features.keys()
    for name in ("a/b", "n"):
        np.testing.assert_array_equal(values_of(found[name]), features[name])
    assert [bytes(value) for value in values_of(found["ö"])] == features["ö"]
    assert len(values_of(found["none"])) == 0


def test_protobuf_reads_the_same() -> None:
    """The bytes that these tests write mean to Google's library what they mean to us."""
    protobuf = pytest.importorskip("google.protobuf", reason="protobuf is not installed")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    assert protobuf.__version__
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")
    kinds = {"BytesList": (12, 3), "FloatList": (2, 3), "Int64List": (3, 3)}
    for name, (kind, label) in kinds.items():
        file.message_type.add(name=name).field.add(name="value", number=1, type=kind, label=label)
    feature = file.message_type.add(name="Feature")
    for number, name in enumerate(kinds, 1):
        feature.field.add(name=name, number=number, type=11, label=1, type_name=f".t.{name}")
    entry = file.message_type.add(name="Entry")  # a map is a list of entries
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=11, label=1, type_name=".t.Feature")
    features = file.message_type.add(name="Features")
    features.field.add(name="feature", number=1, type=11, label=3, type_name=".t.Entry")
    whole = file.message_type.add(name="Example")
    whole.field.add(name="features", number=1, type=11, label=1, type_name=".t.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Example"))()
    message.features.feature.add(key="f").value.FloatList.value.extend([0.5, -2.0])
    message.features.feature.add(key="n").value.Int64List.value.extend([-3, 2**40])
    message.features.feature.add(key="b").value.BytesList.value.extend([b"one", b"two"])
    theirs = message.SerializeToString()
    found = parse_example(memoryview(theirs))
    np.testing.assert_array_equal(values_of(found["f"]), np.array([0.5, -2], np.float32))
    np.testing.assert_array_equal(values_of(found["n"]), [-3, 2**40])
    assert [bytes(value) for value in values_of(found["b"])] == [b"one", b"two"]
    ours = example({"f": np.array([0.5, -2.0], np.float32), "n": np.array([-3, 2**40]), "b": [b"one", b"two"]})
    message.ParseFromString(ours)
    assert message.SerializeToString() == theirs


def test_tensorboard_writes_what_is_read(tmp_path: Path) -> None:
    writer = pytest.importorskip("tensorboard.summary.writer.record_writer", reason="needs the extra `track`")
    records = [b"", b"one", bytes(range(256)) * 40]
    with (tmp_path / "theirs").open("wb") as file:
        record_writer = writer.RecordWriter(file)
        for data in records:
            record_writer.write(data)
        record_writer.flush()
        theirs = (tmp_path / "theirs").read_bytes()
    write_records(tmp_path / "ours", records)
    assert (tmp_path / "ours").read_bytes() == theirs
    path = tmp_path / "ours"
    assert [read_record(path, "here", *span) for span in record_spans(path)] == records


def test_checksum_of_the_standard() -> None:
    crc = 0xE3069283  # CRC-32C of "123456789" (RFC 3720's polynomial; the check value of every catalogue of CRCs)
    assert masked_crc(b"123456789") == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) % 2**32


@pytest.mark.parametrize(("place", "found"), [(0, "a length that fails its checksum"), (9, "a length that fails")])
def test_a_damaged_length_is_refused(tmp_path: Path, place: int, found: str) -> None:
    path = tmp_path / "a.tfrecord"
    write_records(path, [b"one", b"two"])
    data = bytearray(path.read_bytes())
    data[19 + place] ^= 1  # of the second record
    path.write_bytes(data)
    spans = record_spans(path)
    assert next(spans) == (12, 3)
    with pytest.raises(BadInputError, match=f"record 1: found {found}"):
        next(spans)


@pytest.mark.parametrize("cut", [1, 4, 8, 15])
def test_a_file_that_is_cut_short_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.tfrecord"
    write_records(path, [b"one", b"two"])
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(BadInputError, match="record 1"):
        list(record_spans(path))


def test_damaged_data_fail_their_checksum(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    write_records(path, [b"one"])
    path.write_bytes(path.read_bytes().replace(b"one", b"onf"))
    (span,) = record_spans(path)
    with pytest.raises(BadInputError, match="checksum"):
        read_record(path, "here", *span)


@pytest.mark.parametrize(
    "data", [b"\x0a\x05abc", b"\x0a\xff", b"\x0f", b"\x0a\x02\x0a\x05", b"\x80" * 11, struct.pack("<B", 0x09)]
)
def test_no_message_is_an_error_and_no_crash(data: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        parse_example(memoryview(data))
