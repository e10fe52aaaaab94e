"""`value_of`: the Q function of any reward, computed from a contrastive agent's representations.

f = phi . psi estimates the policy's occupancy, from which Q of any reward follows (TD InfoNCE, Appendix C)::

    Q(s, a) = r(s, a) + gamma / (1 - gamma) E_{s+ ~ p(s+)} [ w(s, a, s+) r(s+, a+) ],   a+ ~ pi(. | s+, g)
    w(s, a, s+) = e^f(s, a, g, s+) / mean over s+ of e^f(s, a, g, s+)

Appendix C prints the policy without its goal; in this module it is pi(. | ., g) with the commanded g throughout. w is
p(s+ | s, a, g) / p(s+) by the paper's Eq. 8; the minimum over twins is taken, as in training. Contrastive RL is trained
on futures of the policies that collected its data, so its Q is the Q of those policies.

p(s+) is the marginal of the critic's negatives. For TD InfoNCE and C-learning these are the random goals, sampled
uniformly from all T + 1 states of each episode of T transitions; for contrastive RL they are the futures of the batch.
If states are sampled from another density q, each future is weighted by q(s+) / p(s+), up to a constant. The batch's
next observations are the T states after an episode's first state; they deviate from p(s+) only at first states.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.agents.contrastive import ContrastiveAgent
from counterpoint.agents.networks import CategoricalActor, action_vectors, flat, pairs
from counterpoint.data.draws import sample_seed

Reward = Callable[[Tensor, Tensor], Float[Tensor, " N"]]
"""A reward: r(s, a) of N observations [N, *O] and N actions, float [N, A] or int64 [N]."""


def values_from_logits(
    reward_now: Float[Tensor, " B"],
    logits: Float[Tensor, "B N"],
    reward_later: Float[Tensor, "B N"],
    *,
    discount: float,
) -> Float[Tensor, " B"]:
    """Return Q from logits (log density ratios) for N states sampled from p(s+); each row may be off by a constant.

    Args:
        reward_now: r(s, a).
        logits: f of each situation with each state.
        reward_later: r(s+, a+), with a+ from the policy under the goal of the row's situation.
        discount: Discount factor (gamma).
    """
    expected = (logits.softmax(1) * reward_later).sum(1)
    return reward_now + discount / (1 - discount) * expected


def value_of(
    agent: ContrastiveAgent, reward: Reward, states: Tensor, state_goals: Tensor, *, seed: int = 0
) -> Callable[[Tensor, Tensor, Tensor], Float[Tensor, " B"]]:
    """Return the Q function of `reward` under the agent's policy.

    If goals are whole observations, pass `batch["random_goal"]` (for contrastive RL `batch["future_goal"]`) as both
    `states` and `state_goals`. If goals are coordinates, `batch["next_observation"]` and `batch["next_goal"]` are good
    approximations. More states give less noise, since large weights w are rare.

    Args:
        agent: A contrastive agent.
        reward: r(s, a) of N observations and N actions.
        states: Observations [N, *O] sampled from p(s+), at least approximately.
        state_goals: Goal coordinates of these states, [N, *G].
        seed: Random seed for sampling later actions if actions are continuous; for discrete actions the exact mean is
            computed.

    Returns:
        A function of B observations [B, *O], actions ([B, A], or int64 [B]) and commanded goals [B, *G] that returns
        B values; it evaluates the policy B x N times.
    """
    states, state_goals = states.to(agent.device), state_goals.to(agent.device)
    critic, actor, count = agent.critic, agent.actor, len(states)

    @torch.no_grad()
    def q(observation: Tensor, action: Tensor, goal: Tensor) -> Float[Tensor, " B"]:
        observation, action, goal = (value.to(agent.device) for value in (observation, action, goal))
        encoded, wanted = critic.encode(observation), critic.encode(goal)
        phi = critic.encode_actions(encoded, action_vectors(action, agent.spaces).to(encoded.dtype), wanted)
        logits = pairs(phi, critic.encode_futures(critic.encode(state_goals))).amin(-1)
        now, discount = reward(observation, action), agent.config.discount
        return values_from_logits(now, logits, later_rewards(wanted), discount=discount)

    def later_rewards(wanted: Float[Tensor, "B G"]) -> Float[Tensor, "B N"]:
        """Return r(s+, a+); for discrete actions, return the exact mean over a+."""
        rows = len(wanted)
        inputs = flat(critic.encode(states).repeat(rows, 1), wanted.repeat_interleave(count, dim=0))
        if isinstance(actor, CategoricalActor):
            policy: Tensor = actor(inputs).exp().view(rows, count, -1)
            candidates = torch.arange(agent.spaces.action, device=agent.device)
            rewards = reward(states.repeat_interleave(len(candidates), dim=0), candidates.repeat(count))
            return (policy * rewards.view(count, -1)).sum(-1)
        generator = torch.Generator(agent.device).manual_seed(sample_seed(seed, 0, "later actions"))
        noise = torch.randn(len(inputs), agent.spaces.action, generator=generator, device=agent.device)
        sampled = actor.sample(inputs, noise)
        return reward(states.repeat(rows, *[1] * (states.dim() - 1)), sampled).view(rows, count)

    return q
