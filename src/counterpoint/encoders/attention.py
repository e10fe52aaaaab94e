"""Where the last block of a Vision Transformer looks: its attention, worked out from its own queries and keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from counterpoint.encoders.tokens import vit_parts
from counterpoint.errors import BadInputError

__all__ = ["attention_maps"]


@torch.no_grad()
def attention_maps(vit: nn.Module, images: Float[Tensor, "n 3 H W"]) -> Float[Tensor, "n heads P"]:
    """How much of its attention the last block's class token gives each patch (ICon, Fig. 6, before the mean of heads).

    A model without a class token has no such query: there it is the mean over the queries of all patches. Fused
    kernels keep no attention, so it is worked out anew from the block's input. The model runs in the mode it is in;
    dropout has no part in the result.

    Args:
        vit: A Vision Transformer of timm or open_clip.
        images: Normalised as the model expects.

    Returns:
        In raster order and float32. With what goes to class token and registers, which is left out, a row sums to 1.

    Raises:
        BadInputError: The model has no patch tokens, or a last block whose attention is of another kind (relative
            or rotary positions).
    """
    parts = vit_parts(vit)
    attention: Any = getattr(parts.blocks[-1], "attn", None)
    queries_and_keys = _reader(attention)
    seen: list[Tensor] = []
    hook = attention.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        vit(images)
    finally:
        hook.remove()
    tokens = seen[0] if parts.batch_first else seen[0].transpose(0, 1)
    with torch.autocast(tokens.device.type, enabled=False):
        query, key = queries_and_keys(attention, tokens.to(next(attention.parameters()).dtype))
        query = query[:, :, :1] if parts.class_token else query[:, :, parts.prefix :]
        shares = (query.float() @ key.float().mT / key.shape[-1] ** 0.5).softmax(-1)
    maps: Tensor = shares.mean(2)[..., parts.prefix :]
    return maps


Reader = Callable[[Any, Tensor], tuple[Tensor, Tensor]]


def _reader(attention: object) -> Reader:
    """What gives queries and keys [n, heads, N, d] of this kind of attention."""
    if isinstance(attention, nn.MultiheadAttention) and attention.in_proj_weight is not None:
        return _of_torch
    if type(attention).__module__ == "timm.layers.attention" and type(attention).__name__ == "Attention":
        return _of_timm
    raise BadInputError(
        "vit",
        found=f"a last block with {type(attention).__name__}",
        expected="timm's Attention or torch's MultiheadAttention, whose scores are scaled products of queries and keys",
        mend="use a plain Vision Transformer, such as vit_small_patch16_224",
    )


def _of_timm(attention: Any, tokens: Tensor) -> tuple[Tensor, Tensor]:
    both = attention.qkv(tokens).unflatten(-1, (3, attention.num_heads, -1))[:, :, :2]
    query, key = both.permute(2, 0, 3, 1, 4)
    return attention.q_norm(query), attention.k_norm(key)


def _of_torch(attention: nn.MultiheadAttention, tokens: Tensor) -> tuple[Tensor, Tensor]:
    width = 2 * attention.embed_dim
    bias = None if attention.in_proj_bias is None else attention.in_proj_bias[:width]
    both = functional.linear(tokens, attention.in_proj_weight[:width], bias)
    n, N = tokens.shape[:2]
    query, key = both.view(n, N, 2, attention.num_heads, -1).permute(2, 0, 3, 1, 4)
    return query, key
