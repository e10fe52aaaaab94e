"""The base of contrastive agents: a twin critic f = phi . psi and a policy that maximises it.

One update computes both gradients at the old parameters, then steps both optimisers, then moves the target, if any::

    critic loss (old critic, old policy, old target)  ->  Adam  ->  new critic  ->  target += tau (critic - target)
    actor loss  (old critic, old policy)              ->  Adam  ->  new policy

An agent consists of three parts: its `critic_loss`, an actor's objective of `ACTOR_OBJECTIVES`, and, if its critic
bootstraps, a target network created in `build`. Read `td_infonce.py` first, as an example.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from math import log
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from counterpoint.agents.base import Agent, AgentConfig, Metrics
from counterpoint.agents.networks import ContrastiveCritic, GaussianActor, actor, matched, pairs
from counterpoint.data.spec import Spec
from counterpoint.data.transitions import Tail
from counterpoint.objectives.contrastive_rl import reaching_rows
from counterpoint.objectives.td_infonce import cloned_actor_loss, goal_reaching_rows

CriticLoss = tuple[Float[Tensor, ""], Metrics, dict[str, Float[Tensor, "2 B D"]]]
"""A critic's loss, its metrics, and psi by key, for the keys of the batch that the loss has encoded."""


class ActorObjective(NamedTuple):
    """An actor's objective, to be minimised: `score` of phi and psi [2, B, D], and `cost` of each row of scores."""

    score: Callable[[Tensor, Tensor], Tensor]
    cost: Callable[[Tensor], Float[Tensor, " B"]]


ACTOR_OBJECTIVES = {
    "softmax": ActorObjective(pairs, goal_reaching_rows),
    "logit": ActorObjective(matched, reaching_rows),
}
"""The actors' objectives by name. TD InfoNCE's objective (Eq. 11) contrasts a row's goal with the batch's goals;
contrastive RL's objective does not."""


def log_ratio(
    phi: Float[Tensor, "2 B D"], psi: Float[Tensor, "2 B D"], others: Float[Tensor, "2 N D"]
) -> Float[Tensor, " B"]:
    """Return log p(g | s, a) / p(g), as in the equation before TD InfoNCE's Eq. 9, with the minimum over twins.

    This is f minus the log of the mean of exp f over `others`, which are samples of p(g).
    """
    rest = pairs(phi, others).amin(dim=-1)
    return matched(phi, psi).amin(dim=-1) - rest.logsumexp(dim=1) + log(rest.shape[1])


class ContrastiveConfig(AgentConfig):
    """Settings of a contrastive agent; the defaults are TD InfoNCE's Table 2.

    Attributes:
        representation: Number of dimensions of the critic's representations phi and psi (d).
        normalise: Scale phi and psi to unit length.
        temperature: Divisor of the product of phi and psi.
        critic_init: Initial weights of phi and psi; see `networks.initialise`.
        actor_lr: Adam's learning rate for the policy.
        critic_lr: Adam's learning rate for the critic (phi and psi).
        actor_objective: The policy's objective: `softmax` maximises the log-probability of a row's goal among the goals
            of the batch (TD InfoNCE, Eq. 11), `logit` maximises only the critic's value for the row's goal (contrastive
            RL).
        actor_goals: Goals of the actor loss: `random` (online), `future` (offline, Table 3), or `half`, which takes
            half of each.
        behaviour_cloning: Share of behaviour cloning in the actor loss (lambda of Appendix D.3; .1 in offline
            training).
        tail: The rule for futures beyond the end of an episode.
    """

    representation: int = Field(default=16, ge=1)
    normalise: bool = True
    temperature: float = Field(default=1.0, gt=0)
    critic_init: Literal["fan_in", "glorot"] = "fan_in"
    actor_lr: float = Field(default=5e-5, gt=0)
    critic_lr: float = Field(default=3e-4, gt=0)
    actor_objective: Literal["softmax", "logit"] = "softmax"
    actor_goals: Literal["random", "future", "half"] = "random"
    behaviour_cloning: float = Field(default=0.0, ge=0, le=1)
    tail: Tail = "renormalise"


