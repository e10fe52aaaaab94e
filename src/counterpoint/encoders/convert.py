"""Conversion of the weights that papers' authors released to encoders of this library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from tyro.conf import Positional, arg

from counterpoint.encoders.card import Card
from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.encoders.pretrained import PRETRAINED, released_weights
from counterpoint.encoders.weights import fit_weights, read_torch_file, read_weights
from counterpoint.errors import require
from counterpoint.files import sha256_of

Method = Literal["decisionnce", "actol", "liv", "vip", "r3m", "r3m-34", "r3m-18", "premier_taco"]

_CONVERTED = ", trained by its authors and converted."
_WORDLESS = " It reads no instructions: its reward is nearness to a goal image; embeddings of text mean nothing."
_EPIC = "EPIC-KITCHENS-100, by the authors, starting from OpenAI's CLIP RN50."
_R3M = Card(
    method=f"R3M: A Universal Visual Representation for Robot Manipulation (Nair et al., CoRL 2022){_CONVERTED}"
    f"{_WORDLESS} The file's language reward is left out, as by the authors' loader.",
    data="Ego4D, by the authors.",
    license="mit",
)

METHODS: dict[Method, Card] = {
    "decisionnce": Card(
        method="DecisionNCE: Embodied Multimodal Representations via Implicit Preference Learning (Li et al., ICML "
        f"2024){_CONVERTED}",
        data=_EPIC,
        license="mit",
    ),
    "actol": Card(
        method="AcTOL: Provable Ordering and Continuity in Vision-Language Pretraining for Generalizable Embodied "
        f"Agents (Zhang et al., 2025){_CONVERTED}",
        data=_EPIC,
    ),
    "liv": Card(
        method=f"LIV: Language-Image Representations and Rewards for Robotic Control (Ma et al., 2023){_CONVERTED}",
        data=_EPIC,
    ),
    "vip": Card(
        method="VIP: Towards Universal Visual Reward and Representation via Value-Implicit Pre-Training (Ma et al., "
        f"ICLR 2023){_CONVERTED}{_WORDLESS}",
        data="Ego4D, by the authors.",
        license="cc-by-nc-4.0",
    ),
    "r3m": _R3M,
    "r3m-34": _R3M,
    "r3m-18": _R3M,
    "premier_taco": Card(
        method=f"Premier-TACO is a Few-Shot Policy Learner (Zheng et al., ICML 2024){_CONVERTED}",
        data="Logged control of dm_control or Meta-World, by the authors.",
    ),
}
"""Methods whose checkpoints can be converted, with what their model card says; the licence is the repository's."""

AUTHORS_CLIP = EncoderConfig(image="open_clip", image_model="RN50-quickgelu", text="open_clip")
"""OpenAI's RN50, which DecisionNCE and AcTOL start from: 1024 dimensions, 224 px, QuickGELU in the text tower."""

LIV_CLIP = AUTHORS_CLIP.model_copy(update={"resample": "bilinear_aliased"})
"""The same network; LIV's code resizes tensors, which its example gives it, bilinearly and without antialiasing."""

_RESNETS = {"vip": "vip", "r3m": "r3m", "r3m-34": "r3m-resnet34", "r3m-18": "r3m-resnet18"}
"""Method -> key of `PRETRAINED`."""

_LEFT_OUT = ("input_resolution", "context_length", "vocab_size", "logit_scale")
_TEXT = ("positional_embedding", "text_projection", "token_embedding.", "transformer.", "ln_final.")


