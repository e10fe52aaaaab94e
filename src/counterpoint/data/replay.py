"""The replay buffer: a store of whole goal-reaching episodes; new episodes are appended and the oldest are dropped.

Row r is at index r modulo the number of rows. An episode of T transitions takes T + 2 rows: its states, then the goal
that it was commanded to reach::

    row           r      r+1    ...   r+T-1     r+T    r+T+1   r+T+2
    observation   s0     s1     ...   sT-1      sT     -       next episode ...
    goal          g(s0)  g(s1)  ...   g(sT-1)   g(sT)  command
    action        a0     a1     ...   aT-1      -      -

When room is needed, the oldest episodes are dropped whole. Their rows are overwritten at least `slack` transitions
later; until then, a cursor (a saved state of the buffer) that refers to them can be restored.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from counterpoint.data.episode import Array, EpisodeInfo, GoalEpisode, Spaces
from counterpoint.data.store import EpisodeStore, OutputPool, spread
from counterpoint.errors import BadInputError, require
from counterpoint.files import write_atomically

Integers = NDArray[np.int64]

TOLERANCE = 1e-6
"""An action may exceed [-1, 1] by this much, because of rounding in float32; it is then clipped."""


def check_episode(spaces: Spaces, episode: GoalEpisode) -> GoalEpisode:
    """Check one episode against `spaces`, and return it with arrays of the types that the buffer stores.

    Raises:
        BadInputError: When the episode has fewer than two states, a shape or type is wrong, a number is not finite, or
            an action is out of range.
    """
    states = len(np.atleast_1d(episode.observations))
    require(states >= 2, "episode", f"{states} states", "at least 2, the two ends of a transition", "leave it out")
    return replace(
        episode,
        observations=_checked("observations", episode.observations, (states, *spaces.observation)),
        achieved=_checked("goals", episode.achieved, (states, *spaces.goal)),
        commanded=_checked("commanded goal", episode.commanded, spaces.goal),
        actions=_actions(spaces, np.asarray(episode.actions), states - 1),
        rewards=_checked("rewards", episode.rewards, (states - 1,)),
    )


def _checked(where: str, values: Array, shape: tuple[int, ...]) -> Array:
    """Return images as they are, and other values as finite float32."""
    values = np.asarray(values)
    hint = "give T + 1 states, T actions, T rewards"
    require(values.shape == shape, where, f"shape {values.shape}", f"{shape}", hint)
    if len(shape) >= 3:
        require(values.dtype == np.uint8, where, values.dtype, "images as uint8 in [0, 255]", "convert them first")
        return values
    with np.errstate(over="ignore"):  # numbers too large for float32 become infinite and are refused below
        values = values.astype(np.float32)
    for bad in np.argwhere(~np.isfinite(values))[:1].tolist():
        raise BadInputError(where, f"NaN or infinity at {tuple(bad)}", "finite numbers", "drop or repair the episode")
    return values


def _actions(spaces: Spaces, actions: Array, T: int) -> Array:
    least, most = (0, spaces.action - 1) if spaces.discrete else (-1, 1)
    numbers = _checked("actions", actions, (T,) if spaces.discrete else (T, spaces.action))
    whole = not spaces.discrete or np.issubdtype(actions.dtype, np.integer)
    require(whole, "actions", actions.dtype, f"integers from 0 to {most}", "give the number of each action")
    for at in np.argwhere((numbers < least - TOLERANCE) | (numbers > most + TOLERANCE))[:1].tolist():
        where, found = f"actions, step {at[0]}", f"{numbers[tuple(at)]:g}"
        raise BadInputError(where, found, f"actions from {least} to {most}", "scale them by their bounds")
    return actions.astype(np.int64) if spaces.discrete else np.clip(numbers, -1.0, 1.0)


FIELDS = ("start", "length", "terminated", "checksum")
"""The numbers kept for each episode: its first row, T, whether it terminated (0 or 1), and a CRC-32 of its rows."""


class Rows:
    """A table whose columns have equal length and are written and read by row number.

    Args:
        columns: For each name, the type of a row with its shape, such as `np.dtype(("float32", (3,)))`.
        count: Number of rows.
        folder: Folder of the files, one per column; `None` keeps the arrays in memory. Existing files are kept, so that
            a buffer can be restored.

    Raises:
        BadInputError: When the arrays are larger than the free space, or the folder holds another buffer's files. Then
            nothing is allocated.
    """

    def __init__(self, columns: Mapping[str, np.dtype[Any]], count: int, folder: Path | None) -> None:
        self.count, self._outputs = count, OutputPool()
        self._arrays: dict[str, Array] = {}
        need = count * sum(row.itemsize for row in columns.values())
        if folder is None:
            _check_room("replay buffer", need, psutil.virtual_memory().available, "memory")
            self._arrays = {name: np.empty(count, row) for name, row in columns.items()}
        else:
            self._map(columns, Path(folder), need)

    def _map(self, columns: Mapping[str, np.dtype[Any]], folder: Path, need: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        note, files = folder / "rows.json", {name: folder / f"{name}.bin" for name in columns}
        shapes = {name: [list(row.shape), row.base.name] for name, row in columns.items()}
        layout = json.dumps({"rows": self.count, "columns": shapes})
        same, found = not note.exists() or note.read_text() == layout, "the files of a replay buffer of other sizes"
        require(same, folder, found, "an empty folder, or this buffer's own files", "restore with its spaces")
        held = sum(file.stat().st_blocks * 512 for file in files.values() if file.exists())
        _check_room(folder, need - held, shutil.disk_usage(folder).free, "disk")
        for name, row in columns.items():
            with files[name].open("ab") as file:
                file.truncate(self.count * row.itemsize)
                # Reserve the space now: a mapped file that grows on a full disk kills the process without a message.
                if hasattr(os, "posix_fallocate"):  # not on macOS
                    os.posix_fallocate(file.fileno(), 0, self.count * row.itemsize)
            self._arrays[name] = np.memmap(files[name], row.base, mode="r+", shape=(self.count, *row.shape))
        if not note.exists():
            write_atomically(note, layout)

    def write(self, name: str, row: int, values: Array) -> None:
        """Write `values` [n, ...] into the rows from `row` on; n is at most the number of rows."""
        first = row % self.count
        fit = min(len(values), self.count - first)
        self._arrays[name][first : first + fit] = values[:fit]
        self._arrays[name][: len(values) - fit] = values[fit:]

    def gather(self, name: str, rows: NDArray[np.int64]) -> Array:
        """Return a copy of rows: [*rows.shape, ...]."""
        array = self._arrays[name]
        out = self._outputs.empty(rows.shape + array.shape[1:], array.dtype)
        # Any mode but "raise" lets numpy copy straight into `out`; the remainder keeps every row in range.
        return array.take(rows % self.count, 0, out, "clip")

    def checksum(self, row: int, count: int) -> int:
        """Return CRC-32 over `count` rows of every column, from `row` on."""
        first = row % self.count
        fit, digest = min(count, self.count - first), 0
        for array in self._arrays.values():
            for piece in (array[first : first + fit], array[: count - fit]):
                digest = zlib.crc32(np.ascontiguousarray(piece).view(np.uint8).reshape(-1).data, digest)
        return digest

    def flush(self) -> None:
        """Write memory-mapped rows to disk."""
        for array in self._arrays.values():
            if isinstance(array, np.memmap):
                array.flush()


def _check_room(where: str | Path, need: int, free: int, what: str) -> None:
    found = f"a need of {need / 1e9:.2f} GB, with {free / 1e9:.2f} GB of {what} free"
    hint = "lower its capacity, or " + ("give it a folder" if what == "memory" else "use another disk")
    require(need <= free, where, found, f"a replay buffer that fits into free {what}", hint)


class ReplayBuffer(EpisodeStore):
    """A buffer of whole episodes that evicts the oldest first.

    `gather` reads `observation`, `action`, `reward`, `return` (undiscounted sum of rewards from a step to the end),
    `goal` (goal coordinates of a state), `command` (the goal of the episode) and `terminated`.

    Args:
        spaces: Shapes of states, goals and actions. Shapes of three axes are images, kept as uint8.
        capacity: Maximum number of transitions held.
        folder: Folder for memory-mapped rows, for images and for runs that are to be resumed; `None` keeps the rows in
            memory.
        slack: Number of transitions that can be added after a `cursor` is taken, before rows that the cursor refers to
            are lost.
        shortest: Shortest episode, in transitions, for which room is planned. With shorter episodes the buffer holds
            fewer transitions than `capacity`, and `slack` is used up sooner.
        goal_is_observation: True if goals are whole observations. They are then stored once, and `achieved` is not
            read.
        action_bounds: [2, A], the action bounds of the data before they were scaled; kept as an attribute.

    Raises:
        BadInputError: When a number is not positive, or the buffer is larger than free memory or disk.
    """

    cameras = ()

    def __init__(
        self,
        spaces: Spaces,
        *,
        capacity: int,
        folder: Path | None = None,
        slack: int = 0,
        shortest: int = 10,
        goal_is_observation: bool = False,
        action_bounds: Array | None = None,
    ) -> None:
        for name, value, least in (("capacity", capacity, 1), ("slack", slack, 0), ("shortest", shortest, 1)):
            require(value >= least, name, value, f"at least {least}", "choose more")
        same, expected = not goal_is_observation or spaces.goal == spaces.observation, f"{spaces.observation}"
        require(same, "goal_is_observation", f"goals of shape {spaces.goal}", expected, "leave it out")
        self.spaces, self.capacity, self.slack, self.action_bounds = spaces, capacity, slack, action_bounds
        self._goal = "observation" if goal_is_observation else "goal"
        self._live_rows = capacity + 2 * -(-capacity // shortest)
        columns = {
            "observation": _values(spaces.observation),
            "goal": _values(spaces.goal),
            "action": np.dtype("int64") if spaces.discrete else np.dtype(("float32", (spaces.action,))),
            "reward": np.dtype("float32"),
            "return": np.dtype("float32"),
        }
        if goal_is_observation:
            del columns["goal"]
        self._rows = Rows(columns, self._live_rows + slack + 2 * -(-slack // shortest), folder)
        self._episodes = np.zeros((len(FIELDS), 0), np.int64)
        self.transitions = self._head = 0

    def __len__(self) -> int:
        return self._episodes.shape[1]

    @property
    def lengths(self) -> Integers:
        """The length T of every stored episode, the oldest first."""
        lengths: Integers = self._episodes[1]
        return lengths

    @property
    def episodes(self) -> tuple[EpisodeInfo, ...]:  # type: ignore[override]
        """Descriptions of the stored episodes, the oldest first."""
        return tuple(EpisodeInfo(length, "", 1.0) for length in self.lengths.tolist())

    @property
    def fingerprint(self) -> str:
        """Hex digest that changes with the stored transitions, their goals and the order of episodes."""
        return hashlib.sha256(json.dumps(self.cursor()["episodes"]).encode()).hexdigest()

    def append(self, episode: GoalEpisode) -> None:
        """Add one episode; the oldest episodes are dropped until there is room.

        Raises:
            BadInputError: When the episode is too short or too long, has other shapes, or holds numbers that are not
                finite or actions out of range. The buffer is then unchanged.
        """
        if self._goal == "observation":
            episode = replace(episode, achieved=episode.observations)
        episode = check_episode(self.spaces, episode)
        T = len(episode)
        expected = f"at most {self.capacity}, the capacity of the replay buffer"
        require(self.capacity >= T, "episode", f"{T} transitions", expected, "raise the capacity or cut the episode")
        self._make_room(T)
        self._write(episode)
        row = [self._head], [T], [episode.terminated], [self._rows.checksum(self._head, T + 2)]
        self._episodes = np.concatenate([self._episodes, np.array(row, np.int64)], axis=1)
        self._head += T + 2
        self.transitions += T
        self.version += 1

    def gather(
        self, source: str, episodes: Integers, steps: Integers, *, camera: str | None = None, out: Array | None = None
    ) -> Array:
        """Read one column at steps of many episodes; see `EpisodeStore.gather`."""
        start, length, terminated, _ = self._episodes
        if source == "terminated":
            ended: Array = (terminated[episodes] == 1) & (steps == length[episodes] - 1)
            return ended
        rows = spread(start[episodes], steps) + (length[episodes] + 1 if source == "command" else steps)
        return self._rows.gather(self._goal if source in ("goal", "command") else source, rows)

    def rewards_differ(self) -> bool:
        """Return True if two transitions have different rewards; if all rewards are equal, they teach nothing."""
        starts, lengths = self._episodes[:2]
        rows = np.arange(lengths.sum()) + np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
        rewards = self._rows.gather("reward", rows)
        return bool(rewards.size) and bool((rewards != rewards[0]).any())

    def cursor(self) -> dict[str, Any]:
        """Return the state of the buffer without its rows, as JSON values; sampling depends on state and rows."""
        return {"head": self._head, "episodes": dict(zip(FIELDS, self._episodes.tolist(), strict=True))}

    def restore(self, cursor: dict[str, Any]) -> None:
        """Return to the state of a `cursor`; sampling from there gives the same batches bit by bit.

        Raises:
            BadInputError: When rows that the cursor refers to are missing or have changed. The buffer is then
                unchanged.
        """
        table = np.array([cursor["episodes"][field] for field in FIELDS], np.int64)
        for start, length, _, checksum in table.T.tolist():
            if length + 2 > self._rows.count or self._rows.checksum(start, length + 2) != checksum:
                found = "rows that differ from those the checkpoint refers to"
                expected = f"the same rows; {self.slack} transitions may be added after a checkpoint"
                hint = "restore from a later checkpoint, use the run's own folder, or start anew with a larger slack"
                raise BadInputError("replay buffer", found, expected, hint)
        self._episodes, self._head, self.transitions = table, int(cursor["head"]), int(table[1].sum())
        self.version += 1

    def flush(self) -> None:
        """Write memory-mapped rows to disk; call it before saving a cursor."""
        self._rows.flush()

    def _make_room(self, T: int) -> None:
        """Evict the oldest episodes until T transitions, and their rows, fit."""
        over = max(self.transitions + T - self.capacity, 0)
        freed = np.concatenate([[0], np.cumsum(self.lengths)])
        rows = freed + 2 * np.arange(len(freed))
        enough = (freed >= over) & (rows[-1] - rows + T + 2 <= self._live_rows)
        count = int(np.argmax(enough))
        self.transitions -= int(freed[count])
        self._episodes = self._episodes[:, count:]

    def _write(self, episode: GoalEpisode) -> None:
        at = self._head
        goals = np.concatenate([episode.achieved, episode.commanded[None]])
        # Rows without a transition have the same content in every run, so that checksums agree.
        actions = np.concatenate([episode.actions, np.zeros((2, *episode.actions.shape[1:]), episode.actions.dtype)])
        rewards = np.concatenate([episode.rewards, np.zeros(2, np.float32)])
        returns = np.cumsum(rewards[::-1], dtype=np.float64)[::-1].astype(np.float32)
        columns = {"action": actions, "reward": rewards, "return": returns, self._goal: goals}
        if self._goal == "goal":
            seen = episode.observations
            columns["observation"] = np.concatenate([seen, np.zeros_like(seen[:1])])
        for name, values in columns.items():
            self._rows.write(name, at, values)


def _values(shape: tuple[int, ...]) -> np.dtype[Any]:
    return np.dtype(("uint8" if len(shape) == 3 else "float32", shape))
