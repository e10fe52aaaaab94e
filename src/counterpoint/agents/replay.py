"""`ReplayBuffer`: whole episodes in a ring, and batches with goals drawn exactly as a `GoalSpec` says.

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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from counterpoint.agents.replay_episodes import EpisodeTable
from counterpoint.agents.replay_sampling import batch_rng, draw_batch
from counterpoint.agents.replay_storage import Column, Rows
from counterpoint.data.goal_checks import Checked, check_episode
from counterpoint.data.goals import GoalDraws, GoalSpec, Spaces
from counterpoint.errors import BadInputError

__all__ = ["ReplayBuffer", "ReplaySource", "batch_rng"]


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
                raise BadInputError(name, found=str(value), expected=f"at least {least}", mend="choose more")
        if goal_is_observation and spaces.goal != spaces.observation:
            raise BadInputError(
                "goal_is_observation",
                found=f"goals of shape {spaces.goal}",
                expected=f"{spaces.observation}, the observations' own",
                mend="leave goal_is_observation out",
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
                found=f"{T} transitions",
                expected=f"at most {self.capacity}, the capacity of the replay buffer",
                mend="raise the capacity or cut the episode",
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
            raise BadInputError(
                "replay buffer", found="no episode", expected="at least one", mend="add episodes first"
            )
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
                    found="rows that differ from those the checkpoint refers to",
                    expected=f"the same rows; {self.slack} transitions may be added after a checkpoint",
                    mend="restore from a later checkpoint, use the run's own folder, or start the run anew with a "
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
        blank = np.zeros(
            2, dtype=np.float32
        )  # rows without a transition, equal in every run for the checksum
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
                found=f"batches of {batch_size} from {buffer.transitions} transitions",
                expected="at least one of both",
                mend="fill the buffer and choose a positive batch size",
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
