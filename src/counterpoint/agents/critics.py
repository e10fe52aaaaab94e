"""Critics of goal-conditioned agents: f = phi . psi of contrastive agents, Q(s, a, g) and V(s, g) of the baselines."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from counterpoint.agents.base import Metrics
from counterpoint.agents.networks import EnsembleMLP, InputEncoder, flat
from counterpoint.data.episode import Spaces
from counterpoint.objectives.base import in_full_precision


class ContrastiveCritic(nn.Module):
    """Twin encoders phi and psi behind a shared `InputEncoder`.

        phi(s, a)  or phi(s, a, g)      situation, action and (TD InfoNCE) the commanded goal
        psi(s+)                         a future state, in goal coordinates
        f[i, j, twin] = phi[twin, i] . psi[twin, j] / temperature

    With unit vectors (`normalise`) and temperature 1 every logit lies in [-1, 1].

    Args:
        spaces: Shapes of observations, goals and actions.
        hidden: Widths of the hidden layers.
        representation: d, the length of phi and psi.
        goal_conditioned: Let phi also read the goal that the policy is commanded to reach.
        normalise: Scale phi and psi to unit length.
        temperature: Divisor of f.
        generator: Generator for the initial weights.
    """

    def __init__(
        self,
        spaces: Spaces,
        hidden: tuple[int, ...],
        representation: int,
        *,
        goal_conditioned: bool,
        normalise: bool,
        temperature: float,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.normalise, self.temperature = normalise, temperature
        self.encode = InputEncoder(spaces, generator=generator)
        inputs = self.encode.observation_width + spaces.action + goal_conditioned * self.encode.goal_width
        self.phi = EnsembleMLP(2, [inputs, *hidden, representation], generator=generator)
        self.psi = EnsembleMLP(2, [self.encode.goal_width, *hidden, representation], generator=generator)

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


class ActionValue(nn.Module):
    """Q(s, a, g) of E critics; convolutions for images are shared among them.

    Args:
        members: E.
        spaces: Shapes of observations, goals and actions.
        hidden: Widths of the hidden layers.
        generator: Generator for the initial weights.
    """

    def __init__(
        self, members: int, spaces: Spaces, hidden: tuple[int, ...], generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.encode = InputEncoder(spaces, generator=generator)
        width = self.encode.observation_width + self.encode.goal_width + spaces.action
        self.body = EnsembleMLP(members, [width, *hidden, 1], generator=generator)

    def forward(
        self, observation: Tensor, goal: Tensor, action: Float[Tensor, "B A"], *, frozen: bool = False
    ) -> Float[Tensor, "E B"]:
        """Return values in float32; `frozen` lets gradients flow to the action and not to the parameters."""
        situation = flat(self.encode(observation), self.encode(goal))
        values: Tensor = self.body(flat(situation.detach() if frozen else situation, action), frozen=frozen)
        return values[..., 0].float()


class StateValue(nn.Module):
    """V(s, g); arguments as for `ActionValue`."""

    def __init__(self, spaces: Spaces, hidden: tuple[int, ...], generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.encode = InputEncoder(spaces, generator=generator)
        width = self.encode.observation_width + self.encode.goal_width
        self.body = EnsembleMLP(1, [width, *hidden, 1], generator=generator)

    def forward(self, observation: Tensor, goal: Tensor) -> Float[Tensor, " B"]:
        """Return values in float32."""
        values: Tensor = self.body(flat(self.encode(observation), self.encode(goal)))
        return values[0, :, 0].float()


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
