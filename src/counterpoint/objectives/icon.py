"""Cosines of a mask's mean tokens with chosen tokens, for many layers at once.

ICon compares two queries an image, the means of its agent's and of its environment's tokens, with a few tokens chosen
as keys. Of the [n, P, D] tokens of a layer the forward pass reads each once (for the means) and gathers the keys; the
backward pass writes each layer's gradient once, where automatic differentiation would make several tensors of that
size: a token's gradient is that of its query, and a key's own is added to it.

Farthest point sampling on a token grid: tokens of a mask that lie well apart (ICon, Algorithm 1).

    Algorithm 1    k_1 anywhere in the mask; k_{i+1} = argmax over the mask of min_{j <= i} |v - v_{k_j}|_1

Distances are between the tokens' places on the grid, never between features: which tokens are chosen depends on the
mask alone. Equal distances are common on a grid. Of several farthest tokens the first in the order given is taken;
another order of `mask` and `positions` breaks ties another way.

ICon: tokens of the robot against tokens of what is around it, in every layer of a Vision Transformer.

Wang and Lin, "Grounding Bodily Awareness in Visual Representations for Efficient Policy Learning".

    m = 1 where more than half of a patch's pixels are the agent's                      (Eq. 2) `patch_mask`
    K_a, K_e = N_a tokens of the agent, N_e of the environment, far apart on the grid   (Alg. 1)
    q_a, q_e = means of the agent's and of the environment's tokens                     (Eq. 3) `token_queries`
    InfoNCE(q, K+, K-) = mean over k+ of -log e^{q.k+/t} / (e^{q.k+/t} + sum over k- of e^{q.k-/t})       (Eq. 1)
    L = InfoNCE(q_a, K_a, K_e) + InfoNCE(q_e, K_e, K_a)                                 (Eq. 4) `icon_loss`
    sum_i L_i e^{gamma i} / sum_i e^{gamma i} over layers i                             (Eq. 5) `multi_level_weights`

Symbols: F^(i) -> `tokens[i]` (a block's output, before any final norm, without class token and registers); m -> `mask`;
K_a, K_e -> `agent_keys`, `environment_keys` (numbers of tokens); t -> `temperature`; an image is one of n.

Where the sources differ:
  - Eq. 1 takes dot products; the authors scale queries and keys to length 1. Followed: the authors (`icon_loss`);
    `info_nce` is Eq. 1 on the vectors it is given.
  - The paper's loss is that of one image. The authors sum it over the batch, so that its weight grows with the batch,
    and images with fewer tokens than keys count like any other, with keys that are no tokens of theirs; without any
    image that has enough the loss is 0 / 0. Followed: the paper, as the mean over images that have enough of both,
    and 0 where none has. `icon_loss_batch_sum` is the authors' form.
  - The authors sample anew for every layer, and start from one permutation for all images. Keys depend on the mask
    alone, so here they are sampled once an image, each with its own start; `keys_per_layer` samples them anew.
  - Temperature, numbers of keys and gamma are not in the paper; the authors' are the defaults.

ICon as an auxiliary term of anybody's training loop: `inter_token`'s loss on the tokens of a tapped ViT.

icon = ICon(vit)                       # once; adds hooks, no weights
features = vit(images)                 # the policy's own forward pass
out = icon(masks)                      # masks [n, H, W] of the same pictures
loss = policy_loss + icon.config.weight * out.loss
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from counterpoint.config import FrozenConfig
from counterpoint.encoders.tokens import TokenTap
from counterpoint.errors import BadInputError
from counterpoint.objectives.base import LossOutput
from counterpoint.objectives.infonce import in_full_precision

__all__ = [
    "ICon",
    "IConConfig",
    "farthest_point_sampling",
    "grid_positions",
    "icon_image_losses",
    "icon_logits",
    "icon_loss",
    "icon_loss_batch_sum",
    "info_nce",
    "multi_level_weights",
    "patch_mask",
    "qualifying",
    "random_point_sampling",
    "token_cosines",
    "token_queries",
    "weighted_mean",
]


SHORTEST = 1e-12
"""Vectors no longer than this have no direction: their cosines and gradients are 0."""


def token_cosines(
    tokens: Sequence[Float[Tensor, "n N D"]],
    mask: Bool[Tensor, "n P"],
    keys: Int[Tensor, "*layers n K"],
    *,
    prefix: int = 0,
) -> Float[Tensor, "L n 2 K"]:
    """Cosine of each query with each key.

    Args:
        tokens: Of L layers; N = `prefix` + P.
        mask: Which patch tokens are the agent's.
        keys: Patch tokens, numbered from 0, for all layers [n, K] or for each [L, n, K].
        prefix: Tokens before the first patch (class token, registers); they have no part in it.

    Returns:
        In float32 at least: 0 is the agent's query (Eq. 3), 1 the environment's; 0 for a query of no tokens.
    """
    cosines: Tensor = _TokenCosines.apply(mask, keys, prefix, *tokens)
    return cosines


class _TokenCosines(torch.autograd.Function):
    """Layers one after the other: what is gathered of one then still lies in the processor's cache.

    All that is small is worked out for the layers together, outside of the loops: on a GPU each operation costs alike.
    """

    @staticmethod
    def forward(ctx: Any, mask: Tensor, keys: Tensor, prefix: int, *tokens: Tensor) -> Tensor:
        n, N, D = tokens[0].shape
        L, K = len(tokens), keys.shape[-1]
        narrow, wide = tokens[0].dtype, torch.promote_types(tokens[0].dtype, torch.float32)
        with _without_autocast(mask):
            sides = torch.stack([mask, ~mask], 1).to(wide)
            sides /= sides.sum(-1, keepdim=True).clamp(min=1)
            narrow_sides = sides.to(narrow)
            rows = keys + torch.arange(prefix, prefix + n * N, N, device=keys.device)[:, None]
            rows = rows.flatten(-2).expand(L, n * K)
            queries = mask.new_empty(L, n, 2, D, dtype=wide)
            key_lengths = mask.new_empty(L, n, K, dtype=wide)
            products = mask.new_empty(L, n, 2, K, dtype=wide)
            chosen = _empty(n, K, D, like=queries)
            for layer, x in enumerate(tokens):
                _gather(x, rows[layer], out=chosen.view(n * K, D))
                if narrow == wide:
                    torch.bmm(narrow_sides, x[:, prefix:], out=queries[layer])
                else:
                    queries[layer] = torch.bmm(narrow_sides, x[:, prefix:])
                torch.linalg.vector_norm(chosen, dim=-1, out=key_lengths[layer])
                torch.bmm(queries[layer], chosen.mT, out=products[layer])
            per_query = _inverse(torch.linalg.vector_norm(queries, dim=-1))
            per_key = _inverse(key_lengths)
            cosines = products.mul_(per_query[..., None]).mul_(per_key[..., None, :])
        ctx.save_for_backward(mask, sides, rows, queries, per_query, per_key, cosines, *tokens)
        ctx.prefix = prefix
        return cosines

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        mask, sides, rows, queries, per_query, per_key, cosines, *tokens = ctx.saved_tensors
        (n, N, D), narrow, K = tokens[0].shape, tokens[0].dtype, per_key.shape[-1]
        with _without_autocast(mask):
            # cos = q.k / (|q| |k|), so dcos/dq = k / (|q| |k|) - cos q / |q|^2, and the same for k.
            both = outputs[0] * per_query[..., None] * per_key[..., None, :]
            along = outputs[0] * cosines
            less_key = -(along.sum(-2) * per_key.square())[..., None]
            # A query's gradient reaches each of its tokens alike; what does not depend on the keys is known already.
            each = sides.amax(-1)[..., None]
            less_queries = queries * ((along.sum(-1) * per_query.square())[..., None] * each)
            both_each = both * each
            both = both.mT
            # Where a token's gradient comes from: its image's two queries, or nothing for the prefix.
            table = mask.new_zeros(2 * n + 1, D, dtype=queries.dtype)
            shares = table[: 2 * n].view(n, 2, D)
            source = torch.full((n, N), 2 * n, device=mask.device)
            source[:, ctx.prefix :] = torch.arange(0, 2 * n, 2, device=mask.device)[:, None] + ~mask
            source = source.flatten()
            chosen = _empty(n, K, D, like=queries)
            flat = chosen.view(n * K, D)
            gradients: list[Tensor | None] = []
            for layer, x in enumerate(tokens):
                if not ctx.needs_input_grad[3 + layer]:
                    gradients.append(None)
                    continue
                _gather(x, rows[layer], out=flat)
                torch.baddbmm(less_queries[layer], both_each[layer], chosen, beta=-1, out=shares)
                chosen *= less_key[layer]
                chosen.baddbmm_(both[layer], queries[layer])  # now the keys' gradient
                dense = _empty(n * N, D, like=x)
                torch.index_select(table.to(narrow), 0, source, out=dense)
                dense.index_add_(0, rows[layer], flat.to(narrow))
                gradients.append(dense.view(n, N, D))
        return None, None, None, *gradients


def _gather(x: Float[Tensor, "n N D"], rows: Int[Tensor, " n*K"], *, out: Float[Tensor, "n*K D"]) -> None:
    """Tokens `rows` of all images' together."""
    if x.is_contiguous() and x.dtype == out.dtype:
        torch.index_select(x.view(-1, x.shape[-1]), 0, rows, out=out)
    else:
        out.copy_(x[rows // x.shape[1], rows % x.shape[1]])


def _empty(*shape: int, like: Tensor) -> Tensor:
    """`like.new_empty`; on a processor in NumPy's memory, for which it asks the system in large pages.

    A layer's gradient is some 40 MB of new memory. In small pages, as torch asks for it, the system's handing it over
    takes eight times as long as the writing.
    """
    if like.device.type != "cpu":
        return like.new_empty(shape)
    taken = np.empty(math.prod(shape) * like.element_size(), np.uint8)
    return torch.from_numpy(taken).view(like.dtype).view(shape)


def _inverse(length: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    return length.reciprocal().where(length > SHORTEST, 0)


def _without_autocast(like: Tensor) -> AbstractContextManager[Any]:
    device = like.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def grid_positions(height: int, width: int, *, device: torch.device | None = None) -> Int[Tensor, "P 2"]:
    """Row and column of every token of a grid in raster order: int64, P = height * width."""
    return torch.cartesian_prod(torch.arange(height, device=device), torch.arange(width, device=device)).reshape(
        height * width, 2
    )


@torch.no_grad()
def farthest_point_sampling(
    mask: Bool[Tensor, "B P"],
    count: int,
    *,
    positions: Shaped[Tensor, "P 2"],
    start: Int[Tensor, " B"] | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "B count"]:
    """Tokens of each row's mask, each as far from those before it as can be (Algorithm 1; L1 distance).

    Args:
        mask: Which tokens may be chosen.
        count: Tokens a row.
        positions: Place of every token, one for all rows.
        start: The first choice of every row, in its mask. `None`: uniform over the mask.
        generator: Source of the random start; the default one where none is given.

    Returns:
        int64 indices into P, no two of a row alike. A row whose mask has fewer than `count` tokens has all of them
        and then its first one again and again; an empty row has none to choose from and holds zeros.

    Raises:
        BadInputError: Shapes that do not pair up, or a `count` that is not from 1 to P.
    """
    _check(mask, count)
    if positions.shape != (mask.shape[1], 2):
        raise BadInputError(
            "positions",
            f"shape {tuple(positions.shape)}",
            f"[{mask.shape[1]}, 2], a place for every token of the mask",
            "pass grid_positions(height, width)",
        )
    pick = _priorities(mask, generator).argmax(1) if start is None else start
    # Whole numbers below 2048 are exact in half precision and sums of two in single: grids are far smaller.
    places = positions.to(device=mask.device, dtype=torch.float32)
    distances = (places[:, None] - places).abs().sum(-1)
    # Tokens outside the mask stay nearest to what is chosen, whatever it is.
    nearest = torch.zeros_like(mask, dtype=torch.float32).masked_fill_(mask, torch.inf).sub_(1)
    picks = [pick]
    for _ in range(count - 1):
        torch.minimum(nearest, distances[pick], out=nearest)
        pick = nearest.argmax(1)
        picks.append(pick)
    return torch.stack(picks, 1)


@torch.no_grad()
def random_point_sampling(
    mask: Bool[Tensor, "B P"], count: int, *, generator: torch.Generator | None = None
) -> Int[Tensor, "B count"]:
    """Tokens of each row's mask, uniformly and without replacement: what Fig. 5 compares with ("w/o FPS").

    Takes `mask`, `count` and `generator` of `farthest_point_sampling`.

    Returns:
        int64 indices into P, no two of a row alike. A row whose mask has fewer than `count` tokens has all of them
        and then one of them again and again; an empty row holds any one index.

    Raises:
        BadInputError: A mask that is not boolean [B, P], or a `count` that is not from 1 to P.
    """
    _check(mask, count)
    drawn, picks = _priorities(mask, generator).topk(count, dim=1)
    return picks.where(drawn >= 0, picks[:, :1])


def _priorities(mask: Bool[Tensor, "B P"], generator: torch.Generator | None) -> Float[Tensor, "B P"]:
    """Uniform numbers inside the mask, -1 outside."""
    device = mask.device if generator is None else generator.device
    drawn = torch.rand(mask.shape, generator=generator, device=device).to(mask.device)
    return drawn.masked_fill_(~mask, -1)


def _check(mask: Tensor, count: int) -> None:
    if mask.ndim != 2 or mask.dtype != torch.bool:
        raise BadInputError("mask", f"{mask.dtype} of shape {tuple(mask.shape)}", "bool [B, P]", "pass patch_mask(...)")
    if not 1 <= count <= mask.shape[1]:
        raise BadInputError(
            "count",
            f"{count} of {mask.shape[1]} tokens",
            "from 1 to the number of tokens",
            "ask for fewer, or use smaller patches",
        )


Tokens = Tensor | Sequence[Tensor]


def patch_mask(mask: Shaped[Tensor, "*batch H W"], patch: int | tuple[int, int]) -> Bool[Tensor, "*batch P"]:
    """Which patches are mostly the agent's (Eq. 2): strictly more than half of their pixels.

    Args:
        mask: 1 or True on the agent, 0 or False elsewhere. Only a boolean one needs no look at its values.
        patch: Side of a patch in pixels, or height and width.

    Returns:
        In raster order, P = H W / patch area.

    Raises:
        BadInputError: Sides that are no multiples of the patch's, or values other than 0 and 1.
    """
    height, width = (patch, patch) if isinstance(patch, int) else patch
    if mask.ndim < 2 or mask.shape[-2] % height or mask.shape[-1] % width or not mask.numel():
        raise BadInputError(
            "mask",
            f"shape {tuple(mask.shape)}",
            f"[..., H, W] of whole patches of {height} by {width} pixels",
            "pass the mask of the very pictures the model sees, cropped and resized like them",
        )
    if mask.dtype != torch.bool:
        if bool(((mask != 0) & (mask != 1)).any()):
            raise BadInputError(
                "mask",
                f"values from {mask.min().item():g} to {mask.max().item():g}",
                "0 and 1 alone, or booleans",
                "compare with a threshold after resizing: frames > 127, probabilities > 0.5",
            )
        mask = mask != 0
    *batch, H, W = mask.shape
    pixels = mask.reshape(*batch, H // height, height, W // width, width)
    inside: Tensor = pixels.sum((-3, -1), dtype=torch.int32)
    return (2 * inside > height * width).flatten(-2)


@in_full_precision
def info_nce(
    query: Float[Tensor, "*batch D"],
    positive: Float[Tensor, "*batch p D"],
    negative: Float[Tensor, "*batch m D"],
    *,
    temperature: float,
) -> Float[Tensor, "*batch"]:
    """Eq. 1: each positive key against all negative keys, the mean over positives. Dot products as they are.

    Args:
        query: One an image.
        positive: Keys that should be near it; they do not compete with each other.
        negative: Keys that should not.
        temperature: What products are divided by.
    """
    right, wrong = ((keys @ query[..., None])[..., 0] / temperature for keys in (positive, negative))
    return _from_logits(right, wrong)


@in_full_precision
def token_queries(
    tokens: Float[Tensor, "*batch P D"], mask: Bool[Tensor, "*batch P"]
) -> tuple[Float[Tensor, "*batch D"], Float[Tensor, "*batch D"]]:
    """Mean token of the agent and mean token of the environment (Eq. 3); zeros where there is none."""
    sides = torch.stack([mask, ~mask], -2).to(tokens.dtype)
    means = (sides / sides.sum(-1, keepdim=True).clamp(min=1)) @ tokens
    return means[..., 0, :], means[..., 1, :]


def qualifying(mask: Bool[Tensor, "*batch P"], agent_keys: int, environment_keys: int) -> Bool[Tensor, "*batch"]:
    """Which images have as many tokens of the agent and of the environment as there are to be keys."""
    agent = mask.sum(-1)
    return (agent >= agent_keys) & (mask.shape[-1] - agent >= environment_keys)


def multi_level_weights(layers: int, gamma: float = 0.1, *, like: Tensor | None = None) -> Float[Tensor, " L"]:
    """Eq. 5's weights e^{gamma i} / sum: of L layers, first to last; they sum to 1. float32, or as `like`."""
    dtype, device = (torch.float32, None) if like is None else (like.dtype, like.device)
    return (gamma * torch.arange(layers, dtype=dtype, device=device)).softmax(0)


def icon_logits(
    tokens: Tokens,
    mask: Bool[Tensor, "n P"],
    agent_keys: Int[Tensor, "*layers n Na"],
    environment_keys: Int[Tensor, "*layers n Ne"],
    *,
    temperature: float = 0.3,
    prefix: int = 0,
) -> Float[Tensor, "L n 2 K"]:
    """Cosines over temperature of both queries with all K = Na + Ne keys, the agent's first.

    Takes the arguments of `icon_loss`. [:, :, 0] is the agent's query, [:, :, 1] the environment's.
    """
    layers = [tokens] if isinstance(tokens, Tensor) and tokens.ndim == 3 else list(tokens)
    _check_inter_token(layers, mask, agent_keys, environment_keys, prefix)
    keys = torch.cat([agent_keys, environment_keys], -1)
    return token_cosines(layers, mask, keys, prefix=prefix) / temperature


def icon_image_losses(logits: Float[Tensor, "L n 2 K"], agent_keys: int) -> Float[Tensor, "L n"]:
    """Eq. 4 of every layer and image.

    Args:
        logits: What `icon_logits` gives.
        agent_keys: Na; the first so many of the K keys are the agent's.
    """
    agent, environment = logits.unbind(-2)
    return _from_logits(agent[..., :agent_keys], agent[..., agent_keys:]) + _from_logits(
        environment[..., agent_keys:], environment[..., :agent_keys]
    )


def icon_loss(
    tokens: Tokens,
    mask: Bool[Tensor, "n P"],
    agent_keys: Int[Tensor, "*layers n Na"],
    environment_keys: Int[Tensor, "*layers n Ne"],
    *,
    temperature: float = 0.3,
    weights: Float[Tensor, " L"] | None = None,
) -> Float[Tensor, ""]:
    """Eq. 4 with cosines, averaged over images that have enough tokens, and over layers by `weights` (Eq. 5).

    An image qualifies with at least Na tokens of the agent and Ne of the environment; the others get no gradient.

    Args:
        tokens: Patch tokens of one layer [n, P, D], or of L layers: a sequence of those or [L, n, P, D].
        mask: Which tokens are the agent's: `patch_mask`.
        agent_keys: Tokens of the agent, for all layers or for each: `farthest_point_sampling` of `mask`.
        environment_keys: Tokens of the environment: the same of `~mask`.
        temperature: What cosines are divided by.
        weights: Of the layers; `multi_level_weights` where none are given.

    Returns:
        0, with a graph, where no image qualifies. At chance log(1 + Ne) + log(1 + Na).

    Raises:
        BadInputError: Shapes that do not pair up.
    """
    logits = icon_logits(tokens, mask, agent_keys, environment_keys, temperature=temperature)
    Na, Ne = agent_keys.shape[-1], environment_keys.shape[-1]
    good = qualifying(mask, Na, Ne)
    return weighted_mean(icon_image_losses(logits, Na), good, weights)


def icon_loss_batch_sum(
    tokens: Tokens,
    mask: Bool[Tensor, "n P"],
    agent_keys: Int[Tensor, "*layers n Na"],
    environment_keys: Int[Tensor, "*layers n Ne"],
    *,
    temperature: float = 0.3,
    weights: Float[Tensor, " L"] | None = None,
) -> Float[Tensor, ""]:
    """The authors' reduction: the sum over all images, whether they have enough tokens or not.

    Not in the paper. Takes the arguments of `icon_loss`.
    """
    logits = icon_logits(tokens, mask, agent_keys, environment_keys, temperature=temperature)
    losses = icon_image_losses(logits, agent_keys.shape[-1])
    return (_layer_weights(losses, weights) * losses.sum(1)).sum()


def weighted_mean(
    losses: Float[Tensor, "L n"], good: Bool[Tensor, " n"], weights: Float[Tensor, " L"] | None = None
) -> Float[Tensor, ""]:
    """Mean over `good` images (0 without any) of the layers' weighted sum."""
    per_layer = losses.where(good, 0).sum(1) / good.sum().clamp(min=1)
    return (_layer_weights(losses, weights) * per_layer).sum()


def _layer_weights(losses: Tensor, weights: Tensor | None) -> Tensor:
    if weights is None:
        return multi_level_weights(len(losses), like=losses)
    if weights.shape != losses.shape[:1]:
        raise BadInputError(
            "weights",
            f"shape {tuple(weights.shape)}",
            f"[{len(losses)}], one for each layer",
            "pass multi_level_weights(layers, gamma)",
        )
    return weights.to(losses)


def _from_logits(right: Float[Tensor, "*batch p"], wrong: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch"]:
    """-log e^r / (e^r + sum e^w) is softplus(logsumexp(w) - r)."""
    return functional.softplus(wrong.logsumexp(-1, keepdim=True) - right).mean(-1)


def _check_inter_token(layers: list[Tensor], mask: Tensor, agent: Tensor, environment: Tensor, prefix: int) -> None:
    n, P = mask.shape if mask.ndim == 2 else (-1, -1)
    fits = len(layers) > 0 and mask.dtype == torch.bool
    fits &= all(x.ndim == 3 and x.shape[:2] == (n, prefix + P) and x.shape == layers[0].shape for x in layers)
    leads = ((n,), (len(layers), n))
    fits &= agent.shape[:-1] == environment.shape[:-1] and tuple(agent.shape[:-1]) in leads
    if not fits:
        raise BadInputError(
            "tokens, mask, keys",
            f"{len(layers)} layers of {[tuple(x.shape) for x in layers[:1]]}, mask {tuple(mask.shape)} of "
            f"{mask.dtype}, keys {tuple(agent.shape)} and {tuple(environment.shape)}",
            "tokens [n, P, D] or L of them, bool mask [n, P], keys [n, Na] and [n, Ne] or [L, n, ...]",
            "pass the mask of the same images, and keys sampled from it",
        )


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

    def forward(self, masks: Shaped[Tensor, "n H W"], *, generator: torch.Generator | None = None) -> LossOutput:
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
                shape,
                f"[{images}, {self.tap.image[0]}, {self.tap.image[1]}], one for each picture the model saw",
                "crop and resize masks like their pictures; all False for a picture without a mask",
            )

    def _check_size(self) -> None:
        """Refuse a grid on which no image can have enough tokens."""
        down, across = self.tap.grid
        Na, Ne = self.config.agent_keys, self.config.environment_keys
        if Na + Ne > down * across:
            raise BadInputError(
                "agent_keys, environment_keys",
                f"{Na} + {Ne} keys of {down} x {across} = {down * across} tokens",
                "no more keys than tokens: no image could qualify",
                "lower both, use smaller patches or larger pictures",
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
