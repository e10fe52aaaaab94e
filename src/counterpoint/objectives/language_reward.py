"""R3M's language reward: how much of an instruction was done since the first frame (Nair et al., 2022)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["LanguageReward"]


class LanguageReward(nn.Module):
    """G(o_0, o, l): how far instruction l has been done between o_0 and o, in (0, 1).

    Args:
        frame_dim: D of the frames' embeddings.
        text_dim: D of the text's embedding.
        hidden: Width of the four hidden layers.
    """

    def __init__(self, frame_dim: int, text_dim: int, hidden: int = 1024) -> None:
        super().__init__()
        widths = [2 * frame_dim + text_dim, hidden, hidden, hidden, hidden]
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(hidden, 1))

    def forward(
        self,
        first: Float[Tensor, "*#batch D"],
        current: Float[Tensor, "*#batch D"],
        text: Float[Tensor, "*#batch L"],
    ) -> Float[Tensor, "*batch"]:
        """Rewards of raw embeddings, which broadcast against each other in all but the last axis."""
        return torch.sigmoid(self.logit(first, current, text))

    def logit(
        self,
        first: Float[Tensor, "*#batch D"],
        current: Float[Tensor, "*#batch D"],
        text: Float[Tensor, "*#batch L"],
    ) -> Float[Tensor, "*batch"]:
        """The rewards before the sigmoid."""
        shape = np.broadcast_shapes(first.shape[:-1], current.shape[:-1], text.shape[:-1])
        parts = [x.expand(*shape, x.shape[-1]) for x in (first, current, text)]
        logits: Tensor = self.layers(torch.cat(parts, dim=-1))
        return logits.squeeze(-1)
