"""The dual encoder: camera frames and instructions into one space.

In reading order: the configuration, pixels to normalised images, the ConvNet, the map of proprioception, the encoder.
Larger image towers are in `towers.py` (ResNet-18, timm) and `clip.py` (open_clip), the sentence tower is in
`sentences.py`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Annotated, Any, Literal, Self

import torch
from jaxtyping import Float, Shaped
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional
from tyro.conf import Suppress

from counterpoint.config import FrozenConfig, free
from counterpoint.data.statistics import Statistics
from counterpoint.encoders.backbone import Backbone, spatial_map
from counterpoint.encoders.calibration import Calibration, RewardForm
from counterpoint.encoders.hub import Description, HubEncoder
from counterpoint.encoders.sentences import SentenceTower
from counterpoint.encoders.weights import MINILM, start_from_file
from counterpoint.errors import require

ImageKind = Literal["convnet", "resnet18", "open_clip", "timm", "module"]
TextKind = Literal["minilm", "open_clip"]

Colour = tuple[float, float, float]
Fit = Literal["stretch", "crop"]
Resample = Literal["bilinear", "bicubic"]

IMAGENET_MEAN: Colour = (0.485, 0.456, 0.406)
IMAGENET_STD: Colour = (0.229, 0.224, 0.225)


class EncoderConfig(FrozenConfig):
    """Architecture, starting point and preprocessing of a `DualEncoder`.

    Fields left `None` take the tower's own value when the encoder is built.

    Attributes:
        image: Image tower. `convnet` and `resnet18` are the library's own and train from scratch; `open_clip`
            and `timm` are any model of those libraries (extras `clip`, `vision`); `module` is a network of your own.
        image_model: Name inside open_clip ("RN50-quickgelu", "ViT-B-16-SigLIP") or timm
            ("tf_efficientnet_lite0", "vit_small_patch14_dinov2.lvd142m"); for `module`, "package.module:function" of
            a function without arguments that returns the network; empty for the library's own towers.
        pretrained: Initial weights. `None`: random. A name: a pretrained tag of open_clip ("openai") or
            timm ("lvd142m"), or "package" for weights that an installed package holds (tf_efficientnet_lite0, extra
            `vision`). With a slash or a known ending (.safetensors, .pt, .pth, .bin, .ckpt): a local
            file with the state dict of the open_clip model, the timm model or the library's own image
            tower. An encoder saved by this library is loaded with `DualEncoder.from_pretrained` instead.
        revision: Commit of the Hub repository that a tag of timm or open_clip is fetched from; the newest by default.
        freeze_image: Keep the backbone of `timm`, `open_clip` or `module` fixed, in evaluation mode, and learn a linear
            head on its features.
        pool: Features of a frozen backbone: 1 is its own pooled output, 3 and 7 average its map to a grid of that side.
        dropout: Share of a frozen backbone's features that is dropped in training.
        image_size: Side in pixels of the tower's square input.
        fit: `stretch` squeezes the whole frame to a square; `crop` resizes its shorter side and cuts the centre out.
        short_side: Length in pixels of the shorter side before `crop` cuts; at least `image_size`.
        resample: Interpolation of the resizing, always antialiased.
        text: Text tower: `minilm`, a frozen sentence encoder and a learned projection, or `open_clip`, the
            one that belongs to `image_model`.
        text_model: For `minilm`: the default package, or another sentence-transformers name or folder.
        freeze_text: Keep open_clip's text tower fixed. MiniLM always is, and its projection always learns.
        embed_dim: D of both towers; 256 for towers that end in a learned projection, the model's own for
            open_clip.
        mean: Channel means of pixels in [0, 1].
        std: Channel deviations.
        state: Statistics of the proprioception that is read beside each image; none for images alone. Training sets
            them (`data.state`).
        reward_form: The reward that the encoder was trained for; its objective sets it.
        calibration: The map from that reward to progress; training measures it at its end.
    """

    image: ImageKind = "convnet"
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

    @model_validator(mode="after")
    def _agree(self) -> Self:
        own, clip_text = self.image in ("convnet", "resnet18"), self.text == "open_clip"
        frozen_only = self.pool != 1 or self.dropout
        refused = {
            f"freeze_image is for backbones: image {self.image!r} trains from scratch": own and self.freeze_image,
            "pool and dropout belong to a frozen backbone: set freeze_image": frozen_only and not self.freeze_image,
            "revision belongs to a tag of timm or open_clip": self.revision and self.image not in ("timm", "open_clip"),
            f"image_model {self.image_model!r} has no meaning for image {self.image!r}": own and self.image_model,
            f"image {self.image!r} needs image_model, a model of that library": not own and not self.image_model,
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


_TOLERANCE = 1e-3
"""Distance from [0, 1] that rounding may cause."""
STILL = 1e-6
"""A number of the state with a smaller deviation in training is only shifted: dividing would magnify noise."""


def preprocess(
    frames: Shaped[Tensor, "*lead H W 3"],
    *,
    size: int,
    mean: Float[Tensor, " C"],
    std: Float[Tensor, " C"],
    fit: Fit = "stretch",
    short_side: int | None = None,
    resample: Resample = "bilinear",
) -> Float[Tensor, "N 3 S S"]:
    """Scale to [0, 1], fit into S x S, normalise; resampled with antialiasing, on the device, in single precision.

    Args:
        frames: uint8 in [0, 255] or float in [0, 1]; any number of leading dimensions, colours last or first
            ([..., 3, H, W]).
        size: S.
        mean: Channel means of pixels in [0, 1]; its device and dtype are those of the result.
        std: Channel deviations.
        fit: `stretch` keeps the whole frame and changes its shape; `crop` resizes the shorter side to `short_side` and
            cuts the centre out. A frame of the right size is untouched by `stretch`.
        short_side: Length in pixels; S by default.
        resample: Interpolation.

    Returns:
        N = product of the leading dimensions, in the dtype of `mean`.

    Raises:
        BadInputError: When dtype or shape differ, or floats lie outside [0, 1].
    """
    frames = channels_last(frames)
    check_frames(frames)
    dtype = torch.promote_types(mean.dtype, torch.float32)
    images = frames.to(mean.device, non_blocking=True).reshape(math.prod(frames.shape[:-3]), *frames.shape[-3:])
    images = (images.to(dtype) / 255 if images.dtype == torch.uint8 else images.to(dtype)).permute(0, 3, 1, 2)
    height, width = images.shape[-2:]
    if fit == "crop":
        short, wanted = min(height, width), short_side or size
        images = _resized(images, (height * wanted // short, width * wanted // short), resample)
        top, left = (round((side - size) / 2) for side in images.shape[-2:])
        images = images[..., top : top + size, left : left + size]
    else:
        images = _resized(images, (size, size), resample)
    centred = images - mean.to(dtype)[:, None, None]
    return (centred / std.to(dtype)[:, None, None]).to(mean.dtype)


def _resized(images: Float[Tensor, "N 3 H W"], size: tuple[int, int], resample: Resample) -> Float[Tensor, "N 3 h w"]:
    if images.shape[-2:] == size or not len(images):
        return images
    resized = functional.interpolate(images, size, mode=resample, antialias=True)
    return resized.clamp(0, 1) if resample == "bicubic" else resized  # bicubic overshoots


def channels_last(frames: Shaped[Tensor, "*lead H W 3"]) -> Shaped[Tensor, "*lead H W 3"]:
    """Return frames [..., 3, H, W], as LeRobot has them, as [..., H, W, 3]; others as they are."""
    first = isinstance(frames, Tensor) and frames.ndim >= 3 and frames.shape[-1] != 3 and frames.shape[-3] == 3
    return frames.movedim(-3, -1) if first else frames


def check_frames(frames: Tensor) -> None:
    """Raise `BadInputError` unless frames are [..., H, W, 3], uint8 or float in [0, 1]."""
    expected = "a tensor [..., H, W, 3], uint8 in [0, 255] or float in [0, 1]"
    is_tensor = isinstance(frames, Tensor)
    require(is_tensor, "frames", type(frames).__name__, expected, "wrap it with torch.from_numpy")
    images = frames.ndim >= 3 and frames.shape[-1] == 3 and 0 not in frames.shape[-3:]
    require(images, "frames", f"shape {list(frames.shape)}", expected, "put channels last: .movedim(-3, -1)")
    if frames.dtype == torch.uint8:
        return
    hint = "convert pixels in [0, 255] with .to(torch.uint8)"
    require(frames.is_floating_point(), "frames", frames.dtype, expected, hint)
    if frames.numel():
        low, high = (float(bound) for bound in frames.detach().aminmax())
        inside = low >= -_TOLERANCE and high <= 1 + _TOLERANCE  # false for NaN too
        hint = "pass pixels in [0, 255] as uint8, or divide by 255; the encoder normalises by itself"
        require(inside, "frames", f"{frames.dtype} in [{low:.4g}, {high:.4g}]", expected, hint)


@dataclass(frozen=True)
class ImageTower:
    """An image tower and the form of its input.

    Attributes:
        module: Normalised images [N, 3, S, S] -> embeddings [N, D].
        embed_dim: D.
        image_size: S.
        mean: Channel means of pixels in [0, 1].
        std: Their deviations.
        fit: The way in which frames become squares; see `EncoderConfig`.
        short_side: Length in pixels of the shorter side before a crop; S by default.
        resample: Interpolation.
    """

    module: nn.Module
    embed_dim: int
    image_size: int
    mean: Colour = IMAGENET_MEAN
    std: Colour = IMAGENET_STD
    fit: Fit = "stretch"
    short_side: int | None = None
    resample: Resample = "bilinear"


class ConvNet(nn.Module):
    """Four 3 x 3 convolutions of stride 2, then one linear layer on the flattened map, which keeps positions.

    Without normalisation layers a frame's embedding depends on no other frame, so that nothing about the batch leaks
    into a contrastive loss.

    Args:
        image_size: S; made for 64 to 112 px.
        embed_dim: D.
    """

    def __init__(self, image_size: int, embed_dim: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width_in, side = 3, image_size
        for width in (32, 64, 128, 256):
            layers += [nn.Conv2d(width_in, width, 3, 2, 1), nn.ReLU(inplace=True)]
            width_in, side = width, (side + 1) // 2
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width_in * side * side, embed_dim)

    def forward(self, images: Float[Tensor, "N 3 S S"]) -> Float[Tensor, "N D"]:
        """Embed normalised images."""
        embedded: Tensor = self.head(self.body(images).flatten(1))
        return embedded


def build_convnet(config: EncoderConfig) -> ImageTower:
    """Return the tower, by default for 64 px and with 256 dimensions."""
    size, embed_dim = config.image_size or 64, config.embed_dim or 256
    return ImageTower(own_tower(ConvNet(size, embed_dim), config), embed_dim, size)


def own_tower(module: nn.Module, config: EncoderConfig) -> nn.Module:
    """Return a tower of the library's own with its starting weights."""
    start_from_file(module, config.pretrained)
    return module.to(memory_format=torch.channels_last)  # as frames arrive, and faster on a processor


