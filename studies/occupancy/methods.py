"""The methods of the occupancy study as gradients on tables, with every sum over a batch collapsed.

A table critic f has P = S * A rows (s, a) and S columns, 125 x 25 on the 5 x 5 grid. A loss depends on a batch of N
draws only through a few counts: the number of draws that start at each (s, a), the number of each state among the N
candidates of a softmax, and the sum of what the draws contribute to their (s, a). The N x N matrix of logits, with
65,536 entries of which at most 3,125 differ, is never formed. The gradients equal those of `counterpoint.objectives`
exactly; a test compares them. n(s, a) is the share of draws at (s, a); c' and c are the counts of next states and of
states from p(s+):

    softmax'(s, a, .) = c' e^f / sum c' e^f         softmax(s, a, .) = c e^f / sum c e^f
    MC InfoNCE      n softmax' - [onehot(s+)]
    TD InfoNCE      n ((1-gamma) softmax' + gamma softmax) - [(1-gamma) onehot(s') + gamma softmax(s', a', .)]
    SR              n M        - [(1-gamma) onehot(s') + gamma M(s', a', .)]
    C-learning      sigmoid(f) (B + U) - B,   B = (1-gamma) [onehot(s')] + gamma [w onehot(s+)],  U = [onehot(s+)]

where [x] is the sum of x over the draws that start at (s, a), divided by N. C-learning's w is e^f(s', a', s+); with
self-normalised weights it is divided by its mean; with "N^2" every draw meets all N states s+ instead of its own.

No method uses a slowly moving copy of its table. Tables are [R, P, L * S]: R data sets and L settings of the
optimiser, which share batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from studies.occupancy.draws import Batch

LOG2_E = 1.4426950408889634

Table = Float[Tensor, "R P L*S"]


@dataclass(frozen=True)
class Method:
    """A method of the study.

    Attributes:
        title: The method's name in figures.
        loss: "sr", "mc_infonce", "td_infonce" or "c_learning".
        tail: Monte Carlo only: the rule at the end of an episode.
        pairs: C-learning only: True for N^2 negatives.
        normalised: C-learning only: True for self-normalised weights.
    """

    title: str
    loss: str
    tail: str | None = None
    pairs: bool = False
    normalised: bool = False

    @property
    def softmax(self) -> bool:
        """True for a critic whose softmax is a distribution."""
        return self.loss in ("mc_infonce", "td_infonce")


METHODS = {
    "td_infonce": Method("TD InfoNCE", "td_infonce"),
    "sr": Method("successor representation", "sr"),
    "c_learning": Method("C-learning", "c_learning"),
    "mc_infonce_renormalise": Method("MC InfoNCE, renormalise", "mc_infonce", "renormalise"),
    "mc_infonce_clip": Method("MC InfoNCE, clip", "mc_infonce", "clip"),
    "mc_infonce_reject": Method("MC InfoNCE, reject", "mc_infonce", "reject"),
    "c_learning_normalised": Method("C-learning, self-normalised", "c_learning", normalised=True),
    "c_learning_pairs": Method("C-learning, N² negatives", "c_learning", pairs=True),
    "c_learning_both": Method("C-learning, both", "c_learning", pairs=True, normalised=True),
}


class Gradients:
    """Gradients of every method's loss with respect to its tables.

    Args:
        discount: gamma.
        settings: Number L of adjacent tables that share batches.
        pair_states: The state of each pair, [P].
        states: Number of states, S.
        dtype: Type of the tables.
        row_sum: Sum of each row of TD InfoNCE's weights; 1, except to show the effect of the paper's printed factor.
    """

    def __init__(
        self,
        *,
        discount: float,
        settings: int,
        pair_states: Tensor,
        states: int,
        dtype: torch.dtype,
        row_sum: float = 1.0,
    ) -> None:
        self.discount, self.settings, self.states, self.row_sum = discount, settings, states, row_sum
        self.onehot = torch.eye(states, dtype=dtype).repeat(1, settings)
        self.reached = (1 - discount) * self.onehot[pair_states]

    def of(self, method: str) -> Callable[[Table, Batch], Table]:
        """Return the gradient function of a method."""
        loss, pairs, normalised = METHODS[method].loss, METHODS[method].pairs, METHODS[method].normalised
        if loss == "c_learning":
            gradient = self.c_learning_pairs if pairs else self.c_learning
            return lambda f, batch: gradient(f, batch, normalised)
        return {"sr": self.sr, "mc_infonce": self.mc_infonce, "td_infonce": self.td_infonce}[loss]

    def sr(self, M: Table, batch: Batch) -> Table:
        """Return the gradient of Eq. 16, half the squared error with a fixed target."""
        target = torch.add(self.reached, M, alpha=self.discount)
        return (M * batch.visits[..., None]).sub_(batch.collect(self._rows(target)))

    def mc_infonce(self, f: Table, batch: Batch) -> Table:
        """Return the gradient of Eq. 6; the candidates are the batch's own futures."""
        e = torch.exp2(f * LOG2_E)
        c = batch.arrived[:, None]
        per_pair = batch.visits[..., None, None] / self._sums(e, c)
        return e.mul_(self._spread(per_pair, c)).sub_(batch.collect(self.onehot))

    def td_infonce(self, f: Table, batch: Batch) -> Table:
        """Return the gradient of Eq. 10, 17; candidates are next states in one term, states from p(s+) in the other."""
        e = torch.exp2(f * LOG2_E)
        c = torch.stack([batch.arrived, batch.drawn], dim=1)
        inverse = self._sums(e, c).reciprocal_()
        inverse[..., 0] *= 1 - self.discount
        inverse[..., 1] *= self.discount * self.row_sum
        target = (self._split(e) * inverse[..., 1:]).view_as(e)
        target.mul_(batch.drawn.repeat(1, self.settings)[:, None]).add_(self.reached)
        per_pair = inverse.mul_(batch.visits[..., None, None])
        return e.mul_(self._spread(per_pair, c)).sub_(batch.collect(self._rows(target)))

    def c_learning(self, f: Table, batch: Batch, self_normalised: bool) -> Table:
        """Return the gradient with one state from p(s+) for each draw."""
        R = len(f)
        column = torch.arange(self.settings) * self.states + batch.futures[:, None].long()
        width = self.settings * self.states
        w = torch.exp2(LOG2_E * f.view(-1)[batch.sources[:, None] * width + column])
        if self_normalised:
            by_run = w.view(R, -1, self.settings)
            w = (by_run / by_run.mean(dim=1, keepdim=True)).view_as(w)
        flat = (batch.pairs[:, None] * width + column).view(-1)
        toward = batch.collect(self.reached.repeat(R, 1))
        scale = self.discount / batch.size
        toward.view(-1).scatter_add_(0, flat, w.view(-1) * scale)
        away = torch.zeros_like(f)
        away.view(-1).scatter_add_(0, flat, w.new_full((), 1 / batch.size).expand(flat.shape))
        return torch.sigmoid(f).mul_(away.add_(toward)).sub_(toward)

    def c_learning_pairs(self, f: Table, batch: Batch, self_normalised: bool) -> Table:
        """Return the gradient with all N states from p(s+) for every draw."""
        w = torch.exp2(f * LOG2_E)
        if self_normalised:
            mean = self._sums(w, batch.drawn[:, None] / batch.size)
            w = (self._split(w) / mean).view_as(w)
        share = batch.drawn.repeat(1, self.settings)[:, None] / batch.size
        target = w.mul_(share).mul_(self.discount).add_(self.reached)
        toward = batch.collect(self._rows(target))
        away = batch.visits[..., None] * share
        return torch.sigmoid(f).mul_(away.add_(toward)).sub_(toward)

    def _split(self, table: Table) -> Float[Tensor, "R P L S"]:
        return table.view(*table.shape[:2], self.settings, self.states)

    def _rows(self, table: Table) -> Float[Tensor, "R*P L*S"]:
        return table.view(-1, table.shape[-1])

    def _sums(self, e: Table, c: Float[Tensor, "R K S"]) -> Float[Tensor, "R P L K"]:
        """Return the sum over states of c e for each of K kinds of counts."""
        R, P, _ = e.shape
        flat = e.view(R, P * self.settings, self.states)
        return (c @ flat.mT).mT.contiguous().view(R, P, self.settings, -1)

    def _spread(self, per_pair: Float[Tensor, "R P L K"], c: Float[Tensor, "R K S"]) -> Table:
        """Return the sum over kinds k of per_pair[k] c[k], for every state."""
        R, P, L, K = per_pair.shape
        return (per_pair.view(R, P * L, K) @ c).view(R, P, L * self.states)


def estimate(
    method: str, table: Float[Tensor, "R P L*S"], marginal: Float[Tensor, "R S"], *, normalise: bool = False
) -> Float[Tensor, "R P L S"]:
    """Return the probabilities p(s+ | s, a) of a table.

    SR's table is the probability. A critic of the InfoNCE methods is normalised by its softmax (Eq. 12): p(s+) e^f
    divided by its sum. C-learning's e^f is the ratio itself, so p(s+) e^f sums to 1 only with `normalise`.

    Args:
        method: The method.
        table: L adjacent tables.
        marginal: The empirical p(s+) of the method's negatives.
        normalise: True to divide rows by their sums for every method.
    """
    R, P, _ = table.shape
    split = table.view(R, P, -1, marginal.shape[-1]).double()
    about = METHODS[method]
    if about.loss == "sr":
        found = split
    else:
        ratio = split - split.amax(-1, keepdim=True) if about.softmax else split
        found = ratio.exp() * marginal[:, None, None].double()
    return found / found.sum(-1, keepdim=True) if normalise or about.softmax else found
