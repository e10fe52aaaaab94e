"""The clock of LeRobot episodes: stored timestamps against the frame rate of `meta/info.json`.

Timestamps are float32 seconds and must step by 1/fps. If they do not, there are three cases: even steps at another rate
(one of the two rates is wrong), jitter around the right rate (the times can be written anew), or a missing frame (the
episode must be removed).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.errors import BadInputError

TOLERANCE = 1e-4
"""Seconds by which the step between two timestamps may differ from 1/fps."""

_REMOVE = "remove the episode: lerobot-edit-dataset with --operation.type delete_episodes"
_OTHER = 0.1  # relative difference between `fps` and the rate of the timestamps above which the two rates disagree
_GAP = 0.5  # relative difference from the typical step above which a frame is missing, repeated or out of order


def rate_of(times: Array) -> float:
    """Return the frames per second of stored timestamps [T], from the median step; 0 for fewer than two timestamps."""
    step = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
    return 1 / step if step > 0 else 0.0


def clock_error(root: Path, where: str, times: Array, fps: float) -> BadInputError | None:
    """Return the error for timestamps that contradict the frame rate; `None` if they agree.

    Args:
        root: The data set, for the command in the hint.
        where: Name of the episode for errors.
        times: Stored timestamps, float64 [T] seconds.
        fps: Frames a second, as `meta/info.json` says.
    """
    if not np.isfinite(times).all():
        return BadInputError(where, "timestamps that are not finite", f"steps of 1/{fps:g} s", _REMOVE)
    # The rounding of float32 seconds is no error, however long the episode.
    allowed = TOLERANCE + 2 * float(np.finfo(np.float32).eps) * float(np.abs(times).max(initial=0))
    steps = np.diff(times)
    wrong = np.flatnonzero(~(np.abs(steps - 1 / fps) <= allowed))
    if not len(wrong):
        return None
    rate = rate_of(times)
    if rate and abs(fps / rate - 1) > _OTHER:
        found = f"timestamps at {rate:.4g} frames a second"
        expected = f"{fps:g} frames a second, as info.json says"
        ways = " or ".join(f"{_retime(root)} --fps {max(1, round(way))}" for way in (rate, fps))
        hint = f"fps in meta/info.json may be the mistake: find out which rate is right, then {ways}"
        return BadInputError(where, found, expected, hint)
    step = int(wrong[np.abs(steps[wrong] - 1 / fps).argmax()])
    found = f"a step of {steps[step]:.6f} s at step {step}"
    expected = f"steps of 1/{fps:g} s within {TOLERANCE} s"
    gap = _gap(times)
    if gap is None:
        return BadInputError(where, found, expected, f"write even times: {_retime(root)}")
    return BadInputError(where, f"a step of {steps[gap]:.6f} s at step {gap}: {_kind(times, gap)}", expected, _REMOVE)


def start_error(where: str, number: int, start: float, fps: float) -> BadInputError | None:
    """Return the error for an episode's `from_timestamp` that is no frame's time; `None` if it is one within 1e-4 s.

    Args:
        where: Name of the video file for errors.
        number: The episode's `episode_index`.
        start: `from_timestamp`, in seconds.
        fps: Frames a second, as `meta/info.json` says.
    """
    nearest = np.rint(start * fps) / fps
    if abs(start - nearest) <= TOLERANCE + 2 * float(np.finfo(np.float32).eps) * abs(start):
        return None
    found = f"from_timestamp {start:.6g} s for episode {number}, which is frame {start * fps:.6g} at {fps:g} a second"
    hint = (
        "correct from_timestamp and to_timestamp in meta/episodes, or convert the data set to v3.0 again with lerobot"
    )
    return BadInputError(where, found, f"the time of a frame, such as {nearest:.6g} s", hint)


def even_times(root: Path, where: str, times: Array, fps: float, *, told: float | None = None) -> tuple[Array, float]:
    """Return even times, frame_index / rate, float64 [T], and their largest distance in seconds from the stored times.

    Args:
        root: The data set, for commands in hints.
        where: Name of the episode for errors.
        times: Stored timestamps, float64 [T] seconds.
        fps: Frames a second, as `meta/info.json` says.
        told: The frame rate that the user gives; required if the rate of the timestamps differs from `fps`.

    Raises:
        BadInputError: When a frame is missing, repeated or out of order, or the rate is in doubt.
    """
    error = clock_error(root, where, times, fps)
    rate = rate_of(times)
    other = bool(rate) and abs(fps / rate - 1) > _OTHER
    if error is not None and (not np.isfinite(times).all() or _gap(times) is not None or (other and told is None)):
        raise error
    even = np.arange(len(times)) / (told or fps)
    return even, float(np.abs(times - times[0] - even).max())


def _gap(times: Array) -> int | None:
    """Return the index of the first step that is far from the median step; `None` if there is none."""
    steps = np.diff(times)
    far = np.flatnonzero(np.abs(steps / np.median(steps) - 1) > _GAP) if np.median(steps) > 0 else np.arange(1)
    return int(far[0]) if len(far) else None


def _kind(times: Array, step: int) -> str:
    steps = np.diff(times)
    return "a frame is missing" if steps[step] > np.median(steps) else "a frame is repeated or out of order"


def _retime(root: Path) -> str:
    return f"counterpoint data convert {root} OUT --retime"