class StateMap(nn.Module):
    """A linear map of the robot's state, each number with mean 0 and deviation 1 over the training episodes.

    Added to an image's embedding it is what a linear head on features and state, end to end, computes.

    Args:
        statistics: Those of the training episodes; they are part of the configuration, not of the weights.
        embed_dim: D.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, statistics: Statistics, embed_dim: int) -> None:
        super().__init__()
        deviation = torch.tensor(statistics.deviation)
        self.register_buffer("mean", torch.tensor(statistics.mean), persistent=False)
        self.register_buffer("deviation", deviation.where(deviation > STILL, 1), persistent=False)
        self.projection = nn.Linear(len(deviation), embed_dim, bias=False)

    def forward(self, state: Float[Tensor, "*lead S"]) -> Float[Tensor, "*lead D"]:
        """Embed states, in their own units."""
        standard = (state.to(self.mean.device, self.mean.dtype, non_blocking=True) - self.mean) / self.deviation
        embedded: Tensor = self.projection(standard)
        return embedded


IMAGE_TOWERS: dict[ImageKind, str] = {
    "convnet": "dual:build_convnet",
    "resnet18": "towers:build_resnet",
    "open_clip": "clip:build_image",
    "timm": "towers:build_timm_tower",
    "module": "towers:build_module",
}
"""Image tower -> the module in this folder and the function that returns an `ImageTower` for a configuration."""


def _builder(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(import_module(f"counterpoint.encoders.{module}"), function)


class DualEncoder(HubEncoder):
    """An image tower and a text tower that meet in D dimensions.

    A frozen sentence encoder is not among the weights; it is loaded from its package.

    Args:
        config: The configuration; `encoder.config` is the same with every open field resolved.
        network: For image `module`: the network itself, normalised images [N, 3, S, S] to [N, E] or [N, E, h, w].

    Raises:
        BadInputError: When a model or tag is unknown, or weights do not fit.
        MissingExtraError: When the library behind a tower is not installed.
    """

    kind = "dual_encoder"
    config_type = EncoderConfig
    start_field = "pretrained"
    config: EncoderConfig
    text: nn.Module
    mean: Tensor
    std: Tensor

    def __init__(self, config: EncoderConfig, network: nn.Module | None = None) -> None:
        super().__init__()
        own = network is None or config.image == "module"
        require(own, "network", type(network).__name__, "none: the configuration names a model", 'use image = "module"')
        if config.text == "open_clip":
            tower, text = _builder("clip:build")(config)
        else:
            tower = _builder(IMAGE_TOWERS[config.image])(config, *(() if network is None else (network,)))
            text = SentenceTower(config.text_model, tower.embed_dim)
        self.image, self.text = tower.module, text
        self.state = None if config.state is None else StateMap(config.state, tower.embed_dim)
        self.embed_dim, self.image_size = tower.embed_dim, tower.image_size
        resolved: dict[str, object] = {"embed_dim": tower.embed_dim, "image_size": tower.image_size}
        for name in ("mean", "std", "fit", "short_side", "resample"):
            resolved[name] = getattr(config, name) or getattr(tower, name)
        self.config = config.model_copy(update=resolved)
        self.register_buffer("mean", torch.tensor(self.config.mean), persistent=False)
        self.register_buffer("std", torch.tensor(self.config.std), persistent=False)

    @property
    def reads_state(self) -> bool:
        """True where the robot's state is read beside each image."""
        return self.state is not None

    def encode_image(
        self, frames: Shaped[Tensor, "*lead H W 3"], state: Float[Tensor, "*lead S"] | None = None
    ) -> Float[Tensor, "*lead D"]:
        """Embed images, with the robot's state where the encoder reads it; raw, not normalised.

        Args:
            frames: uint8 in [0, 255] or float in [0, 1], any size, any leading dimensions, any device; colours last or
                first ([*lead, 3, H, W]).
            state: Proprioception at each image, in its own units.

        Returns:
            Same leading dimensions; at least single precision, under autocast too.

        Raises:
            BadInputError: When dtype or shape differ, floats lie outside [0, 1], or a state is missing or unwanted.
        """
        embedded = _full(self.image(self._prepared(frames))).reshape(*frames.shape[:-3], self.embed_dim)
        return self._with_state(embedded, state)

    def features(self, frames: Shaped[Tensor, "*lead H W 3"]) -> Float[Tensor, "*lead E"]:
        """Return a frozen backbone's features, without gradient; arguments and errors as in `encode_image`."""
        found = _full(self._frozen().features(self._prepared(frames)))
        return found.reshape(*frames.shape[:-3], found.shape[1])

    def embed_features(
        self, features: Float[Tensor, "*lead E"], state: Float[Tensor, "*lead S"] | None = None
    ) -> Float[Tensor, "*lead D"]:
        """Embed features that `features` returned, as `encode_image` does in one step; `state` as there."""
        return self._with_state(_full(self._frozen().head(features)), state)

    def _with_state(self, embedded: Float[Tensor, "*lead D"], state: Tensor | None) -> Float[Tensor, "*lead D"]:
        found = "none" if state is None else f"{state.dtype} {list(state.shape)}"
        hint = "models trained with data.state read it, others images alone; bare videos and goal images have none"
        if self.state is None:
            require(state is None, "state", found, "none", hint)
            return embedded
        shape = [*embedded.shape[:-1], len(self.state.mean)]
        good = state is not None and list(state.shape) == shape and state.is_floating_point()
        require(good, "state", found, f"the robot's state at each image, floats {shape}", hint)
        return embedded + _full(self.state(state))

    def forward_features(self, frames: Shaped[Tensor, "*lead H W 3"]) -> Float[Tensor, "*lead C h w"]:
        """Return the image tower's last map before it is pooled; arguments and errors as in `encode_image`.

        Raises:
            BadInputError: When the tower has no map.
        """
        network = self.image.backbone if isinstance(self.image, Backbone) else self.image
        found = _full(spatial_map(network, self._prepared(frames)))
        return found.reshape(*frames.shape[:-3], *found.shape[1:])

    @cached_property
    def backbone_digest(self) -> str:
        """Hex digest of a frozen backbone, of its pooling and of the preprocessing: equal digests, equal features."""
        fields = {"image_model", "pool", "image_size", "fit", "short_side", "resample", "mean", "std"}
        digest = hashlib.sha256(self.config.model_dump_json(include=fields).encode())
        for name, value in sorted(self._frozen().backbone.state_dict().items()):
            digest.update(name.encode())
            digest.update(value.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def _frozen(self) -> Backbone:
        frozen = isinstance(self.image, Backbone) and self.image.frozen
        hint = "set freeze_image, or embed frames with encode_image"
        require(frozen, "features", f"image {self.config.image!r}, which trains", "a frozen backbone", hint)
        assert isinstance(self.image, Backbone)
        return self.image

    def _prepared(self, frames: Tensor) -> Tensor:
        config = self.config
        fitting: Any = {"fit": config.fit or "stretch", "resample": config.resample or "bilinear"}
        fitting |= {"short_side": config.short_side}
        return preprocess(frames, size=self.image_size, mean=self.mean, std=self.std, **fitting)

    def encode_text(self, texts: Sequence[str]) -> Float[Tensor, "N D"]:
        """Embed N instructions; raw, not normalised, at least single precision.

        Raises:
            BadInputError: When `texts` is one string, empty, or holds something that is no string.
        """
        ok = not isinstance(texts, str) and texts and all(isinstance(text, str) for text in texts)
        hint = "wrap a single instruction in a list"
        require(ok, "texts", repr(texts)[:80], "a sequence of one or more strings", hint)
        return _full(self.text(list(texts)))

    def describe(self) -> Description:
        """Return usage, facts and preprocessing for the model card."""
        config, D, side = self.config, self.embed_dim, self.image_size
        S = len(config.state.mean) if config.state else 0
        read = f"(images, state)  # [..., H, W, 3] and [..., {S}]" if S else "(images)  # [..., H, W, 3]"
        usage = (
            f"frames = model.encode_image{read} -> [..., {D}]\n"
            f'text = model.encode_text(["open the drawer"])  # [1, {D}]'
        )
        text = f"that of {config.image_model}" + " (frozen)" * config.freeze_text
        if config.text == "minilm":
            text = f"`{config.text_model}` (frozen, **not** part of `model.safetensors`), learned linear map"
        facts: dict[str, object] = {"Image tower": f"{config.image} {config.image_model}", "Text tower": text}
        if config.freeze_image:
            facts["Backbone"] = f"frozen, part of `model.safetensors`, digest `{self.backbone_digest[:16]}`"
        if S:
            facts["Proprioception"] = f"{S} numbers, standardised by the statistics of training, mapped linearly"
        facts["Embedding"] = f"{D} numbers, raw (not normalised)"
        fitted = f"stretched to {side} x {side}"
        if config.fit == "crop":
            fitted = f"the shorter side to {config.short_side or side} px, the centre {side} x {side} cut out"
        pixels = f"pixels to [0, 1] by dtype, {fitted} ({config.resample}, antialiased)"
        return self.description(usage, facts, f"{pixels}, minus {config.mean}, divided by {config.std}.")


def _full(embeddings: Tensor) -> Tensor:
    """Return at least single precision: losses divide by temperatures that half precision cannot resolve."""
    return embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
