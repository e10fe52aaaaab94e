"""The one place that turns the names in an `EncoderConfig` into modules.

The dual encoder: camera frames and instructions into one space.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from huggingface_hub import ModelCard
from jaxtyping import Float, Shaped
from torch import Tensor

from counterpoint.encoders import clip, towers
from counterpoint.encoders.hub import HubEncoder, model_card
from counterpoint.encoders.preprocess import preprocess
from counterpoint.encoders.text import SentenceTower
from counterpoint.encoders.towers import EncoderConfig, ImageKind, ImageTower, Towers
from counterpoint.errors import BadInputError

__all__ = ["IMAGE_TOWERS", "DualEncoder", "EncoderConfig", "build_towers"]


IMAGE_TOWERS: dict[ImageKind, Callable[[EncoderConfig], ImageTower]] = {
    "convnet": towers.build_convnet,
    "resnet18": towers.build_resnet,
    "open_clip": clip.build_image,
    "timm": towers.build_timm_tower,
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


class DualEncoder(HubEncoder):
    """An image tower and a text tower that meet in D dimensions.

    A frozen sentence encoder is not among the weights; it is loaded from
    its package.

    Args:
        config: What to build. `encoder.config` is the same with every open field resolved.

    Raises:
        BadInputError: An unknown model or tag, or weights that do not fit.
        MissingExtraError: The library behind a tower is not installed.
    """

    kind = "dual_encoder"
    config_type = EncoderConfig
    start_field = "pretrained"
    config: EncoderConfig
    mean: Tensor
    std: Tensor

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        towers = build_towers(config)
        tower = towers.image
        self.config = config.model_copy(
            update={
                "embed_dim": tower.embed_dim,
                "image_size": tower.image_size,
                "mean": config.mean or tower.mean,
                "std": config.std or tower.std,
            }
        )
        self.embed_dim = tower.embed_dim
        self.image_size = tower.image_size
        self.image = tower.module
        self.text = towers.text
        self.register_buffer("mean", torch.tensor(self.config.mean), persistent=False)
        self.register_buffer("std", torch.tensor(self.config.std), persistent=False)

    def encode_image(self, frames: Shaped[Tensor, "*lead H W 3"]) -> Float[Tensor, "*lead D"]:
        """Embed images; raw, not normalised.

        Args:
            frames: uint8 in [0, 255] or float in [0, 1], any size, any leading dimensions, any device.

        Returns:
            Same leading dimensions; at least single precision, under autocast too.

        Raises:
            BadInputError: Another dtype or shape, or floats outside [0, 1].
        """
        images = preprocess(frames, size=self.image_size, mean=self.mean, std=self.std)
        return _full(self.image(images)).reshape(*frames.shape[:-3], self.embed_dim)

    def encode_text(self, texts: Sequence[str]) -> Float[Tensor, "N D"]:
        """Embed N instructions; raw, not normalised, at least single precision.

        Raises:
            BadInputError: One string instead of a sequence of them, none at all, or something that is no
                string.
        """
        if isinstance(texts, str) or not texts or not all(isinstance(text, str) for text in texts):
            raise BadInputError(
                "texts", repr(texts)[:80], "a sequence of one or more strings", "wrap a single instruction in a list"
            )
        return _full(self.text(list(texts)))

    def generate_model_card(self, *args: Any, **sections: Any) -> ModelCard:
        """The model card `save_pretrained` writes; `sections` are those of `model_card.model_card`."""
        return model_card(self.config, sum(value.numel() for value in self.state_dict().values()), **sections)


def _full(embeddings: Tensor) -> Tensor:
    """At least single precision: losses divide by temperatures that half precision does not survive."""
    return embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
