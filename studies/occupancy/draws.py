"""Batches for the occupancy study, drawn from counts for many data sets at once.

Rows of a batch are sorted by (s, a), so that the draws that start at (s, a) are adjacent and can be summed quickly. The
N candidate states of a softmax are given as counts, because there are only 25 distinct states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from studies.occupancy.data import Counted

STEPS_AT_ONCE = 128

Reals = NDArray[np.float64]
Integers = NDArray[np.int64]
Numbers = NDArray[np.int32]  # half the width of 64 bits, and several times as fast to sort and divide


@dataclass(frozen=True)
class Batch:
    """N draws for each of R data sets, in the form that the gradients need; D = R * N draws, sorted by (r, s, a).

    Attributes:
        size: Number of draws per data set, N.
        visits: Share of draws that start at each pair, [R, P].
        pairs: The pair at which each draw starts, r * P + (s, a), [D].
        sources: The index of what each draw adds to its pair, [D]: r * P + (s', a'), or s+ for Monte Carlo.
        offsets: The position in `sources` where the draws of each pair begin, [R * P].
        arrived: The count of each state among the N next states (for Monte Carlo: futures), [R, S].
        futures: A state drawn from p(s+) for each draw, [D]; empty for Monte Carlo.
        drawn: The count of each state among `futures`, [R, S].
    """

    size: int
    visits: Float[Tensor, "R P"]
    pairs: Int[Tensor, " D"]
    sources: Int[Tensor, " D"]
    offsets: Int[Tensor, " R*P"]
    arrived: Float[Tensor, "R S"]
    futures: Int[Tensor, " D"]
    drawn: Float[Tensor, "R S"]

    def collect(self, rows: Float[Tensor, "K C"]) -> Float[Tensor, "R P C"]:
        """Return, for each pair, the sum of the rows that its draws' `sources` index, divided by N."""
        total = functional.embedding_bag(self.sources, rows, self.offsets, mode="sum")
        return total.view(*self.visits.shape, -1).div_(self.size)


class Alias:
    """Draws from R distributions over K outcomes in constant time (Walker, 1977).

    Args:
        weights: One distribution per row, not necessarily normalised.
    """

    def __init__(self, weights: Float[Reals, "R K"]) -> None:
        tables = [_alias(row) for row in weights]
        self.outcomes = weights.shape[1]
        self._keep = np.stack([keep for keep, _ in tables])
        self._other = np.stack([other for _, other in tables]).astype(np.int32)
        self._row = (np.arange(len(weights), dtype=np.int32) * self.outcomes)[:, None]

    def draw(self, rng: np.random.Generator, steps: int, count: int) -> Int[Numbers, "B R N"]:
        """Draw `count` times from every row, `steps` times."""
        place = rng.random((steps, len(self._row), count)) * self.outcomes
        column = np.minimum(place.astype(np.int32), self.outcomes - 1)
        flat = column + self._row
        place -= column
        found: Numbers = np.where(place < self._keep.take(flat), column, self._other.take(flat))
        return found


def successor_batches(
    data: Sequence[Counted], steps: int, size: int, *, seed: int, dtype: torch.dtype
) -> Iterator[Batch]:
    """Yield batches of (s, a, s', a') and of states from p(s+), for temporal differences.

    Args:
        data: R data sets on one grid.
        steps: Number of batches.
        size: N.
        seed: Random seed.
        dtype: Type of the counts.
    """
    rng = np.random.default_rng(seed)
    P, S, R = data[0].pairs, data[0].states, len(data)
    transitions = Alias(np.stack([one.successors.ravel() for one in data]).astype(np.float64))
    marginal = Alias(np.stack([one.marginal() for one in data]))
    pair_states = data[0].pair_states.astype(np.int32)
    row = (np.arange(R, dtype=np.int32) * P)[:, None]
    for count in _chunks(steps):
        codes = np.sort(transitions.draw(rng, count, size), axis=-1)
        pairs, successors = np.divmod(codes, P)
        futures = marginal.draw(rng, count, size)
        yield from _batches(pairs, successors + row, pair_states[successors], futures, P=P, S=S, dtype=dtype)


def future_batches(
    data: Sequence[Counted], steps: int, size: int, *, tail: str, seed: int, dtype: torch.dtype
) -> Iterator[Batch]:
    """Yield batches of (s, a, s+), for Monte Carlo.

    Args:
        data: R data sets on one grid.
        steps: Number of batches.
        size: N.
        tail: Rule for draws past the end of an episode.
        seed: Random seed.
        dtype: Type of the counts.
    """
    rng = np.random.default_rng(seed)
    P, S = data[0].pairs, data[0].states
    joint = Alias(np.stack([one.futures[tail].ravel() for one in data]))
    for count in _chunks(steps):
        codes = np.sort(joint.draw(rng, count, size), axis=-1)
        pairs, states = np.divmod(codes, S)
        yield from _batches(pairs, states, states, states[..., :0], P=P, S=S, dtype=dtype)


def _chunks(steps: int) -> Iterator[int]:
    """Yield the numbers of steps whose batches are drawn at once, so that drawing is cheap."""
    for first in range(0, steps, STEPS_AT_ONCE):
        yield min(STEPS_AT_ONCE, steps - first)


def _batches(
    pairs: Int[Numbers, "B R N"],
    sources: Int[Numbers, "B R N"],
    arrived: Int[Numbers, "B R N"],
    futures: Int[Numbers, "B R M"],
    *,
    P: int,
    S: int,
    dtype: torch.dtype,
) -> Iterator[Batch]:
    """Yield one `Batch` for each of B steps."""
    B, R, N = pairs.shape
    visits = _counts(pairs, P)
    by_pair = visits.reshape(B, -1)
    offsets = (by_pair.cumsum(axis=1) - by_pair).astype(np.int32)
    shares = torch.from_numpy(visits).to(dtype).div_(N)
    tables = [torch.from_numpy(_counts(x, S)).to(dtype) for x in (arrived, futures)]
    row = (np.arange(R, dtype=np.int32) * P)[:, None]
    starts, carried, drawn = (torch.from_numpy(x.reshape(B, -1)) for x in (pairs + row, sources, futures))
    begin = torch.from_numpy(offsets)
    for b in range(B):
        yield Batch(N, shares[b], starts[b], carried[b], begin[b], tables[0][b], drawn[b], tables[1][b])


def _counts(values: Int[Numbers, "B R N"], K: int) -> Int[Integers, "B R K"]:
    """Count each of K numbers in each row."""
    B, R, _ = values.shape
    row = (np.arange(B * R) * K).reshape(B, R, 1)
    return np.bincount((values + row).ravel(), minlength=B * R * K).reshape(B, R, K)


def _alias(weights: Float[Reals, " K"]) -> tuple[Reals, Integers]:
    """Return Vose's tables: outcome k is kept with probability keep[k], and otherwise replaced by other[k]."""
    K = len(weights)
    keep = weights / weights.sum() * K
    other = np.arange(K)
    small = [k for k in range(K) if keep[k] < 1]
    large = [k for k in range(K) if keep[k] >= 1]
    while small and large:
        poor, rich = small.pop(), large[-1]
        other[poor] = rich
        keep[rich] -= 1 - keep[poor]
        if keep[rich] < 1:
            small.append(large.pop())
    keep[small + large] = 1.0  # what rounding leaves
    return keep, other
