"""The trials of the stitching study: one method under one rule on one experiment, trained and walked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from studies.occupancy.tabular import Rule, TabularConfig, allowed_actions, greedy, mc_limit, mc_scores, td_scores
from studies.stitching.data import Paths

Method = Literal["td_infonce", "mc_infonce", "mc_limit", "untrained"]
"""`mc_limit` is MC InfoNCE after infinitely many steps; `untrained` uses only the rule for allowed actions."""

CELLS: tuple[tuple[Method, tuple[Rule, ...]], ...] = (
    ("td_infonce", ("seen",)),
    ("td_infonce", ("all",)),
    ("mc_infonce", ("seen", "all")),
    ("mc_limit", ("seen", "all")),
    ("untrained", ("seen", "all")),
)
"""Methods with their rules. TD is trained under a rule, MC is not, so one table of MC serves both rules."""

TIES = 200
"""Number of walks of an untrained table, each with ties broken anew; trained tables are walked once."""


@dataclass(frozen=True)
class Case:
    """One data set, and the starts and goals of a policy that is learned from it.

    Attributes:
        name: Name of the layout, or of the kind of staircase.
        seed: Seed of the data.
        data: The trajectories.
        pairs: (start, goal), as states.
    """

    name: str
    seed: int
    data: Paths
    pairs: tuple[tuple[int, int], ...]

    @property
    def goals(self) -> tuple[int, ...]:
        """The distinct goals."""
        return tuple(sorted({goal for _, goal in self.pairs}))


def run_trial(
    cases: Sequence[Case], method: Method, rules: Sequence[Rule], config: TabularConfig, *, seed: int
) -> dict[str, Any]:
    """Train on all cases in parallel, then walk from every start to its goal under every rule.

    Args:
        cases: Data sets with equal numbers of goals.
        method: The method that scores actions.
        rules: Rules for the allowed actions, used in turn. TD takes one.
        config: Training of the tables.
        seed: Random seed of batches and ties.

    Returns:
        `records`, one per case, pair and rule: `reached` (a share, if ties were broken several times), mean `steps`
        of walks that arrived (`None` if none did), and the `states` of the first walk.
    """
    data, goals = [case.data for case in cases], np.array([case.goals for case in cases])
    if method == "td_infonce":
        (rule,) = rules
        scores = td_scores(data, goals, rule, config, seed=seed)
    elif method == "mc_infonce":
        scores = mc_scores(data, goals, config, seed=seed)
    else:
        scores = mc_limit(data, goals, config)
        if method == "untrained":
            scores = torch.zeros_like(scores)
    ties = 1 if method in ("td_infonce", "mc_infonce") else TIES
    records = [
        record for rule in rules for record in _walk_all(cases, rule, scores, allowed_actions(data, rule), ties, seed)
    ]
    return {"records": records}


def _walk_all(
    cases: Sequence[Case],
    rule: Rule,
    scores: Float[Tensor, "R G S A"],
    allowed: Bool[Tensor, "R S A"],
    ties: int,
    seed: int,
) -> list[dict[str, Any]]:
    policies = [greedy(scores, allowed, seed=seed + tie) for tie in range(ties)]
    records = []
    for number, case in enumerate(cases):
        for start, goal in case.pairs:
            at = case.goals.index(goal)
            walks = [walk_greedily(case.data.grid.next_state, policy[number, at], start, goal) for policy in policies]
            arrived = [len(states) - 1 for states in walks if states[-1] == goal]
            records.append(
                {
                    "rule": rule,
                    "case": case.name,
                    "seed": case.seed,
                    "start": start,
                    "goal": goal,
                    "reached": len(arrived) / ties,
                    "steps": float(np.mean(arrived)) if arrived else None,
                    "states": walks[0],
                }
            )
    return records


def walk_greedily(
    next_state: Int[NDArray[np.int64], "S A"], policy: Int[NDArray[np.int64], " S"], start: int, goal: int
) -> list[int]:
    """Return the states from the start to the goal; a walk stops after S steps, since it then repeats itself."""
    states = [start]
    while states[-1] != goal and len(states) <= len(next_state):
        states.append(int(next_state[states[-1], policy[states[-1]]]))
    return states
