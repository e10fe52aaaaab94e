from __future__ import annotations

import numpy as np
import pytest
import torch

from studies.gridworld import GridWorld
from studies.occupancy.tabular import Rule, TabularConfig, allowed_actions, greedy, mc_limit, mc_scores, td_scores
from studies.stitching.data import Paths, walk


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
