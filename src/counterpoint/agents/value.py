"""`value_of`: the Q function of any reward, from a contrastive agent's representations.

The occupancy that f = phi . psi estimates turns a reward into its values (TD InfoNCE, Appendix C)::

    Q(s, a) = r(s, a) + gamma / (1 - gamma) E_{s+ ~ p(s+)} [ w(s, a, s+) r(s+, a+) ],   a+ ~ pi(. | s+, g)
    w(s, a, s+) = e^f(s, a, g, s+) / mean over s+ of e^f(s, a, g, s+)

Appendix C prints the policy without its goal: it is the one commanded all along, so that Q is that of pi(. | ., g).
w is p(s+ | s, a, g) / p(s+) by the paper's Eq. 8; of twins the minimum is taken, as in training. Contrastive RL has
seen futures of the policies that collected its data instead, and its Q is theirs.

p(s+) is what the critic was taught to tell futures from, and w is relative to it: for TD InfoNCE and C-learning the
random goals, drawn alike from all T + 1 states of each episode of T transitions, its first included; for contrastive RL
the futures of the batch. Draws from another density q count each future q(s+) / p(s+) times, up to a constant. Next
observations are the T states after an episode's first: each future counts by the share of the buffer's states like it
that are no episode's first, which is 1 away from where episodes begin.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.agents.contrastive import ContrastiveAgent
from counterpoint.agents.critics import action_vectors
from counterpoint.agents.networks import CategoricalActor, flat

__all__ = ["Reward", "ValueFunction", "value_of", "values_from_logits"]

Reward = Callable[[Tensor, Tensor], Float[Tensor, " N"]]
"""r(s, a) of N observations [N, *O] and N actions, float [N, A] or int64 [N]."""


def values_from_logits(
    reward_now: Float[Tensor, " B"],
    logits: Float[Tensor, "B N"],
    reward_later: Float[Tensor, "B N"],
    *,
    discount: float,
) -> Float[Tensor, " B"]:
    """Q from log ratios to N states drawn from p(s+), each row free by a constant.

    Args:
        reward_now: r(s, a).
        logits: f of each situation with each state.
        reward_later: r(s+, a+), a+ from the policy commanded as in the row's situation.
        discount: gamma.
    """
    expected = (logits.softmax(1) * reward_later).sum(1)
    return reward_now + discount / (1 - discount) * expected


class ValueFunction:
    """Q(s, a) of one reward under an agent's policy; call it with situations.

    Args:
        agent: Whose representations and policy.
        reward: The reward.
        states: Observations [N, *O] of states, samples of p(s+).
        state_goals: Their goal coordinates [N, *G].
        seed: Of a+, where actions are continuous; discrete ones are summed out.
    """

    def __init__(
        self, agent: ContrastiveAgent, reward: Reward, states: Tensor, state_goals: Tensor, *, seed: int = 0
    ) -> None:
        self._agent, self._reward, self._seed = agent, reward, seed
        self._states, self._state_goals = states.to(agent.device), state_goals.to(agent.device)

    @torch.no_grad()
    def __call__(self, observation: Tensor, action: Tensor, goal: Tensor) -> Float[Tensor, " B"]:
        """Values of B situations; costs B x N evaluations of the policy.

        Args:
            observation: [B, *O].
            action: What is done there, [B, A], or int64 [B].
            goal: What the policy is commanded to reach, [B, *G].
        """
        agent, critic = self._agent, self._agent.critic
        observation, action, goal = (value.to(agent.device) for value in (observation, action, goal))
        seen, wanted = critic.sight(observation), critic.sight(goal)
        done = action_vectors(action, agent.spaces).to(seen.dtype)
        phi = critic.encode_actions(*((seen, done, wanted) if agent.commanded else (seen, done)))
        logits = critic.pairs(phi, critic.encode_futures(critic.sight(self._state_goals))).amin(-1)
        return values_from_logits(
            self._reward(observation, action), logits, self._later_rewards(wanted), discount=agent.config.discount
        )

    def _later_rewards(self, wanted: Float[Tensor, "B G"]) -> Float[Tensor, "B N"]:
        """r(s+, a+), averaged over a+ where actions are discrete."""
        agent, situations, count = self._agent, len(wanted), len(self._states)
        seen = agent.critic.sight(self._states).repeat(situations, 1)
        inputs = flat(seen, wanted.repeat_interleave(count, dim=0))
        if isinstance(agent.actor, CategoricalActor):
            policy: Tensor = agent.actor(inputs).exp().view(situations, count, -1)
            every = torch.arange(agent.spaces.action, device=agent.device)
            states = self._states.repeat_interleave(len(every), dim=0)
            rewards = self._reward(states, every.repeat(count)).view(count, -1)
            return (policy * rewards).sum(-1)
        generator = torch.Generator(agent.device).manual_seed(self._seed)
        noise = torch.randn(len(inputs), agent.spaces.action, generator=generator, device=agent.device)
        states = self._states.repeat(situations, *[1] * (self._states.dim() - 1))
        return self._reward(states, agent.actor.sample(inputs, noise)).view(situations, count)


def value_of(
    agent: ContrastiveAgent, reward: Reward, states: Tensor, state_goals: Tensor, *, seed: int = 0
) -> ValueFunction:
    """The Q function of `reward` under the agent's policy.

    Where goals are whole observations, samples of p(s+) are at hand: `batch["random_goal"]` (for contrastive RL
    `batch["future_goal"]`) is both `states` and `state_goals`. Where goals are coordinates,
    `value_of(agent, reward, batch["next_observation"], batch["next_goal"])` comes close: the T later states of each
    episode stand for its T + 1 (above; for contrastive RL, uniform transitions also stand for their futures, which lie
    later in episodes). More states, less noise: w of a far state is rare and large.

    Args:
        agent: A contrastive agent.
        reward: r(s, a) of N observations and N actions.
        states: Observations [N, *O] drawn from p(s+), or nearly.
        state_goals: Their goal coordinates [N, *G].
        seed: Of later actions, where they are continuous.
    """
    return ValueFunction(agent, reward, states, state_goals, seed=seed)
