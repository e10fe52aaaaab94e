"""The base of contrastive agents: a twin critic f = phi . psi, a policy, and where the loss bootstraps a target.

One update takes both gradients at the old parameters, then steps both, then moves the target::

    critic loss (old critic, old policy, old target)  ->  Adam  ->  new critic  ->  target += tau (critic - target)
    actor loss  (old critic, old policy)              ->  Adam  ->  new policy

A subclass defines its critic loss; see `td_infonce.py` first.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from counterpoint.agents.base import Agent, AgentConfig, Metrics
from counterpoint.agents.networks import EnsembleMLP, GaussianActor, InputEncoder, actor, flat, initialise
from counterpoint.data.episode import Spaces
from counterpoint.data.spec import Spec
from counterpoint.data.transitions import Tail
from counterpoint.objectives.base import in_full_precision
from counterpoint.objectives.td_infonce import cloned_actor_loss, goal_reaching_rows

CriticLoss = tuple[Float[Tensor, ""], Metrics, dict[str, Float[Tensor, "2 B D"]]]
"""A critic's loss, its metrics, and psi of the keys of the batch that it encoded."""


class ContrastiveConfig(AgentConfig):
    """Settings of a contrastive agent; the defaults are TD InfoNCE's Table 2.

    Attributes:
        representation: d, the length of phi and psi.
        normalise: Scale phi and psi to unit length.
        temperature: Divisor of their product.
        critic_init: Initial weights of phi and psi, see `networks.initialise`.
        actor_lr: Adam's rate for the policy.
        critic_lr: Adam's rate for phi and psi.
        tau: Rate of the target's soft update (unused where there is no target).
        actor_objective: What the policy raises: `softmax`, the log-probability of its own goal among those of the batch
            (TD InfoNCE, Eq. 11), or `logit`, the critic's value of its own goal alone (contrastive RL).
        actor_goals: Goals of the actor loss: `random` (online), `future` (offline, Table 3), `half` of each.
        behaviour_cloning: lambda of Appendix D.3, the share of behaviour cloning in the actor loss (offline .1).
        tail: Treatment of futures beyond the end of an episode.
    """

    representation: int = Field(default=16, ge=1)
    normalise: bool = True
    temperature: float = Field(default=1.0, gt=0)
    critic_init: Literal["fan_in", "glorot"] = "fan_in"
    actor_lr: float = Field(default=5e-5, gt=0)
    critic_lr: float = Field(default=3e-4, gt=0)
    tau: float = Field(default=0.005, gt=0, le=1)
    actor_objective: Literal["softmax", "logit"] = "softmax"
    actor_goals: Literal["random", "future", "half"] = "random"
    behaviour_cloning: float = Field(default=0.0, ge=0, le=1)
    tail: Tail = "renormalise"


class ContrastiveCritic(nn.Module):
    """Twin encoders phi and psi behind a shared `InputEncoder`.

        phi(s, a)  or phi(s, a, g)      situation, action and (TD InfoNCE) the commanded goal
        psi(s+)                         a future state, in goal coordinates
        f[i, j, twin] = phi[twin, i] . psi[twin, j] / temperature

    With unit vectors (`normalise`) and temperature 1 every logit lies in [-1, 1].

    Args:
        spaces: Shapes of observations, goals and actions.
        config: Widths, normalisation and temperature.
        goal_conditioned: Let phi also read the goal that the policy is commanded to reach.
        generator: Generator for the initial weights.
    """

    def __init__(
        self, spaces: Spaces, config: ContrastiveConfig, *, goal_conditioned: bool, generator: torch.Generator | None
    ) -> None:
        super().__init__()
        self.normalise, self.temperature = config.normalise, config.temperature
        self.encode = InputEncoder(spaces, generator=generator)
        inputs = self.encode.observation_width + spaces.action + goal_conditioned * self.encode.goal_width
        self.phi = EnsembleMLP(2, [inputs, *config.hidden, config.representation], generator=generator)
        self.psi = EnsembleMLP(2, [self.encode.goal_width, *config.hidden, config.representation], generator=generator)
        initialise(self, config.critic_init, generator)

    def encode_actions(self, *parts: Float[Tensor, "B _"], frozen: bool = False) -> Float[Tensor, "2 B D"]:
        """Return phi divided by the temperature.

        Args:
            parts: Encoded observations, action vectors and, where phi reads them, encoded goals.
            frozen: Let gradients flow to the inputs and not to the parameters.
        """
        return self._unit(self.phi(flat(*parts), frozen=frozen)) / self.temperature

    def encode_futures(self, futures: Float[Tensor, "B G"], *, frozen: bool = False) -> Float[Tensor, "2 B D"]:
        """Return psi of encoded future states."""
        return self._unit(self.psi(futures, frozen=frozen))

    def _unit(self, vectors: Float[Tensor, "2 B D"]) -> Float[Tensor, "2 B D"]:
        if not self.normalise:
            return vectors
        unit: Tensor = vectors / (torch.linalg.vector_norm(vectors, dim=-1, keepdim=True) + 1e-8)
        return unit

    @staticmethod
    @in_full_precision
    def pairs(phi: Float[Tensor, "2 B D"], psi: Float[Tensor, "2 M D"]) -> Float[Tensor, "B M 2"]:
        """Return f of every row of phi with every row of psi, twins last."""
        return torch.bmm(phi, psi.transpose(1, 2)).permute(1, 2, 0)

    @staticmethod
    def matched(phi: Float[Tensor, "2 B D"], psi: Float[Tensor, "2 B D"]) -> Float[Tensor, "B 2"]:
        """Return f of each row of phi with its own row of psi."""
        return (phi * psi).sum(-1).T


