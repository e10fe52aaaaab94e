"""Diffusion Policy's settings and its two denoising networks: a U-Net modulated by observations, and a transformer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal, Self

import torch
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from counterpoint.config import FrozenConfig

Prediction = Literal["epsilon", "sample", "v"]
Sampler = Literal["ddim", "ddpm"]
Spacing = Literal["leading", "trailing"]


def _inference_steps(before: dict[str, Any]) -> int:
    return int(before["train_steps"]) if before["sampler"] == "ddpm" else min(8, int(before["train_steps"]))


class DiffusionConfig(FrozenConfig):
    """Settings of Diffusion Policy (Chi et al., 2023).

    Defaults are those of the original's image configurations (its U-Net, and its transformer for robomimic), with two
    exceptions: 8 steps of DDIM instead of 100 of DDPM, and ICon's U-Net, half as wide as the original's
    [512, 1024, 2048].

    Attributes:
        network: `unet` (the paper's CNN form, Diff-C) or `transformer` (Diff-T).
        obs_steps: Number of observations that a plan uses (To; 2 in Table 7 of the paper).
        horizon: Number of predicted actions, the first at the oldest observation's step (K; 16 in the original).
        executed: Number of predicted actions that are executed, starting at the newest observation's step (8 in the
            original).
        train_steps: Number of steps of the squared-cosine noise schedule (100 in the original).
        prediction: The network's output: the noise (`epsilon`), as in all published configurations, the clean actions
            (`sample`), or `v` = signal noise - sqrt(1 - signal^2) actions (Salimans and Ho, 2022).
        sampler: `ddim` as on the paper's robots, or `ddpm` as in its simulations.
        inference_steps: Number of sampling steps; by default 8 with DDIM, all of `train_steps` with DDPM.
        timestep_spacing: Steps of the training schedule that sampling uses: diffusers' `leading` (0, 12, ... 84 for 8
            of 100), as in Diffusion Policy, or `trailing` (11, 24, ... 99), which begins at pure noise.
        down_dims: U-Net: channels of the levels.
        kernel_size: U-Net: kernel size of the convolutions, an odd number.
        groups: U-Net: number of groups of the group normalisation.
        step_dim: U-Net: width of the diffusion step's embedding, an even number.
        layers: Transformer: number of decoder layers.
        heads: Transformer: number of attention heads.
        width: Transformer: width of a token, an even number.
        condition_layers: Transformer: number of self-attention layers over diffusion step and observations; 0 for an
            MLP.
        embedding_dropout: Transformer: dropout rate of tokens.
        attention_dropout: Transformer: dropout rate within the layers.
    """

    network: Literal["unet", "transformer"] = "unet"
    obs_steps: int = Field(default=2, ge=1)
    horizon: int = Field(default=16, ge=1)
    executed: int = Field(default=8, ge=1)
    train_steps: int = Field(default=100, ge=2)
    prediction: Prediction = "epsilon"
    sampler: Sampler = "ddim"
    inference_steps: int = Field(default_factory=_inference_steps, ge=1)
    timestep_spacing: Spacing = "leading"
    down_dims: tuple[int, ...] = Field(default=(256, 512, 1024), min_length=2)
    kernel_size: int = Field(default=5, ge=1)
    groups: int = Field(default=8, ge=1)
    step_dim: int = Field(default=128, ge=4, multiple_of=2)
    layers: int = Field(default=8, ge=1)
    heads: int = Field(default=4, ge=1)
    width: int = Field(default=256, ge=4, multiple_of=2)
    condition_layers: int = Field(default=0, ge=0)
    embedding_dropout: float = Field(default=0.0, ge=0, lt=1)
    attention_dropout: float = Field(default=0.3, ge=0, lt=1)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.executed > self.horizon - self.obs_steps + 1:
            raise ValueError(f"executed of at most horizon - obs_steps + 1 = {self.horizon - self.obs_steps + 1}")
        if self.inference_steps > self.train_steps:
            raise ValueError(f"inference_steps of at most train_steps = {self.train_steps}")
        if self.network == "transformer":
            if self.width % self.heads:
                raise ValueError(f"width a multiple of heads = {self.heads}")
            return self
        halvings = len(self.down_dims) - 1
        if self.horizon % 2**halvings:
            raise ValueError(f"horizon a multiple of {2**halvings}: the U-Net halves it {halvings} times")
        if self.kernel_size % 2 == 0:
            raise ValueError("kernel_size odd: the U-Net keeps the window's length")
        if any(width % self.groups for width in self.down_dims):
            raise ValueError(f"down_dims multiples of groups = {self.groups}")
        return self


def step_waves(steps: Int[Tensor, " B"], width: int) -> Float[Tensor, "B width"]:
    """Return sines, then cosines, of diffusion steps at `width / 2` log-spaced frequencies from 1 to 1/10000."""
    half = width // 2
    rates = torch.exp(torch.arange(half, device=steps.device) * (-math.log(10000) / (half - 1)))
    angles = steps[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class ConditionalUnet1d(nn.Module):
    """A U-Net over the window's steps: the CNN form of Diffusion Policy (Chi et al., 2023, section 3.1).

    There is one level per entry of `down_dims`, with two residual blocks; all but the last halve the number of steps.
    Two more blocks follow at the bottom. On the way up, each level is concatenated with the output of the same level on
    the way down. Each residual block scales and shifts its channels by a linear map of the diffusion step's embedding
    and the observations.

    Args:
        action_dim: Number of action dimensions (A).
        condition_dim: Width of one observation (O).
        config: Sizes of the network.
    """

    def __init__(self, action_dim: int, condition_dim: int, config: DiffusionConfig) -> None:
        super().__init__()
        self.step_dim = step_dim = config.step_dim
        widths, kernel_size, groups = config.down_dims, config.kernel_size, config.groups
        self.step_encoder = nn.Sequential(
            nn.Linear(step_dim, 4 * step_dim), nn.Mish(), nn.Linear(4 * step_dim, step_dim)
        )

        def pair(inputs: int, outputs: int) -> _Pair:
            return _Pair(inputs, outputs, step_dim + config.obs_steps * condition_dim, kernel_size, groups)

        before = (action_dim, *widths[:-1])
        self.down = nn.ModuleList(pair(*both) for both in zip(before, widths, strict=True))
        self.shrink = nn.ModuleList(_Convolution(width, width, 3, stride=2, padding=1) for width in widths[:-1])
        self.bottom = pair(widths[-1], widths[-1])
        upward = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.up = nn.ModuleList(pair(2 * width, after) for width, after in upward)
        self.grow = nn.ModuleList(nn.ConvTranspose1d(after, after, 4, stride=2, padding=1) for _, after in upward)
        self.last = nn.Sequential(
            _convolution(widths[0], widths[0], kernel_size, groups), _Convolution(widths[0], action_dim, 1)
        )

    def conditioning(self, steps: Int[Tensor, " n"], condition: Float[Tensor, "n To O"]) -> tuple[Tensor, ...]:
        """Return scale and bias of each block, [n, 2 channels], in the order of use.

        Scales and biases do not depend on the noisy sample, so sampling can compute them for several steps at once.
        """
        embedded = self.step_encoder(step_waves(steps, self.step_dim).to(condition.dtype))
        features = nn.functional.mish(torch.cat([embedded, condition.flatten(1)], dim=-1))
        return tuple(block.film(features) for block in self._blocks())

    def forward(
        self, noisy: Float[Tensor, "n K A"], conditioning: tuple[Tensor, ...]
    ) -> tuple[Float[Tensor, "n K A"], Float[Tensor, "n M k"]]:
        """Return the network's output, and its innermost features: M channels of k = K / 2^(levels - 1) steps."""
        films = iter(conditioning)
        x, twins = noisy.transpose(1, 2), []
        for level, pair in enumerate(self.down):
            x = pair(x, films)
            twins.append(x)
            if level < len(self.shrink):
                x = self.shrink[level](x)
        x = bottleneck = self.bottom(x, films)
        for pair, grow in zip(self.up, self.grow, strict=True):
            x = grow(pair(torch.cat([x, twins.pop()], dim=1), films))
        return self.last(x).transpose(1, 2), bottleneck

    def _blocks(self) -> list[_ResidualBlock]:
        pairs = (*self.down, self.bottom, *self.up)
        return [module for pair in pairs for module in pair.modules() if isinstance(module, _ResidualBlock)]


