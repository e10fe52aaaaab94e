"""Diffusion Policy's transformer: actions as tokens that attend to the diffusion step and what is seen."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from counterpoint.policies.unet import step_waves

__all__ = ["DenoisingTransformer", "decay_groups"]


class DenoisingTransformer(nn.Module):
    """The transformer form of Diffusion Policy (Chi et al., 2023, section 3.1).

    The diffusion step and each observation are one token of memory, with learned places, through a two-layer MLP or
    layers of self-attention. Noisy actions are the tokens of a decoder that attends to earlier actions and, at the
    window's step t, to observations up to step t. Layers normalise first. Weights begin as N(0, .02). Defaults are of
    the original's image configuration.

    Args:
        action_dim: A.
        condition_dim: O, of one observation.
        obs_steps: To.
        horizon: K.
        layers: Of the decoder.
        heads: Of attention.
        width: Of a token.
        condition_layers: Of self-attention over the memory; 0 is the MLP.
        embedding_dropout: Of tokens before the layers.
        attention_dropout: Within the layers.
    """

    unseen: Tensor
    later: Tensor

    def __init__(
        self,
        action_dim: int,
        condition_dim: int,
        *,
        obs_steps: int,
        horizon: int,
        layers: int = 8,
        heads: int = 4,
        width: int = 256,
        condition_layers: int = 0,
        embedding_dropout: float = 0.0,
        attention_dropout: float = 0.3,
    ) -> None:
        super().__init__()
        shape = {"d_model": width, "nhead": heads, "dim_feedforward": 4 * width, "dropout": attention_dropout}
        manner = {"activation": "gelu", "batch_first": True, "norm_first": True}
        self.width = width
        self.action_token = nn.Linear(action_dim, width)
        self.action_place = nn.Parameter(torch.zeros(horizon, width))
        self.condition_token = nn.Linear(condition_dim, width)
        self.condition_place = nn.Parameter(torch.zeros(1 + obs_steps, width))
        self.dropout = nn.Dropout(embedding_dropout)
        self.memory = (
            nn.Sequential(
                *(nn.TransformerEncoderLayer(**shape, **manner) for _ in range(condition_layers))  # type: ignore[arg-type]
            )
            if condition_layers
            else nn.Sequential(nn.Linear(width, 4 * width), nn.Mish(), nn.Linear(4 * width, width))
        )
        self.decoder = nn.ModuleList(
            nn.TransformerDecoderLayer(**shape, **manner)  # type: ignore[arg-type]
            for _ in range(layers)
        )
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, action_dim)
        step, seen = torch.arange(horizon)[:, None], torch.arange(1 + obs_steps)
        # [K, K] and [K, 1 + To]: what an action must not look at. The diffusion step stands before the observations.
        self.register_buffer("later", torch.arange(horizon) > step, persistent=False)
        self.register_buffer("unseen", seen - 1 > step, persistent=False)
        self.apply(_begin)
        for place in (self.action_place, self.condition_place):
            nn.init.normal_(place, std=0.02)

    def conditioning(
        self, steps: Int[Tensor, " n"], condition: Float[Tensor, "n To O"]
    ) -> tuple[Tensor, ...]:
        """The memory [n, 1 + To, width], alone in a tuple.

        It depends on no noisy sample, so sampling computes it for all its steps in one go.
        """
        step = step_waves(steps, self.width).to(condition.dtype)[:, None]
        tokens = torch.cat([step, self.condition_token(condition)], dim=1) + self.condition_place
        return (self.memory(self.dropout(tokens)),)

    def forward(
        self, noisy: Float[Tensor, "n K A"], conditioning: tuple[Tensor, ...]
    ) -> tuple[Float[Tensor, "n K A"], None]:
        """The network's output; there is no bottleneck."""
        (memory,) = conditioning
        x = self.dropout(self.action_token(noisy) + self.action_place)
        for layer in self.decoder:
            # Told that its mask is the causal one, a layer takes the fused kernel and need not look.
            x = layer(x, memory, tgt_mask=self.later, memory_mask=self.unseen, tgt_is_causal=True)
        return self.last(self.norm(x)), None


def decay_groups(module: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Trainable parameters in two groups: `decayed`, the weights of linear maps and attention, and `plain`, the rest.

    Biases, norms and learned places are not decayed; the original decays the others by 1e-3, and its U-Net and
    encoders whole by 1e-6. A parameter that modules share is listed once, where it is met first.
    """
    groups: dict[str, list[nn.Parameter]] = {"decayed": [], "plain": []}
    met: set[nn.Parameter] = set()
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            if parameter in met or not parameter.requires_grad:
                continue
            met.add(parameter)
            weight = isinstance(part, nn.Linear | nn.MultiheadAttention) and name.endswith("weight")
            groups["decayed" if weight else "plain"].append(parameter)
    return groups


def _begin(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.MultiheadAttention):
        nn.init.normal_(module.in_proj_weight, std=0.02)
        nn.init.zeros_(module.in_proj_bias)
