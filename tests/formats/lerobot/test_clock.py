"""Timestamps against the frame rate: another rate, jitter, and missing frames."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from counterpoint.cli.data.doctor import examine, examine_lerobot
from counterpoint.data.episode import Array
from counterpoint.errors import BadInputError
from counterpoint.formats.lerobot.clock import clock_error, even_times
from counterpoint.formats.lerobot.reader import LeRobotStore
from tests.formats.lerobot.made import FPS, edit_column, edit_info, episode, write_v30

ROOT = Path("set")
DATA = "data/chunk-000/file-000.parquet"
EVEN = np.arange(12) / FPS
JITTER = EVEN + np.where(np.arange(12) % 2, 0.004, 0.0)
MISSING = np.delete(EVEN, 6)
NAN = np.where(np.arange(12) == 3, np.nan, EVEN)


@pytest.mark.parametrize(
    ("times", "found", "hint"),
    [
        (EVEN / 3, r"at 30 frames a second", r"info\.json may be the mistake.*--retime --fps 30 or .*--fps 10"),
        (JITTER, r"a step of 0\.10?\d+ s at step \d", r"write even times: counterpoint data convert set OUT --retime"),
        (MISSING, r"a step of 0\.200000 s at step 5: a frame is missing", "remove the episode"),
        (EVEN[[0, 1, 1, 2, 3]], r"at step 1: a frame is repeated", "remove the episode"),
        (NAN, "not finite", "remove the episode"),
    ],
)
def test_each_contradiction_has_its_way_out(times: Array, found: str, hint: str) -> None:
    error = clock_error(ROOT, "episode 0", times, FPS)
    assert error is not None
    with pytest.raises(BadInputError, match=f"{found}.*{hint}"):
        raise error


@pytest.mark.parametrize("times", [EVEN, EVEN + 5, EVEN[:1], (EVEN + 9000).astype(np.float32).astype(np.float64)])
def test_even_times_agree(times: Array) -> None:
    assert clock_error(ROOT, "episode 0", times, FPS) is None


def test_jitter_is_moved() -> None:
    times, moved = even_times(ROOT, "episode 0", JITTER + 2, FPS)
    np.testing.assert_array_equal(times, EVEN)
    assert moved == pytest.approx(0.004)


@pytest.mark.parametrize("times", [MISSING, NAN, EVEN / 3])
def test_a_clock_in_doubt_is_not_moved(times: Array) -> None:
    with pytest.raises(BadInputError):
        even_times(ROOT, "episode 0", times, FPS)


@pytest.mark.parametrize("told", [10, 30])
def test_the_user_says_which_rate_is_right(told: int) -> None:
    times, _ = even_times(ROOT, "episode 0", EVEN / 3, FPS, told=told)
    np.testing.assert_allclose(times, np.arange(12) / told)


def test_a_store_is_retimed(tmp_path: Path) -> None:
    root = write_v30(tmp_path / "set", [episode(n, 6, sizes={}) for n in range(2)])
    edit_column(root / DATA, "timestamp", np.tile(EVEN[:6] / 3, 2).tolist())
    store = LeRobotStore(root)
    with pytest.raises(BadInputError, match="at 30 frames a second"):
        store.timestamps(0)
    assert store.retime(30) == pytest.approx(0, abs=1e-6)
    np.testing.assert_allclose(store.timestamps(1), np.arange(6) / 30)
    assert {info.fps for info in store.episodes} == {30}


@pytest.mark.parametrize(
    ("times", "found"),
    [
        (EVEN + 1.2, "a first timestamp of 1.2 s"),
        (np.arange(1000) / 9.99, "timestamps at 9.99 frames a second, 0.1 s off at the end"),
    ],
)
def test_even_times_that_begin_late_or_drift_are_told(tmp_path: Path, times: Array, found: str) -> None:
    root = write_v30(tmp_path / "set", [episode(0, len(times), sizes={})])
    assert examine_lerobot(root) == []
    edit_column(root / DATA, "timestamp", times.tolist())
    (finding,) = examine_lerobot(root)
    assert finding.found == found
    assert f"counterpoint data convert {root} OUT --retime" in finding.hint


def test_the_rate_of_a_video_is_compared_closely(tmp_path: Path) -> None:
    root = write_v30(tmp_path / "set", [episode(0, 60, sizes={"top": (16, 16)})])
    assert examine_lerobot(root) == []
    edit_info(root, fps=9.99)
    assert "10 frames a second" in [finding.found for finding in examine_lerobot(root)]


STARTS = "videos/observation.images.top/from_timestamp"


def test_a_video_that_starts_between_two_frames_is_reported_and_not_read(tmp_path: Path) -> None:
    episodes = [episode(number, 5, sizes={"top": (24, 32)}) for number in range(4)]
    root = write_v30(tmp_path / "set", episodes)
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.take([0, 1, 3]), path)  # episode 2 was removed, so that no neighbour contradicts episode 1
    whole = LeRobotStore(root).frames(1, np.arange(5))
    edit_column(path, STARTS, [0.0, 0.55, 1.5])
    (finding,) = [one for one in examine_lerobot(root) if "from_timestamp" in one.found]
    assert finding.where.endswith("file-000.mp4")
    assert finding.found == "from_timestamp 0.55 s for episode 1, which is frame 5.5 at 10 a second"
    assert finding.expected == "the time of a frame, such as 0.6 s"
    assert [one.found for one in examine(root) if "from_timestamp" in one.found] == [finding.found]
    store = LeRobotStore(root)
    with pytest.raises(BadInputError, match=r"frame 5\.5 at 10"):
        store.frames(1, np.arange(5))
    store.frames(2, np.arange(5))
    edit_column(path, STARTS, [0.0, 0.515, 1.5])  # near enough to tell its frame
    (finding,) = [one for one in examine_lerobot(root) if "from_timestamp" in one.found]
    assert "frame 5.15 at 10 a second" in finding.found
    np.testing.assert_array_equal(LeRobotStore(root).frames(1, np.arange(5)), whole)
    edit_column(path, STARTS, [0.0, 0.50005, 1.5])  # as close as LeRobot itself wants it
    assert not [one for one in examine_lerobot(root) if "from_timestamp" in one.found]


@pytest.mark.parametrize("moved", [0.05, -0.05])
def test_a_start_in_doubt_leaves_its_neighbours_readable(moved: float, tmp_path: Path) -> None:
    episodes = [episode(number, 5, sizes={"top": (24, 32)}) for number in range(3)]
    root = write_v30(tmp_path / "set", episodes)
    edit_column(root / "meta/episodes/chunk-000/file-000.parquet", STARTS, [0.0, 0.5 + moved, 1.0])
    store = LeRobotStore(root)
    for number in (0, 2):
        close = np.abs(store.frames(number, np.arange(5)).astype(int) - episodes[number].frames["top"]).mean()
        assert close < 8
    with pytest.raises(BadInputError, match="from_timestamp"):
        store.frames(1, np.arange(5))
