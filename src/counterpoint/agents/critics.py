"""f = phi . psi: the critic of contrastive agents, twice over, and how it sees states, pictures and actions.

    phi(s, a)  or phi(s, a, g)      what is done, where, and (TD InfoNCE) under which command
    psi(s+)                         where it may lead, in goal coordinates
    f[i, j, twin] = phi[twin, i] . psi[twin, j] / temperature

Both are multilayer perceptrons; with unit vectors (`normalise`) and temperature 1 every logit lies in [-1, 1].
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from counterpoint.agents.base import Metrics, Spaces
from counterpoint.agents.networks import EnsembleMLP, PixelTrunk, flat
from counterpoint.errors import BadInputError
from counterpoint.objectives.infonce import in_full_precision

__all__ = ["ContrastiveCritic", "Seen", "Sight", "action_vectors", "pair_metrics"]


class Sight(nn.Module):
    """Observations and goals as vectors: states as they are, pictures through convolutions.

    One trunk serves both where their pictures have one shape (as the authors of contrastive RL have it, whose twins
    share it too); otherwise each kind of picture has its own.

    Args:
        spaces: Shapes of observations and goals.
        generator: Of the initial weights.

    Raises:
        BadInputError: When a shape is neither a state's, (D,), nor a picture's, (H, W, C), or pictures are too small.
    """

    def __init__(self, spaces: Spaces, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.trunks = nn.ModuleDict()
        for name, shape in (("observations", spaces.observation), ("goals", spaces.goal)):
            if len(shape) not in (1, 3):
                raise BadInputError(
                    name,
                    f"shape {shape}",
                    "states (D,) or pictures (H, W, C)",
                    "flatten them to vectors, or give a picture its channels as a last axis",
                )
            if len(shape) == 3 and _key(shape) not in self.trunks:
                self.trunks[_key(shape)] = PixelTrunk(shape, generator=generator)
        self.observation_width = self._width(spaces.observation)
        self.goal_width = self._width(spaces.goal)

    def forward(self, values: Tensor) -> Float[Tensor, "B D"]:
        """Vectors of B observations or goals: [B, D] as they are, uint8 pictures [B, H, W, C] as features."""
        if values.dim() == 2:
            return values
        features: Tensor = self.trunks[_key(tuple(values.shape[1:]))](values)
        return features

    def _width(self, shape: tuple[int, ...]) -> int:
        if len(shape) == 1:
            return shape[0]
        trunk = self.trunks[_key(shape)]
        assert isinstance(trunk, PixelTrunk)
        return trunk.features


def _key(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


class Seen:
    """A batch through one `Sight`: every key is looked at when first asked for, and once.

    Args:
        batch: The batch.
        sight: Through which pictures become features; states pass as they are.
    """

    def __init__(self, batch: Mapping[str, Tensor], sight: Sight) -> None:
        self._batch, self._sight = batch, sight
        self._known: dict[str, Tensor] = {}

    def __getitem__(self, key: str) -> Float[Tensor, "B D"]:
        if key not in self._known:
            self._known[key] = self._sight(self._batch[key])
        return self._known[key]


class ContrastiveCritic(nn.Module):
    """Twin encoders phi and psi and the sight before them.

    Args:
        spaces: What the agent sees and does.
        hidden: Widths of the hidden layers.
        representation: d, the length of phi and psi.
        commanded: Whether phi also reads the goal that the policy is commanded to reach.
        normalise: Whether phi and psi are unit vectors.
        temperature: What f is divided by.
        generator: Of the initial weights.
    """

    def __init__(
        self,
        spaces: Spaces,
        hidden: tuple[int, ...],
        representation: int,
        *,
        commanded: bool,
        normalise: bool,
        temperature: float,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.normalise, self.temperature = normalise, temperature
        self.sight = Sight(spaces, generator=generator)
        inputs = self.sight.observation_width + spaces.action + commanded * self.sight.goal_width
        self.phi = EnsembleMLP(2, [inputs, *hidden, representation], generator=generator)
        self.psi = EnsembleMLP(2, [self.sight.goal_width, *hidden, representation], generator=generator)

    def encode_actions(self, *parts: Float[Tensor, "B _"], frozen: bool = False) -> Float[Tensor, "2 B D"]:
        """phi of what is seen and done (and commanded), divided by the temperature.

        Args:
            parts: Seen observations, action vectors and, where phi reads them, seen goals.
            frozen: Let gradients flow to the inputs and not to the parameters.
        """
        return self._unit(self.phi(flat(*parts), frozen=frozen)) / self.temperature

    def encode_futures(self, seen: Float[Tensor, "B G"], *, frozen: bool = False) -> Float[Tensor, "2 B D"]:
        """psi of seen future states, in goal coordinates."""
        return self._unit(self.psi(seen, frozen=frozen))

    def _unit(self, vectors: Float[Tensor, "2 B D"]) -> Float[Tensor, "2 B D"]:
        if not self.normalise:
            return vectors
        unit: Tensor = vectors / (torch.linalg.vector_norm(vectors, dim=-1, keepdim=True) + 1e-8)
        return unit

    @staticmethod
    @in_full_precision
    def pairs(phi: Float[Tensor, "2 B D"], psi: Float[Tensor, "2 M D"]) -> Float[Tensor, "B M 2"]:
        """f of every row of phi with every row of psi, twins last."""
        return torch.bmm(phi, psi.transpose(1, 2)).permute(1, 2, 0)

    @staticmethod
    def matched(phi: Float[Tensor, "2 B D"], psi: Float[Tensor, "2 B D"]) -> Float[Tensor, "B 2"]:
        """f of each row of phi with its own row of psi."""
        return (phi * psi).sum(-1).T


def action_vectors(action: Tensor, spaces: Spaces) -> Float[Tensor, "B A"]:
    """Actions as the critic reads them: continuous ones as they are, discrete ones one-hot."""
    if not spaces.discrete:
        return action
    return functional.one_hot(action, spaces.action).to(torch.float32)


def pair_metrics(logits: Float[Tensor, "B B 2"]) -> Metrics:
    """Share of rows whose greatest logit is their own, and mean logits of own and other pairs, over both twins."""
    found = logits.detach()
    rows = found.shape[0]
    positive = found.diagonal().sum()
    own = found.argmax(dim=1) == torch.arange(rows, device=found.device)[:, None]
    twins = found.shape[2]
    return {
        "categorical_accuracy": own.float().mean(),
        "logits_pos": positive / (rows * twins),
        "logits_neg": (found.sum() - positive) / (rows * (rows - 1) * twins),
    }
