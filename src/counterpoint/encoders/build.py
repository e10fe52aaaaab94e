"""The one place that turns the names in an `EncoderConfig` into modules."""

from __future__ import annotations

from collections.abc import Callable

from counterpoint.encoders import clip, convnet, resnet, timm_tower
from counterpoint.encoders.config import EncoderConfig, ImageKind
from counterpoint.encoders.text import SentenceTower
from counterpoint.encoders.towers import ImageTower, Towers

__all__ = ["IMAGE_TOWERS", "build_towers"]

IMAGE_TOWERS: dict[ImageKind, Callable[[EncoderConfig], ImageTower]] = {
    "convnet": convnet.build,
    "resnet18": resnet.build,
    "open_clip": clip.build_image,
    "timm": timm_tower.build,
}
"""Name -> builder of an image tower; optional libraries are imported when one is called."""


def build_towers(config: EncoderConfig) -> Towers:
    """The towers `config` names.

    Raises:
        BadInputError: An unknown model or tag, or weights that do not fit.
        MissingExtraError: The library behind a tower is not installed.
    """
    if config.text == "open_clip":
        return clip.build(config)
    image = IMAGE_TOWERS[config.image](config)
    return Towers(image, SentenceTower(config.text_model, image.embed_dim))
