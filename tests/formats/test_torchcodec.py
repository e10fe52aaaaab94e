from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from counterpoint.data.episode import Array
from counterpoint.errors import BadInputError, MissingExtraError
from counterpoint.formats import torchcodec
from counterpoint.formats.torchcodec import decoded_by, decoding
from counterpoint.formats.video import decoders, encode_video, probe_video, read_frames
from tests.formats.made import TorchcodecStandIn, smooth_frames
from tests.formats.test_video import long_gop


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> type[TorchcodecStandIn]:
    return TorchcodecStandIn.install(monkeypatch)


@pytest.fixture
def video(tmp_path: Path) -> Path:
    path = tmp_path / "video.mp4"
    encode_video(path, np.maximum(smooth_frames(30, 32, 48), 99), 10)
    return path


def by_torchcodec(path: Path, *, device: str = "cpu", numbers: tuple[int, ...] = (0, 7, 3)) -> Array:
    with decoding(device):
        return read_frames(path, numbers)


def is_marked(frames: Array) -> bool:
    return not frames[:, 0, 0].any()


def test_torchcodec_decodes_on_the_device_inside_the_block(video: Path, stand_in: type[TorchcodecStandIn]) -> None:
    plain = read_frames(video, [0, 7, 3])
    found = by_torchcodec(video, device="cuda:1")
    assert stand_in.opened == [(str(video), "NHWC", "cuda:1")]
    assert is_marked(found)
    np.testing.assert_array_equal(found[:, 1:], plain[:, 1:])
    np.testing.assert_array_equal(read_frames(video, [0, 7, 3]), plain)
    with decoding(None):
        np.testing.assert_array_equal(read_frames(video, [0, 7, 3]), plain)


def test_a_function_decodes_by_torchcodec_in_any_thread(video: Path, stand_in: type[TorchcodecStandIn]) -> None:
    read = decoded_by("torchcodec", "cuda", read_frames)
    with ThreadPoolExecutor(2) as threads:
        assert all(map(is_marked, threads.map(lambda number: read(video, [number]), range(4))))
    assert not is_marked(read_frames(video, [4]))


def test_pyav_reads_what_torchcodec_would_read_otherwise(
    video: Path, stand_in: type[TorchcodecStandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stand_in, "missing", 1)
    assert not is_marked(by_torchcodec(video))
    assert stand_in.opened


def test_frames_of_other_times_are_refused(
    video: Path, stand_in: type[TorchcodecStandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stand_in, "late", 0.1)
    with pytest.raises(BadInputError, match=r"times are off by 0\.100 s.*--video-backend pyav"):
        by_torchcodec(video)


def test_errors_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInputError, match="pyav or torchcodec"):
        decoded_by("opencv", "cpu", read_frames)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", None)
    with pytest.raises(MissingExtraError, match="torchcodec"):
        decoded_by("torchcodec", "cpu", read_frames)

    def without_ffmpeg(module: str, extra: str) -> None:
        raise RuntimeError("Could not load libtorchcodec")

    monkeypatch.setattr(torchcodec, "import_extra", without_ffmpeg)
    with pytest.raises(BadInputError, match=r"cannot load FFmpeg's libraries.*apt-get install ffmpeg"):
        decoded_by("torchcodec", "cpu", read_frames)


def has_torchcodec() -> bool:
    try:
        decoded_by("torchcodec", "cpu", read_frames)
    except (BadInputError, MissingExtraError):
        return False
    return True


@pytest.mark.skipif(not has_torchcodec(), reason="torchcodec or FFmpeg is not installed")
def test_torchcodec_gives_the_same_images_on_a_cpu(video: Path, tmp_path: Path) -> None:
    for path in (video, long_gop(tmp_path / "long.mp4")):
        decoders._clear()
        count = probe_video(path).frames
        np.testing.assert_array_equal(by_torchcodec(path, numbers=tuple(range(count))), read_frames(path, range(count)))
