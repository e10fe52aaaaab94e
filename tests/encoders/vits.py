"""Small Vision Transformers with random weights, of every kind that keeps its tokens another way."""

from __future__ import annotations

from typing import Any

import timm
from torch import nn

__all__ = ["PREFIX", "TRANSFORMERS", "open_clip_vit", "small_vit", "timm_vit", "transformers_vit"]

PREFIX = {
    "vit_small_patch16_224": 1,
    "deit_small_distilled_patch16_224": 2,
    "vit_small_patch14_reg4_dinov2": 5,
    "vit_medium_patch16_reg4_gap_256": 4,
    "vit_base_patch16_siglip_224": 0,
    "vit_base_patch16_clip_224": 1,
    "vit_small_patch16_dinov3": 5,
}
"""timm's models and how many tokens come before the first patch."""


def timm_vit(name: str, **settings: Any) -> Any:
    """Two blocks of 24 numbers a token."""
    shape = {"depth": 2, "embed_dim": 24, "num_heads": 3, "num_classes": 0}
    return timm.create_model(name, **{**shape, **settings})


def small_vit(size: int = 32, patch: int = 4, **settings: Any) -> Any:
    """A plain one with a grid of 8 x 8."""
    return timm_vit("vit_small_patch16_224", img_size=size, patch_size=patch, **settings)


def open_clip_vit(*, batch_first: bool = True) -> Any:
    """open_clip's own, 32 pixels, patches of 8."""
    from open_clip.transformer import VisionTransformer

    vit: Any = VisionTransformer(image_size=32, patch_size=8, width=24, layers=2, heads=3, mlp_ratio=2, output_dim=7)
    vit.transformer.batch_first = batch_first
    for module in vit.modules():
        if isinstance(module, nn.MultiheadAttention):
            module.batch_first = batch_first
    return vit


TRANSFORMERS = {"ViT": 1, "DeiT": 2, "Dinov2": 1, "Dinov2WithRegisters": 5, "CLIPVision": 1, "SiglipVision": 0}
"""Models of transformers and how many tokens come before the first patch."""


def transformers_vit(name: str, **settings: Any) -> Any:
    """One of transformers' models with random weights: 32 pixels, patches of 8, two blocks of 24 numbers a token."""
    import transformers

    shape = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 48}
    config = getattr(transformers, f"{name}Config")(**{**shape, "image_size": 32, "patch_size": 8, **settings})
    return getattr(transformers, f"{name}Model")(config).eval()
