"""SMART's control transformer: observations and actions as one sequence of tokens, read in three ways.

    tokens       o_0 a_0 o_1 a_1 ... o_{L-1} a_{L-1}
    causal       a token sees itself and what came before
    inverse      causal, but o_{t+1} does not see a_t, which is what is to be told from it
    hindsight    every token sees all; masked ones are replaced by a learned token

Sun et al., "SMART: Self-supervised Multi-task pretrAining with contRol Transformers", ICLR 2023, section 4.

Where this differs from the authors' code:
  - The prediction of masked action number t is read at that action's own token, which is number 2 t + 1; theirs is read
    at token number t.
  - A masked token is learned; theirs is filled with -1.
  - The place in the context is embedded, the place in the episode is not.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

__all__ = ["ControlTransformer", "causal_mask", "inverse_mask"]


def causal_mask(length: int) -> Bool[Tensor, "T T"]:
    """True where row's token must not see column's: what comes after.

    Args:
        length: T, tokens.
    """
    return torch.ones(length, length, dtype=torch.bool).triu(1)


def inverse_mask(length: int) -> Bool[Tensor, "T T"]:
    """`causal_mask` that also hides a_t from o_{t+1}. No other token that o_{t+1} sees has seen a_t.

    Args:
        length: T, tokens.
    """
    hidden = causal_mask(length)
    observation = torch.arange(2, length, 2)
    hidden[observation, observation - 1] = True
    return hidden


class ControlTransformer(nn.Module):
    """Tokens, transformer and the three prediction heads.

    Args:
        embed_dim: D, of observations.
        action_dim: A.
        context: L, steps.
        width: Of tokens.
        layers: Transformer layers, normalised first.
        heads: Of attention; they divide `width`.
        dropout: Share of activations dropped while training.
    """

    hidden_causal: Tensor
    hidden_inverse: Tensor

    def __init__(
        self,
        embed_dim: int,
        action_dim: int,
        *,
        context: int,
        width: int,
        layers: int,
        heads: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.observation = nn.Linear(embed_dim, width)
        self.action = nn.Sequential(nn.Linear(action_dim, width), nn.Tanh())
        self.place = nn.Parameter(0.02 * torch.randn(2 * context, width))
        self.masked = nn.Parameter(0.02 * torch.randn(width))
        self.dropout = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.forward_head = nn.Linear(2 * width, embed_dim)
        self.inverse_head = nn.Linear(2 * width, action_dim)
        self.hindsight_head = nn.Linear(width, action_dim)
        self.register_buffer("hidden_causal", causal_mask(2 * context), persistent=False)
        self.register_buffer("hidden_inverse", inverse_mask(2 * context), persistent=False)

    def dynamics(
        self, observations: Float[Tensor, "B L D"], actions: Float[Tensor, "B L A"]
    ) -> tuple[Float[Tensor, "B L-1 D"], Float[Tensor, "B L-1 A"]]:
        """Predictions between neighbouring steps.

        Args:
            observations: Embeddings; gradients flow into them.
            actions: Zeros outside a row's own dimensions.

        Returns:
            Next embeddings from the causal outputs at o_t and a_t; actions from the causal output at o_t and the
            inverse one at o_{t+1}.
        """
        tokens = self._tokens(self.observation(observations), self.action(actions))
        causal = self._read(tokens, self.hidden_causal)  # [B, L, 2, width]: outputs at o_t and at a_t
        inverse = self._read(tokens, self.hidden_inverse)
        between = torch.cat([causal[:, :-1, 0], inverse[:, 1:, 0]], -1)
        return self.forward_head(causal[:, :-1].flatten(2)), self.inverse_head(between)

    def hindsight(
        self,
        observations: Float[Tensor, "B L D"],
        actions: Float[Tensor, "B L A"],
        *,
        masked_observations: Bool[Tensor, "B L"],
        masked_actions: Bool[Tensor, "B L"],
    ) -> Float[Tensor, "B L A"]:
        """All actions of the context, told from the tokens that are not masked.

        Args:
            observations: Embeddings; gradients flow into those not masked.
            actions: Zeros outside a row's own dimensions.
            masked_observations: Which are hidden from all tokens.
            masked_actions: Which are hidden from all tokens.
        """
        observed = torch.where(masked_observations[..., None], self.masked, self.observation(observations))
        acted = torch.where(masked_actions[..., None], self.masked, self.action(actions))
        predicted: Tensor = self.hindsight_head(self._read(self._tokens(observed, acted), None)[:, :, 1])
        return predicted

    def _tokens(self, observed: Tensor, acted: Tensor) -> Tensor:
        """[B, L, width] of either kind to [B, 2 L, width], taking turns."""
        placed: Tensor = self.dropout(torch.stack([observed, acted], 2).flatten(1, 2) + self.place)
        return placed

    def _read(self, tokens: Tensor, hidden: Tensor | None) -> Tensor:
        """Outputs by step and kind: [B, L, 2, width]."""
        read: Tensor = self.body(tokens, mask=hidden).unflatten(1, (-1, 2))
        return read