def convert_checkpoint(
    method: Positional[Method],
    path: Positional[Annotated[str | Path, arg(metavar="PATH")]],
    out: Annotated[str | Path, arg(metavar="PATH")],
) -> Path:
    """Convert a checkpoint that a paper's authors released to a model of this library, without running code from it.

    Checkpoints of DecisionNCE, AcTOL and LIV become a `DualEncoder`. They must be the state dict of OpenAI's
    `clip.load("RN50")` wrapped in a module attribute `model`, either directly or under the key "model" (LIV: "liv") of
    a training checkpoint. Half-precision weights, as OpenAI ships them, become single precision. As in the authors'
    code, the encoder resizes the short side to 224 px (bicubic with antialiasing; LIV: bilinear without it) and crops
    the centre. Checkpoints of VIP and R3M become a `DualEncoder` whose reward is the nearness to a goal image,
    -||phi(o) - phi(g)||: the short side is resized to 256 px and 224 px are cropped, unless the frame has 224 x 224 px.
    Checkpoints of Premier-TACO become an `ObservationEncoder`. They must be the state dict of the network in Listing 1
    (`convnet.*`, `trunk.*`) on stacks of 84 x 84 px, the oldest frame first, normalised as x / 255 - 0.5.

    Time: some seconds. Disk: about as much as the checkpoint.

    Args:
        method: The method that the checkpoint was trained with; r3m has a ResNet-50, r3m-34 and r3m-18 smaller ones.
        path: The file that the authors released.
        out: The folder to write.

    Returns:
        The folder `out`.

    Raises:
        BadInputError: If the file is missing, damaged, or holds another model; `out` is not changed.
        MissingExtraError: If open_clip, timm or sentence-transformers is needed and not installed.
    """
    path, out = Path(path), Path(out)
    encoder: DualEncoder | ObservationEncoder
    if method == "premier_taco":
        encoder = _drq_encoder(path)
    elif method in _RESNETS:
        encoder = _resnet_encoder(_RESNETS[method], path)
    else:
        weights = _clip_weights(path, "liv" if method == "liv" else "model")
        encoder = DualEncoder(LIV_CLIP if method == "liv" else AUTHORS_CLIP)
        fit_weights(encoder, weights, path)
    start = f"the authors' released checkpoint, `{path.name}`, sha256 `{sha256_of(path)}`"
    card = METHODS[method] | Card(title=f"{method} (converted)", start=start)
    encoder.eval().save_pretrained(out, **card)
    return out


def _drq_encoder(path: Path) -> ObservationEncoder:
    """Return Premier-TACO's encoder with the authors' weights."""
    weights = read_weights(path)
    first, last = (weights.get(name, torch.empty(0)) for name in ("convnet.0.weight", "trunk.0.weight"))
    found = f"{len(weights)} tensors ({', '.join(sorted(weights)[:3]) or 'none'}, ...)"
    expected = "the tensors convnet.0.weight to trunk.1.bias of Premier-TACO's encoder"
    ok = first.ndim == 4 and last.ndim == 2 and first.shape[1] % 3 == 0
    require(ok, path, found, expected, "give the encoder file the authors released")
    encoder = ObservationEncoder(ObservationConfig(stack=first.shape[1] // 3, embed_dim=len(last)))
    fit_weights(encoder.body, weights, path)
    return encoder


def _resnet_encoder(name: str, path: Path) -> DualEncoder:
    """Return the encoder of VIP or R3M, with the authors' weights and the linear head of VIP; R3M's is the identity."""
    model = PRETRAINED[name]
    own = {
        name.replace("fc.", "projection.") if name.startswith("fc.") else f"backbone.{name}": value
        for name, value in released_weights(path, model.layout).items()
    }
    architecture, _, head = model.architecture.partition("_")
    if not head:
        own |= {"projection.weight": torch.eye(model.width), "projection.bias": torch.zeros(model.width)}
    preprocessing: Any = {"image_size": model.size, "short_side": model.resize}
    preprocessing |= {field: getattr(model, field) for field in ("fit", "resample", "mean", "std")}
    config = EncoderConfig(image="timm", image_model=architecture, embed_dim=model.width, **preprocessing)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of the text tower's projection, which is not trained
        encoder = DualEncoder(config.model_copy(update={"reward_form": "goal"}))
    fit_weights(encoder.image, own, path)
    return encoder


def _clip_weights(path: Path, key: str) -> dict[str, Tensor]:
    """Return the tensors in the authors' file under this library's names, without settings and temperature.

    Args:
        path: The file.
        key: The key of a training checkpoint that may hold the state dict.
    """
    found: Mapping[str, object] = read_torch_file(path)
    inner = found.get(key)
    inner = inner if isinstance(inner, Mapping) else found
    tensors = {str(k).removeprefix("module."): v for k, v in inner.items() if isinstance(v, Tensor)}
    found_names = f"{len(tensors)} tensors ({', '.join(sorted(tensors)[:3]) or 'none'}, ...)"
    expected = f"OpenAI CLIP tensors such as model.visual.conv1.weight, alone or under the key {key}"
    ok = any(name.startswith("model.visual.") for name in tensors)
    require(ok, path, found_names, expected, "give the checkpoint file the authors released")
    renamed: dict[str, Tensor] = {}
    for name, value in tensors.items():
        name = name.removeprefix("model.")
        name = f"text.tower.{name}" if name.startswith(_TEXT) else re.sub(r"^visual\.", "image.", name)
        if name not in _LEFT_OUT:
            renamed[name] = value.to(torch.float32) if value.is_floating_point() else value
    return renamed
