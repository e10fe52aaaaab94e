"""The dual encoder: camera frames and instructions into one space."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from counterpoint.encoders import clip, towers
from counterpoint.encoders.hub import HubEncoder
from counterpoint.encoders.preprocess import preprocess
from counterpoint.encoders.text import SentenceTower
from counterpoint.encoders.towers import EncoderConfig, ImageKind, ImageTower, Towers
from counterpoint.errors import require

IMAGE_TOWERS: dict[ImageKind, Callable[[EncoderConfig], ImageTower]] = {
    "convnet": towers.build_convnet,
    "resnet18": towers.build_resnet,
    "open_clip": clip.build_image,
    "timm": towers.build_timm_tower,
}
"""Builders of image towers by name; each imports its optional library when it is called."""


def build_towers(config: EncoderConfig) -> Towers:
    """Return the towers that `config` names.

    Raises:
        BadInputError: When a model or tag is unknown, or weights do not fit.
        MissingExtraError: When the library behind a tower is not installed.
    """
    if config.text == "open_clip":
        return clip.build(config)
    image = IMAGE_TOWERS[config.image](config)
    return Towers(image, SentenceTower(config.text_model, image.embed_dim))


class DualEncoder(HubEncoder):
    """An image tower and a text tower that meet in D dimensions.

    A frozen sentence encoder is not among the weights; it is loaded from its package.

    Args:
        config: The configuration; `encoder.config` is the same with every open field resolved.

    Raises:
        BadInputError: When a model or tag is unknown, or weights do not fit.
        MissingExtraError: When the library behind a tower is not installed.
    """

    kind = "dual_encoder"
    config_type = EncoderConfig
    start_field = "pretrained"
    config: EncoderConfig
    mean: Tensor
    std: Tensor

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        built = build_towers(config)
        tower = built.image
        resolved: dict[str, object] = {"embed_dim": tower.embed_dim, "image_size": tower.image_size}
        resolved |= {"mean": config.mean or tower.mean, "std": config.std or tower.std}
        self.config = config.model_copy(update=resolved)
        self.embed_dim, self.image_size = tower.embed_dim, tower.image_size
        self.image, self.text = tower.module, built.text
        self.register_buffer("mean", torch.tensor(self.config.mean), persistent=False)
        self.register_buffer("std", torch.tensor(self.config.std), persistent=False)

    def encode_image(self, frames: Shaped[Tensor, "*lead H W 3"]) -> Float[Tensor, "*lead D"]:
        """Embed images; raw, not normalised.

        Args:
            frames: uint8 in [0, 255] or float in [0, 1], any size, any leading dimensions, any device.

        Returns:
            Same leading dimensions; at least single precision, under autocast too.

        Raises:
            BadInputError: When dtype or shape differ, or floats lie outside [0, 1].
        """
        images = preprocess(frames, size=self.image_size, mean=self.mean, std=self.std)
        return _full(self.image(images)).reshape(*frames.shape[:-3], self.embed_dim)

    def encode_text(self, texts: Sequence[str]) -> Float[Tensor, "N D"]:
        """Embed N instructions; raw, not normalised, at least single precision.

        Raises:
            BadInputError: When `texts` is one string, empty, or holds something that is no string.
        """
        ok = not isinstance(texts, str) and texts and all(isinstance(text, str) for text in texts)
        hint = "wrap a single instruction in a list"
        require(ok, "texts", repr(texts)[:80], "a sequence of one or more strings", hint)
        return _full(self.text(list(texts)))

    def describe(self) -> tuple[str, dict[str, object], str]:
        """Return usage, facts and preprocessing for the model card."""
        config, D = self.config, self.embed_dim
        usage = (
            f"frames = encoder.encode_image(images)  # [..., H, W, 3] -> [..., {D}]\n"
            f'text = encoder.encode_text(["open the drawer"])  # [1, {D}]'
        )
        text = f"that of {config.image_model}" + " (frozen)" * config.freeze_text
        if config.text == "minilm":
            text = f"`{config.text_model}` (frozen, **not** part of `model.safetensors`), learned linear map"
        facts: dict[str, object] = {"Image tower": f"{config.image} {config.image_model}", "Text tower": text}
        facts["Embedding"] = f"{D} numbers, raw (not normalised)"
        side = self.image_size
        preprocessing = (
            f"pixels to [0, 1] by dtype, stretched to {side} x {side} (bilinear, antialiased), "
            f"minus {config.mean}, divided by {config.std}."
        )
        return usage, facts, preprocessing


def _full(embeddings: Tensor) -> Tensor:
    """Return at least single precision: losses divide by temperatures that half precision cannot resolve."""
    return embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
