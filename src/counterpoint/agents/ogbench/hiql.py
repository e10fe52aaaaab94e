"""HIQL: hierarchical implicit Q-learning, which acts through subgoals (Park et al., NeurIPS 2023).

OGBench's form (`impls/agents/hiql.py`). A subgoal w of a state s is represented by phi([s; w]), scaled to the length
sqrt(D). V reads goals only through phi. With the value loss of `gcivl.py` and k the steps to a subgoal::

    V(s, phi([s; g]))                                      trained with phi; V has a target network, phi has none
    low    AWR of a under pi_l(a | s, phi([s; s_{t+k}])),   advantage V(s', s_{t+k}) - V(s, s_{t+k})
    high   AWR of phi([s; w]) under pi_h(z | s, g),         advantage V(w, g) - V(s, g)

w is the state k steps later, or g itself if it comes earlier in the same episode. Both advantages are means over the
twins. The low policy trains phi only if `low_trains_phi` is true. phi, V and each policy have encoders of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from jaxtyping import Float
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from counterpoint.agents.base import Metrics
from counterpoint.agents.extraction import GoalPolicy, awr_loss
from counterpoint.agents.iql import expectile_loss
from counterpoint.agents.networks import initialise
from counterpoint.agents.ogbench.base import OGBenchValueAgent, OGBenchValueConfig
from counterpoint.agents.situations import SituationMLP
from counterpoint.data.episode import Spaces
from counterpoint.data.spec import Spec


class HIQLConfig(OGBenchValueConfig):
    """Settings of HIQL: OGBench's.

    Attributes:
        expectile: Expectile of V.
        alpha: Sharpness of AWR's weights, of both policies.
        subgoal_steps: Number of steps to a subgoal (k).
        representation: Number of dimensions of phi (D).
        low_trains_phi: Let gradients of the low policy reach phi; OGBench does for images.
        tau: Rate of the target network's soft update.
    """

    tau: float = Field(default=0.005, gt=0, le=1)
    expectile: float = Field(default=0.7, gt=0, lt=1)
    alpha: float = Field(default=3.0, ge=0)
    subgoal_steps: PositiveInt = 25
    representation: PositiveInt = 10
    low_trains_phi: bool = False


class SubgoalValue(nn.Module):
    """phi, and twin V on it.

    Args:
        spaces: Shapes of observations, goals and actions.
        config: Widths and form.
        generator: Generator for the initial weights.
    """

    def __init__(self, spaces: Spaces, config: HIQLConfig, generator: torch.Generator) -> None:
        super().__init__()
        hidden, form, D = config.hidden, config.form, config.representation
        self.phi = SituationMLP(spaces, hidden, D, generator, form=form)
        self.twins = SituationMLP(replace(spaces, goal=(D,)), hidden, 1, generator, members=2, form=form)
        initialise(self, "glorot", generator)

    def subgoal(self, observation: Tensor, goal: Tensor) -> Float[Tensor, "B D"]:
        """Return phi([s; g]), of length sqrt(D)."""
        return at_length(self.phi(observation, goal)[0])

    def forward(self, observation: Tensor, goal: Tensor, twins: SituationMLP | None = None) -> Float[Tensor, "2 B"]:
        """Return V of both twins, or of other twins on this phi."""
        found: Tensor = (twins or self.twins)(observation, self.subgoal(observation, goal))
        return found[..., 0]


def at_length(vectors: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
    """Return vectors scaled to the length sqrt(D)."""
    found: Tensor = vectors / torch.linalg.vector_norm(vectors, dim=-1, keepdim=True) * vectors.shape[-1] ** 0.5
    return found


class HIQL(OGBenchValueAgent):
    """A high policy that chooses subgoals and a low one that reaches them; arguments as for `Agent`."""

    name: ClassVar[str] = "hiql"
    value_name: ClassVar[str] = "V(s, phi([s; g])), mean over twins"
    config: HIQLConfig
    reads = OGBenchValueAgent.reads | {"subgoal", "target", "target_goal"}

    def build(self, weights: torch.Generator) -> None:
        """Create the value, the target network of its twins, and both policies."""
        config, spaces = self.config, self.spaces
        self.value_network = self.network("value", SubgoalValue(spaces, config, weights), config.lr)
        self.target_value = self.target("value", self.value_network.twins, config.tau)
        low, high = replace(spaces, goal=(config.representation,)), replace(spaces, action=config.representation)
        self.actor = self.network("actor", GoalPolicy(low, config.hidden, config.activation, weights), config.lr)
        self.planner = self.network("planner", GoalPolicy(high, config.hidden, config.activation, weights), config.lr)

    def sampling(self) -> Spec:
        """Return the spec with subgoals."""
        return super().sampling().with_index(subgoal=self.config.subgoal_steps)

    def losses(self, batch: Mapping[str, Tensor]) -> Metrics:
        """Compute the losses of V with phi, and of the low (`actor`) and the high policy (`planner`)."""
        config, observation, goal = self.config, batch["observation"], batch["value_goal"]
        following, near, wanted = batch["next_observation"], batch["subgoal"], batch["actor_goal"]
        with torch.no_grad():
            later = self.value_network(following, goal, self.target_value)
            now = self.value_network(observation, goal, self.target_value).mean(dim=0)
            advantage = self.target_of(batch, later.amin(dim=0)) - now
            targets = self.target_of(batch, later)
            low = (self.value_network(following, near) - self.value_network(observation, near)).mean(dim=0)
            high = (self.value_network(batch["target"], wanted) - self.value_network(observation, wanted)).mean(dim=0)
            target = self.value_network.subgoal(observation, batch["target_goal"])
        value = self.value_network(observation, goal)
        loss = 2 * expectile_loss(targets - value, config.expectile, advantage)  # the sum over twins
        with torch.set_grad_enabled(config.low_trains_phi and torch.is_grad_enabled()):
            subgoal = self.value_network.subgoal(observation, near)
        mean, planned = self.actor(observation, subgoal), self.planner(observation, wanted)
        return {
            "loss": loss,
            "value/loss": loss,
            "value/value": value.mean(),
            "actor/loss": awr_loss(mean, batch["action"], low, config.alpha),
            "actor/mean_squared_error": (mean - batch["action"]).square().mean(),
            "planner/loss": awr_loss(planned, target, high, config.alpha),
            "planner/mean_squared_error": (planned - target).square().mean(),
        }

    def value(self, observation: Tensor, goal: Tensor) -> Float[Tensor, " B"]:
        """Return the mean over twins of V."""
        found: Tensor = self.value_network(observation, goal)
        return found.mean(dim=0)

    def mean(self, observation: Tensor, goal: Tensor) -> Float[Tensor, "B A"]:
        """Return the low policy's mean action for the high policy's mean subgoal."""
        found: Tensor = self.actor(observation, at_length(self.planner(observation, goal)))
        return found
