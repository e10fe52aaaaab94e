from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from counterpoint.agents.contrastive import ContrastiveAgent
from counterpoint.agents.networks import EnsembleMLP
from counterpoint.agents.td_infonce import TDInfoNCE, TDInfoNCEConfig
from counterpoint.agents.value import value_of, values_from_logits
from counterpoint.data.episode import GoalEpisode, Spaces
from counterpoint.data.replay import ReplayBuffer
from counterpoint.data.spec import Spec
from tests.agents.point_world import point_batch, small_agent
from tests.data.sampling import sampler

S, A, GAMMA = 4, 2, 0.8
SPACES = Spaces(observation=(S,), goal=(S,), action=A, discrete=True)


def tabular_world() -> tuple[Tensor, Tensor, Tensor]:
    """P[s, a, s'], pi[g, s, a] and r[s, a] of a small random chain, in double precision."""
    generator = torch.Generator().manual_seed(0)

    def table(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    P, policy = table(S, A, S) ** 3, table(S, S, A)
    return P / P.sum(-1, keepdim=True), policy / policy.sum(-1, keepdim=True), table(S, A) - 0.3


def exact(P: Tensor, policy: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """p(s+ | s, a) (Eq. 3) and Q(s, a) under one policy, in closed form, as [S A, .]."""
    step = P.view(S * A, S)
    onwards = torch.einsum("xs,sa->xsa", step, policy).reshape(S * A, S * A)
    inverse = torch.linalg.inv(torch.eye(S * A, dtype=torch.float64) - GAMMA * onwards)
    return (1 - GAMMA) * inverse @ step, inverse @ r.reshape(-1)


def set_tables(network: EnsembleMLP, first: Tensor, bias: float, last: Tensor) -> None:
    """One hidden layer of units that fire for one combination of one-hot inputs each, then a table look-up."""
    with torch.no_grad():
        network.weights[0].copy_(first)
        network.biases[0].fill_(bias)
        network.weights[1].copy_(last)
        network.biases[1].zero_()


def exact_agent(P: Tensor, policy: Tensor, r: Tensor) -> ContrastiveAgent:
    """A TD InfoNCE agent whose logits are log p(s+ | s, a, g) / p(s+) with uniform p, up to a constant of the row."""
    config = TDInfoNCEConfig(hidden=(S * A * S,), representation=S, normalise=False, discount=GAMMA)
    agent = TDInfoNCE(config, SPACES)
    for module in agent.modules.values():
        module.double()
    eye_s, eye_a = torch.eye(S, dtype=torch.float64), torch.eye(A, dtype=torch.float64)
    combinations = [torch.cat([eye_s[s], eye_a[a], eye_s[g]]) for g in range(S) for s in range(S) for a in range(A)]
    ratios = torch.cat([(S * exact(P, policy[g], r)[0]).log() for g in range(S)])
    row_constants = torch.linspace(-2, 3, len(ratios), dtype=torch.float64)[:, None]
    set_tables(agent.critic.phi, torch.stack(combinations, 1), -2.0, ratios + row_constants)
    pad = torch.zeros(S, S * A * S - S, dtype=torch.float64)
    set_tables(agent.critic.psi, torch.cat([eye_s, pad], 1), 0.0, torch.cat([eye_s, pad.T]))
    body = agent.actor.body
    first, last = (torch.zeros(2 * S, S * A * S, dtype=torch.float64), torch.zeros(S * A * S, A, dtype=torch.float64))
    for unit, (g, s) in enumerate((g, s) for g in range(S) for s in range(S)):
        first[s, unit] = first[S + g, unit] = 1.0
        last[unit] = policy[g, s].log()
    set_tables(body, first, -1.0, last)
    return agent


def test_the_value_of_an_exact_critic_is_the_exact_value() -> None:
    P, policy, r = tabular_world()
    agent = exact_agent(P, policy, r)
    one_hot = torch.eye(S, dtype=torch.float64)

    def reward(observation: Tensor, action: Tensor) -> Tensor:
        return r[observation.argmax(1), action]

    q = value_of(agent, reward, one_hot, one_hot)
    for g in range(S):
        _, expected = exact(P, policy[g], r)
        state = torch.arange(S).repeat_interleave(A)
        found = q(one_hot[state], torch.arange(A).repeat(S), one_hot[g].expand(S * A, S))
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_values_follow_from_samples_of_an_uneven_marginal() -> None:
    P, policy, r = tabular_world()
    occupancy, expected = exact(P, policy[1], r)
    drawn = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 3])
    marginal = torch.bincount(drawn).double() / len(drawn)
    logits = (occupancy / marginal).log()[:, drawn]
    later = (policy[1] * r).sum(1)[drawn].expand(S * A, -1)
    found = values_from_logits(r.reshape(-1), logits, later, discount=GAMMA)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["td_infonce", "contrastive_rl"])
def test_continuous_actions_of_a_constant_reward_are_worth_its_discounted_sum(name: str) -> None:
    agent = small_agent(name, discount=0.75)
    batch = point_batch(0)

    def reward(observation: Tensor, action: Tensor) -> Tensor:
        assert action.shape == (len(observation), 2)
        return torch.full((len(observation),), 3.0)

    q = value_of(agent, reward, batch["next_observation"], batch["next_goal"])
    found = q(batch["observation"][:5], batch["action"][:5], batch["random_goal"][:5])
    torch.testing.assert_close(found, torch.full((5,), 12.0))


def test_a_batch_has_the_samples_that_the_documentation_names() -> None:
    buffer = ReplayBuffer(Spaces(observation=(1,), goal=(1,), action=1), capacity=10)
    states = torch.arange(4.0)[:, None].numpy()
    buffer.append(GoalEpisode(states, states, states[-1], states[1:] / 4, np.zeros(len(states) - 1, np.float32)))
    spec = Spec.transitions({"random_goal", "next_observation"}, discount=0.9)
    batch = sampler(buffer, spec, batch_size=400, seed=0)[0]
    assert set(batch["random_goal"].flatten().tolist()) == {0, 1, 2, 3}
    assert set(batch["next_observation"].flatten().tolist()) == {1, 2, 3}
