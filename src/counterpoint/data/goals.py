"""What a goal-reaching agent needs from a replay buffer, as plain data, and how future steps are drawn.

An episode of T transitions holds T + 1 states::

    state        s0   s1   s2  ...  sT-1   sT
    action       a0   a1   a2  ...  aT-1
    transition   0    1    2   ...  T-1        transition t = (s_t, a_t, s_{t+1})

The future of transition t is s_{t+k}, with k = 1, 2, ... drawn with probability (1 - gamma) gamma^(k - 1)
(TD InfoNCE, Eq. 3). An episode ends, so only k <= T - t can be served; `Tail` names what to do about the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["GoalSpec", "Tail"]

Tail = Literal["renormalise", "clip", "reject"]
"""What becomes of a future step that lies beyond the end of its episode.

`renormalise` draws from the geometric distribution restricted to the episode, `clip` takes the last state instead,
`reject` gives the whole transition up and draws another one (so that late transitions are rarer).
"""

BATCH_KEYS = (
    "observation",
    "action",
    "next_observation",
    "next_goal",
    "goal",
    "future_goal",
    "future_offset",
    "random_goal",
    "reward",
    "terminated",
)


@dataclass(frozen=True)
class GoalSpec:
    """The keys of a batch and the distribution of its future goals.

    Attributes:
        keys: Which of `BATCH_KEYS` the agent reads; nothing else is gathered.
        discount: gamma of the geometric distribution of futures.
        tail: What becomes of futures beyond the end of an episode.
        sequence: K > 0 asks for `sequence_*` keys too: the K steps that end at the drawn transition.
    """

    keys: frozenset[str]
    discount: float = 0.99
    tail: Tail = "renormalise"
    sequence: int = 0