def action_vectors(action: Tensor, spaces: Spaces) -> Float[Tensor, "B A"]:
    """Return actions as critics read them: continuous ones as they are, discrete ones one-hot."""
    return functional.one_hot(action, spaces.action).to(torch.float32) if spaces.discrete else action


def pair_metrics(logits: Float[Tensor, "B B 2"]) -> Metrics:
    """Return the share of rows whose greatest logit is their own, and the mean logits of own and other pairs."""
    found = logits.detach()
    rows, _, twins = found.shape
    positive = found.diagonal().sum()
    own = found.argmax(dim=1) == torch.arange(rows, device=found.device)[:, None]
    return {
        "categorical_accuracy": own.float().mean(),
        "logits_pos": positive / (rows * twins),
        "logits_neg": (found.sum() - positive) / (rows * (rows - 1) * twins),
    }


class ContrastiveAgent(Agent):
    """A policy, a twin critic and its target; arguments as for `Agent`."""

    config: ContrastiveConfig
    target_critic: ContrastiveCritic
    goal_conditioned: ClassVar[bool] = False
    """True where phi reads the goal that the policy is commanded to reach."""
    bootstraps: ClassVar[bool] = True
    """True where the critic loss needs next actions and a target."""
    critic_reads: ClassVar[frozenset[str]]
    """Keys of the batch that the critic loss reads."""

    def build(self, weights: torch.Generator) -> None:
        """Declare critic, actor and, where the loss bootstraps, the target."""
        config, spaces = self.config, self.spaces
        critic = ContrastiveCritic(spaces, config, goal_conditioned=self.goal_conditioned, generator=weights)
        if self.bootstraps:
            self.critic, self.target_critic = self.tracked("critic", critic, config.critic_lr, config.tau)
        else:
            self.critic = self.network("critic", critic, config.critic_lr)
        self.actor = self.network("actor", actor(spaces, critic.encode.width, config.hidden, weights), config.actor_lr)
        both = ("future_goal", "random_goal")
        self.actor_keys = {"future": both[:1], "random": both[1:], "half": both}[config.actor_goals]
        self.reads = self.critic_reads | {"observation", "action", *self.actor_keys}

    @abstractmethod
    def critic_loss(self, features: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> CriticLoss:
        """Return the critic's loss; `features` come from `features`, the batch holds `next_noise` [B, A] too."""

    def actor_objective(self, phi: Float[Tensor, "2 K*B D"], psi: Float[Tensor, "2 B D"]) -> Float[Tensor, "K B"]:
        """Return costs, to be minimised, of K candidate actions (the slower axis) for B goals; see `actor_objective`.

        Both take the minimum over twins of every logit first.
        """
        if self.config.actor_objective == "softmax":
            each = torch.split(self.critic.pairs(phi, psi), psi.shape[1])
            return torch.stack([goal_reaching_rows(logits) for logits in each])
        candidates = phi.shape[1] // psi.shape[1]
        return -self.critic.matched(phi, psi.repeat(1, candidates, 1)).amin(-1).view(candidates, -1)

    def actor_loss(
        self, features: Mapping[str, Tensor], batch: Mapping[str, Tensor], known: Mapping[str, Float[Tensor, "2 B D"]]
    ) -> Float[Tensor, ""]:
        """Return (1 - lambda) E_{a ~ pi}[objective] + lambda behaviour cloning; gradients reach the policy alone.

        Continuous actions are sampled through noise. Discrete ones are summed out exactly,
        sum_a pi(a | s, g) objective(s, a, g), and cloned by -log pi(a_data | s, g).

        Args:
            features: From `features`.
            batch: The batch, with `actor_noise` [M, A]: M = B rows, or 2 B where `actor_goals` is `half`.
            known: psi of keys that the critic loss has encoded already.
        """
        keys, share = self.actor_keys, self.config.behaviour_cloning
        futures = [
            known[key] if key in known else self.critic.encode_futures(features[key], frozen=True) for key in keys
        ]
        psi = torch.cat(futures, dim=1).detach()
        observation = torch.cat([features["observation"]] * len(keys)).detach()
        goal = torch.cat([features[key] for key in keys]).detach()
        action = torch.cat([batch["action"]] * len(keys))
        inputs = flat(observation, goal)
        if isinstance(self.actor, GaussianActor):
            sampled = self.actor.sample(inputs, batch["actor_noise"])
            costs = self.actor_objective(self.phi(observation, sampled, goal, frozen=True), psi)[0]
            return cloned_actor_loss(costs, sampled, action, weight=share) if share else costs.mean()
        log_policy: Tensor = self.actor(inputs)
        count = self.spaces.action
        candidates = torch.eye(count, device=self.device, dtype=psi.dtype).repeat_interleave(len(inputs), dim=0)
        with torch.no_grad():
            phi = self.phi(observation.repeat(count, 1), candidates, goal.repeat(count, 1))
            costs = self.actor_objective(phi, psi)
        expected = (log_policy.exp().T * costs).sum(0)
        cloning = -log_policy.gather(1, action[:, None])[:, 0]
        return ((1 - share) * expected + share * cloning).mean()

    def sampling(self) -> Spec:
        """Return the keys of both losses."""
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
        """Return the batch as the critic reads it: states as they are, images as features, actions as vectors."""
        keys = sorted(self.reads - {"action"})  # several processes must encode in one order
        encoded = {key: self.critic.encode(batch[key]) for key in keys}
        return encoded | {"action": action_vectors(batch["action"], self.spaces)}

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

    def phi(self, observation: Tensor, action: Tensor, goal: Tensor, *, frozen: bool = False) -> Tensor:
        """Return the critic's phi [2, M, D] of features, with the goal where phi reads it."""
        parts = (observation, action, goal) if self.goal_conditioned else (observation, action)
        return self.critic.encode_actions(*parts, frozen=frozen)

    def next_and_random(
        self, features: Mapping[str, Tensor]
    ) -> tuple[Float[Tensor, "2 B D"], Float[Tensor, "2 B D"], Float[Tensor, "2 B D"]]:
        """Return phi under the random goals, psi of the next goals, and psi of the random goals."""
        phi = self.phi(features["observation"], features["action"], features["random_goal"])
        both = self.critic.encode_futures(torch.cat([features["next_goal"], features["random_goal"]]))
        psi_next, psi_random = both.chunk(2, dim=1)
        return phi, psi_next, psi_random

    @torch.no_grad()
    def target_representations(
        self, features: Mapping[str, Tensor], batch: Mapping[str, Tensor]
    ) -> tuple[Float[Tensor, "2 B D"], Float[Tensor, "2 B D"]]:
        """Return the target's phi at the next state and an action a' ~ pi(. | s', g) there, and psi(g); g is random."""
        target = self.target_critic
        sampled = self.actor.sample(flat(features["next_observation"], features["random_goal"]), batch["next_noise"])
        goal = target.encode(batch["random_goal"])
        parts = [target.encode(batch["next_observation"]), action_vectors(sampled, self.spaces)]
        phi = target.encode_actions(*parts, *([goal] if self.goal_conditioned else []))
        return phi, target.encode_futures(goal)
