"""Tabular goal-reaching by TD InfoNCE and by MC InfoNCE (contrastive RL), on counts, without an N x N matrix.

A batch of N has few distinct rows and columns. For X distinct rows and S distinct columns with multiplicities c and n,

    CE = (1/N) sum_x [c_x log sum_y n_y exp f(x, y) - sum_y L(x, y) f(x, y)],    L: labels, summed over equal rows,

is the cross entropy of the N x N matrix, and its gradient is (c_x softmax_n - L) / N. R tables (seeds, data sets) are
processed at once.

The critics are tables of logits f(s, a, g, s+) and f(s, a, s+). The policies take argmax_a of the estimated occupancy
of the goal. Goals do not share entries of the table, so only the goals in use are trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from counterpoint.config import FrozenConfig
from counterpoint.data.transitions import Tail
from studies.stitching.data import Paths

TINY = 1e-30
"""A minimum that avoids 0 / 0 in rows that are not drawn."""


def counted_cross_entropy(
    logits: Float[Tensor, "*R X S"], labels: Float[Tensor, "*R X S"], columns: Float[Tensor, "*R S"]
) -> Float[Tensor, "*R"]:
    """Return the mean cross entropy of the rows of an N x N matrix, from its distinct rows and columns.

    Args:
        logits: The logit f of every distinct row and column.
        labels: Label weight of each pair, summed over equal rows and columns; the sum of a row is its count.
        columns: Count of each column; the sum is N.
    """
    logarithm = (logits + columns.log()[..., None, :]).logsumexp(-1)
    total = (labels.sum(-1) * logarithm).sum(-1) - (labels * logits).sum((-2, -1))
    return total / columns.sum(-1)


def mc_gradient(powers: Float[Tensor, "R X S"], joint: Float[Tensor, "R X S"]) -> Float[Tensor, "R X S"]:
    """Return the gradient of MC InfoNCE (Eq. 6), `counted_cross_entropy(f, joint, joint.sum(-2))`, with respect to f.

    Args:
        powers: e^f(s, a, s+).
        joint: Count of each (s, a) in the batch together with each future s+.
    """
    columns = joint.sum(1)
    share = joint.sum(-1) / columns.sum(-1, keepdim=True)
    total = (powers @ columns[..., None])[..., 0].clamp_(min=TINY)
    gradient = (share / total)[..., None] * columns[:, None] * powers
    return gradient.sub_(joint / columns.sum(-1)[:, None, None])


def td_gradient(
    powers: Float[Tensor, "R G X S"],
    following: Int[Tensor, "R G X"],
    positives: Float[Tensor, "R X S"],
    futures: Float[Tensor, "R S"],
    discount: float,
) -> Float[Tensor, "R G X S"]:
    """Return the gradient of TD InfoNCE (Eq. 10) with respect to f, with one batch for all goals.

    The loss is (1 - gamma) CE(f, positives; next states) + gamma CE(f, W; futures). W (Eq. 9) is the softmax over the
    futures of the following row, and has no gradient.

    Args:
        powers: e^f(s, a, g, s+); X is the number of (s, a).
        following: The row of (s', a') with a' ~ pi(. | s', g).
        positives: Count of each (s, a) in the batch together with each next state.
        futures: Count of each state among N draws from p(s+).
        discount: gamma.
    """
    R, G, X, S = powers.shape
    count = futures.sum(-1)[:, None, None]
    share = positives.sum(-1)[:, None] / count
    n, m = positives.sum(1)[:, None, None], futures[:, None, None]
    among_next = (1 - discount) * share / (powers * n).sum(-1).clamp_(min=TINY)
    among_futures = discount * share / (total := (powers * m).sum(-1).clamp_(min=TINY))
    gradient = (among_next[..., None] * n).add_(among_futures[..., None] * m).mul_(powers)
    row = (following + X * torch.arange(R * G).view(R, G, 1)).view(-1)
    W = powers.view(-1, S)[row].mul_(1 / total.view(-1, 1)[row]).view(R, G, X, S).mul_(m)
    gradient -= W.mul_(discount * share[..., None])
    return gradient.sub_((positives / count)[:, None], alpha=1 - discount)


Rule = Literal["seen", "all"]
"""The actions that a policy may take: those in the data of that state, or all five.

