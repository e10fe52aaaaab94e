from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from counterpoint.cli.data.convert import convert
from counterpoint.cli.data.doctor import doctor
from counterpoint.cli.data.info import info
from counterpoint.data.episode import Array
from counterpoint.errors import BadInputError, MissingExtraError
from counterpoint.formats import mcap, open_dataset, recognise
from counterpoint.formats.mcap import McapStore
from tests.data.reading import read_episode

BREAK = "\n" + "=" * 80 + "\nMSG: "
HEADER = f"{BREAK}std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id"
POINT, TURN = "float64 x\nfloat64 y\nfloat64 z", "float64 x\nfloat64 y\nfloat64 z\nfloat64 w"
VECTOR = f"{BREAK}geometry_msgs/Vector3\n{POINT}"
TYPES = {
    "sensor_msgs/msg/CompressedImage": f"std_msgs/Header header\nstring format\nuint8[] data{HEADER}",
    "sensor_msgs/msg/Image": "std_msgs/Header header\nuint32 height\nuint32 width\nstring encoding\n"
    f"uint8 is_bigendian\nuint32 step\nuint8[] data{HEADER}",
    "sensor_msgs/msg/JointState": "std_msgs/Header header\nstring[] name\nfloat64[] position\nfloat64[] velocity\n"
    f"float64[] effort{HEADER}",
    "std_msgs/msg/Float64MultiArray": "std_msgs/MultiArrayLayout layout\nfloat64[] data"
    f"{BREAK}std_msgs/MultiArrayLayout\nstd_msgs/MultiArrayDimension[] dim\nuint32 data_offset"
    f"{BREAK}std_msgs/MultiArrayDimension\nstring label\nuint32 size\nuint32 stride",
    "std_msgs/msg/Float32": "float32 data",
    "std_msgs/msg/String": "string data",
    "geometry_msgs/msg/Twist": f"geometry_msgs/Vector3 linear\ngeometry_msgs/Vector3 angular{VECTOR}",
    "geometry_msgs/msg/PoseStamped": "std_msgs/Header header\ngeometry_msgs/Pose pose"
    f"{HEADER}{BREAK}geometry_msgs/Pose\ngeometry_msgs/Point position\ngeometry_msgs/Quaternion orientation"
    f"{BREAK}geometry_msgs/Point\n{POINT}{BREAK}geometry_msgs/Quaternion\n{TURN}",
}
"""Type of a message -> its definition, as rosbag2 records it."""
START = 1_700_000_000_000_000_000
Message = tuple[float, str, str, Mapping[str, Any]]
"""Seconds, topic, type and content."""


def picture(step: int, shade: int = 0) -> Array:
    return np.full((24, 32, 3), (40 * step + shade, 100, 200), np.uint8)


def compressed(step: int, shade: int = 0, **changed: Any) -> Mapping[str, Any]:
    data = io.BytesIO()
    Image.fromarray(picture(step, shade)).save(data, "png")
    return {"format": "rgb8; png compressed bgr8", "data": data.getvalue(), **changed}


def plain(step: int, encoding: str = "bgr8", padding: int = 0) -> Mapping[str, Any]:
    order = {"bgr8": [2, 1, 0], "rgb8": [0, 1, 2], "rgba8": [0, 1, 2, 2], "bgra8": [2, 1, 0, 0], "mono8": [0]}[encoding]
    rows = np.pad(picture(step)[..., order].reshape(24, -1), ((0, 0), (0, padding)))
    about = {"height": 24, "width": 32, "encoding": encoding, "step": rows.shape[1]}
    return {**about, "data": rows.tobytes()}


def joints(position: Sequence[float], names: Sequence[str] = ("wrist", "elbow")) -> Mapping[str, Any]:
    return {"name": list(names), "position": list(position)}


def images(topic: str = "/front/compressed", count: int = 5, **changed: Any) -> list[Message]:
    return [(step / 10, topic, "sensor_msgs/msg/CompressedImage", compressed(step, **changed)) for step in range(count)]


def states(topic: str = "/joint_states", shift: float = -0.01, **of: Any) -> list[Message]:
    """Every 20 ms, from `shift` seconds on: the wrist is at the number of the message, the elbow at its negative."""
    kind = "sensor_msgs/msg/JointState"
    return [(at / 50 + shift, topic, kind, joints((at, -at), **of)) for at in range(25)]


