"""The image models of pretrained visual representations, built by torchvision, timm and open_clip."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from counterpoint.encoders import clip
from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.pretrained_models import PretrainedModel
from counterpoint.errors import MissingExtraError

__all__ = ["build"]

_VITS = {"vit_s_12heads": (384, 12, 12), "vit_b": (768, 12, 12), "vit_l": (1024, 24, 16)}
"""Width, depth, heads. MVP's ViT-S has twelve heads; timm's has six, and its weights would fit without a word."""

_COMPRESSED = {"conv3": ("layer3", 1024, 11), "conv4": ("layer4", 2048, 42)}
"""Stage, its channels, and the channels its map is compressed to before it is flattened."""


def build(model: PretrainedModel, *, tag: str | None = None) -> nn.Module:
    """The image model with random weights: normalised images [N, 3, S, S] in, [N, E] out.

    Args:
        model: Which.
        tag: Of CLIP: the weights open_clip knows by this name.

    Raises:
        MissingExtraError: torchvision, timm or open_clip is not installed.
    """
    if model.architecture.startswith("resnet"):
        return _resnet(*model.architecture.split("_"))
    if model.architecture in _VITS:
        return _vit(*_VITS[model.architecture], size=model.size)
    return clip.build_image(
        EncoderConfig(image="open_clip", image_model=model.architecture, pretrained=tag)
    ).module


def _resnet(name: str, end: str = "") -> nn.Module:
    """torchvision's ResNet that ends in its pooled map, in a linear layer, or in a compressed map."""
    try:
        from torchvision.models import resnet
    except ModuleNotFoundError as error:
        raise MissingExtraError("torchvision", "clip") from error
    network: Any = getattr(resnet, name)(weights=None)
    network.fc = nn.Linear(network.fc.in_features, int(end[2:])) if end.startswith("fc") else nn.Identity()
    if end in _COMPRESSED:
        stage, channels, narrow = _COMPRESSED[end]
        shortcut = nn.Sequential(nn.Conv2d(channels, narrow, 3, padding=1), nn.BatchNorm2d(narrow))
        squeeze = resnet.BasicBlock(channels, narrow, downsample=shortcut)
        if end == "conv3":
            network.layer4 = nn.Identity()
        # The names in the released files: the stage, then what narrows its map. What widened it again, for training
        # alone, comes third there and is not built.
        setattr(network, stage, nn.Sequential(getattr(network, stage), squeeze))
        network.avgpool = nn.Identity()
    module: nn.Module = network
    return module


def _vit(width: int, depth: int, heads: int, *, size: int) -> nn.Module:
    """timm's ViT of 16-pixel patches; its output is the class token after the last normalisation, as in MAE."""
    try:
        from timm.models.vision_transformer import VisionTransformer
    except ModuleNotFoundError as error:
        raise MissingExtraError("timm", "clip") from error
    module: nn.Module = VisionTransformer(
        img_size=size,
        patch_size=16,
        embed_dim=width,
        depth=depth,
        num_heads=heads,
        num_classes=0,
        norm_layer=partial(nn.LayerNorm, eps=1e-6),
    )
    return module
