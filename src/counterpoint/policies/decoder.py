"""ResNet-T's transformer decoder: the tokens of a window of steps under a causal mask (Liu et al., 2023, LIBERO)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["CausalDecoder"]


class CausalDecoder(nn.Module):
    """Layers of attention and feed-forward, each normalised before; tokens of a step see it whole and what was before.

    The numbers are LIBERO's: heads as wide as a token (not a share of it), no biases in the attention's inputs,
    GELU, sinusoidal positions of base 10, stochastic depth of the feed-forward parts, no normalisation at the end.
    Positions count from the window's oldest step, whether or not the episode reaches back so far.

    Args:
        width: Of a token; even.
        steps: H, the window.
        layers: How many.
        heads: Of attention.
        feedforward: Hidden width.
        dropout: Of both parts, and of whole feed-forward parts.
    """

    position: Tensor
    earlier: Tensor

    def __init__(
        self, width: int, *, steps: int, layers: int, heads: int, feedforward: int, dropout: float
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(width, heads, feedforward, dropout) for _ in range(layers))
        rates = 10.0 ** (-torch.arange(0, width, 2) / width)
        angles = torch.arange(steps)[:, None] * rates
        self.register_buffer("position", torch.cat([angles.sin(), angles.cos()], -1), persistent=False)
        # [H, H]: whether the row's step may look at the column's.
        self.register_buffer("earlier", torch.ones(steps, steps).tril().bool(), persistent=False)

    def forward(self, tokens: Float[Tensor, "B H M E"], valid: Bool[Tensor, "B H"]) -> Tensor:
        """Decode M tokens of each of H steps.

        Args:
            tokens: The oldest step first.
            valid: False for steps before the episode's first; nobody looks at those but they themselves.

        Returns:
            [B, H, M, E].
        """
        H, M = tokens.shape[1:3]
        # A step that may look at nothing at all would become NaN, and NaN would leak: let each see itself.
        itself = torch.eye(H, dtype=torch.bool, device=tokens.device)
        seen = (self.earlier & valid[:, None, :]) | itself  # [B, H, H]
        mask = seen.repeat_interleave(M, 1).repeat_interleave(M, 2)[:, None]  # [B, 1, H M, H M]
        x = (tokens + self.position[:, None]).flatten(1, 2)
        for layer in self.layers:
            x = layer(x, mask)
        decoded: Tensor = x.reshape(tokens.shape)
        return decoded


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int, feedforward: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.feedforward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs = nn.Linear(width, 3 * heads * width, bias=False)
        self.outputs = nn.Sequential(nn.Linear(heads * width, width), nn.Dropout(dropout))
        self.feedforward = nn.Sequential(
            nn.Linear(width, feedforward),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(feedforward, width),
            nn.Dropout(dropout),
        )
        self.depth = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        # [B, L, 3 * heads * E] -> three of [B, heads, L, E]
        parts = self.inputs(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.outputs(attended.transpose(1, 2).flatten(2))
        kept = self.depth(x.new_ones(len(x), 1, 1))  # a row's whole part, dropped or scaled up
        y: Tensor = x + kept * self.feedforward(self.feedforward_norm(x))
        return y
