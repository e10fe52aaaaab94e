from __future__ import annotations

import multiprocessing
import os
import pickle
import struct
import threading
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from counterpoint.data.episode import Array
from counterpoint.errors import BadInputError
from counterpoint.formats import remote
from counterpoint.formats.remote import Part
from counterpoint.formats.video import (
    Codec,
    decoders,
    encode_video,
    frame_times,
    has_uneven_rate,
    probe_video,
    read_frames,
    remux,
)
from tests.formats.made import smooth_frames, write_variable_rate


@pytest.fixture
def video(tmp_path: Path) -> Path:
    path = tmp_path / "video.mp4"
    encode_video(path, smooth_frames(30, 32, 48), 10)
    return path


def long_gop(path: Path, count: int = 40, b_frames: int = 3, **options: str) -> Path:
    """As other people's files are: B-frames, and a keyframe every 12 frames."""
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream("libx264", rate=25, options={"g": "12", "bf": str(b_frames)})
        stream.height, stream.width, stream.pix_fmt = 32, 48, "yuv420p"
        for frame in smooth_frames(count, 32, 48):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("kind", ["libx264", "libsvtav1", "long gop", "variable"])
def test_a_video_inside_a_file_reads_as_one_of_its_own(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "video.mp4"
    match kind:
        case "long gop":
            long_gop(path)
        case "variable":
            write_variable_rate(path)
        case "libx264" | "libsvtav1":
            encode_video(path, smooth_frames(30, 64, 80), 10, codec=kind)
    (tmp_path / "whole.bin").write_bytes(b"before" + path.read_bytes() + b"after")
    part = Part(tmp_path / "whole.bin", 6, path.stat().st_size, "the video")
    assert probe_video(part) == probe_video(path)
    np.testing.assert_allclose(frame_times(part), frame_times(path))
    steps = np.array([20, 3, 4, 27, 0])
    np.testing.assert_array_equal(read_frames(part, steps), read_frames(path, steps))
    with pytest.raises(BadInputError, match=r"whole.bin, the video"):
        read_frames(part, [100])


@pytest.mark.skipif(int(av.__version__.partition(".")[0]) < 17, reason="this av tells no index of a container")
def test_few_bytes_of_a_long_video_inside_a_file_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    encode_video(tmp_path / "video.mp4", (rng.integers(0, 256, (96, 128, 3), np.uint8) for _ in range(250)), 10)
    part, read = Part(tmp_path / "video.mp4", 0, (tmp_path / "video.mp4").stat().st_size, "the video"), list[int]()
    plain = remote.read_ranges

    def counted(path: Path, ranges: Any) -> list[bytes]:
        read.extend(size for _, size in ranges)
        return plain(path, ranges)

    monkeypatch.setattr(remote, "read_ranges", counted)
    read_frames(part, [200])
    assert part.size > 3e6
    assert sum(read) < part.size / 2


def decoded_in_order(path: Path) -> list[Array]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


@pytest.mark.parametrize(
    ("codec", "height", "width"),
    [("libx264", 32, 48), ("libx264", 33, 47), ("libx264", 1, 1), ("libsvtav1", 64, 80), ("libsvtav1", 65, 71)],
)
def test_frames_come_back_with_their_size_and_number(tmp_path: Path, codec: Codec, height: int, width: int) -> None:
    frames = smooth_frames(9, height, width)
    encode_video(tmp_path / "v.mp4", frames, 10, codec=codec)
    info = probe_video(tmp_path / "v.mp4")
    assert (info.frames, info.fps, info.height, info.width) == (9, 10.0, height, width)
    back = read_frames(tmp_path / "v.mp4", range(9))
    assert back.dtype == np.uint8
    assert back.shape == frames.shape
    assert np.abs(back.astype(float) - frames).mean() < 6  # colour is kept at half resolution


def test_each_frame_is_nearest_to_its_original(video: Path) -> None:
    frames = smooth_frames(30, 32, 48).astype(float)
    for number in (0, 1, 13, 28, 29):
        back = read_frames(video, [number])[0]
        assert np.abs(frames - back).mean((1, 2, 3)).argmin() == number


@pytest.mark.parametrize("indices", [[29, 0, 7], [5, 5, 5], [3, 2], [0, 1, 2, 3], [12, 25, 13, 0], []])
def test_any_order_with_repeats_equals_reading_in_order(video: Path, indices: list[int]) -> None:
    whole = np.stack(decoded_in_order(video))
    np.testing.assert_array_equal(read_frames(video, indices), whole[np.array(indices, dtype=np.int64)])


@pytest.mark.parametrize("ending", ["mp4", "mkv"])  # Matroska has no decoding times
def test_random_access_is_exact_with_b_frames_and_long_groups(ending: str, tmp_path: Path) -> None:
    path = long_gop(tmp_path / f"long.{ending}")
    whole = np.stack(decoded_in_order(path))
    rng = np.random.default_rng(0)
    for _ in range(40):
        indices = rng.integers(0, 40, size=rng.integers(1, 6))
        np.testing.assert_array_equal(read_frames(path, indices), whole[indices])


@pytest.mark.parametrize("ending", ["mkv", "mov", "avi"])
def test_other_containers(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"v.{ending}"
    encode_video(path, smooth_frames(12, 32, 48), 10)
    whole = np.stack(decoded_in_order(path))
    np.testing.assert_array_equal(read_frames(path, [11, 4, 5, 0]), whole[[11, 4, 5, 0]])


def test_random_access_is_exact_where_a_seek_changes_the_times(tmp_path: Path) -> None:
    path = tmp_path / "camera.mpg"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg2video", rate=25, options={"g": "12"})
        stream.height, stream.width, stream.pix_fmt = 64, 96, "yuv420p"
        for frame in smooth_frames(60, 64, 96):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
    whole = np.stack(decoded_in_order(path))
    for number in (59, 25, 38, 13, 0):
        np.testing.assert_array_equal(read_frames(path, [number])[0], whole[number])


def test_an_avi_with_b_frames_is_refused_because_it_has_no_presentation_times(tmp_path: Path) -> None:
    path = long_gop(tmp_path / "action_camera.avi")
    with pytest.raises(BadInputError, match=r"an \.avi with B-frames.*ffmpeg -i IN -c:v libx264 OUT\.mp4"):
        probe_video(path)


@pytest.mark.parametrize("b_frames", [0, 3])
@pytest.mark.parametrize(("start", "stop"), [(0, 25), (15, 40), (15, 25)])
def test_a_video_trimmed_by_an_edit_list_is_what_is_shown(b_frames: int, start: int, stop: int, tmp_path: Path) -> None:
    path = long_gop(tmp_path / "phone.mp4", b_frames=b_frames)
    whole, content = np.stack(decoded_in_order(path)), bytearray(path.read_bytes())
    units = struct.unpack_from(">I", content, content.index(b"mdhd") + 16)[0]
    length = (stop - start) * 1000 // 25  # in the file's own thousandths of a second
    at = content.index(b"elst") + 12
    begin = struct.unpack_from(">i", content, at + 4)[0] + start * units // 25
    struct.pack_into(">Ii", content, at, length, begin)
    path.write_bytes(content)
    os.utime(path, (1, 1))
    assert probe_video(path).frames == stop - start
    for number in (stop - start - 1, 0, 5):
        np.testing.assert_array_equal(read_frames(path, [number])[0], whole[start + number])


def test_a_turned_phone_video_comes_upright(video: Path) -> None:
    content = bytearray(video.read_bytes())
    matrix = content.index(b"tkhd") + 44
    quarter_turn = [0, 1 << 16, 0, -(1 << 16) & 0xFFFFFFFF, 0, 0, 0, 0, 1 << 30]
    before = read_frames(video, [3])[0]
    content[matrix : matrix + 36] = b"".join(value.to_bytes(4, "big") for value in quarter_turn)
    video.write_bytes(content)
    os.utime(video, (1, 1))
    assert (probe_video(video).height, probe_video(video).width) == (48, 32)
    np.testing.assert_array_equal(read_frames(video, [3])[0], np.rot90(before, -1))


@pytest.mark.parametrize(
    ("matrix", "shown"),
    [
        ((-1, 0, 0, 1), lambda image: image[:, ::-1]),
        ((1, 0, 0, -1), lambda image: image[::-1]),
        ((-1, 0, 0, -1), lambda image: np.rot90(image, 2)),
        ((0, 1, 1, 0), lambda image: image.swapaxes(0, 1)),
        ((0, -1, -1, 0), lambda image: np.rot90(image, 2).swapaxes(0, 1)),
        ((0, -1, 1, 0), np.rot90),
    ],
    ids=["left-right", "top-bottom", "half turn", "transposed", "anti-transposed", "quarter turn"],
)
def test_every_display_matrix_is_applied(video: Path, matrix: tuple[int, ...], shown: Callable[[Array], Array]) -> None:
    before = read_frames(video, [3])[0]
    content = bytearray(video.read_bytes())
    a, b, c, d = (value << 16 & 0xFFFFFFFF for value in matrix)
    at = content.index(b"tkhd") + 44
    content[at : at + 36] = b"".join(value.to_bytes(4, "big") for value in (a, b, 0, c, d, 0, 0, 0, 1 << 30))
    video.write_bytes(content)
    os.utime(video, (1, 1))
    np.testing.assert_array_equal(read_frames(video, [3])[0], shown(before))


def test_frame_times_of_a_constant_and_of_a_variable_rate(tmp_path: Path, video: Path) -> None:
    assert not probe_video(video).variable
    np.testing.assert_allclose(frame_times(video), np.arange(31) / 10)
    times = write_variable_rate(tmp_path / "variable.mp4")
    assert probe_video(tmp_path / "variable.mp4").variable
    assert has_uneven_rate(tmp_path / "variable.mp4")
    assert not has_uneven_rate(video)
    np.testing.assert_allclose(frame_times(tmp_path / "variable.mp4")[:-1], times, atol=1e-4)


@pytest.mark.parametrize("variable", [False, True])
def test_the_times_decide_where_the_header_names_another_rate(variable: bool, tmp_path: Path) -> None:
    path, ticks = tmp_path / "screen.mkv", [33 * number + 200 * max(0, number - 20) * variable for number in range(40)]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10, options={"bf": "0"})
        stream.height, stream.width, stream.pix_fmt = 32, 48, "yuv420p"
        stream.time_base = stream.codec_context.time_base = Fraction(1, 1000)
        for tick, pixels in zip(ticks, smooth_frames(40, 32, 48), strict=True):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = tick, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    times = frame_times(path)
    assert probe_video(path).variable == variable
    np.testing.assert_allclose(times[:-1], np.array(ticks) / 1000, atol=1e-9)
    assert probe_video(path).fps == pytest.approx(40 / times[-1])


def test_the_same_frames_give_the_same_file(tmp_path: Path, video: Path) -> None:
    encode_video(tmp_path / "again.mp4", smooth_frames(30, 32, 48), 10)
    assert (tmp_path / "again.mp4").read_bytes() == video.read_bytes()


def test_open_decoders_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "limit", 2)
    for number in range(5):
        encode_video(tmp_path / f"{number}.mp4", smooth_frames(4, 16, 16, seed=number), 10)
        read_frames(tmp_path / f"{number}.mp4", [1])
        assert len(decoders) <= 2


