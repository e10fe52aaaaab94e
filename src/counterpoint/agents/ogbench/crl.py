"""OGBench's contrastive RL (Eysenbach et al., NeurIPS 2022), with DDPG+BC or AWR: `impls/agents/crl.py`.

With F[i, j] = phi(s_i, a_i) . psi(g_j) / sqrt(D), where g_i is a later state of transition i::

    L(F)  = binary cross entropy of F against I, mean over all entries and twins
    L(pi) = DDPG+BC with Q = min over twins f(s, a, g)
            or AWR with the advantage min f(s, a, g) - v(s, g), where v is trained as f is, without the action
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from counterpoint.agents.base import Metrics
from counterpoint.agents.extraction import awr_loss, ddpg_bc_loss
from counterpoint.agents.networks import EnsembleMLP, InputEncoder, initialise, matched, pair_metrics, pairs
from counterpoint.agents.ogbench.base import OGBenchValueAgent, OGBenchValueConfig
from counterpoint.data.episode import Spaces
from counterpoint.data.transitions import GoalMix
from counterpoint.objectives.contrastive_rl import contrastive_nce_loss


class OGBenchCRLConfig(OGBenchValueConfig):
    """Settings of contrastive RL: OGBench's.

    Attributes:
        representation: Number of dimensions of phi and psi (D).
        extraction: The policy's loss.
        alpha: Weight of cloning in DDPG+BC, or sharpness of AWR's weights.
    """

    representation: PositiveInt = 512
    extraction: Literal["ddpg_bc", "awr"] = "ddpg_bc"
    alpha: float = Field(default=0.1, ge=0)
    value_goals: GoalMix = GoalMix(future=1.0)


class BilinearValue(nn.Module):
    """v(s, g) = phi(s) . psi(g) / sqrt(D); arguments as for `OGBenchValueAgent.values`."""

    def __init__(self, spaces: Spaces, config: OGBenchCRLConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.encode = InputEncoder(spaces, generator=generator)
        more, form = (*config.hidden, config.representation), config.form
        self.phi = EnsembleMLP(1, (self.encode.observation_width, *more), form=form, generator=generator)
        self.psi = EnsembleMLP(1, (self.encode.goal_width, *more), form=form, generator=generator)
        self.scale = config.representation**-0.5
        initialise(self, "glorot", generator)

    def forward(self, observation: Tensor, goal: Tensor) -> tuple[Float[Tensor, "1 B D"], Float[Tensor, "1 B D"]]:
        """Return phi divided by sqrt(D), and psi."""
        return self.phi(self.encode(observation)) * self.scale, self.psi(self.encode(goal))


class OGBenchCRL(OGBenchValueAgent):
    """Contrastive RL; arguments as for `Agent`."""

    name: ClassVar[str] = "ogbench_crl"
    value_name: ClassVar[str] = "f(s, a, g) at the policy's clipped mean, minimum over twins"
    config: OGBenchCRLConfig
    reads = frozenset({"observation", "action", "value_goal", "actor_goal"})

    def build(self, weights: torch.Generator) -> None:
        """Create the twin critic, the value if the policy's loss needs it, and the policy."""
        config = self.config
        self.critic = self.network("critic", self.contrastive(config.representation, weights), config.lr)
        if config.extraction == "awr":
            self.value_network = self.network("value", BilinearValue(self.spaces, config, weights), config.lr)
        self.actor = self.network("actor", self.policy(weights), config.lr)

    def losses(self, batch: Mapping[str, Tensor]) -> Metrics:
        """Compute the losses of the critic, of the value and of the policy."""
        observation, action, goal = batch["observation"], batch["action"], batch["value_goal"]
        logits = pairs(*self.critic(observation, action, goal))
        critic = contrastive_nce_loss(logits)
        found = {"loss": critic, "critic/loss": critic}
        found |= {f"critic/{name}": value for name, value in pair_metrics(logits).items()}
        mean, wanted = self.actor(observation, batch["actor_goal"]), batch["actor_goal"]
        if self.config.extraction == "awr":
            found["value/loss"] = contrastive_nce_loss(pairs(*self.value_network(observation, goal)))
            with torch.no_grad():
                q = matched(*self.critic(observation, action, wanted)).amin(dim=-1)
                advantage = q - matched(*self.value_network(observation, wanted))[:, 0]
            loss = awr_loss(mean, action, advantage, self.config.alpha)
        else:
            loss = ddpg_bc_loss(
                mean, action, self.least_logit(observation, mean.clamp(-1, 1), wanted), self.config.alpha
            )
        error = (mean - action).square().mean()
        return {**found, "actor/loss": loss, "actor/mean_squared_error": error}

    def value(self, observation: Tensor, goal: Tensor) -> Float[Tensor, " B"]:
        """Return the minimum over twins of f(s, a, g) at the policy's clipped mean."""
        return self.least_logit(observation, self.choose(observation, goal, (), None), goal)

    def least_logit(self, observation: Tensor, action: Tensor, goal: Tensor) -> Float[Tensor, " B"]:
        """Return min over twins f(s, a, g); only the action gets a gradient."""
        critic, wanted = self.critic, self.critic.encode(goal).detach()
        phi = critic.encode_actions(critic.encode(observation).detach(), action, frozen=True)
        return matched(phi, critic.encode_futures(wanted, frozen=True)).amin(dim=-1)
