"""The configuration of a dual encoder: its towers, their initial weights and the preprocessing."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, field_validator, model_validator
from tyro.conf import Suppress, arg

from counterpoint.config import FrozenConfig, free
from counterpoint.data.statistics import Statistics
from counterpoint.encoders.calibration import Calibration, RewardForm
from counterpoint.encoders.weights import MINILM
from counterpoint.errors import suggestion
from counterpoint.registry import LazyTable

TextKind = Literal["minilm", "open_clip"]

IMAGE_TOWERS = LazyTable(
    "image tower",
    {
        "convnet": "counterpoint.encoders.dual:build_convnet",
        "resnet18": "counterpoint.encoders.towers:build_resnet",
        "open_clip": "counterpoint.encoders.clip:build_image",
        "timm": "counterpoint.encoders.towers:build_timm_tower",
        "module": "counterpoint.encoders.towers:build_module",
    },
    "counterpoint.encoders",
)
"""Image tower -> the function that returns an `ImageTower` for an `EncoderConfig`."""

Colour = tuple[float, float, float]
Fit = Literal["stretch", "crop", "crop_others"]
Resample = Literal["bilinear", "bicubic", "bilinear_aliased"]


class EncoderConfig(FrozenConfig):
    """Architecture, starting point and preprocessing of a `DualEncoder`.

    Fields left `None` get the tower's default when the encoder is built.

    Attributes:
        image: Image tower. `convnet` and `resnet18` are part of this library and train from scratch; `open_clip` and
            `timm` take any model of those libraries (extras `clip`, `vision`); `module` is your own network. Installed
            packages can add towers by entry points of the group `counterpoint.encoders`.
        image_model: Name of the model in open_clip ("RN50-quickgelu", "ViT-B-16-SigLIP") or timm
            ("tf_efficientnet_lite0", "vit_small_patch14_dinov2.lvd142m"). For `module`, "package.module:function",
            where the function takes no arguments and returns the network. Empty for this library's towers.
        pretrained: Initial weights; `None` for random weights. A name is a pretrained tag of open_clip ("openai") or
            timm ("lvd142m"), or "package" for weights from an installed package (tf_efficientnet_lite0, extra
            `vision`). A value with a slash or a known ending (.safetensors, .pt, .pth, .bin, .ckpt) is a local file
            with the state dict of the open_clip model, the timm model or this library's image tower. For open_clip and
            timm, write the tag before the file, "webli:./weights.safetensors", because the tag determines the
            preprocessing; without it, set `mean`, `std`, `fit` and `resample`. An encoder saved by this library is
            loaded with `DualEncoder.from_pretrained` instead.
        revision: Commit of the Hub repository that a tag of timm or open_clip is fetched from; the newest by default.
        freeze_image: True to keep the backbone of `timm`, `open_clip` or `module` fixed, in evaluation mode, and to
            train a linear head on its features.
        pool: Features of a frozen backbone: 1 takes its pooled output; 3 and 7 average its spatial map to a grid with
            that many cells on each side.
        dropout: Share of a frozen backbone's features that is dropped in training.
        image_size: Side in pixels of the tower's square input.
        fit: How frames become squares: `stretch` squeezes the whole frame; `crop` resizes the shorter side and crops
            the centre; `crop_others` does so too, but does not change frames of the right size (VIP, R3M).
        short_side: With a crop, length in pixels of the shorter side before cropping; at least `image_size`.
        resample: Interpolation of the resizing. It is antialiased, except for `bilinear_aliased` (LIV).
        text: Text tower: `minilm`, a frozen sentence encoder with a learned projection, or `open_clip`, the
            text tower of `image_model`.
        text_model: For `minilm`: the sentence encoder, which is the default package, another sentence-transformers name
            or folder, or a transformer of the Hub (R3M's DistilBERT), whose embedding is the mean over its tokens.
        freeze_text: True to keep open_clip's text tower fixed. MiniLM is always fixed, and its projection is always
            trained.
        embed_dim: Dimensions of the shared space (D). The default is 256 for towers that end in a learned projection,
            and the model's dimensions for open_clip.
        mean: Channel means of pixels in [0, 1].
        std: Channel standard deviations of pixels in [0, 1].
        state: Statistics of the proprioception that is read in addition to each image; `None` if only images are read.
            Training sets them if `data.state` is true.
        reward_form: The reward that the encoder was trained for; its objective sets it.
        calibration: The map from this reward to progress, which is measured at the end of training.
    """

    image: Annotated[str, arg(metavar="TOWER")] = "convnet"
    image_model: str = ""
    pretrained: str | None = None
    revision: str | None = None
    freeze_image: bool = False
    pool: Literal[1, 3, 7] = 1
    dropout: float = Field(0.0, ge=0, lt=1)
    image_size: PositiveInt | None = None
    fit: Fit | None = None
    short_side: PositiveInt | None = None
    resample: Resample | None = None
    text: TextKind = "minilm"
    text_model: str = MINILM
    freeze_text: bool = False
    embed_dim: PositiveInt | None = None
    mean: Colour | None = None
    std: Colour | None = None
    state: Annotated[Statistics | None, Suppress] = None
    reward_form: RewardForm = "potential"
    calibration: Annotated[Calibration | None, Suppress] = free(None)

    @field_validator("image")
    @classmethod
    def _known(cls, image: str) -> str:
        if image not in IMAGE_TOWERS:
            raise ValueError(f"one of {', '.join(IMAGE_TOWERS)}; {suggestion(image, IMAGE_TOWERS)}".rstrip("; "))
        return image

    @model_validator(mode="after")
    def _agree(self) -> Self:
        own, clip_text = self.image in ("convnet", "resnet18"), self.text == "open_clip"
        frozen_only = self.pool != 1 or self.dropout
        refused = {
            f"freeze_image is for backbones: image {self.image!r} trains from scratch": own and self.freeze_image,
            "pool and dropout belong to a frozen backbone: set freeze_image": frozen_only and not self.freeze_image,
            "revision belongs to a tag of timm or open_clip": self.revision and self.image not in ("timm", "open_clip"),
            f"image_model {self.image_model!r} has no meaning for image {self.image!r}": own and self.image_model,
            f"image {self.image!r} needs image_model, a model of that library": not self.image_model
            and self.image in ("open_clip", "timm", "module"),
            f"text 'open_clip' is the text half of an open_clip model, but image is {self.image!r}": clip_text
            and self.image != "open_clip",
            "text_model has no meaning for text 'open_clip': image_model names both towers": clip_text
            and self.text_model != MINILM,
            "freeze_text is for text 'open_clip': MiniLM never trains": not clip_text and self.freeze_text,
        }
        for reason, wrong in refused.items():
            if wrong:
                raise ValueError(reason)
        return self
