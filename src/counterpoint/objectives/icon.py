"""ICon as an auxiliary term of anybody's training loop: `inter_token`'s loss on the tokens of a tapped ViT.

icon = ICon(vit)                       # once; adds hooks, no weights
features = vit(images)                 # the policy's own forward pass
out = icon(masks)                      # masks [n, H, W] of the same pictures
loss = policy_loss + icon.config.weight * out.loss
"""

from __future__ import annotations

import logging
from typing import Literal

import torch
from jaxtyping import Bool, Int, Shaped
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from counterpoint.config import FrozenConfig
from counterpoint.encoders.tokens import TokenTap
from counterpoint.errors import BadInputError
from counterpoint.objectives.base import LossOutput
from counterpoint.objectives.farthest_points import (
    farthest_point_sampling,
    grid_positions,
    random_point_sampling,
)
from counterpoint.objectives.inter_token import (
    icon_image_losses,
    icon_logits,
    icon_loss,
    icon_loss_batch_sum,
    info_nce,
    multi_level_weights,
    patch_mask,
    qualifying,
    token_queries,
    weighted_mean,
)

__all__ = [
    "ICon",
    "IConConfig",
    "icon_loss",
    "icon_loss_batch_sum",
    "info_nce",
    "multi_level_weights",
    "patch_mask",
    "qualifying",
    "token_queries",
]

LOOK_EVERY = 100
"""Calls between two looks at how many batches had no image to learn from; each look waits for the GPU."""

logger = logging.getLogger(__name__)


class IConConfig(FrozenConfig):
    """Settings of ICon; the defaults are the authors'.

    Attributes:
        temperature: What cosines are divided by.
        agent_keys: Na, keys of the agent.
        environment_keys: Ne, keys of the environment. An image with fewer tokens of either does not count.
        gamma: How much more a layer weighs than the one before it (Eq. 5).
        weight: Of the term beside the policy's loss: lambda of Eq. 6. For whoever adds them up.
        keys: `farthest` is Algorithm 1; `random` is Fig. 5's "w/o FPS".
        keys_per_layer: Sample keys anew for every layer, as the authors do, instead of once an image.
        levels: `all` blocks, or the `last` alone (Fig. 5's "w/o multi-level contrast").
    """

    temperature: float = Field(default=0.3, gt=0)
    agent_keys: PositiveInt = 10
    environment_keys: PositiveInt = 50
    gamma: float = 0.1
    weight: float = Field(default=1.0, ge=0)
    keys: Literal["farthest", "random"] = "farthest"
    keys_per_layer: bool = False
    levels: Literal["all", "last"] = "all"


