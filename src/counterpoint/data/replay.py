"""What an episode must be before it enters a replay buffer or a data set.

Which episodes a replay buffer holds, oldest first, as arrays that grow at one end and shrink at the other.

The rows of a replay buffer: arrays used as rings, in memory or in memory-mapped files.

Rows are numbered from 0 without end; row r lies at place r modulo the number of rows, so an episode may run over the
end of the arrays and go on at their beginning.

One batch: which transitions, futures and random states, and their rows gathered.

`ReplayBuffer`: whole episodes in a ring, and batches with goals drawn exactly as a `GoalSpec` says.

An episode of T transitions takes T + 2 rows: its states, then the goal it was commanded to reach::

    row           r      r+1    ...   r+T-1     r+T    r+T+1   r+T+2
    observation   s0     s1     ...   sT-1      sT     -       next episode ...
    goal          g(s0)  g(s1)  ...   g(sT-1)   g(sT)  command
    action        a0     a1     ...   aT-1      -      -

so the next observation is the next row. When room is needed the oldest episodes go, whole. Their rows are
overwritten last of all, `slack` transitions later at the earliest: until then a cursor of old can be restored.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import weakref
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoint.data.draws import GoalDraws, GoalSpec, Spaces, future_offsets
from counterpoint.data.spec import sample_rng
from counterpoint.errors import BadInputError

__all__ = [
    "Checked",
    "Column",
    "EpisodeTable",
    "ReplayBuffer",
    "ReplaySource",
    "Rows",
    "batch_rng",
    "check_episode",
    "draw_batch",
]


TOLERANCE = 1e-6
"""How far beyond [-1, 1] an action may lie, for rounding in float32; it is clipped then."""


@dataclass(frozen=True)
class Checked:
    """An episode in the types it is stored in: T + 1 states, T actions and rewards."""

    observations: NDArray[Any]
    actions: NDArray[Any]
    goals: NDArray[Any]
    commanded: NDArray[Any]
    rewards: NDArray[np.float32]


def check_episode(
    spaces: Spaces,
    observations: NDArray[Any],
    actions: NDArray[Any],
    goals: NDArray[Any],
    commanded: NDArray[Any],
    rewards: NDArray[Any] | None,
) -> Checked:
    """Check one episode against `spaces`; arguments as those of `ReplayBuffer.add_episode`.

    Raises:
        BadInputError: When it has fewer than two states, a shape or type is wrong, a number is not finite, or an
            action is out of range.
    """
    observations = np.asarray(observations)
    states = len(observations) if observations.ndim else 0
    if states < 2:
        raise BadInputError(
            "episode", f"{states} states", "at least 2, the two ends of a transition", "leave such episodes out"
        )
    T = states - 1
    return Checked(
        _states("observations", observations, (states, *spaces.observation)),
        _actions(spaces, np.asarray(actions), T),
        _states("goals", np.asarray(goals), (states, *spaces.goal)),
        _states("commanded goal", np.asarray(commanded), spaces.goal),
        _states("rewards", np.zeros(T) if rewards is None else np.asarray(rewards), (T,)),
    )


def _states(where: str, values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    _check_shape(where, values, shape)
    if len(shape) >= 3:
        if values.dtype != np.uint8:
            raise BadInputError(
                where, str(values.dtype), "pictures as uint8 in [0, 255]", "convert the pictures before they are stored"
            )
        return values
    return _finite(where, values)


def _actions(spaces: Spaces, actions: NDArray[Any], T: int) -> NDArray[Any]:
    if spaces.discrete:
        _check_shape("actions", actions, (T,))
        if not np.issubdtype(actions.dtype, np.integer):
            raise BadInputError(
                "actions",
                str(actions.dtype),
                f"integers from 0 to {spaces.action - 1}",
                "give the number of each action",
            )
        least, most = 0.0, spaces.action - 1.0
    else:
        _check_shape("actions", actions, (T, spaces.action))
        actions, least, most = _finite("actions", actions), -1.0, 1.0
    outside = np.argwhere((actions < least - TOLERANCE) | (actions > most + TOLERANCE))
    if len(outside):
        place = tuple(outside[0])
        raise BadInputError(
            f"actions, step {place[0]}",
            f"{actions[place]:g}",
            f"actions from {least:g} to {most:g}",
            "scale continuous actions to [-1, 1] by the bounds of their space",
        )
    if spaces.discrete:
        return actions.astype(np.int64)
    clipped: NDArray[np.float32] = np.clip(actions, -1.0, 1.0)
    return clipped


def _check_shape(where: str, values: NDArray[Any], shape: tuple[int, ...]) -> None:
    if values.shape != shape:
        raise BadInputError(
            where,
            f"shape {values.shape}",
            f"{shape}",
            "give T + 1 states with their goals, T actions and T rewards, as the spaces say",
        )


def _finite(where: str, values: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is told below
        values = values.astype(np.float32)
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        raise BadInputError(
            where,
            f"NaN or infinity at {tuple(bad[0].tolist())}",
            "finite numbers",
            "drop or repair the episode; a simulation may have blown up",
        )
    return values


FIELDS = ("start", "length", "terminated", "checksum")


class EpisodeTable:
    """Four numbers an episode: `start` (its first row), `length` (T), `terminated` (0 or 1), `checksum`."""

    def __init__(self) -> None:
        self._data = np.zeros((64, len(FIELDS)), dtype=np.int64)
        self._first = self._end = 0

    def __len__(self) -> int:
        return self._end - self._first

    def __getitem__(self, field: str) -> NDArray[np.int64]:
        return self._data[self._first : self._end, FIELDS.index(field)]

    def append(self, start: int, length: int, terminated: bool, checksum: int) -> None:
        """Add the youngest episode."""
        if self._end == len(self._data):
            live = self._data[self._first : self._end]
            self._data = np.concatenate([live, np.zeros((max(64, len(live)), len(FIELDS)), dtype=np.int64)])
            self._first, self._end = 0, len(live)
        self._data[self._end] = start, length, terminated, checksum
        self._end += 1

    def drop_oldest(self, count: int) -> None:
        """Forget the oldest episodes."""
        self._first += count

    def rows(self) -> dict[str, list[int]]:
        """Every field as a list, for JSON."""
        return {field: self[field].tolist() for field in FIELDS}

    @classmethod
    def from_rows(cls, rows: dict[str, Any]) -> EpisodeTable:
        """What `rows` returned, as a table."""
        table = cls()
        for start, length, terminated, checksum in zip(*(rows[field] for field in FIELDS), strict=True):
            table.append(start, length, terminated, checksum)
        return table


LARGE = 1 << 20
"""Bytes from which on an output's memory is used again."""

