"""The one place that turns the names in an `EncoderConfig` into modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from counterpoint.encoders.config import EncoderConfig, ImageKind, TextKind

__all__ = ["BUILDERS", "IMAGENET_MEAN", "IMAGENET_STD", "Colour", "ImageTower", "Towers", "build_towers"]

Colour = tuple[float, float, float]

IMAGENET_MEAN: Colour = (0.485, 0.456, 0.406)
IMAGENET_STD: Colour = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class ImageTower:
    """An image tower and what its input has to look like.

    Attributes:
        module: Normalised images [N, 3, S, S] -> embeddings [N, D].
        embed_dim: D.
        image_size: S.
        mean: Channel means of pixels in [0, 1].
        std: Their deviations.
    """

    module: nn.Module
    embed_dim: int
    image_size: int
    mean: Colour = IMAGENET_MEAN
    std: Colour = IMAGENET_STD


@dataclass(frozen=True)
class Towers:
    """Both towers of a dual encoder.

    Attributes:
        image: The image tower.
        text: N strings -> embeddings [N, D].
    """

    image: ImageTower
    text: nn.Module


def _convnet(config: EncoderConfig) -> Towers:
    from counterpoint.encoders import convnet

    return _with_sentences(convnet.build(config), config)


def _resnet18(config: EncoderConfig) -> Towers:
    from counterpoint.encoders import resnet

    return _with_sentences(resnet.build(config), config)


def _timm(config: EncoderConfig) -> Towers:
    from counterpoint.encoders import timm_tower

    return _with_sentences(timm_tower.build(config), config)


def _clip_image(config: EncoderConfig) -> Towers:
    from counterpoint.encoders import clip

    return _with_sentences(clip.build_image(config), config)


def _clip(config: EncoderConfig) -> Towers:
    from counterpoint.encoders import clip

    return clip.build(config)


def _with_sentences(image: ImageTower, config: EncoderConfig) -> Towers:
    from counterpoint.encoders.text import SentenceTower

    return Towers(image, SentenceTower(config.text_model, image.embed_dim))


BUILDERS: dict[tuple[ImageKind, TextKind], Callable[[EncoderConfig], Towers]] = {
    ("convnet", "minilm"): _convnet,
    ("resnet18", "minilm"): _resnet18,
    ("timm", "minilm"): _timm,
    ("open_clip", "minilm"): _clip_image,
    ("open_clip", "open_clip"): _clip,
}
"""(image, text) -> builder; `EncoderConfig` refuses every other pair. Each imports what it needs when called."""


def build_towers(config: EncoderConfig) -> Towers:
    """The towers `config` names.

    Raises:
        BadInputError: An unknown model or tag, or weights that do not fit.
        MissingExtraError: The library behind a tower is not installed.
    """
    return BUILDERS[config.image, config.text](config)