class _Pair(nn.Module):
    def __init__(self, inputs: int, outputs: int, features: int, kernel_size: int, groups: int) -> None:
        super().__init__()
        self.first = _ResidualBlock(inputs, outputs, features, kernel_size, groups)
        self.second = _ResidualBlock(outputs, outputs, features, kernel_size, groups)

    def forward(self, x: Tensor, films: Iterator[Tensor]) -> Tensor:
        made: Tensor = self.second(self.first(x, next(films)), next(films))
        return made


class _ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, features: int, kernel_size: int, groups: int) -> None:
        super().__init__()
        self.first = _convolution(inputs, outputs, kernel_size, groups)
        self.film = nn.Linear(features, 2 * outputs)
        self.second = _convolution(outputs, outputs, kernel_size, groups)
        self.shortcut = _Convolution(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, film: Tensor) -> Tensor:
        scale, bias = film[:, :, None].chunk(2, dim=1)
        made: Tensor = self.second(scale * self.first(x) + bias) + self.shortcut(x)
        return made


def _convolution(inputs: int, outputs: int, kernel_size: int, groups: int) -> nn.Sequential:
    return nn.Sequential(
        _Convolution(inputs, outputs, kernel_size, padding=kernel_size // 2), nn.GroupNorm(groups, outputs), nn.Mish()
    )


class _Convolution(nn.Conv1d):
    """A convolution over the window's steps, which are the rows of a matrix product on a CPU without gradients.

    In PyTorch's own convolution on a CPU they are the columns. With as few steps as the U-Net's inner levels have, that
    product is slow.
    """

    def forward(self, x: Float[Tensor, "n inputs K"]) -> Float[Tensor, "n outputs k"]:
        if torch.is_grad_enabled() or x.device.type != "cpu":
            return super().forward(x)
        (kernel,), (stride,), padding = self.kernel_size, self.stride, int(self.padding[0])
        patches = nn.functional.pad(x, (padding, padding)).unfold(2, kernel, stride)  # [n, inputs, k, kernel]
        rows = patches.transpose(1, 2).flatten(2)
        return nn.functional.linear(rows, self.weight.flatten(1), self.bias).transpose(1, 2)


class DenoisingTransformer(nn.Module):
    """A transformer over the window's actions: the other form of Diffusion Policy (Chi et al., 2023, section 3.1).

    The diffusion step and each observation are tokens of the memory, with learned positions, and pass through a
    two-layer MLP or layers of self-attention. Noisy actions are the tokens of a decoder that attends to earlier actions
    and, at the window's step t, to observations up to step t. Layers are pre-norm. Initial weights are N(0, .02).

    Args:
        action_dim: Number of action dimensions (A).
        condition_dim: Width of one observation (O).
        config: Sizes of the network.
    """

    unseen: Tensor
    later: Tensor

    def __init__(self, action_dim: int, condition_dim: int, config: DiffusionConfig) -> None:
        super().__init__()
        width, horizon, obs_steps = config.width, config.horizon, config.obs_steps
        shape: dict[str, Any] = {"d_model": width, "nhead": config.heads, "dim_feedforward": 4 * width}
        shape |= {"dropout": config.attention_dropout, "activation": "gelu", "batch_first": True, "norm_first": True}
        self.width = width
        self.action_token = nn.Linear(action_dim, width)
        self.action_position = nn.Parameter(torch.zeros(horizon, width))
        self.condition_token = nn.Linear(condition_dim, width)
        self.condition_position = nn.Parameter(torch.zeros(1 + obs_steps, width))
        self.dropout = nn.Dropout(config.embedding_dropout)
        if config.condition_layers:
            self.memory = nn.Sequential(*(nn.TransformerEncoderLayer(**shape) for _ in range(config.condition_layers)))
        else:
            self.memory = nn.Sequential(nn.Linear(width, 4 * width), nn.Mish(), nn.Linear(4 * width, width))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(**shape) for _ in range(config.layers))
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, action_dim)
        step, seen = torch.arange(horizon)[:, None], torch.arange(1 + obs_steps)
        # [K, K] and [K, 1 + To]: True where an action must not attend; the diffusion step comes before observations.
        self.register_buffer("later", torch.arange(horizon) > step, persistent=False)
        self.register_buffer("unseen", seen - 1 > step, persistent=False)
        self.apply(gpt_weights)
        for position in (self.action_position, self.condition_position):
            nn.init.normal_(position, std=0.02)

    def conditioning(self, steps: Int[Tensor, " n"], condition: Float[Tensor, "n To O"]) -> tuple[Tensor, ...]:
        """Return the memory [n, 1 + To, width] in a tuple of one; it does not depend on the noisy sample."""
        step = step_waves(steps, self.width).to(condition.dtype)[:, None]
        tokens = torch.cat([step, self.condition_token(condition)], dim=1) + self.condition_position
        return (self.memory(self.dropout(tokens)),)

    def forward(
        self, noisy: Float[Tensor, "n K A"], conditioning: tuple[Tensor, ...]
    ) -> tuple[Float[Tensor, "n K A"], None]:
        """Return the network's output; there is no bottleneck."""
        (memory,) = conditioning
        x = self.dropout(self.action_token(noisy) + self.action_position)
        for layer in self.decoder:
            # With tgt_is_causal a layer uses the fused kernel without checking its mask.
            x = layer(x, memory, tgt_mask=self.later, memory_mask=self.unseen, tgt_is_causal=True)
        return self.last(self.norm(x)), None


def decay_groups(module: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Return trainable parameters in two groups: `decayed`, the weights of linear maps and attention, and `plain`.

    Biases, norms and learned positions are in `plain`. The authors' code has a weight decay of 1e-3 for `decayed`,
    and of 1e-6 for all weights of its U-Net and encoders. A parameter that modules share is listed once.
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


def gpt_weights(module: nn.Module) -> None:
    """Set minGPT's initial weights of a linear map or attention, N(0, 0.02), and zero biases; for `network.apply`."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.MultiheadAttention):
        nn.init.normal_(module.in_proj_weight, std=0.02)
        nn.init.zeros_(module.in_proj_bias)
