from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from counterpoint.bench.offpolicy_data import Paths, walk
from counterpoint.bench.tabular_agent import (
    Rule,
    TabularConfig,
    allowed_actions,
    counted_cross_entropy,
    greedy,
    mc_gradient,
    mc_limit,
    mc_scores,
    td_gradient,
    td_scores,
)
from counterpoint.envs.gridworld import GridWorld
from counterpoint.objectives.td_infonce import mc_infonce_loss, td_infonce_loss, td_infonce_weights

N, X, S, GAMMA = 12, 7, 5, 0.9


def drawn(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A table, and a batch of rows, of their next states and of random futures."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(X, S, generator=generator, dtype=torch.float64)
    rows = torch.randint(X - 1, (N,), generator=generator)
    nexts = torch.randint(S, (X,), generator=generator)[rows]
    futures = torch.randint(S, (N,), generator=generator)
    return logits, rows, nexts, futures


def counts(rows: Tensor, columns: Tensor) -> Tensor:
    table = torch.zeros(X, S, dtype=torch.float64)
    return table.index_put_((rows, columns), torch.ones((), dtype=torch.float64), accumulate=True)


@pytest.mark.parametrize("seed", range(5))
def test_mc_from_counts_is_the_loss_of_the_whole_matrix(seed: int) -> None:
    logits, rows, _, futures = drawn(seed)
    table = logits.clone().requires_grad_()
    loss = mc_infonce_loss(table[rows][:, futures])
    (expected,) = torch.autograd.grad(loss, table)
    joint = counts(rows, futures)
    found = counted_cross_entropy(logits, joint, joint.sum(0))
    torch.testing.assert_close(found, loss.detach(), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(mc_gradient(logits.exp()[None], joint[None])[0], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("seed", range(5))
def test_td_from_counts_is_the_loss_of_the_whole_matrix(seed: int) -> None:
    generator = torch.Generator().manual_seed(100 + seed)
    _, rows, nexts, futures = drawn(seed)
    tables = torch.randn(2, X, S, generator=generator, dtype=torch.float64)  # of two goals
    following = torch.randint(X, (2, X), generator=generator)
    gradient = td_gradient(
        tables.exp()[None],
        following[None],
        counts(rows, nexts)[None],
        torch.bincount(futures, minlength=S).double()[None],
        GAMMA,
    )[0]
    for goal in range(2):
        table = tables[goal].clone().requires_grad_()
        after = table[following[goal][rows]][:, futures]
        loss = td_infonce_loss(table[rows][:, nexts], table[rows][:, futures], after, discount=GAMMA)
        (expected,) = torch.autograd.grad(loss, table)
        torch.testing.assert_close(gradient[goal], expected, rtol=1e-5, atol=1e-7)

        W = td_infonce_weights(after).detach().double()
        labels = torch.zeros(X, S, dtype=torch.float64)
        labels.index_put_((rows[:, None].expand(N, N), futures.expand(N, N)), W, accumulate=True)
        positives, m = counts(rows, nexts), torch.bincount(futures, minlength=S).double()
        value = (1 - GAMMA) * counted_cross_entropy(tables[goal], positives, positives.sum(0))
        value += GAMMA * counted_cross_entropy(tables[goal], labels, m)
        torch.testing.assert_close(value, loss.detach(), rtol=1e-6, atol=1e-7)


def test_rows_that_no_column_is_left_for_stay_finite() -> None:
    logits = torch.zeros(1, 1, 2, 3)
    logits[..., 1, :2] = -200.0
    positives = torch.tensor([[[2.0, 0.0, 0.0], [0.0, 0.0, 0.0]]])
    gradient = td_gradient(
        logits.exp(), torch.tensor([[[0, 0]]]), positives, torch.tensor([[1.0, 1.0, 0.0]]), GAMMA
    )
    assert gradient.isfinite().all()
    assert (gradient[..., 1, :] == 0).all()


def fork() -> Paths:
    """0 -> 1 -> 2 in two pieces, and 0 down to 5 -> 6 -> 7 -> 2."""
    grid = GridWorld()
    paths = (walk(grid, (0, 0), "DRRU"), walk(grid, (0, 0), "R"), walk(grid, (0, 1), "R"))
    return Paths(grid, paths, (20, 5, 5))


CONFIG = TabularConfig(steps=600, batch=64, learning_rate=0.03)


@pytest.mark.parametrize("rule", ["seen", "all"])
def test_td_joins_pieces_and_estimates_the_occupancy_of_its_own_policy(rule: Rule) -> None:
    data, goals, grid = fork(), np.array([[2]]), GridWorld()
    scores = td_scores([data], goals, rule, CONFIG, seed=0)
    right, down = 3, 1
    assert scores[0, 0, 0, right] > scores[0, 0, 0, down]
    # By hand: one step before the goal, then the untrained row of the goal itself, then one step further away.
    marginal = 25 / data.transitions  # arrivals at state 2
    last = (1 - CONFIG.discount) + CONFIG.discount * marginal
    first = CONFIG.discount * last
    found = scores[0, 0].exp() * marginal
    assert float(found[1, right]) == pytest.approx(last, rel=0.15)
    assert float(found[0, right]) == pytest.approx(first, rel=0.15)
    assert float(found[0, 0]) == pytest.approx(marginal)
    policy = greedy(scores, allowed_actions([data], rule), seed=0)[0, 0]
    assert grid.next_state[1, policy[1]] == 2


def test_mc_follows_whole_trajectories_and_tends_to_its_limit() -> None:
    data, goals = fork(), np.array([[2]])
    limit = mc_limit([data], goals, CONFIG)[0, 0]
    found = mc_scores([data], goals, CONFIG, seed=0)[0, 0]
    assert limit[0, 3] == -torch.inf  # the goal never follows (0, right) in one trajectory
    assert found[0, 1] > found[0, 3] + 1
    reached = limit.isfinite()
    torch.testing.assert_close(found[reached], limit[reached], rtol=0, atol=0.15)
    joint = data.futures(CONFIG.discount, CONFIG.tail)
    expected = np.log(joint[0, 1, 2] / joint[0, 1].sum() / joint[..., 2].sum())
    assert float(limit[0, 1]) == pytest.approx(expected, rel=1e-5)


def test_a_goal_learns_the_same_alone_as_beside_others() -> None:
    data = [fork()]
    alone = td_scores(data, np.array([[2]]), "seen", CONFIG, seed=0)
    beside = td_scores(data, np.array([[1, 2, 7]]), "seen", CONFIG, seed=0)
    torch.testing.assert_close(alone[:, 0], beside[:, 1], rtol=0, atol=1e-4)


def test_rules_name_the_actions_a_policy_may_take() -> None:
    data = fork()
    seen, everything = allowed_actions([data], "seen")[0], allowed_actions([data], "all")[0]
    assert everything.all()
    assert seen[0].tolist() == [False, True, False, True, False]
    assert seen[2].all()  # no trajectory goes on from the goal
    tied = torch.zeros(1, 1, 25, 5)
    chosen = {int(greedy(tied, seen[None], seed=seed)[0, 0, 0]) for seed in range(30)}
    assert chosen == {1, 3}
