"""ICon: contrast of the robot's tokens with the environment's tokens, in every layer of a Vision Transformer.

Wang and Lin, "Grounding Bodily Awareness in Visual Representations for Efficient Policy Learning".

    m = 1 where more than half of a patch's pixels are the agent's                      (Eq. 2) `patch_mask`
    K_a, K_e = N_a tokens of the agent, N_e of the environment, far apart on the grid   (Alg. 1)
    q_a, q_e = means of the agent's and of the environment's tokens                     (Eq. 3) `token_shares`
    InfoNCE(q, K+, K-) = mean over k+ of -log e^{q.k+/t} / (e^{q.k+/t} + sum over k- of e^{q.k-/t})       (Eq. 1)
    L = InfoNCE(q_a, K_a, K_e) + InfoNCE(q_e, K_e, K_a)                                 (Eq. 4) `icon_loss`
    sum_i L_i e^{gamma i} / sum_i e^{gamma i} over layers i                             (Eq. 5) `multi_level_weights`

Algorithm 1: k_1 is any token of the mask; k_{i+1} = argmax over the mask of min_{j <= i} |v - v_{k_j}|_1, with v the
tokens' positions on the grid. The keys depend only on the mask, not on features.

Symbols: F^(i) -> `tokens[i]` (a block's output, before any final norm, without class token and registers); m -> `mask`;
K_a, K_e -> `agent_keys`, `environment_keys` (indices of tokens); t -> `temperature`; n images.

Where the sources differ:
  - Eq. 1 takes dot products; the authors scale queries and keys to length 1. We follow the authors (`icon_loss`);
    `info_nce` is Eq. 1 on the vectors it is given.
  - The paper gives the loss of one image. The authors sum it over the batch, so that its weight grows with the batch.
    In their code, images with fewer tokens than keys count too, with keys outside the mask; if no image has enough
    tokens, their loss is 0 / 0. We follow the paper: the mean over images that have enough tokens of both kinds, 0 if
    there are none. The authors' sum is `weights @ icon_image_losses(...).sum(1)`.
  - The authors sample keys for every layer, and start from one permutation for all images. Here keys are sampled once
    per image, each with its own start; `keys_per_layer` samples keys for every layer.
  - Temperature, numbers of keys and gamma are not in the paper; the authors' are the defaults. They mask only the
    third-person camera, though every camera has its own transformer (`IConConfig.cameras`).

As an auxiliary term of any training loop:

    icon = ICon(vit)                       # once; adds hooks, no weights
    features = vit(images)                 # the policy's own forward pass
    out = icon(masks)                      # masks [n, H, W] of the same images
    loss = policy_loss + icon.config.weight * out.loss
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from counterpoint.config import FrozenConfig
from counterpoint.encoders.tokens import TokenTap
from counterpoint.errors import BadInputError, require
from counterpoint.objectives.base import LossOutput, in_full_precision, require_shapes, unit
from counterpoint.parameter_types import Listed

LOG_EVERY = 100  # calls between two logs of batches without a qualifying image; reading the count waits for the GPU

logger = logging.getLogger(__name__)


class IConConfig(FrozenConfig):
    """Settings of ICon; the defaults are the authors'.

    Attributes:
        temperature: Divisor of the cosines.
        agent_keys: Number of keys sampled from the agent's tokens (Na).
        environment_keys: Number of keys sampled from the environment's tokens (Ne). An image with fewer tokens than
            keys, of the agent or of the environment, does not count.
        gamma: Growth rate of the layers' weights: layer i has the weight e^{gamma i}, normalised (Eq. 5).
        weight: Weight of the loss relative to the policy's loss (lambda of Eq. 6); `ICon` does not apply it.
        keys: How keys are sampled: `farthest` is Algorithm 1; `random` is Fig. 5's "w/o FPS".
        keys_per_layer: Sample keys for every layer, as the authors do, instead of once per image.
        levels: Transformer blocks with the loss: `all`, or only the `last` (Fig. 5's "w/o multi-level contrast").
        cameras: The policy's cameras whose tokens are contrasted; by default the first that has masks, which is the
            authors' third-person view. `ICon` itself handles one transformer.
    """

    temperature: float = Field(default=0.3, gt=0)
    agent_keys: PositiveInt = 10
    environment_keys: PositiveInt = 50
    gamma: float = 0.1
    weight: float = Field(default=1.0, ge=0)
    keys: Literal["farthest", "random"] = "farthest"
    keys_per_layer: bool = False
    levels: Literal["all", "last"] = "all"
    cameras: Listed[tuple[str, ...]] = ()


def patch_mask(mask: Shaped[Tensor, "*batch H W"], patch: int | tuple[int, int]) -> Bool[Tensor, "*batch P"]:
    """Return a mask of patches: True if strictly more than half of a patch's pixels are the agent's (Eq. 2).

    Args:
        mask: 1 or True on the agent, 0 or False elsewhere. Values are only checked if the tensor is not boolean.
        patch: Side of a patch in pixels, or height and width.

    Returns:
        A boolean per patch, in raster order; P = H W / patch area.

    Raises:
        BadInputError: If sides are not multiples of the patch's sides, or values are not 0 or 1.
    """
    height, width = (patch, patch) if isinstance(patch, int) else patch
    whole = mask.ndim >= 2 and mask.numel() and not mask.shape[-2] % height and not mask.shape[-1] % width
    if not whole:
        expected = f"[..., H, W] of whole patches of {height} by {width} pixels"
        hint = "crop and resize masks like the model's images"
        raise BadInputError("mask", f"shape {tuple(mask.shape)}", expected, hint)
    if mask.dtype != torch.bool:
        binary = bool(((mask == 0) | (mask == 1)).all())
        hint = "compare with a threshold after resizing: frames > 127, probabilities > 0.5"
        require(binary, "mask", "other values", "0 and 1 alone, or booleans", hint)
        mask = mask != 0
    *batch, H, W = mask.shape
    pixels = mask.reshape(*batch, H // height, height, W // width, width)
    inside: Tensor = pixels.sum((-3, -1), dtype=torch.int32)
    return (2 * inside > height * width).flatten(-2)


def grid_positions(height: int, width: int, *, device: torch.device | None = None) -> Int[Tensor, "P 2"]:
    """Return row and column of every token of a grid in raster order: int64, P = height * width."""
    rows, columns = (torch.arange(size, device=device) for size in (height, width))
    return torch.cartesian_prod(rows, columns).reshape(height * width, 2)


@torch.no_grad()
def farthest_point_sampling(
    mask: Bool[Tensor, "B P"],
    count: int,
    *,
    positions: Shaped[Tensor, "P 2"],
    start: Int[Tensor, " B"] | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "B count"]:
    """Sample tokens of each row's mask, each as far as possible from the ones before (Algorithm 1; L1 distance).

    If several tokens are equally far away, the first of them is chosen.

    Args:
        mask: Tokens that may be chosen.
        count: Number of tokens per row.
        positions: Location of every token, the same for all rows.
        start: The first token of every row, in its mask; by default sampled uniformly from the mask.
        generator: Random generator of the start; by default torch's global one.

    Returns:
        int64 indices into P, distinct in each row. A row whose mask has fewer than `count` tokens has all of them and
        then repeats the first; a row with an empty mask holds zeros.

    Raises:
        BadInputError: If shapes do not match, or `count` is not from 1 to P.
    """
    _check_mask(mask, count)
    P = mask.shape[1]
    if positions.shape != (P, 2):
        hint = "pass grid_positions(height, width)"
        raise BadInputError("positions", f"shape {tuple(positions.shape)}", f"[{P}, 2]", hint)
    if start is None:
        device = mask.device if generator is None else generator.device
        order = torch.rand(mask.shape, generator=generator, device=device).to(mask.device)
        start = order.masked_fill(~mask, -1).argmax(1)
    locations = positions.to(device=mask.device, dtype=torch.float32)
    distances = (locations[:, None] - locations).abs().sum(-1)
    # Tokens outside the mask are always nearest to what is chosen.
    nearest = torch.zeros_like(mask, dtype=torch.float32).masked_fill_(mask, torch.inf).sub_(1)
    chosen, index = [start], start
    for _ in range(count - 1):
        nearest = torch.minimum(nearest, distances[index])
        index = nearest.argmax(1)
        chosen.append(index)
    return torch.stack(chosen, 1)


@torch.no_grad()
def random_point_sampling(
    mask: Bool[Tensor, "B P"], count: int, *, order: Float[Tensor, "B P"] | None = None
) -> Int[Tensor, "B count"]:
    """Sample tokens of each row's mask uniformly, without replacement: Fig. 5's "w/o FPS".

    Result and errors are those of `farthest_point_sampling`, except that a row with an empty mask holds an arbitrary
    index.

    Args:
        mask: Tokens that may be chosen.
        count: Number of tokens per row.
        order: Uniform numbers in [0, 1); the tokens with the largest numbers are chosen. By default sampled by torch's
            global generator.
    """
    _check_mask(mask, count)
    order = torch.rand(mask.shape, device=mask.device) if order is None else order
    priorities, chosen = order.masked_fill(~mask, -1).topk(count, dim=1)
    return chosen.where(priorities >= 0, chosen[:, :1])


def _check_mask(mask: Tensor, count: int) -> None:
    if mask.ndim != 2 or mask.dtype != torch.bool:
        found = f"{mask.dtype} of shape {tuple(mask.shape)}"
        raise BadInputError("mask", found, "bool [B, P]", "pass patch_mask(...)")
    P = mask.shape[1]
    if not 1 <= count <= P:
        raise BadInputError("count", f"{count} of {P} tokens", "1 to P", "lower it, or use smaller patches")


@in_full_precision
def info_nce(
    query: Float[Tensor, "*batch D"],
    positive: Float[Tensor, "*batch p D"],
    negative: Float[Tensor, "*batch m D"],
    *,
    temperature: float,
) -> Float[Tensor, "*batch"]:
    """Return Eq. 1 with dot products: each positive key is contrasted with all negative keys; mean over positives.

    Args:
        query: The query of each image.
        positive: Keys that should be near the query; they do not compete with each other.
        negative: Keys that should be far from the query.
        temperature: Divisor of the products.
    """
    right, wrong = ((keys @ query[..., None])[..., 0] / temperature for keys in (positive, negative))
    return _contrast(right, wrong)


def _contrast(right: Float[Tensor, "*batch p"], wrong: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch"]:
    """Return Eq. 1 from logits: -log e^r / (e^r + sum e^w) is softplus(logsumexp(w) - r)."""
    return functional.softplus(wrong.logsumexp(-1, keepdim=True) - right).mean(-1)


def token_shares(mask: Bool[Tensor, "*batch P"]) -> Float[Tensor, "*batch 2 P"]:
    """Return each token's weight in the agent's and the environment's mean (Eq. 3); zeros for a side without tokens."""
    sides = torch.stack([mask, ~mask], -2)
    return sides / sides.sum(-1, keepdim=True).clamp(min=1)


def qualifying(mask: Bool[Tensor, "*batch P"], agent_keys: int, environment_keys: int) -> Bool[Tensor, "*batch"]:
    """Return True for images with at least as many agent tokens and environment tokens as keys of each kind."""
    agent = mask.sum(-1)
    return (agent >= agent_keys) & (mask.shape[-1] - agent >= environment_keys)


def multi_level_weights(layers: int, gamma: float = 0.1, *, like: Tensor | None = None) -> Float[Tensor, " L"]:
    """Return the normalised weights e^{gamma i} of L layers, first to last (Eq. 5), as float32 or as `like`."""
    dtype, device = (torch.float32, None) if like is None else (like.dtype, like.device)
    return (gamma * torch.arange(layers, dtype=dtype, device=device)).softmax(0)


@in_full_precision
def icon_logits(
    tokens: Tensor | Sequence[Tensor],
    mask: Bool[Tensor, "n P"],
    agent_keys: Int[Tensor, "*layers n Na"],
    environment_keys: Int[Tensor, "*layers n Ne"],
    *,
    temperature: float = 0.3,
    prefix: int = 0,
) -> Float[Tensor, "L n 2 K"]:
    """Return cosines of both queries with all K = Na + Ne keys, the agent's keys first, divided by the temperature.

    Arguments are those of `icon_loss`; `prefix` is the number of tokens before the first patch (class token,
    registers), which are ignored. In the result, [:, :, 0] belongs to the agent's query and [:, :, 1] to the
    environment's.
    """
    layers = [tokens] if isinstance(tokens, Tensor) and tokens.ndim == 3 else list(tokens)
    lead = agent_keys.shape[:-1]
    ok = len(layers) > 0 and mask.dtype == torch.bool and environment_keys.shape[:-1] == lead
    size = (len(mask), prefix + mask.shape[-1])
    ok = ok and all(x.ndim == 3 and x.shape[:2] == size and x.shape == layers[0].shape for x in layers)
    ok = ok and lead in (mask.shape[:1], (len(layers), *mask.shape[:1]))
    if not ok:
        shapes = f"{[tuple(x.shape) for x in (*layers[:1], mask, agent_keys, environment_keys)]}, {len(layers)} layers"
        expected = "tokens [n, P, D] or L of them, bool mask [n, P], keys [n, Na] and [n, Ne] or [L, n, ...]"
        hint = "pass the mask of the same images, and keys sampled from it"
        raise BadInputError("tokens, mask, keys", shapes, expected, hint)
    keys = torch.cat([agent_keys, environment_keys], -1)
    sides = token_shares(mask).expand(*keys.shape[:-1], -1, -1)
    # One matrix product gathers queries and keys, so that the backward pass makes one tensor of the tokens' size.
    pick = functional.pad(torch.cat([sides, functional.one_hot(keys, mask.shape[1])], -2), (prefix, 0))
    picks = pick if pick.ndim == 4 else [pick] * len(layers)
    return torch.stack([_cosines(pick.to(x.dtype) @ x) for x, pick in zip(layers, picks, strict=True)]) / temperature


def _cosines(vectors: Float[Tensor, "n 2+K D"]) -> Float[Tensor, "n 2 K"]:
    unit_vectors = unit(vectors.to(torch.promote_types(vectors.dtype, torch.float32)))
    return unit_vectors[:, :2] @ unit_vectors[:, 2:].mT


def icon_image_losses(logits: Float[Tensor, "L n 2 K"], agent_keys: int) -> Float[Tensor, "L n"]:
    """Return Eq. 4 for every layer and image, from `icon_logits` whose first `agent_keys` keys are the agent's."""
    agent, environment = logits.unbind(-2)
    return _contrast(agent[..., :agent_keys], agent[..., agent_keys:]) + _contrast(
        environment[..., agent_keys:], environment[..., :agent_keys]
    )


def icon_loss(
    tokens: Tensor | Sequence[Tensor],
    mask: Bool[Tensor, "n P"],
    agent_keys: Int[Tensor, "*layers n Na"],
    environment_keys: Int[Tensor, "*layers n Ne"],
    *,
    temperature: float = 0.3,
    weights: Float[Tensor, " L"] | None = None,
) -> Float[Tensor, ""]:
    """Return Eq. 4 with cosines, averaged over images that have enough tokens, and over layers by `weights` (Eq. 5).

    An image counts if it has at least Na tokens of the agent and Ne of the environment; other images get no gradient.

    Args:
        tokens: Patch tokens of one layer [n, P, D], or of L layers: a sequence of such tensors, or [L, n, P, D].
        mask: True at the agent's tokens, from `patch_mask`.
        agent_keys: Indices of the agent's keys, for all layers or for each layer, from `farthest_point_sampling` of
            `mask`.
        environment_keys: Indices of the environment's keys, from `farthest_point_sampling` of `~mask`.
        temperature: Divisor of the cosines.
        weights: Weights of the layers; by default `multi_level_weights`.

    Returns:
        The loss; log(1 + Ne) + log(1 + Na) at chance. If no image has enough tokens, 0 with an autograd graph.
    """
    logits = icon_logits(tokens, mask, agent_keys, environment_keys, temperature=temperature)
    Na, Ne = agent_keys.shape[-1], environment_keys.shape[-1]
    losses = icon_image_losses(logits, Na)
    weights = multi_level_weights(len(losses), like=losses) if weights is None else weights
    good, hint = weights.shape == losses.shape[:1], "pass multi_level_weights(layers)"
    require_shapes(good, "weights", (weights,), "one a layer", hint)
    return _weighted_mean(losses, qualifying(mask, Na, Ne), weights)


def _weighted_mean(losses: Float[Tensor, "L n"], good: Bool[Tensor, " n"], weights: Tensor) -> Float[Tensor, ""]:
    """Return the mean over `good` images of the layers' weighted sum; 0 if no image is good."""
    return (weights.to(losses) * losses.where(good, 0).sum(1)).sum() / good.sum().clamp(min=1)


class ICon(nn.Module):
    """The inter-token contrast of a Vision Transformer's patch tokens. It has no weights of its own.

    Args:
        vit: A Vision Transformer of timm, open_clip or transformers; it gets hooks and is not copied.
        config: Settings.
        passes: Number of forward passes before each loss, such as 2 if two cameras share one network.

    Attributes:
        tap: The hooks that keep the tokens; `tap.close()` removes them.

    Raises:
        BadInputError: If the model has no patch tokens, or fewer tokens than keys, so that no image can ever count.
    """

    def __init__(self, vit: nn.Module, config: IConConfig | None = None, *, passes: int = 1) -> None:
        super().__init__()
        self.config = config or IConConfig()
        self.tap = TokenTap(vit, passes)
        self._check_size()
        self._calls, self._reported = 0, 0
        self._unqualified = torch.zeros((), dtype=torch.int64)

    @property
    def order_shape(self) -> tuple[int, ...]:
        """Shape of one image's `order`: (P,), or (L, P) with `keys_per_layer`."""
        patches = math.prod(self.tap.grid)
        return (self._layers, patches) if self.config.keys_per_layer else (patches,)

    @property
    def _layers(self) -> int:
        return 1 if self.config.levels == "last" else len(self.tap.parts.blocks)

    def forward(self, masks: Shaped[Tensor, "n H W"], order: Float[Tensor, "n *layers P"] | None = None) -> LossOutput:
        """Return the loss of the images of the model's last forward pass (of its last `passes` passes, in order).

        An image with too few tokens of the agent or of the environment gets no gradient. If a batch has no other
        images, the loss is 0; the number of such batches is logged.

        Args:
            masks: The robot's pixels in those images: boolean, or 0 and 1.
            order: Uniform numbers in [0, 1) that choose the keys, of shape `order_shape` for each image. The first key
                of the agent (environment) is its token with the largest number. By default sampled by torch's global
                generator.

        Returns:
            The loss, without `config.weight`. Metrics: `qualifying`, the share of images that count. For the last layer
            and the images that count: `last_layer_loss`, `categorical_accuracy` (share of queries whose nearest key is
            one of their own), `logits_pos` and `logits_neg` (0 if no image counts).

        Raises:
            BadInputError: If no forward pass with gradients came before, or the masks' number, size or values are
                wrong.
        """
        config, tap = self.config, self.tap
        tokens = tap.take_whole()
        shape = [len(tokens[0]), *tap.image]
        if not isinstance(masks, Tensor) or list(masks.shape) != shape:
            found = f"shape {tuple(masks.shape)}" if isinstance(masks, Tensor) else type(masks).__name__
            hint = "crop and resize masks like their images"
            raise BadInputError("masks", found, f"{shape}, one for each image", hint)
        self._check_size()
        tokens = tokens[-self._layers :]
        mask = patch_mask(masks.to(tokens[0].device), tap.parts.patch)
        if order is None:
            order = torch.rand(len(mask), *self.order_shape, device=mask.device)
        agent, environment = self.sample_keys(mask, order)
        logits = icon_logits(tokens, mask, agent, environment, temperature=config.temperature, prefix=tap.parts.prefix)
        losses = icon_image_losses(logits, config.agent_keys)
        good = qualifying(mask, config.agent_keys, config.environment_keys)
        self._count(good)
        loss = _weighted_mean(losses, good, multi_level_weights(len(tokens), config.gamma))
        return LossOutput(loss, _metrics(logits[-1].detach(), losses[-1].detach(), good, config.agent_keys))

    def sample_keys(
        self, mask: Bool[Tensor, "n P"], order: Float[Tensor, "n *layers P"]
    ) -> tuple[Int[Tensor, "*layers n Na"], Int[Tensor, "*layers n Ne"]]:
        """Sample keys of the agent and of the environment: [n, ...], or [L, n, ...] with `keys_per_layer`."""
        positions = grid_positions(*self.tap.grid, device=mask.device)
        numbers = order.movedim(0, -2)

        def sample(side: Tensor, count: int) -> Tensor:
            side, flat = side.expand(numbers.shape).flatten(0, -2), numbers.flatten(0, -2)
            if self.config.keys == "farthest":
                start = flat.masked_fill(~side, -1).argmax(1)
                keys = farthest_point_sampling(side, count, positions=positions, start=start)
            else:
                keys = random_point_sampling(side, count, order=flat)
            return keys.view(*numbers.shape[:-1], count)

        return sample(mask, self.config.agent_keys), sample(~mask, self.config.environment_keys)

    def _check_size(self) -> None:
        """Raise if the grid has too few tokens for any image to count."""
        (down, across), Na, Ne = self.tap.grid, self.config.agent_keys, self.config.environment_keys
        found = f"{Na} + {Ne} keys of {down} x {across} = {down * across} tokens"
        hint = "lower both, use smaller patches or larger images"
        require(Na + Ne <= down * across, "agent_keys, environment_keys", found, "at most as many keys as tokens", hint)

    @torch.no_grad()
    def _count(self, good: Bool[Tensor, " n"]) -> None:
        """Count batches without a qualifying image, on the masks' device; log the count every `LOG_EVERY` calls."""
        self._unqualified = self._unqualified.to(good.device) + ~good.any()
        self._calls += 1
        if self._calls % LOG_EVERY == 1 and (total := int(self._unqualified)) > self._reported:
            text = "ICon: in %d of %d batches no image had %d tokens of the agent and %d of the environment; loss 0"
            logger.warning(text, total, self._calls, self.config.agent_keys, self.config.environment_keys)
            self._reported = total


def _metrics(logits: Tensor, losses: Tensor, good: Tensor, Na: int) -> dict[str, Tensor]:
    """Return the metrics of one layer's logits [n, 2, K] and losses [n]."""
    agent, environment = logits[:, 0], logits[:, 1]
    images = good.sum().clamp(min=1)

    def mean(values: Tensor) -> Tensor:
        return values.mean(1).where(good, 0).sum() / images

    right = torch.stack([agent.argmax(1) < Na, environment.argmax(1) >= Na], 1)
    return {
        "qualifying": good.to(losses.dtype).mean(),
        "last_layer_loss": losses.where(good, 0).sum() / images,
        "categorical_accuracy": mean(right.to(losses.dtype)),
        "logits_pos": (mean(agent[:, :Na]) + mean(environment[:, Na:])) / 2,
        "logits_neg": (mean(agent[:, Na:]) + mean(environment[:, :Na])) / 2,
    }
