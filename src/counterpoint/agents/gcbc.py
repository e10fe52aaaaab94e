"""GCBC: goal-conditioned behaviour cloning. What was done on the way to a state is what to do to get there.

Goal-conditioned imitation learning (Ding et al., 2019), learning to reach goals via iterated supervised learning
(Ghosh et al., 2021); a baseline of TD InfoNCE (section 4.1, Fig. 2 and Table 1):

    L(pi) = - E[ log pi(a_t | s_t, g) ],    g a future of transition t in its own episode

Continuous actions: N(a; tanh mu(s, g), sigma(s, g)), a Gaussian around a squashed mean. A Gaussian squashed as a whole
has no density at the faces of the box, where recorded actions often lie; this one has, and its draws are clipped.
`min_scale` bounds the density, which a deterministic controller's data would otherwise push to infinity. Discrete
actions: cross-entropy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from counterpoint.agents.base import Agent, AgentConfig, Metrics, Spaces, descend, on_device, prepared
from counterpoint.agents.critics import Sight
from counterpoint.agents.networks import CategoricalActor, GaussianActor, flat
from counterpoint.data.draws import GoalSpec

__all__ = ["GCBC", "GCBCConfig", "Policy", "gaussian_cloning_loss", "gaussian_log_likelihood"]


class GCBCConfig(AgentConfig):
    """Settings of GCBC; the paper gives it the networks and the batch of TD InfoNCE.

    Attributes:
        lr: Adam's rate.
        min_scale: Least standard deviation of the policy, in units of the action box's half-width.
        exploration_noise: Standard deviation of noise added to drawn actions while collecting, before clipping.
    """

    lr: float = Field(default=3e-4, gt=0)
    min_scale: float = Field(default=1e-2, gt=0)
    exploration_noise: float = Field(default=0.0, ge=0)


def gaussian_log_likelihood(
    loc: Float[Tensor, "B A"], scale: Float[Tensor, "B A"], actions: Float[Tensor, "B A"]
) -> Float[Tensor, " B"]:
    """log N(a; tanh(loc), scale), summed over the dimensions of the action."""
    residual = (actions - torch.tanh(loc)) / scale
    return -(residual.square() / 2 + scale.log() + math.log(2 * math.pi) / 2).sum(dim=-1)


def gaussian_cloning_loss(
    loc: Float[Tensor, "B A"], scale: Float[Tensor, "B A"], actions: Float[Tensor, "B A"]
) -> Float[Tensor, ""]:
    """Mean negative log-likelihood of the data's actions."""
    return -gaussian_log_likelihood(loc, scale, actions).mean()


class Policy(nn.Module):
    """pi(a | s, g): a Gaussian around a squashed mean, or log-probabilities of discrete actions.

    Args:
        spaces: What the agent sees and does.
        hidden: Widths of the hidden layers.
        generator: Of the initial weights.
    """

    def __init__(self, spaces: Spaces, hidden: tuple[int, ...], generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.sight = Sight(spaces, generator=generator)
        width = self.sight.observation_width + self.sight.goal_width
        kind = CategoricalActor if spaces.discrete else GaussianActor
        self.head: CategoricalActor | GaussianActor = kind(width, spaces.action, hidden, generator=generator)

    def inputs(self, observation: Tensor, goal: Tensor) -> Float[Tensor, "B I"]:
        """Observation and goal side by side, pictures as features."""
        return flat(self.sight(observation), self.sight(goal))

    def gaussian(self, observation: Tensor, goal: Tensor) -> tuple[Float[Tensor, "B A"], Float[Tensor, "B A"]]:
        """Mean before tanh and standard deviation, in float32."""
        loc, scale = self.head(self.inputs(observation, goal))
        return loc.float(), scale.float()

    def log_probabilities(self, observation: Tensor, goal: Tensor) -> Float[Tensor, "B A"]:
        """Of discrete actions, in float32."""
        logits: Tensor = self.head(self.inputs(observation, goal))
        return logits.float()


class GCBC(Agent):
    """Goal-conditioned behaviour cloning.

    Args:
        config: Its settings.
        spaces: What it sees and does.
        seed: Of initial weights and exploration.
        device: Where it lives.
    """

    name: ClassVar[str] = "gcbc"

    def __init__(
        self, config: GCBCConfig, spaces: Spaces, *, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(config, spaces, seed=seed, device=device)
        self.config = config
        weights = torch.Generator().manual_seed(seed)
        self.actor = Policy(spaces, config.hidden, weights).to(self.device)
        self.modules = {"actor": self.actor}
        self.optimizers = {"actor": torch.optim.Adam(self.actor.parameters(), lr=config.lr)}
        self._losses = prepared(self.losses, config, self.device)

    def sampling(self) -> GoalSpec:
        """Transitions and a future goal."""
        return GoalSpec(frozenset({"observation", "action", "future_goal"}), discount=self.config.discount)

    def losses(self, batch: Mapping[str, Tensor]) -> Metrics:
        """The loss and what it is made of."""
        observation, goal, action = batch["observation"], batch["future_goal"], batch["action"]
        if self.spaces.discrete:
            scores = self.actor.log_probabilities(observation, goal)
            loss = functional.nll_loss(scores, action)
            return {"loss": loss, "actor/accuracy": (scores.argmax(dim=-1) == action).float().mean()}
        loc, scale = self.actor.gaussian(observation, goal)
        scale = scale + self.config.min_scale
        return {
            "loss": gaussian_cloning_loss(loc, scale, action),
            "actor/mean_squared_error": functional.mse_loss(torch.tanh(loc), action),
            "actor/scale": scale.mean(),
        }

    def update(self, batch: Mapping[str, Tensor], step: int) -> Metrics:
        """One step of Adam."""
        metrics = self._losses(on_device(batch, self.sampling().keys, self.device))
        losses = {"actor": metrics["loss"]}
        self._watch(losses)
        descend(losses, self.optimizers)
        return {name: value.detach() for name, value in metrics.items()}

    @torch.no_grad()
    def evaluate(self, batch: Mapping[str, Tensor]) -> dict[str, float]:
        """The losses on a batch."""
        metrics = self._losses(on_device(batch, self.sampling().keys, self.device))
        return {name: float(value) for name, value in metrics.items()}

    def choose(self, observation: Tensor, goal: Tensor, rows: Sequence[int], explore: bool) -> Tensor:
        """See `Agent.choose`."""
        if self.spaces.discrete:
            scores = self.actor.log_probabilities(observation, goal)
            if not explore:
                return scores.argmax(dim=-1)
            return torch.multinomial(scores.exp(), 1, generator=self.generator)[:, 0]
        loc, scale = self.actor.gaussian(observation, goal)
        action = torch.tanh(loc)
        if explore:
            # Two independent Gaussians added are one.
            spread = torch.hypot(scale + self.config.min_scale, scale.new_tensor(self.config.exploration_noise))
            noise = torch.randn(action.shape, generator=self.generator, device=self.device)
            action = (action + spread * noise).clamp(-1, 1)
        return action
