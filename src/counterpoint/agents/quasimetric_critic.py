"""QRL's critic: states and goals as points of a space, actions as moves in it, and the distance between points.

`qrl.py` has the equations in which phi, psi, T and d stand.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.agents.base import Spaces
from counterpoint.agents.contrastive_critic import Sight
from counterpoint.agents.networks import EnsembleMLP
from counterpoint.agents.quasimetric import IntervalQuasimetric

__all__ = ["QuasimetricCritic"]


class QuasimetricCritic(nn.Module):
    """phi, psi, T and d of E critics; convolutions for pictures are shared among them.

    Args:
        spaces: What is seen and done.
        hidden: Widths of the hidden layers of phi, psi and T.
        members: E.
        latent: D, the width of phi and psi.
        projector: Width of the hidden layer between latent and quasimetric.
        components: C of the quasimetric.
        component_width: K of the quasimetric.
        generator: Of the initial weights.
    """

    def __init__(
        self,
        spaces: Spaces,
        hidden: Sequence[int],
        *,
        members: int,
        latent: int,
        projector: int,
        components: int,
        component_width: int,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.whole_state = spaces.goal == spaces.observation
        self.sight = Sight(spaces, generator=generator)
        self.state_encoder = EnsembleMLP(
            members, [self.sight.observation_width, *hidden, latent], generator=generator
        )
        self.goal_encoder = (
            self.state_encoder
            if self.whole_state
            else EnsembleMLP(members, [self.sight.goal_width, *hidden, latent], generator=generator)
        )
        self.dynamics = EnsembleMLP(members, [latent + spaces.action, *hidden, latent], generator=generator)
        # T starts as "nothing changes".
        nn.init.zeros_(self.dynamics.weights[-1])
        nn.init.zeros_(self.dynamics.biases[-1])
        width = components * component_width
        self.projector = EnsembleMLP(members, [latent, projector, width], generator=generator)
        self.quasimetric = IntervalQuasimetric(members, components)

    def states(self, observation: Tensor) -> Float[Tensor, "E B D"]:
        """phi."""
        latents: Tensor = self.state_encoder(self.sight(observation))
        return latents

    def goals(self, goal: Tensor) -> Float[Tensor, "E B D"]:
        """phi of a goal that is a state, psi of goal coordinates."""
        latents: Tensor = self.goal_encoder(self.sight(goal))
        return latents

    def step(
        self, latent: Float[Tensor, "E B D"], action: Float[Tensor, "B A"], *, frozen: bool = False
    ) -> Float[Tensor, "E B D"]:
        """T(z, a), predicted as a change of z; `frozen` keeps gradients from its parameters."""
        inputs = torch.cat([latent, action.expand(latent.shape[0], *action.shape)], dim=-1)
        change: Tensor = self.dynamics(inputs, frozen=frozen)
        return latent + change

    def distances(
        self, *pairs: tuple[int, int], latents: list[Tensor], frozen: bool = False
    ) -> list[Float[Tensor, "E B"]]:
        """d from latent i to latent j for pairs (i, j), in one call; `frozen` as for `step`."""
        together = self.projector(torch.cat(latents, dim=1), frozen=frozen)
        projected = together.chunk(len(latents), dim=1)
        start = torch.cat([projected[i] for i, _ in pairs], dim=1)
        end = torch.cat([projected[j] for _, j in pairs], dim=1)
        found: Tensor = self.quasimetric(start, end, frozen=frozen)
        return list(found.chunk(len(pairs), dim=1))