SPARE = 8
"""How many outputs of each size wait to be used again at most."""


@dataclass(frozen=True)
class Column:
    """What one array holds in each row."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Rows:
    """Columns of equal length, written and read by row number.

    Args:
        columns: Name -> shape and type of a row.
        count: Rows.
        folder: Where the files go, one a column; `None` keeps the arrays in memory. Files that are there are kept, so
            that a buffer can be restored.

    Raises:
        BadInputError: When the arrays are larger than what is free, or the folder holds another buffer's files.
            Nothing was allocated then.
    """

    def __init__(self, columns: Mapping[str, Column], count: int, folder: Path | None) -> None:
        self.count = count
        self._columns, self._outputs = dict(columns), _Outputs()
        self._arrays: dict[str, NDArray[Any]] = {}
        need = count * sum(column.row_bytes for column in columns.values())
        if folder is None:
            _check_room("replay buffer", need, _free_memory(), "memory")
            self._arrays = {name: np.empty((count, *c.shape), c.dtype) for name, c in columns.items()}
        else:
            self._map(Path(folder), need)

    def _map(self, folder: Path, need: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        note, files = folder / "rows.json", {name: folder / f"{name}.bin" for name in self._columns}
        layout = {"rows": self.count, "columns": {name: [list(c.shape), c.dtype] for name, c in self._columns.items()}}
        if note.exists() and note.read_text() != json.dumps(layout):
            raise BadInputError(
                folder,
                "the files of a replay buffer of other sizes",
                "an empty folder, or the files of this very buffer",
                "restore with the spaces, capacity and slack it was made with, or use another folder",
            )
        held = sum(file.stat().st_blocks * 512 for file in files.values() if file.exists())
        _check_room(folder, need - held, shutil.disk_usage(folder).free, "disk")
        for name, column in self._columns.items():
            with files[name].open("ab") as file:
                file.truncate(self.count * column.row_bytes)  # sparse: blocks are taken as rows are written
            self._arrays[name] = np.memmap(files[name], column.dtype, mode="r+", shape=(self.count, *column.shape))
        if not note.exists():
            made = note.with_suffix(f".{os.getpid()}")
            made.write_text(json.dumps(layout))
            made.rename(note)

    def write(self, name: str, row: int, values: NDArray[Any]) -> None:
        """Put `values` [n, ...] at rows `row` and after, n at most the number of rows."""
        place = row % self.count
        fit = min(len(values), self.count - place)
        self._arrays[name][place : place + fit] = values[:fit]
        self._arrays[name][: len(values) - fit] = values[fit:]

    def gather(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """A copy of the rows asked for: [*rows.shape, ...]."""
        column, array = self._columns[name], self._arrays[name]
        places = (rows % self.count).reshape(-1)
        out = self._outputs.empty((rows.size, *column.shape), column.dtype)
        # Any mode but "raise" lets numpy copy straight into `out`; the remainder keeps every place in range.
        np.take(array, places, axis=0, out=out, mode="clip")
        return out.reshape(*rows.shape, *column.shape)

    def checksum(self, row: int, count: int) -> int:
        """CRC-32 over `count` rows of every column, from `row` on."""
        place = row % self.count
        fit = min(count, self.count - place)
        digest = 0
        for array in self._arrays.values():
            for piece in (array[place : place + fit], array[: count - fit]):
                digest = zlib.crc32(np.ascontiguousarray(piece).view(np.uint8).reshape(-1).data, digest)
        return digest

    def flush(self) -> None:
        """Have the operating system write what is in files to their disk."""
        for array in self._arrays.values():
            if isinstance(array, np.memmap):
                array.flush()


class _Outputs:
    """Memory for what is gathered. Large pieces are used again as soon as nobody holds them any longer.

    Fresh memory comes page by page, each at the price of a fault: for a batch of pictures more than the copy itself.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[bytearray]] = {}

    def empty(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """As `np.empty`."""
        need = math.prod(shape) * np.dtype(dtype).itemsize
        if need < LARGE:
            return np.empty(shape, dtype)
        free = self._free.setdefault(need, [])
        memory = free.pop() if free else bytearray(need)
        # Every array and tensor made of `flat` holds it, because its own memory is no array's.
        flat = np.frombuffer(memory, dtype)
        weakref.finalize(flat, _put_back, free, memory).atexit = False
        return flat.reshape(shape)


def _put_back(free: list[bytearray], memory: bytearray) -> None:
    if len(free) < SPARE:
        free.append(memory)


def _check_room(where: str | Path, need: int, free: int, what: str) -> None:
    if need > free:
        raise BadInputError(
            where,
            f"a need of {need / 1e9:.2f} GB, with {free / 1e9:.2f} GB of {what} free",
            f"a replay buffer that fits into free {what}",
            "lower its capacity"
            + (" or give it a folder, to keep it in files" if what == "memory" else " or use another disk"),
        )


def _free_memory() -> int:
    """Bytes that can be had without swapping: caches of files count as free where the system tells them."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


Integers = NDArray[np.int64]


def batch_rng(seed: int, step: int) -> np.random.Generator:
    """The random stream of batch number `step`: a pure function of both arguments."""
    return sample_rng(seed, step, "replay batch")


def draw_batch(
    rows: Rows,
    table: EpisodeTable,
    draws: GoalDraws,
    goal: str,
    batch_size: int,
    rng: np.random.Generator,
    spec: GoalSpec,
) -> dict[str, Tensor]:
    """Draw and gather what `spec` asks for.

    Args:
        rows: What is stored; an episode lies there as `counterpoint.data.replay` draws it.
        table: The episodes that may be drawn from.
        draws: Draws over their lengths.
        goal: The column that holds goal coordinates.
        batch_size: B.
        rng: Where every random number comes from.
        spec: The keys and the distribution of futures.
    """
    start, keys = table["start"], spec.keys
    episode, step = draws.transitions(batch_size, rng, discount=spec.discount, tail=spec.tail)
    length = draws.lengths[episode]
    row = start[episode] + step
    places: dict[str, tuple[str, Integers]] = {
        "observation": ("observation", row),
        "action": ("action", row),
        "next_observation": ("observation", row + 1),
        "next_goal": (goal, row + 1),
        "goal": (goal, start[episode] + length + 1),
        "reward": ("reward", row),
    }
    batch: dict[str, NDArray[Any]] = {}
    if keys & {"future_goal", "future_offset"}:
        batch["future_offset"] = future_offsets(length - step, spec.discount, spec.tail, rng)
        places["future_goal"] = (goal, row + batch["future_offset"])
    if "random_goal" in keys:
        other, at = draws.states(batch_size, rng)
        places["random_goal"] = (goal, start[other] + at)
    if "terminated" in keys:
        batch["terminated"] = (table["terminated"][episode] == 1) & (step == length - 1)
    batch |= {key: rows.gather(*place) for key, place in places.items() if key in keys}
    batch = {key: value for key, value in batch.items() if key in keys}
    if spec.sequence:
        batch |= _sequences(rows, row, step, spec.sequence)
    return {key: torch.from_numpy(value) for key, value in batch.items()}


def _sequences(rows: Rows, row: Integers, step: Integers, length: int) -> dict[str, NDArray[Any]]:
    """The `length` steps that end at each transition; on the left step 0 is repeated."""
    wanted = step[:, None] - np.arange(length - 1, -1, -1)
    steps = np.maximum(wanted, 0)
    places = (row - step)[:, None] + steps
    return {
        "sequence_observation": rows.gather("observation", places),
        "sequence_action": rows.gather("action", places),
        "sequence_return": rows.gather("return", places),
        "sequence_step": steps,
        "sequence_valid": wanted >= 0,
    }


class ReplayBuffer:
    """Whole episodes, oldest evicted first.

    Args:
        spaces: What states, goals and actions look like. Shapes of three axes are pictures, kept as uint8.
        capacity: Transitions held at most.
        folder: Keeps the rows in memory-mapped files there: for pictures, and to continue a run. `None`: in memory.
        slack: This many transitions can be added after a `cursor` was taken before anything it refers to is lost.
        shortest: Room is counted for episodes of so many transitions or more. With shorter ones the buffer holds
            fewer than `capacity`, and `slack` is used up sooner.
        goal_is_observation: Goals are whole observations, which are then stored once; `add_episode` does not read
            its `goals`.
        action_bounds: [2, A], what actions of -1 and 1 stand for where data were scaled; kept as an attribute.

    Raises:
        BadInputError: When a number is not positive, or the buffer is larger than free memory or disk.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        capacity: int,
        folder: Path | None = None,
        slack: int = 0,
        shortest: int = 10,
        goal_is_observation: bool = False,
        action_bounds: NDArray[Any] | None = None,
    ) -> None:
        for name, value, least in (("capacity", capacity, 1), ("slack", slack, 0), ("shortest", shortest, 1)):
            if value < least:
                raise BadInputError(name, str(value), f"at least {least}", "choose more")
        if goal_is_observation and spaces.goal != spaces.observation:
            raise BadInputError(
                "goal_is_observation",
                f"goals of shape {spaces.goal}",
                f"{spaces.observation}, the observations' own",
                "leave goal_is_observation out",
            )
        self.spaces, self.capacity, self.slack = spaces, capacity, slack
        self.action_bounds = action_bounds
        self._goal = "observation" if goal_is_observation else "goal"
        self._live_rows = capacity + 2 * -(-capacity // shortest)
        columns = {
            "observation": _values(spaces.observation),
            "goal": _values(spaces.goal),
            "action": Column((), "int64") if spaces.discrete else Column((spaces.action,), "float32"),
            "reward": Column((), "float32"),
            "return": Column((), "float32"),
        }
        if goal_is_observation:
            del columns["goal"]
        self._rows = Rows(columns, self._live_rows + slack + 2 * -(-slack // shortest), folder)
        self._table = EpisodeTable()
        self._transitions = self._head = 0
        self._draws: GoalDraws | None = None

    @property
    def transitions(self) -> int:
        """Transitions that can be drawn."""
        return self._transitions

    @property
    def episodes(self) -> int:
        """Episodes held."""
        return len(self._table)

    def add_episode(
        self,
        observations: NDArray[Any],
        actions: NDArray[Any],
        goals: NDArray[Any],
        *,
        commanded: NDArray[Any],
        rewards: NDArray[Any] | None = None,
        terminated: bool = False,
    ) -> None:
        """Add one episode; the oldest go until there is room.

        Args:
            observations: [T + 1, *O].
            actions: float [T, A] in [-1, 1], or integers [T].
            goals: Goal coordinates of every state, [T + 1, *G].
            commanded: The goal that was to be reached, [*G].
            rewards: [T]; zeros by default.
            terminated: Whether the task ended with the last transition (not by a time limit).

        Raises:
            BadInputError: When the episode is too short, too long, of other shapes, holds numbers that are not finite
                or actions out of range. The buffer is as before then.
        """
        goals = observations if self._goal == "observation" else goals
        episode = check_episode(self.spaces, observations, actions, goals, commanded, rewards)
        T = len(episode.actions)
        if self.capacity < T:
            raise BadInputError(
                "episode",
                f"{T} transitions",
                f"at most {self.capacity}, the capacity of the replay buffer",
                "raise the capacity or cut the episode",
            )
        self._make_room(T)
        self._store(episode)
        self._table.append(self._head, T, terminated, self._rows.checksum(self._head, T + 2))
        self._head += T + 2
        self._transitions += T
        self._draws = None

    def sample(self, batch_size: int, rng: np.random.Generator, spec: GoalSpec) -> dict[str, Tensor]:
        """Draw B transitions with replacement; see `counterpoint.agents.base` for the keys and their shapes.

        With `spec.sequence` = K the batch holds the K steps that end at each transition as well: `sequence_observation`
        [B, K, *O], `sequence_action` [B, K, A] (or [B, K]), `sequence_return` float32 [B, K] (undiscounted sum of the
        data's rewards from that step to the end), `sequence_step` int64 [B, K] and `sequence_valid` bool [B, K]. On the
        left of an episode's beginning step 0 is repeated, and not valid.

        Args:
            batch_size: B.
            rng: Where every random number comes from.
            spec: What to draw and gather.

        Raises:
            BadInputError: When the buffer is empty.
        """
        if not self.episodes:
            raise BadInputError("replay buffer", "no episode", "at least one", "add episodes first")
        if self._draws is None:
            self._draws = GoalDraws(self._table["length"])
        return draw_batch(self._rows, self._table, self._draws, self._goal, batch_size, rng, spec)

    def fingerprint(self) -> str:
        """Hex digest that changes with the transitions held, the goals and the order of episodes."""
        return hashlib.sha256(json.dumps(self._table.rows()).encode()).hexdigest()

    def rewards_differ(self) -> bool:
        """Whether two transitions have different rewards; where none have, there is nothing to learn from rewards."""
        starts, lengths = self._table["start"], self._table["length"]
        ends = np.cumsum(lengths)
        rows = np.arange(lengths.sum()) + np.repeat(starts - (ends - lengths), lengths)
        rewards = self._rows.gather("reward", rows)
        return bool(rewards.size) and bool((rewards != rewards[0]).any())

    def cursor(self) -> dict[str, Any]:
        """Where the buffer stands, as JSON values: with the rows, all that sampling depends on."""
        return {"head": self._head, "episodes": self._table.rows()}

    def restore(self, cursor: dict[str, Any]) -> None:
        """Go back to where `cursor` was taken: sampling is then the same, bit by bit.

        Raises:
            BadInputError: When rows that the cursor refers to are not there or not as they were. The buffer is as
                before then.
        """
        table = EpisodeTable.from_rows(cursor["episodes"])
        for start, length, checksum in zip(
            table["start"].tolist(), table["length"].tolist(), table["checksum"].tolist(), strict=True
        ):
            if length + 2 > self._rows.count or self._rows.checksum(start, length + 2) != checksum:
                raise BadInputError(
                    "replay buffer",
                    "rows that differ from those the checkpoint refers to",
                    f"the same rows; {self.slack} transitions may be added after a checkpoint",
                    "restore from a later checkpoint, use the run's own folder, or start the run anew with a "
                    "larger slack",
                )
        self._table, self._head = table, int(cursor["head"])
        self._transitions, self._draws = int(table["length"].sum()), None

    def flush(self) -> None:
        """Write memory-mapped rows to disk; call it before a checkpoint that holds a cursor."""
        self._rows.flush()

    def _make_room(self, T: int) -> None:
        """Evict the oldest episodes until T transitions, and their rows, fit."""
        over = max(self._transitions + T - self.capacity, 0)
        lengths = self._table["length"]
        freed = np.concatenate([[0], np.cumsum(lengths)])
        rows = freed + 2 * np.arange(len(freed))
        enough = (freed >= over) & (rows[-1] - rows + T + 2 <= self._live_rows)
        count = int(np.argmax(enough))
        self._transitions -= int(freed[count])
        self._table.drop_oldest(count)

    def _store(self, episode: Checked) -> None:
        at, T = self._head, len(episode.actions)
        blank = np.zeros(2, dtype=np.float32)  # rows without a transition, equal in every run for the checksum
        goals = np.concatenate([episode.goals, episode.commanded[None]])
        if self._goal == "observation":
            self._rows.write("observation", at, goals)
        else:
            self._rows.write("observation", at, episode.observations)
            self._rows.write("observation", at + T + 1, np.zeros_like(episode.observations[:1]))
            self._rows.write("goal", at, goals)
        self._rows.write("action", at, episode.actions)
        self._rows.write("action", at + T, np.zeros((2, *episode.actions.shape[1:]), episode.actions.dtype))
        returns = np.cumsum(episode.rewards[::-1], dtype=np.float64)[::-1].astype(np.float32)
        for name, values in (("reward", episode.rewards), ("return", returns)):
            self._rows.write(name, at, np.concatenate([values, blank]))


class ReplaySource:
    """Batches of a buffer that no longer changes, by number: batch k is a pure function of (seed, k).

    Args:
        buffer: Where transitions come from.
        spec: What a batch holds, as `Agent.sampling` says.
        batch_size: B.
        seed: The run's seed.

    Raises:
        BadInputError: When the batch size is not positive or the buffer is empty.
    """

    def __init__(self, buffer: ReplayBuffer, spec: GoalSpec, *, batch_size: int, seed: int) -> None:
        if batch_size < 1 or not buffer.transitions:
            raise BadInputError(
                "replay source",
                f"batches of {batch_size} from {buffer.transitions} transitions",
                "at least one of both",
                "fill the buffer and choose a positive batch size",
            )
        self._buffer, self._spec, self._batch_size, self._seed = buffer, spec, batch_size, seed

    @property
    def epoch_size(self) -> int:
        """Transitions in the buffer."""
        return self._buffer.transitions

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        """Batch number `step`."""
        return self._buffer.sample(self._batch_size, batch_rng(self._seed, step), self._spec)

    def batches(self, start: int, stop: int) -> Iterator[dict[str, Tensor]]:
        """Batches number `start` to `stop` - 1."""
        return (self[step] for step in range(start, stop))


def _values(shape: tuple[int, ...]) -> Column:
    return Column(shape, "uint8" if len(shape) == 3 else "float32")
