"""Image towers beside the ConvNet: the library's own ResNet-18 and timm's models."""

from __future__ import annotations

import difflib
from collections import OrderedDict
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.encoders.dual import EncoderConfig, ImageTower, own_tower
from counterpoint.encoders.weights import fit_weights, read_weights, tag_or_file
from counterpoint.errors import BadInputError, import_extra, require

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
    embed_dim = config.embed_dim or 256
    return ImageTower(own_tower(ResNet18(embed_dim), config), embed_dim, config.image_size or 112)


def build_timm_tower(config: EncoderConfig) -> ImageTower:
    """Return `timm.create_model(config.image_model)` without its classifier, then `nn.Linear` to D (256).

    Normalisation and size are those timm gives for the model and its tag; position embeddings are resampled
    to `config.image_size` where the model can.

    Raises:
        BadInputError: When a model or tag is unknown, or weights cannot be fetched or do not fit.
        MissingExtraError: When timm is not installed.
    """
    timm = import_extra("timm", "clip")
    tag, path = tag_or_file(config.pretrained)
    name = _full_name(timm, config.image_model, tag)
    try:
        model: Any = timm.create_model(name, pretrained=tag is not None, num_classes=0)
    except OSError as error:
        found = f"weights of {name} that cannot be fetched ({str(error).splitlines()[0]})"
        hint = 'fetch them once online, or give a local file: pretrained = "./weights.safetensors"'
        raise BadInputError("pretrained", found, "the weights in the local cache", hint) from error
    expects: dict[str, Any] = timm.data.resolve_model_data_config(model)
    if path:
        heads = model.default_cfg.get("classifier") or ()
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


def _full_name(timm: Any, image_model: str, tag: str | None) -> str:
    """Return `architecture.tag`, both known to timm; the tag may be in the name, in `pretrained`, or in both."""
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
