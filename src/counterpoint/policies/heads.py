"""Heads of cloned policies: an MLP on the newest observation, or ResNet-T's decoder over a history."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from counterpoint.config import FrozenConfig
from counterpoint.encoders.dual import SentenceTower
from counterpoint.encoders.observation_networks import drq_weights
from counterpoint.encoders.weights import MINILM
from counterpoint.errors import require
from counterpoint.policies.normalizer import LinearNormalizer


class HeadConfig(FrozenConfig):
    """Settings of a cloned policy's head.

    Attributes:
        history: Number of observations that the policy reads. With 1 the head is an MLP; with more it is ResNet-T's
            decoder. Premier-TACO uses 10 for LIBERO (Appendix C).
        use_state: Read proprioception too, normalised by the demonstrations' mean and deviation.
        language: Read the instruction too, as a frozen sentence embedding with a learned map (the paper uses BERT).
        hidden: Width of the MLP's hidden layers; 1024 in the paper.
        token: Width of the decoder's tokens. The defaults of this and the next four settings are LIBERO's.
        layers: Number of layers of the decoder.
        heads: Number of attention heads, each as wide as a token.
        feedforward: Hidden width of the decoder's layers.
        dropout: Dropout rate within the decoder, and for whole feed-forward blocks.
    """

    history: int = Field(default=1, ge=1)
    use_state: bool = False
    language: bool = False
    hidden: int = Field(default=1024, ge=1)
    token: int = Field(default=64, ge=2, multiple_of=2)
    layers: int = Field(default=4, ge=1)
    heads: int = Field(default=6, ge=1)
    feedforward: int = Field(default=256, ge=1)
    dropout: float = Field(default=0.1, ge=0, lt=1)


class CausalDecoder(nn.Module):
    """A transformer decoder whose tokens attend to the same step and to earlier steps (Liu et al., 2023, LIBERO).

    Layers are pre-norm. As in LIBERO, each head is as wide as a token (not a share of it), the attention's inputs have
    no biases, and the activation is GELU. Positions are sinusoidal with base 10, feed-forward blocks have stochastic
    depth, and there is no final normalisation. Positions count from the window's oldest step, also if that step
    lies before the episode's start.

    Args:
        config: Sizes, with tokens of width E and a history of H observations.
    """

    position: Tensor
    earlier: Tensor

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        width, steps = config.token, config.history
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.layers))
        rates = 10.0 ** (-torch.arange(0, width, 2) / width)
        angles = torch.arange(steps)[:, None] * rates
        self.register_buffer("position", torch.cat([angles.sin(), angles.cos()], -1), persistent=False)
        # [H, H]: True if the row's step may attend to the column's step.
        self.register_buffer("earlier", torch.ones(steps, steps).tril().bool(), persistent=False)

    def forward(self, tokens: Float[Tensor, "B H M E"], valid: Bool[Tensor, "B H"]) -> Tensor:
        """Decode M tokens for each of H steps.

        Args:
            tokens: Tokens, the oldest step first.
            valid: False for padding before the episode's first step; it attends only to itself.

        Returns:
            The decoded tokens.
        """
        H, M = tokens.shape[1:3]
        # A step that attends to nothing would become NaN, and NaN would spread, so each step attends to itself.
        itself = torch.eye(H, dtype=torch.bool, device=tokens.device)
        seen = (self.earlier & valid[:, None, :]) | itself  # [B, H, H]
        mask = seen.repeat_interleave(M, 1).repeat_interleave(M, 2)[:, None]  # [B, 1, H M, H M]
        x = (tokens + self.position[:, None]).flatten(1, 2)
        for layer in self.layers:
            x = layer(x, mask)
        decoded: Tensor = x.reshape(tokens.shape)
        return decoded


class _Layer(nn.Module):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        width, heads, feedforward, dropout = config.token, config.heads, config.feedforward, config.dropout
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
        kept = self.depth(x.new_ones(len(x), 1, 1))  # for each row, the whole block is dropped or scaled up
        y: Tensor = x + kept * self.feedforward(self.feedforward_norm(x))
        return y


class ActionHead(nn.Module):
    """A head that maps embedded observations (and proprioception, and an instruction) to a normalised action.

    `normalizer` maps actions from the environment's units and back; the trainer and the policy call it. The output is
    linear, as in Premier-TACO's code; `normalizer.restore` clamps it to the range of actions.

    With a history of one, the head is an MLP [embedding, state, instruction] -> 1024 -> 1024 -> A with ReLU. With a
    longer history, each step's tokens (instruction, cameras, state) pass through `CausalDecoder`, and the newest step's
    first token through a two-layer MLP (Appendix C; LIBERO's ResNet-T ends in a mixture of Gaussians instead). The
    MLP's initial weights are `drq_weights`.

    Args:
        embed_dim: Dimensions of an embedded observation (D).
        action_dim: Number of action dimensions (A).
        state_dim: Number of proprioception dimensions (P), used if `use_state` is set.
        config: Settings of the head.
        cameras: Number of cameras (C); their embeddings are concatenated, and the decoder has a token for each.
    """

    def __init__(
        self, embed_dim: int, action_dim: int, state_dim: int, config: HeadConfig, *, cameras: int = 1
    ) -> None:
        super().__init__()
        self.config, self.cameras = config, cameras
        self.action_dim, self.state_dim = action_dim, state_dim
        self.normalizer, self.state_normalizer = LinearNormalizer(action_dim), LinearNormalizer(state_dim)
        hint = "switch use_state off, or use data with proprioception"
        missing = config.use_state and state_dim == 0
        require(not missing, "use_state", "no proprioception (state_dim = 0)", "one number of it or more", hint)
        self.text = SentenceTower(MINILM, config.token) if config.language else None
        state_width = state_dim if config.use_state else 0
        self.decoder: CausalDecoder | None = None
        self.state_token: nn.Linear | None = None
        if config.history == 1:
            width = embed_dim + state_width + (config.token if config.language else 0)
            layers: list[nn.Module] = [nn.Linear(width, config.hidden), nn.ReLU()]
            layers += [nn.Linear(config.hidden, config.hidden), nn.ReLU()]
        else:
            each = embed_dim // max(cameras, 1)
            self.camera_tokens = nn.ModuleList(nn.Linear(each, config.token) for _ in range(cameras))
            if config.use_state:
                self.state_token = nn.Linear(state_width, config.token)
            self.decoder = CausalDecoder(config)
            layers = [nn.Linear(config.token, config.hidden), nn.ReLU()]
        self.mlp = nn.Sequential(*layers, nn.Linear(config.hidden, action_dim)).apply(drq_weights)

    def forward(
        self,
        embedded: Float[Tensor, "B H D"],
        valid: Bool[Tensor, "B H"],
        state: Float[Tensor, "B H P"] | None = None,
        instructions: list[str] | None = None,
    ) -> Float[Tensor, "B A"]:
        """Return the normalised actions of the newest step.

        Args:
            embedded: H observations, the oldest first.
            valid: False for observations before the episode's first step, which are ignored.
            state: Proprioception of the observations; required with `use_state`.
            instructions: B texts; required with `language`.
        """
        if self.decoder is None:
            embedded, state = embedded[:, -1:], None if state is None else state[:, -1:]
            parts = [embedded]  # [B, H, _] each
        else:
            views = embedded.chunk(self.cameras, dim=-1) if self.cameras else ()
            parts = [token(view) for token, view in zip(self.camera_tokens, views, strict=True)]
        if self.text is not None:
            assert instructions is not None, "a policy with language acts on instructions"
            # The instruction's token comes first, since the action is predicted at the first token, as in LIBERO.
            parts.insert(0, self.text(instructions)[:, None].expand(-1, embedded.shape[1], -1))
        if self.config.use_state:
            assert state is not None, "a policy with use_state acts on proprioception"
            numbers = self.state_normalizer(state)
            parts.append(self.state_token(numbers) if self.state_token is not None else numbers)
        if self.decoder is None:
            newest = torch.cat(parts, dim=-1)[:, 0]
        else:
            newest = self.decoder(torch.stack(parts, dim=2), valid)[:, -1, 0]
        actions: Tensor = self.mlp(newest)
        return actions
