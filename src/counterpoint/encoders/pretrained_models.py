"""Which pretrained visual representations can be loaded, and all that tells one from another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from counterpoint.encoders.towers import IMAGENET_MEAN, IMAGENET_STD, Colour

__all__ = ["PRETRAINED", "Layout", "PretrainedModel"]

_CLIP_MEAN: Colour = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD: Colour = (0.26862954, 0.26130258, 0.27577711)
_CLIP_TEXT = (
    *("transformer.", "token_embedding.", "positional_embedding", "text_projection", "ln_final.", "text."),
    *("logit_scale", "logit_bias", "input_resolution", "context_length", "vocab_size"),
)


@dataclass(frozen=True)
class Layout:
    """Where the weights of the image model lie in the file its authors released.

    A leading "module." (of `DataParallel`) is taken off every name first.

    Attributes:
        outer: Key of the state dict inside the file; empty where the file is one.
        prefix: What stands before the names of the image model.
        ignored: Names that begin so belong to something else: a language head, a decoder, a momentum copy.
    """

    outer: str
    prefix: str = ""
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class PretrainedModel:
    """One pretrained image model.

    Attributes:
        title: Of the paper.
        architecture: What `pretrained_backbone.build` makes.
        width: E, numbers a frame.
        layout: Of the released file.
        size: Side in pixels of the square the model sees.
        resize: Side in pixels the shorter edge of a frame is brought to before the centre is cut out.
        resample: How.
        mean: Channel means taken off pixels in [0, 1].
        std: Channel deviations pixels are then divided by.
        untouched: Whether frames that have the model's size already are taken as they are.
    """

    title: str
    architecture: str
    width: int
    layout: Layout
    size: int = 224
    resize: int = 256
    resample: Literal["bilinear", "bicubic"] = "bilinear"
    mean: Colour = IMAGENET_MEAN
    std: Colour = IMAGENET_STD
    untouched: bool = False


_PVR = "PVR (Parisi et al., ICML 2022): MoCo v2"
_R3M = "R3M (Nair et al., CoRL 2022)"
_VIP = "VIP (Ma et al., ICLR 2023)"
_VC1 = "VC-1 (Majumdar et al., NeurIPS 2023)"
_MVP = "MVP (Xiao et al., 2022; Radosavovic et al., CoRL 2022)"
_CLIP = "CLIP (Radford et al., ICML 2021)"


def _moco(*cut: str) -> Layout:
    """MoCo keeps a momentum copy and a queue beside the encoder; compressed ones no longer use some blocks."""
    unused = ("fc.", *cut)
    return Layout(
        "state_dict", "encoder_q.", ("encoder_k.", "queue", *(f"encoder_q.{name}" for name in unused))
    )


def _r3m(depth: int, width: int) -> PretrainedModel:
    layout = Layout("r3m", "convnet.", ("lang_enc.", "lang_rew."))
    return PretrainedModel(f"{_R3M}, ResNet-{depth}", f"resnet{depth}", width, layout, untouched=True)


_MAE = Layout("model", ignored=("decoder", "mask_token", "head."))


def _vc1(size: str, width: int) -> PretrainedModel:
    return PretrainedModel(f"{_VC1}, ViT-{size}", f"vit_{size.lower()}", width, _MAE, resample="bicubic")


def _mvp(architecture: str, width: int, size: int = 224) -> PretrainedModel:
    # Its frames are rendered at the model's size: nothing is cut off.
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
    "pvr-conv4": PretrainedModel(
        f"{_PVR}, compressed map of stage 4", "resnet50_conv4", 2058, _moco("layer4.2.")
    ),
    "pvr-conv3": PretrainedModel(
        f"{_PVR}, compressed map of stage 3", "resnet50_conv3", 2156, _moco("layer3.2.", "layer4.")
    ),
    "r3m": _r3m(50, 2048),
    "r3m-resnet34": _r3m(34, 512),
    "r3m-resnet18": _r3m(18, 512),
    "vip": PretrainedModel(_VIP, "resnet50_fc1024", 1024, Layout("vip", "convnet."), untouched=True),
    "vc1": _vc1("B", 768),
    "vc1-vitl": _vc1("L", 1024),
    "mvp": _mvp("vit_s_12heads", 384),
    "mvp-vitb": _mvp("vit_b", 768),
    "mvp-vitl-256": _mvp("vit_l", 1024, 256),
    "clip": _clip("ViT-B-32-quickgelu", 512),
    "clip-vitb16": _clip("ViT-B-16-quickgelu", 512),
    "clip-rn50": _clip("RN50-quickgelu", 1024),
}
"""By the name an `ObservationConfig` gives. Files: PVR `moco_*.pth`, R3M and VIP `model.pt`, VC-1 `vc1_vitb.pth` and
`vc1_vitl.pth`, MVP `*-mae-*.pth`, CLIP the state dict of the whole model or the tag "openai"."""
