"""Cosines of a mask's mean tokens with chosen tokens, for many layers at once.

ICon compares two queries an image, the means of its agent's and of its environment's tokens, with a few tokens chosen
as keys. Of the [n, P, D] tokens of a layer the forward pass reads each once (for the means) and gathers the keys; the
backward pass writes each layer's gradient once, where automatic differentiation would make several tensors of that
size: a token's gradient is that of its query, and a key's own is added to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["token_cosines"]

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
