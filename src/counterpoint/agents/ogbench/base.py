"""The base of OGBench's agents: two goals a transition, drawn from mixtures, values of them, and an extracted policy.

Park et al., ICLR 2025, Appendix C, and its code (`impls`, commit 1d41409). A transition has a goal for values, whose
reward is 0 if it is the transition's own state and otherwise -1, and a goal for the policy. Unlike OGBench's, a later
state can be the last one of its episode. Actions are continuous.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from counterpoint.agents.base import Agent, AgentConfig
from counterpoint.agents.extraction import GoalPolicy
from counterpoint.agents.networks import Activation, ContrastiveCritic, Form, initialise
from counterpoint.agents.situations import SituationMLP
from counterpoint.data.spec import Spec
from counterpoint.data.transitions import GoalMix

REACHED = "value.reached"
"""The batch's key that says whether the goal for values is the transition's own state."""


class OGBenchConfig(AgentConfig):
    """Settings that OGBench's agents share, at their values there.

    Attributes:
        hidden: Widths of the hidden layers.
        activation: Activation after every hidden layer.
        lr: Adam's learning rate for all networks.
        actor_goals: Goals for the policy.
    """

    hidden: tuple[PositiveInt, ...] = Field(default=(512, 512, 512), min_length=1)
    activation: Activation = "gelu"
    lr: float = Field(default=3e-4, gt=0)
    actor_goals: GoalMix = GoalMix(future=1.0, geometric=False)

    @property
    def goals(self) -> dict[str, GoalMix]:
        """The mixtures of goals by name."""
        return {"actor": self.actor_goals}


class OGBenchValueConfig(OGBenchConfig):
    """Settings of the agents that have a value, too.

    Attributes:
        layer_norm: Normalise the hidden layers of values (not of policies).
        alpha: Sharpness of AWR's weights, or the weight of cloning in DDPG+BC.
        value_goals: Goals for values.
    """

    layer_norm: bool = True
    alpha: float = Field(default=10.0, ge=0)
    value_goals: GoalMix = GoalMix(current=0.2, future=0.5, random=0.3)

    @property
    def form(self) -> Form:
        """The form of the hidden layers of values."""
        return Form(self.activation, self.layer_norm)

    @property
    def goals(self) -> dict[str, GoalMix]:
        """The mixtures of goals by name."""
        return {"value": self.value_goals, **super().goals}


class OGBenchAgent(Agent):
    """A policy with unit variance; arguments as for `Agent`. Continuous actions only."""

    config: OGBenchConfig
    continuous_only: ClassVar[bool] = True
    actor: nn.Module
    reads: frozenset[str] = frozenset({"observation", "action", "actor_goal"})

    def policy(self, weights: torch.Generator) -> GoalPolicy:
        """Return a new policy."""
        return GoalPolicy(self.spaces, self.config.hidden, self.config.activation, weights)

    def sampling(self) -> Spec:
        """Return the spec of transitions with goals; futures beyond an episode's end are its last state."""
        config = self.config
        return Spec.transitions(self.reads - {REACHED}, discount=config.discount, tail="clip", goals=config.goals)

    def choose(self, observation: Tensor, goal: Tensor, rows: Sequence[int], explore: torch.Generator | None) -> Tensor:
        """Return the policy's mean, or a sample from it, clipped to [-1, 1]."""
        mean = self.mean(observation, goal)
        if explore is not None:
            mean = mean + torch.randn(mean.shape, generator=explore, device=self.device)
        return mean.clamp(-1, 1)

    def mean(self, observation: Tensor, goal: Tensor) -> Float[Tensor, "B A"]:
        """Return the mean action, not clipped."""
        found: Tensor = self.actor(observation, goal)
        return found


class OGBenchValueAgent(OGBenchAgent):
    """A policy beside a value; arguments as for `Agent`."""

    config: OGBenchValueConfig
    reads = OGBenchAgent.reads | {"next_observation", "value_goal", REACHED}

    def values(self, weights: torch.Generator, *, members: int = 2, actions: int = 0) -> SituationMLP:
        """Return a new value V(s, g), or Q(s, g, a) with `actions`, of `members` perceptrons."""
        config = self.config
        value = SituationMLP(self.spaces, config.hidden, 1, weights, members=members, actions=actions, form=config.form)
        initialise(value, "glorot", weights)
        return value

    def contrastive(
        self, representation: int, weights: torch.Generator, *, reads_goal: bool = False
    ) -> ContrastiveCritic:
        """Return new twins phi(s, a) . psi(g) / sqrt(D), or phi(s, a, g) with `reads_goal`."""
        return ContrastiveCritic(
            self.spaces,
            self.config.hidden,
            representation,
            temperature=representation**0.5,
            reads_goal=reads_goal,
            init="glorot",
            form=self.config.form,
            generator=weights,
        )

    def target_of(self, batch: Mapping[str, Tensor], later: Float[Tensor, "*E B"]) -> Float[Tensor, "*E B"]:
        """Return r + gamma V(s', g), with r = -1, or r = 0 and nothing later at the goal."""
        missed = (~batch[REACHED]).to(later.dtype)
        return missed * (self.config.discount * later - 1)