class ContrastiveAgent(Agent):
    """A policy and a twin critic; arguments as for `Agent`."""

    config: ContrastiveConfig
    value_name: ClassVar[str] = "log p(g | s, a) / p(g) at the policy's mode"
    goal_conditioned: ClassVar[bool] = False
    """True if phi reads the goal that the policy is commanded to reach."""
    critic_reads: ClassVar[frozenset[str]]
    """Keys of the batch that the critic loss reads."""

    def build(self, weights: torch.Generator) -> None:
        """Create the critic and the actor; agents that bootstrap add a target network."""
        config, spaces = self.config, self.spaces
        critic = ContrastiveCritic(
            spaces,
            config.hidden,
            config.representation,
            normalise=config.normalise,
            temperature=config.temperature,
            reads_goal=self.goal_conditioned,
            init=config.critic_init,
            generator=weights,
        )
        self.critic = self.network("critic", critic, config.critic_lr)
        self.actor = self.network("actor", actor(spaces, critic.encode.width, config.hidden, weights), config.actor_lr)
        self.objective = ACTOR_OBJECTIVES[config.actor_objective]
        both = ("future_goal", "random_goal")
        self.actor_keys = {"future": both[:1], "random": both[1:], "half": both}[config.actor_goals]
        self.reads = self.critic_reads | {"observation", "action", *self.actor_keys}

    @abstractmethod
    def critic_loss(self, features: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> CriticLoss:
        """Return the critic's loss from the result of the method `features` and a batch with `next_noise` [B, A]."""

    def actor_loss(
        self, features: Mapping[str, Tensor], batch: Mapping[str, Tensor], known: Mapping[str, Float[Tensor, "2 B D"]]
    ) -> Float[Tensor, ""]:
        """Return (1 - lambda) E_{a ~ pi}[objective] + lambda behaviour cloning; gradients reach only the policy.

        Continuous actions are sampled from noise. For discrete actions the expectation is computed exactly,
        sum_a pi(a | s, g) objective(s, a, g), and the cloning loss is -log pi(a_data | s, g).

        Args:
            features: The result of `features`.
            batch: The batch, with `actor_noise` [M, A]: M = B rows, or 2 B if `actor_goals` is `half`.
            known: psi of the keys that the critic loss has already encoded.
        """
        keys, share, critic = self.actor_keys, self.config.behaviour_cloning, self.critic
        observation = torch.cat([features["observation"]] * len(keys)).detach()
        goal = torch.cat([features[key] for key in keys]).detach()
        action = torch.cat([batch["action"]] * len(keys))
        inputs, (score, cost), futures = torch.cat([observation, goal], dim=-1), self.objective, []
        for key in keys:
            futures.append(known[key] if key in known else critic.encode_futures(features[key], frozen=True))
        psi = torch.cat(futures, dim=1).detach()
        if isinstance(self.actor, GaussianActor):
            sampled = self.actor.sample(inputs, batch["actor_noise"])
            costs = cost(score(critic.encode_actions(observation, sampled, goal, frozen=True), psi))
            return cloned_actor_loss(costs, sampled, action, weight=share) if share else costs.mean()
        log_policy: Tensor = self.actor(inputs)
        count, rows = self.spaces.action, len(inputs)
        candidates = torch.eye(count, device=self.device, dtype=psi.dtype).repeat_interleave(rows, dim=0)
        phi = critic.encode_actions(observation.repeat(count, 1), candidates, goal.repeat(count, 1), frozen=True)
        scores = [score(each, psi) for each in torch.split(phi, rows, dim=1)]
        costs = torch.stack([cost(each) for each in scores])
        expected = (log_policy.exp().T * costs).sum(0)
        cloning = -log_policy.gather(1, action[:, None])[:, 0]
        return ((1 - share) * expected + share * cloning).mean()

    def value(self, observation: Tensor, goal: Tensor) -> Float[Tensor, " B"]:
        """Return the minimum over twins of f(s, a, g) at the policy's mode."""
        mode = self.choose(observation, goal, (), None)
        return matched(*self.critic(observation, mode, goal)).amin(dim=-1)

    def comparable_value(self, observation: Tensor, goal: Tensor, goals: Tensor) -> Float[Tensor, " B"]:
        """Return `log_ratio` at the policy's mode."""
        phi, psi = self.critic(observation, self.choose(observation, goal, (), None), goal)
        return log_ratio(phi, psi, self.critic.encode_futures(self.critic.encode(goals)))

    def sampling(self) -> Spec:
        """Return the spec of transitions with the keys that both losses read."""
        return Spec.transitions(self.reads, discount=self.config.discount, tail=self.config.tail)

    def noise(self, rows: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Sample noise for next actions and for the actor loss."""
        count = rows * len(self.actor_keys)
        return {"next_noise": self.action_noise(rows, generator), "actor_noise": self.action_noise(count, generator)}

    def action_noise(self, rows: int, generator: torch.Generator) -> Float[Tensor, "M A"]:
        """Sample normal noise for continuous actions, Gumbel noise for discrete ones."""
        empty = torch.empty(rows, self.spaces.action, device=self.device)
        discrete = self.spaces.discrete
        return -empty.exponential_(generator=generator).log() if discrete else empty.normal_(generator=generator)

    def features(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the batch as the critic's inputs: states unchanged, images as features, actions as vectors."""
        return self.critic.features(batch, sorted(self.reads - {"action"}))

    def losses(self, batch: Mapping[str, Tensor]) -> Metrics:
        """Compute the losses of critic and actor, and the critic's metrics."""
        features = self.features(batch)
        critic, metrics, known = self.critic_loss(features, batch)
        actor = self.actor_loss(features, batch, known)
        return {"loss": critic + actor, "critic/loss": critic, "actor/loss": actor, **metrics}

    def choose(self, observation: Tensor, goal: Tensor, rows: Sequence[int], explore: torch.Generator | None) -> Tensor:
        """Sample actions, or return the mode."""
        inputs = self.critic.encode.situation(observation, goal)
        if explore is None:
            return self.actor.mode(inputs)
        return self.actor.sample(inputs, self.action_noise(len(inputs), explore))