def test_a_file_written_anew_is_read_anew(video: Path) -> None:
    old = read_frames(video, [0])
    encode_video(video, smooth_frames(7, 32, 48, seed=5), 10)
    assert probe_video(video).frames == 7
    assert (read_frames(video, [0]) != old).any()


def test_threads_share_a_decoder(video: Path) -> None:
    whole = read_frames(video, range(30))
    wrong: list[int] = []

    def look(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for number in rng.integers(0, 30, 40):
            if (read_frames(video, [number])[0] != whole[number]).any():
                wrong.append(int(number))

    threads = [threading.Thread(target=look, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def _read_in_child(path: Path, index: int, out: Path) -> None:
    np.save(out, read_frames(path, [index]))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_reads_for_itself(video: Path, tmp_path: Path) -> None:
    before = read_frames(video, [10, 20])
    children = [
        multiprocessing.get_context("fork").Process(
            target=_read_in_child, args=(video, index, tmp_path / f"{index}.npy")
        )
        for index in (20, 10)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
    np.testing.assert_array_equal(np.load(tmp_path / "10.npy")[0], before[0])
    np.testing.assert_array_equal(np.load(tmp_path / "20.npy")[0], before[1])
    np.testing.assert_array_equal(read_frames(video, [10, 20]), before)


@pytest.mark.parametrize(("index", "found"), [(-1, "frame -1"), (30, "frame 30")])
def test_numbers_outside_the_file_are_refused(video: Path, index: int, found: str) -> None:
    with pytest.raises(BadInputError, match=found) as caught:
        read_frames(video, [0, index])
    assert caught.value.expected == "a number from 0 to 29"


def test_a_title_that_is_not_utf8_does_no_harm(tmp_path: Path, video: Path) -> None:
    titled = tmp_path / "titled.mp4"
    with av.open(str(video)) as source, av.open(str(titled), "w") as target:
        target.metadata["title"] = "a title"
        out = target.add_stream_from_template(source.streams.video[0], opaque=True)
        for packet in source.demux(video=0):
            if packet.pts is not None:
                packet.stream = out
                target.mux(packet)
    content = titled.read_bytes()
    assert b"a title" in content
    titled.write_bytes(content.replace(b"a title", b"\xff\xfetitle"))
    np.testing.assert_array_equal(read_frames(titled, [0, 29]), read_frames(video, [0, 29]))


@pytest.mark.parametrize("keep", [0, 10, 500, 0.5, 0.95])
def test_a_truncated_file_is_refused(video: Path, keep: float) -> None:
    content = video.read_bytes()
    video.write_bytes(content[: int(keep if keep > 1 else keep * len(content))])
    with pytest.raises(BadInputError, match=video.name):
        read_frames(video, [29])


def test_a_file_truncated_behind_its_index_is_refused(tmp_path: Path, video: Path) -> None:
    front = tmp_path / "front.mp4"
    with av.open(str(video)) as source, av.open(str(front), "w", options={"movflags": "faststart"}) as target:
        out = target.add_stream_from_template(source.streams.video[0], opaque=True)
        for packet in source.demux(video=0):
            if packet.pts is not None:
                packet.stream = out
                target.mux(packet)
    np.testing.assert_array_equal(read_frames(front, [29]), read_frames(video, [29]))
    front.write_bytes(front.read_bytes()[: front.stat().st_size // 2])
    with pytest.raises(BadInputError, match="expected 30, as its header says"):
        read_frames(front, [1])


def test_a_fragmented_file_that_is_cut_is_refused(tmp_path: Path) -> None:
    path = long_gop(tmp_path / "browser.mp4", movflags="frag_keyframe+empty_moov")
    assert probe_video(path).frames == 40
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(BadInputError, match=r"\d+ frames; expected a whole file.*ffmpeg -i IN -c copy OUT\.mkv"):
        probe_video(path)


@pytest.mark.parametrize("name", ["whole.mp4", "part.bin"])
def test_a_file_cut_before_its_index_says_so(name: str, tmp_path: Path, video: Path) -> None:
    content = video.read_bytes()[:2000]
    (tmp_path / "whole.mp4").write_bytes(content)
    (tmp_path / "part.bin").write_bytes(b"before" + content)
    path = tmp_path / name if name == "whole.mp4" else Part(tmp_path / name, 6, len(content), "the video")
    with pytest.raises(BadInputError, match=r"its index \(moov\), which is written last, is missing.*untrunc"):
        probe_video(path)


def test_a_matroska_file_that_is_cut_says_so_but_an_unfinished_recording_is_read(tmp_path: Path) -> None:
    path = long_gop(tmp_path / "screen.mkv")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(BadInputError, match=rf"cut short: \d+ bytes; expected {len(content)} bytes.*-c copy"):
        probe_video(path)
    at = content.index(b"\x18\x53\x80\x67") + 4
    path.write_bytes(content[:at] + b"\x01" + b"\xff" * 7 + content[at + 8 :])  # a recorder cannot know the length
    assert probe_video(path).frames == 40


@pytest.mark.parametrize(
    ("content", "found"), [(b"", "an empty file"), (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull")]
)
def test_a_file_that_was_not_downloaded_says_so(content: bytes, found: str, tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(content)
    with pytest.raises(BadInputError, match=found):
        probe_video(path)


@pytest.mark.parametrize("name", ["missing.mp4", "folder", "text.mp4"])
def test_what_is_no_video_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.mp4").write_text("not a video")
    with pytest.raises(BadInputError, match=name):
        probe_video(tmp_path / name)


def test_damaged_images_are_refused(video: Path) -> None:
    content = bytearray(video.read_bytes())
    start = content.index(b"mdat") + 8
    content[start + 1000 : start + 2000] = bytes(1000)
    video.write_bytes(content)
    with pytest.raises(BadInputError, match=video.name):
        read_frames(video, range(30))


def test_an_encoding_that_fails_leaves_nothing(tmp_path: Path) -> None:
    frames = list(smooth_frames(3, 16, 16))
    with pytest.raises(BadInputError, match="frame 3 as float64"):
        encode_video(tmp_path / "v.mp4", [*frames, frames[0] / 255], 10)
    with pytest.raises(BadInputError, match="frame 3 as uint8"):
        encode_video(tmp_path / "v.mp4", [*frames, frames[0][:8]], 10)
    with pytest.raises(BadInputError, match="no frame"):
        encode_video(tmp_path / "v.mp4", [], 10)
    with pytest.raises(BadInputError, match="at least 64 pixels"):
        encode_video(tmp_path / "v.mp4", frames, 10, codec="libsvtav1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("codec", ["libx264", "libsvtav1"])
def test_remuxed_parts_join_frame_by_frame(tmp_path: Path, codec: Codec) -> None:
    parts = [tmp_path / f"{number}.mp4" for number in range(3)]
    for number, part in enumerate(parts):
        encode_video(part, smooth_frames(3 + number, 64, 72, seed=number), 30, codec=codec)
    remux(parts, tmp_path / "whole.mp4")
    expected = np.concatenate([read_frames(part, range(3 + number)) for number, part in enumerate(parts)])
    assert probe_video(tmp_path / "whole.mp4").frames == 12
    np.testing.assert_array_equal(read_frames(tmp_path / "whole.mp4", range(12)), expected)
    with av.open(str(tmp_path / "whole.mp4")) as container:
        times = [float(frame.time or 0) for frame in container.decode(video=0)]
    np.testing.assert_allclose(times, np.arange(12) / 30, atol=1e-9)


def test_unlike_parts_are_refused(tmp_path: Path, video: Path) -> None:
    encode_video(tmp_path / "wide.mp4", smooth_frames(3, 32, 64), 10)
    encode_video(tmp_path / "fast.mp4", smooth_frames(3, 32, 48), 20)
    for other in ("wide.mp4", "fast.mp4"):
        with pytest.raises(BadInputError, match=other):
            remux([video, tmp_path / other], tmp_path / "out.mp4")
    assert not (tmp_path / "out.mp4").exists()


def test_errors_cross_processes_whole(video: Path) -> None:
    with pytest.raises(BadInputError) as caught:
        read_frames(video, [99])
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