class ICon(nn.Module):
    """Inter-token contrast of a Vision Transformer's patch tokens. It has no weights of its own.

    Args:
        vit: A Vision Transformer of timm or open_clip; it is tapped, not copied, and stays whoever's it is.
        config: Settings.

    Attributes:
        tap: What takes the tokens from the model; `tap.close()` leaves the model as it was.

    Raises:
        BadInputError: The model has no patch tokens, or fewer than there are to be keys, so that no image could
            ever qualify.
    """

    def __init__(self, vit: nn.Module, config: IConConfig | None = None) -> None:
        super().__init__()
        self.config = config or IConConfig()
        self.tap = TokenTap(vit)
        self._check_size()
        self._calls, self._reported = 0, 0
        self._barren = torch.zeros((), dtype=torch.int64)

    def forward(
        self, masks: Shaped[Tensor, "n H W"], *, generator: torch.Generator | None = None
    ) -> LossOutput:
        """Loss of the pictures that the model has just seen.

        An image whose mask is empty, full, or leaves too few tokens on either side counts for nothing and gets no
        gradient. Where no image is left the loss is 0; how often that happened is logged now and then.

        Args:
            masks: Which pixels are the robot's, for the very pictures of the last forward pass: boolean, or 0 and 1.
            generator: Source of the keys' random start.

        Returns:
            The loss, without `config.weight`. Metrics: `qualifying`, the share of images that count; and of the
            last layer and those images `last_layer_loss`, `categorical_accuracy` (share of queries whose nearest
            key is one of their own), `logits_pos` and `logits_neg` (0 without any image).

        Raises:
            BadInputError: No forward pass with gradients before this, or masks of another number, size or kind.
        """
        config = self.config
        tokens = self.tap.take_whole()
        self._check_masks(masks, len(tokens[0]))
        self._check_size()
        if config.levels == "last":
            tokens = tokens[-1:]
        mask = patch_mask(masks.to(tokens[0].device), self.tap.parts.patch)
        agent, environment = self.sample_keys(mask, len(tokens), generator=generator)
        logits = icon_logits(
            tokens, mask, agent, environment, temperature=config.temperature, prefix=self.tap.parts.prefix
        )
        losses = icon_image_losses(logits, config.agent_keys)
        good = qualifying(mask, config.agent_keys, config.environment_keys)
        loss = weighted_mean(losses, good, multi_level_weights(len(tokens), config.gamma, like=losses))
        self._count(good)
        with torch.no_grad():
            metrics = _metrics(logits[-1], losses[-1], good, config.agent_keys)
        return LossOutput(loss, metrics)

    def sample_keys(
        self, mask: Bool[Tensor, "n P"], layers: int, *, generator: torch.Generator | None = None
    ) -> tuple[Int[Tensor, "*layers n Na"], Int[Tensor, "*layers n Ne"]]:
        """Keys of the agent and of the environment: [n, ...], or [L, n, ...] with `keys_per_layer`."""
        config = self.config
        times = layers if config.keys_per_layer else 1
        n = len(mask)
        positions = grid_positions(*self.tap.grid, device=mask.device)
        found = []
        for side, count in ((mask, config.agent_keys), (~mask, config.environment_keys)):
            side = side.repeat(times, 1)
            if config.keys == "farthest":
                picks = farthest_point_sampling(side, count, positions=positions, generator=generator)
            else:
                picks = random_point_sampling(side, count, generator=generator)
            found.append(picks.view(layers, n, count) if config.keys_per_layer else picks)
        return found[0], found[1]

    def _check_masks(self, masks: Tensor, images: int) -> None:
        """Refuse masks that cannot be those of the pictures."""
        if not isinstance(masks, Tensor) or masks.shape != (images, *self.tap.image):
            shape = f"shape {tuple(masks.shape)}" if isinstance(masks, Tensor) else type(masks).__name__
            raise BadInputError(
                "masks",
                found=shape,
                expected=f"[{images}, {self.tap.image[0]}, {self.tap.image[1]}], one for each picture the model saw",
                mend="crop and resize masks like their pictures; all False for a picture without a mask",
            )

    def _check_size(self) -> None:
        """Refuse a grid on which no image can have enough tokens."""
        down, across = self.tap.grid
        Na, Ne = self.config.agent_keys, self.config.environment_keys
        if Na + Ne > down * across:
            raise BadInputError(
                "agent_keys, environment_keys",
                found=f"{Na} + {Ne} keys of {down} x {across} = {down * across} tokens",
                expected="no more keys than tokens: no image could qualify",
                mend="lower both, use smaller patches or larger pictures",
            )

    @torch.no_grad()
    def _count(self, good: Bool[Tensor, " n"]) -> None:
        """Count batches without a qualifying image where they are, and look at the number now and then."""
        self._barren = self._barren.to(good.device) + ~good.any()
        self._calls += 1
        if self._calls % LOOK_EVERY == 1 and (total := int(self._barren)) > self._reported:
            logger.warning(
                "ICon: in %d of %d batches no image had %d tokens of the agent and %d of the environment; "
                "their loss is 0",
                total,
                self._calls,
                self.config.agent_keys,
                self.config.environment_keys,
            )
            self._reported = total


def _metrics(logits: Tensor, losses: Tensor, good: Tensor, Na: int) -> dict[str, Tensor]:
    """Of one layer's logits [n, 2, K] and losses [n]."""
    agent, environment = logits[:, 0], logits[:, 1]
    images = good.sum().clamp(min=1)

    def mean(values: Tensor) -> Tensor:
        return values.mean(1).where(good, 0).sum() / images

    right = torch.stack([agent.argmax(1) < Na, environment.argmax(1) >= Na], 1)
    positive = mean(agent[:, :Na]) + mean(environment[:, Na:])
    negative = mean(agent[:, Na:]) + mean(environment[:, :Na])
    return {
        "qualifying": good.to(losses.dtype).mean(),
        "last_layer_loss": losses.where(good, 0).sum() / images,
        "categorical_accuracy": mean(right.to(losses.dtype)),
        "logits_pos": positive / 2,
        "logits_neg": negative / 2,
    }
