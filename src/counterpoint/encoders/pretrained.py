"""Pretrained visual representations: released weights of PVR, R3M, VIP, VC-1, MVP and CLIP, and EfficientNet-Lite0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from jaxtyping import Float, Shaped, UInt8
from torch import Tensor, nn

from counterpoint.encoders import clip
from counterpoint.encoders.config import Colour, EncoderConfig, Fit, Resample
from counterpoint.encoders.dual import IMAGENET_MEAN, IMAGENET_STD, preprocess
from counterpoint.encoders.towers import PACKAGED, load_packaged
from counterpoint.encoders.weights import fit_weights, read_torch_file, read_weights, tag_or_file
from counterpoint.errors import import_extra, require

_CLIP_MEAN: Colour = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD: Colour = (0.26862954, 0.26130258, 0.27577711)
_CLIP_TEXT = (
    *("transformer.", "token_embedding.", "positional_embedding", "text_projection", "ln_final.", "text."),
    *("logit_scale", "logit_bias", "input_resolution", "context_length", "vocab_size"),
)


@dataclass(frozen=True)
class Layout:
    """The location of the image model's weights in a released file; a leading "module." in names is removed first.

    Attributes:
        outer: Key of the state dict in the file; empty if the file is a state dict itself.
        prefix: Prefix of the names of the image model's weights.
        ignored: Prefixes of other weights: a language head, a decoder, a momentum copy.
    """

    outer: str
    prefix: str = ""
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class PretrainedModel:
    """One pretrained image model.

    Attributes:
        title: The paper and the model.
        architecture: Name of the network that `build` makes.
        width: Number of features per frame (E).
        layout: Layout of the released file.
        size: Side in pixels of the model's square input.
        fit: How frames become squares; see `EncoderConfig`.
        resize: Length in pixels that a frame's shorter side is resized to before the centre is cropped.
        resample: Interpolation of that resizing.
        mean: Channel means of pixels in [0, 1].
        std: Channel standard deviations of these pixels.
    """

    title: str
    architecture: str
    width: int
    layout: Layout
    size: int = 224
    fit: Fit = "crop"
    resize: int = 256
    resample: Resample = "bilinear"
    mean: Colour = IMAGENET_MEAN
    std: Colour = IMAGENET_STD


_PVR = "PVR (Parisi et al., ICML 2022): MoCo v2"
_R3M = "R3M (Nair et al., CoRL 2022)"
_VIP = "VIP (Ma et al., ICLR 2023)"
_VC1 = "VC-1 (Majumdar et al., NeurIPS 2023)"
_MVP = "MVP (Xiao et al., 2022; Radosavovic et al., CoRL 2022)"
_CLIP = "CLIP (Radford et al., ICML 2021)"
_LITE0 = "tf_efficientnet_lite0"


def _moco(*cut: str) -> Layout:
    """Return MoCo's layout, with a momentum copy and a queue; `cut` names blocks that compressed models lack."""
    unused = ("fc.", *cut)
    return Layout("state_dict", "encoder_q.", ("encoder_k.", "queue", *(f"encoder_q.{name}" for name in unused)))


def _r3m(depth: int, width: int) -> PretrainedModel:
    layout = Layout("r3m", "convnet.", ("lang_enc.", "lang_rew."))
    return PretrainedModel(f"{_R3M}, ResNet-{depth}", f"resnet{depth}", width, layout, fit="crop_others")


_MAE = Layout("model", ignored=("decoder", "mask_token", "head."))


def _vc1(size: str, width: int) -> PretrainedModel:
    return PretrainedModel(f"{_VC1}, ViT-{size}", f"vit_{size.lower()}", width, _MAE, resample="bicubic")


def _mvp(architecture: str, width: int, size: int = 224) -> PretrainedModel:
    # MVP's frames are rendered at the model's size.
    return PretrainedModel(_MVP, architecture, width, _MAE, size=size, resize=size)


def _clip(architecture: str, width: int) -> PretrainedModel:
    layout = Layout("", "visual.", _CLIP_TEXT)
    return PretrainedModel(
        f"{_CLIP}, {architecture}",
        architecture,
        width,
        layout,
        resize=224,
        resample="bicubic",
        mean=_CLIP_MEAN,
        std=_CLIP_STD,
    )


