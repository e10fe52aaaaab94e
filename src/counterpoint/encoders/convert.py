"""Conversion of weights released by the authors of DecisionNCE, AcTOL and Premier-TACO to encoders of this library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import torch
from torch import Tensor
from tyro.conf import Positional, arg

from counterpoint.encoders.card import Card
from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.encoders.weights import fit_weights, read_torch_file, read_weights
from counterpoint.errors import require

Method = Literal["decisionnce", "actol", "premier_taco"]

METHODS: dict[Method, str] = {
    "decisionnce": "DecisionNCE: Embodied Multimodal Representations via Implicit Preference Learning "
    "(Li et al., ICML 2024), trained by its authors and converted.",
    "actol": "AcTOL: Provable Ordering and Continuity in Vision-Language Pretraining for Generalizable "
    "Embodied Agents (Zhang et al., 2025), trained by its authors and converted.",
    "premier_taco": "Premier-TACO is a Few-Shot Policy Learner (Zheng et al., ICML 2024), trained by its authors and "
    "converted.",
}
"""Methods whose checkpoints can be converted, with the text of their model card."""

AUTHORS_CLIP = EncoderConfig(image="open_clip", image_model="RN50-quickgelu", text="open_clip")
"""OpenAI's RN50, which DecisionNCE and AcTOL start from: 1024 dimensions, 224 px, QuickGELU in the text tower."""

_LEFT_OUT = ("input_resolution", "context_length", "vocab_size", "logit_scale")
_TEXT = ("positional_embedding", "text_projection", "token_embedding.", "transformer.", "ln_final.")


def convert_checkpoint(
    method: Positional[Method],
    path: Positional[Annotated[str | Path, arg(metavar="PATH")]],
    out: Annotated[str | Path, arg(metavar="PATH")],
) -> Path:
    """Convert a checkpoint that a paper's authors released to a model of this library, without running code from it.

    Checkpoints of DecisionNCE and AcTOL become a `DualEncoder`. They must be the state dict of OpenAI's
    `clip.load("RN50")` wrapped in a module attribute `model`, either directly or under the key "model" of a training
    checkpoint. Half-precision weights, as OpenAI ships them, become single precision. As in the authors' code, the
    encoder resizes the short side to 224 px (bicubic) and crops the centre. Checkpoints of Premier-TACO become an
    `ObservationEncoder`. They must be the state dict of the network in Listing 1 (`convnet.*`, `trunk.*`) on stacks of
    84 x 84 px, the oldest frame first, normalised as x / 255 - 0.5.

    Time: some seconds. Disk: about as much as the checkpoint.

    Args:
        method: The method that the checkpoint was trained with.
        path: The file that the authors released.
        out: The folder to write.

    Returns:
        The folder `out`.

    Raises:
        BadInputError: If the file is missing, damaged, or holds another model; `out` is not changed.
        MissingExtraError: If open_clip is not installed.
    """
    path, out = Path(path), Path(out)
    card: Card = {
        "title": f"{method} (converted)",
        "start": "the authors' released checkpoint",
        "method": METHODS[method],
        "data": "Logged control of dm_control or Meta-World, by the authors.",
    }
    encoder: DualEncoder | ObservationEncoder
    if method == "premier_taco":
        encoder = _drq_encoder(path)
    else:
        weights = _clip_weights(path)
        encoder = DualEncoder(AUTHORS_CLIP)
        fit_weights(encoder, weights, path)
        card["data"] = "EPIC-KITCHENS-100, by the authors, starting from OpenAI's CLIP RN50."
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


def _clip_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors in the authors' file under this library's names, without settings and temperature."""
    found: Mapping[str, object] = read_torch_file(path)
    inner = found.get("model")
    tensors = {k: v for k, v in (inner if isinstance(inner, Mapping) else found).items() if isinstance(v, Tensor)}
    found_names = f"{len(tensors)} tensors ({', '.join(sorted(tensors)[:3]) or 'none'}, ...)"
    expected = "OpenAI CLIP tensors such as model.visual.conv1.weight, alone or under the key model"
    ok = any(name.startswith("model.visual.") for name in tensors)
    require(ok, path, found_names, expected, "give the checkpoint file the authors released")
    renamed: dict[str, Tensor] = {}
    for name, value in tensors.items():
        name = name.removeprefix("model.")
        name = f"text.tower.{name}" if name.startswith(_TEXT) else re.sub(r"^visual\.", "image.", name)
        if name not in _LEFT_OUT:
            renamed[name] = value.to(torch.float32) if value.is_floating_point() else value
    return renamed