An action without data keeps its initial logits, all zero, which mean the marginal of states. In a state without any
action (the end of every trajectory) both rules allow all five.
"""

Reals = NDArray[np.float64]
CHUNK = 250
"""Steps whose batches are drawn at once."""


class TabularConfig(FrozenConfig):
    """Training of the tables.

    Attributes:
        steps: Gradient steps (Adam; the step size falls linearly to zero).
        batch: N.
        learning_rate: Adam's initial step size.
        discount: The discount, gamma; the paper does not state it.
        tail: Rule for MC's futures beyond the end of an episode.
    """

    steps: int = Field(default=50_000, ge=1)
    batch: int = Field(default=256, ge=2)
    learning_rate: float = Field(default=1e-2, gt=0)
    discount: float = Field(default=0.9, gt=0, lt=1)
    tail: Tail = "renormalise"


def allowed_actions(data: Sequence[Paths], rule: Rule) -> Bool[Tensor, "R S A"]:
    """Return the actions that a rule allows."""
    seen = torch.from_numpy(np.stack([one.seen for one in data]))
    return seen | ~seen.any(-1, keepdim=True) if rule == "seen" else torch.ones_like(seen)


@dataclass(frozen=True)
class _Rows:
    """The pairs (s, a) in any replica's data, as rows 0..X-1 of a table; row X stands for all other pairs."""

    pairs: Int[NDArray[np.int64], " X"]
    row_of: Int[Tensor, "S A"]
    next_state: Int[Tensor, " X+1"]

    @classmethod
    def of(cls, data: Sequence[Paths]) -> _Rows:
        grid = data[0].grid
        pairs = np.flatnonzero(np.logical_or.reduce([one.seen for one in data]))
        row_of = np.full(grid.states * grid.actions, len(pairs))
        row_of[pairs] = np.arange(len(pairs))
        after = np.append(grid.next_state.ravel()[pairs], 0)  # the last row is never drawn
        return cls(pairs, torch.from_numpy(row_of.reshape(grid.next_state.shape)), torch.from_numpy(after))


class _Table:
    """Logits [..., X + 1, S], initially zero, with their optimiser."""

    def __init__(self, shape: tuple[int, ...], config: TabularConfig) -> None:
        self.logits = torch.zeros(shape, requires_grad=True)
        self.adam = torch.optim.Adam([self.logits], lr=config.learning_rate, fused=True)
        self.config = config

    def step(self, number: int, gradient: Tensor) -> None:
        for group in self.adam.param_groups:
            group["lr"] = self.config.learning_rate * (1 - number / self.config.steps)
        self.logits.grad = gradient
        self.adam.step()

    def centre(self) -> None:
        """Shift each row so that its largest entry is 0; no softmax changes, and e^f stays finite."""
        self.logits -= self.logits.amax(-1, keepdim=True)


def _draws(rng: np.random.Generator, odds: Sequence[Reals], batch: int, steps: int) -> Tensor:
    """Draw batches as counts [steps, R, K] from every replica's probabilities [K]."""
    drawn = np.zeros((steps, len(odds), len(odds[0])), np.float32)
    for replica, p in enumerate(odds):
        support = np.flatnonzero(p)
        drawn[:, replica, support] = rng.multinomial(batch, p[support], size=steps)
    return torch.from_numpy(drawn)


@torch.no_grad()
def td_scores(
    data: Sequence[Paths], goals: Int[NDArray[np.int64], "R G"], rule: Rule, config: TabularConfig, *, seed: int
) -> Float[Tensor, "R G S A"]:
    """Train f(s, a, g, s+) by TD InfoNCE with a' = argmax of the estimated occupancy of g among allowed actions.

    Futures s+ are next states of transitions drawn uniformly. The weights come from the current table, not from a
    moving average.

    Args:
        data: One data set per replica, all on one grid.
        goals: The goals that each replica learns.
        rule: Rule for a'.
        config: Training.
        seed: Random seed.

    Returns:
        Estimates of log p(g | s, a, g) - log p(g), where p(g) is the share of g among next states.
    """
    rng, rows = np.random.default_rng(seed), _Rows.of(data)
    R, G, X, S = len(data), goals.shape[1], len(rows.pairs), data[0].grid.states
    goal = torch.from_numpy(goals)[:, :, None, None].expand(R, G, X + 1, 1)
    odds = [one.transition_counts.ravel()[rows.pairs] / one.transitions for one in data]
    arrivals = torch.nn.functional.one_hot(rows.next_state[:X], S)
    marginal = [p @ arrivals.double().numpy() for p in odds]
    share = torch.from_numpy(np.stack(marginal)).float()[:, None, None]
    arrivals = torch.nn.functional.pad(arrivals, (0, 0, 0, 1)).float()
    barred = ~allowed_actions(data, rule)[:, None]
    table = _Table((R, G, X + 1, S), config)
    by_state = rows.row_of.expand(R, G, -1, -1)

    def scores(powers: Tensor) -> Tensor:
        """Return log p(g | s, a, g) / p(g), by state and action."""
        total = (powers * share).sum(-1).clamp_(min=TINY)
        return (table.logits.gather(-1, goal)[..., 0] - total.log_())[..., rows.row_of]

    for first in range(0, config.steps, CHUNK):
        steps = min(CHUNK, config.steps - first)
        situations = torch.nn.functional.pad(_draws(rng, odds, config.batch, steps), (0, 1))
        futures = _draws(rng, marginal, config.batch, steps)
        for number in range(steps):
            powers = table.logits.exp()
            action = scores(powers).masked_fill_(barred, -torch.inf).argmax(-1, keepdim=True)
            following = by_state.gather(-1, action)[..., 0][..., rows.next_state]
            positives = situations[number][..., None] * arrivals
            gradient = td_gradient(powers, following, positives, futures[number], config.discount)
            table.step(first + number, gradient)
        table.centre()
    return scores(table.logits.exp())