PRETRAINED: dict[str, PretrainedModel] = {
    "pvr": PretrainedModel(f"{_PVR}, last layer", "resnet50", 2048, _moco()),
    "pvr-conv4": PretrainedModel(f"{_PVR}, compressed map of stage 4", "resnet50_conv4", 2058, _moco("layer4.2.")),
    "pvr-conv3": PretrainedModel(
        f"{_PVR}, compressed map of stage 3", "resnet50_conv3", 2156, _moco("layer3.2.", "layer4.")
    ),
    "r3m": _r3m(50, 2048),
    "r3m-resnet34": _r3m(34, 512),
    "r3m-resnet18": _r3m(18, 512),
    "vip": PretrainedModel(_VIP, "resnet50_fc1024", 1024, Layout("vip", "convnet."), fit="crop_others"),
    "vc1": _vc1("B", 768),
    "vc1-vitl": _vc1("L", 1024),
    "mvp": _mvp("vit_s_12heads", 384),
    "mvp-vitb": _mvp("vit_b", 768),
    "mvp-vitl-256": _mvp("vit_l", 1024, 256),
    "clip": _clip("ViT-B-32-quickgelu", 512),
    "clip-vitb16": _clip("ViT-B-16-quickgelu", 512),
    "clip-rn50": _clip("RN50-quickgelu", 1024),
    "efficientnet-lite0": PretrainedModel(
        "EfficientNet-Lite0 on ImageNet",
        _LITE0,
        1280,
        Layout(""),
        size=96,
        resize=96,
        mean=PACKAGED[_LITE0].mean,
        std=PACKAGED[_LITE0].std,
    ),
}
"""Models by their name in `ObservationConfig.model`.

Released files: PVR `moco_*.pth`, R3M and VIP `model.pt`, VC-1 `vc1_vitb.pth` and `vc1_vitl.pth`, MVP `*-mae-*.pth`. For
CLIP, give the state dict of the whole model, or the tag "openai". The weights of EfficientNet-Lite0, which is small
enough for a CPU at 96 pixels, come from a package (`checkpoint = "package"`, extra `vision`) or from a file with timm's
names.
"""


_VITS = {"vit_s_12heads": (384, 12, 12), "vit_b": (768, 12, 12), "vit_l": (1024, 24, 16)}
"""Width, depth, heads. MVP's ViT-S has twelve heads; timm's has six, and would load the weights without an error."""

_COMPRESSED = {"conv3": ("layer3", 1024, 11), "conv4": ("layer4", 2048, 42)}
"""Stage, its number of channels, and the number of channels that its map is compressed to before flattening."""


def build(model: PretrainedModel, *, tag: str | None = None) -> nn.Module:
    """Return the image model with random weights; it maps normalised images [N, 3, S, S] to [N, E].

    Args:
        model: The model.
        tag: A pretrained tag of open_clip, for CLIP only.

    Raises:
        MissingExtraError: If torchvision, timm or open_clip is not installed.
    """
    if model.architecture.startswith("resnet"):
        return _resnet(*model.architecture.split("_"))
    if model.architecture == _LITE0:
        lite: nn.Module = import_extra("timm", "vision").create_model(_LITE0, num_classes=0)
        return lite
    if model.architecture in _VITS:
        return _vit(*_VITS[model.architecture], size=model.size)
    return clip.build_image(EncoderConfig(image="open_clip", image_model=model.architecture, pretrained=tag)).module


def _resnet(name: str, end: str = "") -> nn.Module:
    """Return a torchvision ResNet that ends in its pooled map, in a linear layer, or in a compressed map."""
    resnet = import_extra("torchvision.models", "clip").resnet
    network: Any = getattr(resnet, name)(weights=None)
    network.fc = nn.Linear(network.fc.in_features, int(end[2:])) if end.startswith("fc") else nn.Identity()
    if end in _COMPRESSED:
        stage, channels, narrow = _COMPRESSED[end]
        shortcut = nn.Sequential(nn.Conv2d(channels, narrow, 3, padding=1), nn.BatchNorm2d(narrow))
        squeeze = resnet.BasicBlock(channels, narrow, downsample=shortcut)
        if end == "conv3":
            network.layer4 = nn.Identity()
        # Named as in the released files: the stage, then the block that reduces the map's channels. The released
        # models have a third block, which restores the channels in training; it is not built.
        setattr(network, stage, nn.Sequential(getattr(network, stage), squeeze))
        network.avgpool = nn.Identity()
    module: nn.Module = network
    return module


def _vit(width: int, depth: int, heads: int, *, size: int) -> nn.Module:
    """Return a timm ViT with 16-pixel patches; its output is the class token after the last normalisation (MAE)."""
    module: nn.Module = import_extra("timm.models.vision_transformer", "clip").VisionTransformer(
        img_size=size,
        patch_size=16,
        embed_dim=width,
        depth=depth,
        num_heads=heads,
        num_classes=0,
        norm_layer=partial(nn.LayerNorm, eps=1e-6),
    )
    return module


