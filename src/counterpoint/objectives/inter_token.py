"""ICon: tokens of the robot against tokens of what is around it, in every layer of a Vision Transformer.

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
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional

from counterpoint.errors import BadInputError
from counterpoint.objectives.infonce import in_full_precision
from counterpoint.objectives.token_cosines import token_cosines

__all__ = [
    "icon_image_losses",
    "icon_logits",
    "icon_loss",
    "icon_loss_batch_sum",
    "info_nce",
    "multi_level_weights",
    "patch_mask",
    "qualifying",
    "token_queries",
    "weighted_mean",
]

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
            found=f"shape {tuple(mask.shape)}",
            expected=f"[..., H, W] of whole patches of {height} by {width} pixels",
            mend="pass the mask of the very pictures the model sees, cropped and resized like them",
        )
    if mask.dtype != torch.bool:
        if bool(((mask != 0) & (mask != 1)).any()):
            raise BadInputError(
                "mask",
                found=f"values from {mask.min().item():g} to {mask.max().item():g}",
                expected="0 and 1 alone, or booleans",
                mend="compare with a threshold after resizing: frames > 127, probabilities > 0.5",
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


def qualifying(
    mask: Bool[Tensor, "*batch P"], agent_keys: int, environment_keys: int
) -> Bool[Tensor, "*batch"]:
    """Which images have as many tokens of the agent and of the environment as there are to be keys."""
    agent = mask.sum(-1)
    return (agent >= agent_keys) & (mask.shape[-1] - agent >= environment_keys)


def multi_level_weights(
    layers: int, gamma: float = 0.1, *, like: Tensor | None = None
) -> Float[Tensor, " L"]:
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
    _check(layers, mask, agent_keys, environment_keys, prefix)
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
            found=f"shape {tuple(weights.shape)}",
            expected=f"[{len(losses)}], one for each layer",
            mend="pass multi_level_weights(layers, gamma)",
        )
    return weights.to(losses)


def _from_logits(
    right: Float[Tensor, "*batch p"], wrong: Float[Tensor, "*batch m"]
) -> Float[Tensor, "*batch"]:
    """-log e^r / (e^r + sum e^w) is softplus(logsumexp(w) - r)."""
    return functional.softplus(wrong.logsumexp(-1, keepdim=True) - right).mean(-1)


def _check(layers: list[Tensor], mask: Tensor, agent: Tensor, environment: Tensor, prefix: int) -> None:
    n, P = mask.shape if mask.ndim == 2 else (-1, -1)
    fits = len(layers) > 0 and mask.dtype == torch.bool
    fits &= all(x.ndim == 3 and x.shape[:2] == (n, prefix + P) and x.shape == layers[0].shape for x in layers)
    leads = ((n,), (len(layers), n))
    fits &= agent.shape[:-1] == environment.shape[:-1] and tuple(agent.shape[:-1]) in leads
    if not fits:
        raise BadInputError(
            "tokens, mask, keys",
            found=f"{len(layers)} layers of {[tuple(x.shape) for x in layers[:1]]}, mask {tuple(mask.shape)} of "
            f"{mask.dtype}, keys {tuple(agent.shape)} and {tuple(environment.shape)}",
            expected="tokens [n, P, D] or L of them, bool mask [n, P], keys [n, Na] and [n, Ne] or [L, n, ...]",
            mend="pass the mask of the same images, and keys sampled from it",
        )