@torch.no_grad()
def mc_scores(
    data: Sequence[Paths], goals: Int[NDArray[np.int64], "R G"], config: TabularConfig, *, seed: int
) -> Float[Tensor, "R G S A"]:
    """Train f(s, a, s+) by MC InfoNCE on futures drawn from the trajectories; no policy is involved.

    Args:
        data: One data set per replica, all on one grid.
        goals: Goals of the scores.
        config: Training.
        seed: Random seed.

    Returns:
        Estimates of log p(g | s, a) - log p(g), where p(g) is the share of g among futures.
    """
    rng, rows = np.random.default_rng(seed), _Rows.of(data)
    R, X, S = len(data), len(rows.pairs), data[0].grid.states
    joint = [one.futures(config.discount, config.tail).reshape(-1, S)[rows.pairs] for one in data]
    table = _Table((R, X + 1, S), config)
    for first in range(0, config.steps, CHUNK):
        steps = min(CHUNK, config.steps - first)
        drawn = _draws(rng, [p.ravel() for p in joint], config.batch, steps).view(steps, R, X, S)
        drawn = torch.nn.functional.pad(drawn, (0, 0, 0, 1))
        for number in range(steps):
            table.step(first + number, mc_gradient(table.logits.exp(), drawn[number]))
        table.centre()
    share = torch.from_numpy(np.stack(joint).sum(1)).float()[..., None]
    ratio = table.logits - (table.logits.exp() @ share).clamp_(min=TINY).log()
    return _of_goals(ratio, goals)[..., rows.row_of]


def mc_limit(
    data: Sequence[Paths], goals: Int[NDArray[np.int64], "R G"], config: TabularConfig
) -> Float[Tensor, "R G S A"]:
    """Return the limit of `mc_scores` for infinitely many steps: the log of the data's p(g | s, a) / p(g).

    It is -infinity for goals that never follow (s, a), and 0 for actions without data, whose logits do not change.
    """
    joint = torch.from_numpy(np.stack([one.futures(config.discount, config.tail) for one in data]))
    S, A = joint.shape[1:3]
    joint = joint.flatten(1, 2)
    taken = joint.sum(-1, keepdim=True)
    ratio = (joint / taken / joint.sum(1, keepdim=True)).log()
    ratio = torch.where(taken > 0, ratio, 0.0)
    return _of_goals(ratio, goals).view(*goals.shape, S, A).float()


def _of_goals(ratio: Float[Tensor, "R X S"], goals: Int[NDArray[np.int64], "R G"]) -> Float[Tensor, "R G X"]:
    columns = torch.from_numpy(goals)[:, None].expand(-1, ratio.shape[1], -1)
    return ratio.gather(-1, columns).movedim(-1, 1)


def greedy(
    scores: Float[Tensor, "R G S A"], allowed: Bool[Tensor, "R S A"], *, seed: int
) -> Int[NDArray[np.int64], "R G S"]:
    """Return the best allowed action of every state; ties are broken at random, once for each state and goal."""
    ranked = scores.masked_fill(~allowed[:, None], -torch.inf)
    best = (ranked == ranked.amax(-1, keepdim=True)) & allowed[:, None]
    noise = torch.rand(scores.shape, generator=torch.Generator().manual_seed(seed))
    actions: NDArray[np.int64] = noise.masked_fill_(~best, -1.0).argmax(-1).numpy()
    return actions