def write_bag(path: Path, messages: Sequence[Message], topics: Mapping[str, Any] | None = None, **of: Any) -> Path:
    """Write messages in the order of their times, and `topics.json` beside them; return the file."""
    from mcap_ros2.writer import Writer

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file, Writer(file, chunk_size=2000, **of) as writer:
        known = {kind: writer.register_msgdef(kind, TYPES[kind]) for kind in sorted({kind for *_, kind, _ in messages})}
        for time, topic, kind, content in sorted(messages, key=lambda message: message[0]):
            writer.write_message(topic, known[kind], dict(content), log_time=START + round(time * 1e9))
    if topics is not None:
        (path.parent / "topics.json").write_text(json.dumps(topics))
    return path


TOPICS = {
    "cameras": {"front": "/front/compressed", "wrist": "/wrist/image_raw"},
    "state": ["/joint_states"],
    "actions": ["/command", "/gripper"],
    "instruction": "stack the cups",
}


def write_recordings(root: Path) -> Path:
    """Two episodes with two cameras, joint states, a command and a gripper, and `topics.json`; returns `root`."""
    for number in range(2):
        wrist = [(s / 20, "/wrist/image_raw", "sensor_msgs/msg/Image", plain(s // 2)) for s in range(9)]
        command = [(s / 25 - 0.02, "/command", "std_msgs/msg/Float64MultiArray", {"data": [s, 9]}) for s in range(12)]
        gripper = [(-0.03, "/gripper", "std_msgs/msg/Float32", {"data": 0.5})]
        said = [(0.0, "/notes", "std_msgs/msg/String", {"data": "hello"})]
        every = [*images(count=4 + number), *wrist, *states(), *command, *gripper, *said]
        write_bag(root / f"{number}.mcap", every, TOPICS)
    return root


pytestmark = pytest.mark.usefixtures("_installed")


@pytest.fixture
def _installed() -> None:
    pytest.importorskip("mcap_ros2")


def test_images_are_the_clock_and_all_else_is_the_last_message_before_them(tmp_path: Path) -> None:
    root = write_recordings(tmp_path / "bags")
    assert recognise(root).name == "mcap"
    store = open_dataset(root)
    assert isinstance(store, McapStore)
    assert [(e.length, e.instruction, round(e.fps, 6)) for e in store.episodes] == [
        (4, "stack the cups", 10.0), (5, "stack the cups", 10.0)]  # fmt: skip
    assert store.cameras == ("front", "wrist")
    episode = read_episode(store, 1)
    np.testing.assert_array_equal(episode.frames["front"], np.stack([picture(step) for step in range(5)]))
    np.testing.assert_array_equal(episode.frames["wrist"], np.stack([picture(step) for step in range(5)]))
    np.testing.assert_allclose(episode.timestamps, np.arange(5) / 10)
    # Joint states come at 10 ms before every fifth of an interval: the last by the image at 0.1 s is that of 0.09 s.
    np.testing.assert_array_equal(episode.state, [[-5 * t, 5 * t] for t in range(5)])  # elbow, wrist
    np.testing.assert_array_equal(episode.actions, [[a, 9, 0.5] for a in (0, 3, 5, 8, 10)])


def test_a_file_alone_is_read_by_types(tmp_path: Path) -> None:
    file = write_bag(tmp_path / "a.mcap", [*images("/b/image/compressed"), *images("/a", shade=9), *states()])
    store = open_dataset(file)
    assert store.cameras == ("a", "b_image_compressed")
    assert store.actions(0) is None
    state = store.state(0)
    assert state is not None
    assert state.shape == (5, 2)
    assert store.episodes[0].instruction == ""
    folders = tmp_path / "bags" / "rosbag2_2024"
    write_bag(folders / "rosbag2_2024_0.mcap", [*images(), *states()])
    (folders / "metadata.yaml").write_text("rosbag2_bagfile_information:\n")
    assert len(open_dataset(tmp_path / "bags").episodes) == 1
    write_bag(folders / "rosbag2_2024_1.mcap", images())
    with pytest.raises(BadInputError, match=r"one of 2 parts of a recording.*mcap merge"):
        open_dataset(tmp_path / "bags")


@pytest.mark.parametrize("compression", ["zstd", "lz4", "none"])
@pytest.mark.parametrize("chunked", [True, False])
def test_every_way_to_store_messages(tmp_path: Path, compression: str, chunked: bool) -> None:
    from mcap.writer import CompressionType

    kind = {"zstd": CompressionType.ZSTD, "lz4": CompressionType.LZ4, "none": CompressionType.NONE}[compression]
    file = write_bag(tmp_path / "a.mcap", [*images(count=9, shade=1), *states()], compression=kind)
    if not chunked:
        file = unchunked(file, tmp_path / "b.mcap")
    store = open_dataset(file)
    seen = store.frames(0, np.array([8, 2, 5]))
    np.testing.assert_array_equal(seen[0, 0, 0], (40 * 8 + 1 - 256, 100, 200))
    np.testing.assert_array_equal(seen[:, 0, 0, 0], [65, 81, 201])


def unchunked(file: Path, out: Path) -> Path:
    """Write the messages of a file without chunks and index."""
    from mcap.reader import make_reader
    from mcap.writer import Writer

    with file.open("rb") as source, out.open("wb") as target:
        writer = Writer(target, use_chunking=False, enable_data_crcs=True)
        writer.start()
        channels: dict[int, int] = {}
        for schema, channel, message in make_reader(source).iter_messages():
            assert schema is not None
            if channel.id not in channels:
                kind = writer.register_schema(schema.name, schema.encoding, schema.data)
                channels[channel.id] = writer.register_channel(channel.topic, channel.message_encoding, kind)
            writer.add_message(channels[channel.id], message.log_time, message.data, message.publish_time)
        writer.finish()
    return out


@pytest.mark.parametrize("encoding", ["rgb8", "bgr8", "rgba8", "bgra8", "mono8"])
def test_encodings_of_images(tmp_path: Path, encoding: str) -> None:
    content = plain(2, encoding, padding=5)
    file = write_bag(tmp_path / "a.mcap", [(0, "/a", "sensor_msgs/msg/Image", content)])
    expected = np.full((24, 32, 3), 80, np.uint8) if encoding == "mono8" else picture(2)
    np.testing.assert_array_equal(open_dataset(file).frames(0, np.array([0]))[0], expected)


def test_depth_is_left_out_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    depth = images("/depth", format="16UC1; compressedDepth png")
    root = write_bag(tmp_path / "0.mcap", [*images(), *states(shift=0.15), *depth, *images("/side")])
    for topics, other in ((None, "/depth (16UC1; compressedDepth png)"), ({"cameras": {"a": "/side"}}, "/front")):
        if topics:
            (tmp_path / "topics.json").write_text(json.dumps(topics))
        info(root)
        told = " ".join(capsys.readouterr().out.split())
        for fact in (other, "2 images before other topics begin", "elbow", "s before its"):
            assert fact in told
        assert McapStore(root).unread == (() if topics else ("/depth",))


def test_vectors_of_other_types(tmp_path: Path) -> None:
    twist = {"linear": {"x": 1, "y": 2, "z": 3}, "angular": {"x": 4, "y": 5, "z": 6}}
    pose = {"pose": {"position": {"x": 1, "y": 2, "z": 3}, "orientation": {"x": 0, "y": 0, "z": 0, "w": 1}}}
    sent: list[Message] = [
        (0, "/t", "geometry_msgs/msg/Twist", twist),
        (0, "/p", "geometry_msgs/msg/PoseStamped", pose),
    ]
    file = write_bag(tmp_path / "a.mcap", [*sent, *images()], {"state": ["/p"], "actions": ["/t"]})
    store = open_dataset(file)
    np.testing.assert_array_equal(store.actions(0), [[1, 2, 3, 4, 5, 6]] * 5)
    np.testing.assert_array_equal(store.state(0), [[1, 2, 3, 0, 0, 0, 1]] * 5)


def test_joints_may_change_their_order(tmp_path: Path) -> None:
    kind = "sensor_msgs/msg/JointState"
    sent: list[Message] = [(0, "/j", kind, joints((1, 2), ("b", "a"))), (0.15, "/j", kind, joints((4, 3), ("a", "b")))]
    store = open_dataset(write_bag(tmp_path / "a.mcap", [*images(), *sent]))
    np.testing.assert_array_equal(store.state(0), [[2, 1]] * 2 + [[4, 3]] * 3)


@pytest.mark.parametrize(
    ("messages", "topics", "words"),
    [
        (states(), None, "no colour images among its topics: /joint_states"),
        ([*images(), *states(), *states("/leader")], None, 'several topics of joint states: .*"state"'),
        (images(), {"state": ["/joints"]}, "'/joints'"),
        (images(), {"state": ["/front/compressed"]}, "/front/compressed of sensor_msgs/CompressedImage"),
        (images(), {"cameras": {"front": "/front"}}, "'/front'; expected a topic of a.mcap: /front/compressed"),
        (images(format="16UC1; png compressed"), {"cameras": {"a": "/front/compressed"}}, "images '16UC1"),
        (images(), {"camera": {}}, "did you mean 'cameras'"),
        (images(), {"state": "/joints"}, "a JSON object of topics"),
        ([*images(), *states(shift=5)], None, "which begins after the last image"),
        ([*images(), *states(), *states(names=("a", "b"))], None, "the same names throughout"),
        ([*images(), *states(names=("a", "b", "c"))], None, "joint states of 3 names and 2 positions"),
    ],
)
def test_what_cannot_be_used_is_refused(
    tmp_path: Path, messages: list[Message], topics: Mapping[str, Any] | None, words: str
) -> None:
    file = write_bag(tmp_path / "a.mcap", messages, topics)
    with pytest.raises(BadInputError, match=words):
        open_dataset(file)
    told: list[BadInputError] = []
    assert not open_dataset(file, on_bad_row=told.append).episodes
    assert len(told) == 1


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _flipped(data: bytes) -> bytes:
    at = len(data) // 3
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("change", [_cut, _flipped, lambda data: b"", lambda data: b"x" * 99])
def test_damage_is_one_message(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    file = write_bag(tmp_path / "a.mcap", [*images(), *states()])
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(BadInputError, match="mcap recover"):
        open_dataset(file)


def test_checksums_of_messages_outside_of_chunks_are_verified(tmp_path: Path) -> None:
    file = unchunked(write_bag(tmp_path / "a.mcap", [*images(), *states()]), tmp_path / "b.mcap")
    data = file.read_bytes()
    at = data.index(b"IDAT") + 8
    file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(BadInputError, match="crc validation failed"):
        open_dataset(file)


def test_a_length_beyond_the_file_takes_no_memory(tmp_path: Path) -> None:
    file = write_bag(tmp_path / "a.mcap", images())
    asked: list[int] = []

    class Source:
        def fileno(self) -> int:
            return opened.fileno()

        def tell(self) -> int:
            return opened.tell()

        def read(self, length: int) -> bytes:
            asked.append(length)
            return opened.read(length)

    with file.open("rb") as opened:
        mcap._Bounded(Source()).read(1 << 40)
    assert asked == [file.stat().st_size]


def test_joints_of_files_must_agree(tmp_path: Path) -> None:
    write_bag(tmp_path / "a.mcap", [*images(), *states()])
    write_bag(tmp_path / "b.mcap", [*images(), *states(names=("elbow", "hand"))])
    with pytest.raises(BadInputError, match=r"as in a.mcap"):
        open_dataset(tmp_path)


def test_a_missing_extra_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_bag(tmp_path / "a.mcap", images())
    monkeypatch.setitem(__import__("sys").modules, "mcap_ros2.decoder", None)
    with pytest.raises(MissingExtraError, match=r"\[mcap\]"):
        open_dataset(file)


def test_info_doctor_convert_and_other_processes(tmp_path: Path) -> None:
    root = write_recordings(tmp_path / "bags")
    assert doctor(root) == 0
    store = open_dataset(root)
    again = pickle.loads(pickle.dumps(store))
    np.testing.assert_array_equal(again.frames(1, np.array([3]), "wrist"), store.frames(1, np.array([3]), "wrist"))
    written = open_dataset(convert(root, tmp_path / "out"))
    np.testing.assert_array_equal(written.actions(1), store.actions(1))
    uneven = [(at, *sent[1:]) for at, sent in zip((0, 0.1, 0.2, 0.6, 0.7), images(), strict=True)]
    assert doctor(write_bag(tmp_path / "uneven.mcap", uneven)) == 2


def test_messages_of_one_time_and_out_of_order_count_by_time(tmp_path: Path) -> None:
    assert mcap._rate(np.array([5])) == 10.0
    twice = [*images(count=3), (0.1, "/front/compressed", "sensor_msgs/msg/CompressedImage", compressed(5))]
    store = open_dataset(write_bag(tmp_path / "a.mcap", twice))
    np.testing.assert_array_equal(store.frames(0, np.arange(3))[:, 0, 0, 0], [0, 200, 80])  # the later one at 0.1 s


def test_video_that_is_not_read_and_topics_that_pause_are_told(tmp_path: Path) -> None:
    h264 = images("/video", format="h264")
    alone = write_bag(tmp_path / "video.mcap", [*h264, *states()])
    with pytest.raises(BadInputError, match="write its video as images, or as an mp4"):
        open_dataset(alone)
    store = open_dataset(write_bag(tmp_path / "both.mcap", [*h264, *images(count=40), *states()]))
    assert isinstance(store, McapStore)
    assert store.unread == ("/video",)
    (found,) = store.findings()
    assert found.found == "/joint_states that is up to 3.43 s older than the image of its step"
