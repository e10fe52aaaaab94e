from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from counterpoint.encoders.tokens import attention_maps, vit_parts
from counterpoint.errors import BadInputError
from tests.encoders.vits import PREFIX, open_clip_vit, timm_vit

NAMES = [name for name in PREFIX if "dinov3" not in name]


def pictures(n: int = 2, size: int = 64) -> Tensor:
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(0))


def last_rows(vit: Any, x: Tensor) -> Tensor:
    """Attention [n, heads, N, N] that timm's own unfused path works out in the last block."""
    attention = vit.blocks[-1].attn
    attention.fused_attn = False
    seen: list[Tensor] = []
    hook = attention.attn_drop.register_forward_hook(lambda _, inputs, output: seen.append(output))
    with torch.no_grad():
        vit(x)
    hook.remove()
    attention.fused_attn = True
    return seen[0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("qk_norm", [False, True])
def test_is_what_the_model_attends_to(name: str, qk_norm: bool) -> None:
    size = 56 if "patch14" in name else 64
    vit = timm_vit(name, img_size=size, qk_norm=qk_norm).eval()
    x = pictures(2, size)
    rows = last_rows(vit, x)
    torch.testing.assert_close(rows.sum(-1), torch.ones(rows.shape[:-1]))
    prefix = PREFIX[name]
    expected = rows[:, :, 0] if vit.cls_token is not None else rows[:, :, prefix:].mean(2)
    found = attention_maps(vit, x)
    assert found.shape == (2, 3, 16)
    torch.testing.assert_close(found, expected[..., prefix:])
    assert (found.sum(-1) <= 1 + 1e-6).all()
    torch.testing.assert_close(found.sum(-1) + expected[..., :prefix].sum(-1), torch.ones(2, 3))


@pytest.mark.parametrize("batch_first", [True, False])
def test_open_clip(batch_first: bool) -> None:
    vit = open_clip_vit(batch_first=batch_first)
    x = pictures(2, 32)
    attention = vit.transformer.resblocks[-1].attn
    seen: list[Tensor] = []
    hook = attention.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        vit(x)
        _, rows = attention(seen[0], seen[0], seen[0], average_attn_weights=False)
    hook.remove()
    torch.testing.assert_close(attention_maps(vit, x), rows[:, :, 0, 1:])


def test_half_precision_and_autocast() -> None:
    vit = timm_vit("vit_small_patch16_224", img_size=64).eval()
    expected = attention_maps(vit, pictures())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = attention_maps(vit, pictures())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=5e-3, rtol=0)
    narrow = attention_maps(vit.bfloat16(), pictures().bfloat16())
    torch.testing.assert_close(narrow, expected, atol=5e-3, rtol=0)


def test_leaves_nothing_behind() -> None:
    vit = timm_vit("vit_small_patch16_224", img_size=64)
    attention_maps(vit, pictures())
    assert not vit_parts(vit).blocks[-1].attn._forward_pre_hooks  # type: ignore[union-attr]
    assert all(p.grad is None for p in vit.parameters())


@pytest.mark.parametrize("name", ["vit_small_patch16_dinov3", "beit_base_patch16_224"])
def test_other_kinds_of_attention_are_refused(name: str) -> None:
    with pytest.raises(BadInputError, match="last block"):
        attention_maps(timm_vit(name, img_size=64), pictures())
