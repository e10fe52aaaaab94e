from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from counterpoint.agents import make_agent
from counterpoint.agents.qrl import (
    QRL,
    IntervalQuasimetric,
    QRLConfig,
    dual_losses,
    interval_union,
    push_loss,
    step_excess,
    tanh_entropy,
)
from counterpoint.data.episode import Spaces
from tests.agents.baseline_batches import IMAGE, SMALL, STATE, WHOLE, acted, assert_learns, batch_of, situations
from tests.reference import goal_baselines as reference


def vectors(count: int, width: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(count, width, generator=generator, dtype=torch.float64)


@given(K=st.integers(1, 9), seed=st.integers(0, 999), grid=st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_union_equals_the_loop(K: int, seed: int, grid: bool) -> None:
    start, end = vectors(4, K, seed), vectors(4, K, seed + 1)
    if grid:  # ties and intervals that touch
        start, end = (start * 2).round(), (end * 2).round()
    expected = [reference.interval_union(u, v) for u, v in zip(start.tolist(), end.tolist(), strict=True)]
    torch.testing.assert_close(interval_union(start, end), torch.tensor(expected, dtype=torch.float64))


def test_disjoint_nested_and_empty_intervals() -> None:
    start = torch.tensor([[0.0, 5.0, 9.0], [0.0, 1.0, 2.0], [1.0, 2.0, 3.0]])
    end = torch.tensor([[1.0, 7.0, 8.0], [10.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
    assert interval_union(start, end).tolist() == [3.0, 10.0, 0.0]


def test_the_distance_equals_the_loop() -> None:
    quasimetric = IntervalQuasimetric(2, 3)
    with torch.no_grad():
        quasimetric.mix.copy_(torch.tensor([[0.3], [-1.2]]))
    start, end = vectors(8, 12).reshape(2, 4, 12), vectors(8, 12, 1).reshape(2, 4, 12)
    found = quasimetric(start, end)
    for member in range(2):
        share = torch.sigmoid(quasimetric.mix[member, 0]).item()
        for row in range(4):
            expected = reference.quasimetric(start[member, row].tolist(), end[member, row].tolist(), 3, share)
            assert found[member, row].item() == pytest.approx(expected, rel=1e-5)


@given(seed=st.integers(0, 10**6), scale=st.sampled_from([1e-3, 1.0, 1e3]))
@settings(max_examples=60, deadline=None)
def test_it_is_a_quasimetric(seed: int, scale: float) -> None:
    quasimetric = IntervalQuasimetric(1, 4)
    u, v, w = vectors(3 * 16, 20, seed, scale).reshape(3, 1, 16, 20)
    with torch.no_grad():
        assert torch.equal(quasimetric(u, u), torch.zeros(1, 16))
        assert (quasimetric(u, v) > 0).all()
        through = quasimetric(u, v) + quasimetric(v, w)
        assert (quasimetric(u, w) <= through * (1 + 1e-5)).all()
        assert not torch.allclose(quasimetric(u, v), quasimetric(v, u))


def test_it_grows_in_proportion_and_ignores_a_common_shift() -> None:
    quasimetric = IntervalQuasimetric(1, 4)
    u, v = vectors(2 * 8, 20).reshape(2, 1, 8, 20)
    torch.testing.assert_close(quasimetric(3 * u, 3 * v), 3 * quasimetric(u, v))
    torch.testing.assert_close(quasimetric(u + 2, v + 2), quasimetric(u, v), rtol=1e-5, atol=1e-5)


def test_the_gradient_is_the_numerical_one() -> None:
    start, end = vectors(3, 6).requires_grad_(), vectors(3, 6, 1).requires_grad_()
    assert torch.autograd.gradcheck(interval_union, (start, end))


def config(**changes: object) -> QRLConfig:
    small = {"hidden": SMALL, "latent": 16, "projector": 32, "components": 8, "component_width": 4}
    rates = {"critic_lr": 1e-3, "actor_lr": 1e-3}
    return QRLConfig.model_validate(small | rates | changes)


def make(seed: int = 0, spaces: Spaces = STATE, **changes: object) -> QRL:
    return QRL(config(**changes), spaces, seed=seed)


def test_push_and_excess_equal_the_loop() -> None:
    distances = torch.rand(50, dtype=torch.float64) * 40
    assert push_loss(distances, offset=15, beta=0.1).mean().item() == pytest.approx(
        reference.push_loss(distances.tolist(), 15, 0.1), rel=1e-12
    )
    for cost in (0.0, 1.0):
        assert step_excess(distances, cost).mean().item() == pytest.approx(
            reference.excess(distances.tolist(), cost), rel=1e-12
        )


def test_multipliers_rise_while_the_constraint_is_broken_and_fall_when_it_holds() -> None:
    for excess, sign in ((0.5, -1.0), (0.0, 1.0)):
        distance_part = torch.tensor([excess], requires_grad=True)
        multiplier = torch.tensor([2.0], requires_grad=True)
        primal, dual = dual_losses(distance_part, multiplier, 0.25)
        assert primal.item() == pytest.approx(2 * (excess - 0.0625))
        primal_gradient = torch.autograd.grad(primal, (distance_part, multiplier), allow_unused=True)
        dual_gradient = torch.autograd.grad(dual, (distance_part, multiplier), allow_unused=True)
        assert primal_gradient[1] is None
        assert dual_gradient[0] is None
        assert primal_gradient[0] == 2
        assert dual_gradient[1] is not None
        assert dual_gradient[1].sign().item() == sign


def test_the_entropy_is_that_of_the_squashed_gaussian() -> None:
    generator = torch.Generator().manual_seed(0)
    loc, scale = torch.tensor([[0.3, -1.0]]).double(), torch.tensor([[0.5, 0.2]]).double()
    noise = torch.randn(200, 2, generator=generator, dtype=torch.float64)
    found = tanh_entropy(loc.expand(200, 2), scale.expand(200, 2), noise)
    normal = torch.distributions.Normal(loc, scale)
    squashed = torch.distributions.TransformedDistribution(normal, [torch.distributions.TanhTransform()])
    drawn = torch.tanh(loc + scale * noise)
    torch.testing.assert_close(found, -squashed.log_prob(drawn).sum(-1))  # type: ignore[no-untyped-call]
    assert torch.isfinite(tanh_entropy(torch.tensor([[50.0]]), torch.ones(1, 1), torch.zeros(1, 1))).all()


@pytest.mark.parametrize("spaces", [STATE, WHOLE], ids=["coordinates", "whole state"])
def test_the_losses_are_made_of_the_distances_they_name(spaces: Spaces) -> None:
    agent, batch = make(spaces=spaces), batch_of(spaces)
    critic = agent.critic
    found = agent.losses(batch | {"noise": torch.zeros(64, 2)})
    with torch.no_grad():
        now, later = critic.states(batch["observation"]), critic.states(batch["next_observation"])
        goal, reached = critic.goals(batch["random_goal"]), critic.goals(batch["next_goal"])
        predicted = critic.step(now, batch["action"])

        def distance(start: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
            return critic.distances((0, 1), latents=[start, end])[0]

        push = dynamics = constraint = 0.0
        for member in range(2):
            pushed = distance(now, goal)[member].tolist()
            if spaces is STATE:
                pushed += distance(now, later.roll(1, dims=1))[member].tolist()
            push += reference.push_loss(pushed, 15, 0.1)
            both = [distance(predicted, later)[member], distance(later, predicted)[member]]
            dynamics += sum(each.square().mean().item() for each in both) / 2
            constraint += 0.01 * (reference.excess(distance(now, later)[member].tolist(), 1) - 0.0625)
            if spaces is STATE:
                constraint += 0.01 * (reference.excess(distance(later, reached)[member].tolist(), 0) - 0.0625)
    assert found["loss"].item() == pytest.approx(push + 0.1 * dynamics + constraint, rel=1e-4)
    assert ("next_goal" in agent.sampling().reads) == (spaces is STATE)


@pytest.mark.slow
@pytest.mark.parametrize("G", [5, pytest.param(6, marks=pytest.mark.slow)], ids=["whole state", "coordinates"])
def test_a_chain_of_states_is_measured_in_steps(G: int) -> None:
    # States 0..4 in a row, one step right or left at a time. With six coordinates a goal has an encoder of its own.
    spaces = Spaces(observation=(5,), goal=(G,), action=1)
    quick: dict[str, Any] = {"critic_lr": 3e-3, "multiplier_lr": 0.1, "initial_multiplier": 1.0}
    agent = make(spaces=spaces, critics=1, entropy=False, **quick)
    place, states, goals = torch.arange(5), torch.eye(5), torch.eye(5, G)
    generator = torch.Generator().manual_seed(1)
    for step in range(250):
        start, wanted = torch.randint(0, 5, (2, 32), generator=generator)
        move = torch.randint(0, 2, (32,), generator=generator) * 2 - 1
        end = (start + move).clamp(0, 4)
        batch = {
            "observation": states[start],
            "action": move[:, None].float(),
            "next_observation": states[end],
            "next_goal": goals[end],
            "random_goal": goals[wanted],
            "future_goal": goals[end],
        }
        agent.update(batch, step)
    with torch.no_grad():
        latents = [agent.critic.states(states).repeat_interleave(5, dim=1), agent.critic.goals(goals).repeat(1, 5, 1)]
        found = agent.critic.distances((0, 1), latents=latents)[0].mean(0)
    truth = (place[:, None] - place).abs().float().flatten()
    assert torch.corrcoef(torch.stack([found, truth]))[0, 1] > 0.97
    # Each step and each membership may miss by epsilon in the root mean square, and training is short.
    assert (found - truth).abs().max() < 1.5
    actions = acted(agent, states[[1, 3]].numpy(), goals[[4, 0]].numpy(), explore=False)[:, 0]
    assert actions[0] > 0.5
    assert actions[1] < -0.5


@pytest.mark.slow
@pytest.mark.parametrize("spaces", [STATE, WHOLE, IMAGE], ids=["coordinates", "whole state", "image"])
def test_it_learns(spaces: Spaces) -> None:
    assert_learns(make(spaces=spaces), steps=6 if spaces is IMAGE else 30)


def test_the_policy_learns_to_lower_the_distance() -> None:
    agent = make(critic_lr=1e-6, entropy=False)
    with torch.no_grad():  # a model of latents that depends on the action
        agent.critic.dynamics.weights[-1].normal_(0, 0.3, generator=torch.Generator().manual_seed(2))
    assert_learns(agent, "actor/distance", steps=60)


def test_cloning_pulls_the_policy_to_the_data() -> None:
    agent = make(cloning=100.0, entropy=False)
    assert_learns(agent, "actor/cloning", steps=60)


@pytest.mark.parametrize("name", ["qrl", "ogbench_qrl"])
def test_the_value_is_zero_at_a_goal_that_is_a_whole_state_and_negative_elsewhere(name: str) -> None:
    agent = make_agent({"name": name, "hidden": SMALL}, WHOLE)
    states, goals = agent.tensors(*situations(WHOLE))
    here, elsewhere = agent.value(states, states), agent.value(states, goals)
    assert here is not None
    assert elsewhere is not None
    torch.testing.assert_close(here, torch.zeros(6), rtol=0, atol=1e-4)
    assert (elsewhere < -0.1).all()


def test_the_multiplier_starts_where_the_configuration_says() -> None:
    assert torch.nn.functional.softplus(make().dual["rho"]).flatten().tolist() == pytest.approx([0.01] * 4)
    assert math.isclose(config().initial_multiplier, 0.01)