def released_weights(path: Path, layout: Layout) -> dict[str, Tensor]:
    """Return the image model's weights in a released file, without those that the layout ignores.

    The file is read without running code from it. Half-precision weights, such as OpenAI's CLIP weights, become single
    precision.

    Raises:
        BadInputError: If the file is missing, damaged, or has another layout.
    """
    found: Mapping[str, object]
    if path.suffix == ".safetensors":
        found = {layout.outer: read_weights(path)} if layout.outer else read_weights(path)
    else:
        found = read_torch_file(path)
    inner: Any = found.get(layout.outer) if layout.outer else found
    entries = f"the entries {', '.join(sorted(found)[:5]) or '(none)'}"
    expected = f"a state dict under {layout.outer!r}, as its authors released it"
    hint = "check that it is the file that belongs to this model"
    require(isinstance(inner, Mapping), path, entries, expected, hint)
    weights = {str(name).removeprefix("module."): value for name, value in inner.items() if isinstance(value, Tensor)}
    own = {name.removeprefix(layout.prefix): v for name, v in weights.items() if not name.startswith(layout.ignored)}
    return {name: value.float() if value.is_floating_point() else value for name, value in own.items()}


_AT_ONCE = 64  # frames in one forward pass
_LEAST = 0.1  # minimum deviation of a feature, as a share of the deviation of all features


class PretrainedEncoder(nn.Module):
    """A pretrained model applied to each frame of a stack; features are concatenated, the oldest frame first.

    All weights can be trained. Batch normalisation keeps its pretrained statistics in training too, so that a frame's
    embedding does not depend on other frames and frozen weights give the same features in both modes.

    Args:
        name: A key of `PRETRAINED`.
        checkpoint: The authors' file; for CLIP also a tag of open_clip ("openai"), for EfficientNet-Lite0 "package".
            `None`: random weights.
        stack: Number of frames in a stack (S).
        centred: True to centre and scale every feature by the mean and deviation that `centre_on` measures.

    Attributes:
        embed_dim: Dimensions of the embedding, D = S E.

    Raises:
        BadInputError: If a file cannot be read or does not fit, or a tag is given for a model without tags.
        MissingExtraError: If torchvision, timm or open_clip is not installed.
    """

    mean: Tensor
    std: Tensor
    mean_feature: Tensor
    deviation: Tensor

    def __init__(self, name: str, checkpoint: str | None = None, *, stack: int = 1, centred: bool = False) -> None:
        super().__init__()
        self.model: PretrainedModel = PRETRAINED[name]
        self.embed_dim = self.model.width * stack
        tag, path = tag_or_file(checkpoint)
        packaged = tag == "package" and self.model.architecture in PACKAGED
        ok = tag is None or packaged or (name.startswith("clip") and path is None)
        expected = f"the file released for {name}: {self.model.title}"
        require(ok, "checkpoint", repr(tag), expected, 'write a local file as "./name"')
        self.backbone = build(self.model, tag=tag)
        if packaged:
            load_packaged(self.backbone, self.model.architecture)
        if path:
            fit_weights(self.backbone, released_weights(path, self.model.layout), path)
        self.backbone.to(memory_format=torch.channels_last)
        self.register_buffer("mean", torch.tensor(self.model.mean), persistent=False)
        self.register_buffer("std", torch.tensor(self.model.std), persistent=False)
        self.centred = centred
        if centred:
            self.register_buffer("mean_feature", torch.zeros(self.model.width))
            self.register_buffer("deviation", torch.ones(self.model.width))
        self.train(self.training)

    def forward(self, frames: Shaped[Tensor, "N S H W 3"]) -> Float[Tensor, "N D"]:
        """Embed N observations, uint8 in [0, 255] or float in [0, 1]; D = S E."""
        model, pixels = self.model, frames.flatten(0, 1)
        fitting: Any = {"fit": model.fit, "short_side": model.resize, "resample": model.resample}
        features: Tensor = self.backbone(preprocess(pixels, size=model.size, mean=self.mean, std=self.std, **fitting))
        if self.centred:
            features = (features - self.mean_feature) / self.deviation
        return features.reshape(len(frames), -1)

    @torch.no_grad()
    def centre_on(self, images: UInt8[Tensor, "N H W 3"]) -> None:
        """Measure mean and deviation of every feature on training frames, with the current weights.

        Each deviation is raised to at least a tenth of the deviation of all features together, so that features that
        hardly vary in training stay small later.
        """
        self.mean_feature.zero_()
        self.deviation.fill_(1)
        features = torch.cat([self(some[:, None]) for some in torch.split(images, _AT_ONCE)])
        self.mean_feature.copy_(features.mean(0))
        least = max(_LEAST * float(features.std(correction=0)), 1e-3)
        self.deviation.copy_(features.std(0, correction=0).clamp_min(least))

    def train(self, mode: bool = True) -> Self:
        """Switch to training or evaluation; batch normalisation stays in evaluation."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self
