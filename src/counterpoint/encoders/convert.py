"""The DecisionNCE and AcTOL authors' released weights, as encoders of this library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from counterpoint.encoders.dual import DualEncoder, EncoderConfig
from counterpoint.encoders.weights import fit_weights, read_torch_file
from counterpoint.errors import require

Method = Literal["decisionnce", "actol"]

METHODS: dict[Method, str] = {
    "decisionnce": "DecisionNCE: Embodied Multimodal Representations via Implicit Preference Learning "
    "(Li et al., ICML 2024), trained by its authors and converted.",
    "actol": "AcTOL: Provable Ordering and Continuity in Vision-Language Pretraining for Generalizable "
    "Embodied Agents (Zhang et al., 2025), trained by its authors and converted.",
}
"""Methods whose checkpoints can be converted, with the text of their model card."""

AUTHORS_CLIP = EncoderConfig(image="open_clip", image_model="RN50-quickgelu", text="open_clip")
"""OpenAI's RN50, which both papers start from: 1024 dimensions, 224 px, QuickGELU in the text tower."""

_LEFT_OUT = ("input_resolution", "context_length", "vocab_size", "logit_scale")
_TEXT = ("positional_embedding", "text_projection", "token_embedding.", "transformer.", "ln_final.")


def convert_checkpoint(method: Method, path: str | Path, out: str | Path) -> Path:
    """Turn the authors' checkpoint at `path` into a folder for `DualEncoder.from_pretrained`.

    The file is the state dict of OpenAI's `clip.load("RN50")` wrapped in a module attribute `model`, alone or
    under the key "model" of a training checkpoint. It is read without running code from it. Half-precision
    weights, as OpenAI ships them, become single precision. The authors resize the short side to 224 px
    (bicubic) and crop the centre, and so does the encoder.

    Args:
        method: The checkpoint's method, for the model card.
        path: The authors' file.
        out: Folder to write; made when missing.

    Returns:
        `out`.

    Raises:
        BadInputError: When the file is missing, damaged, or holds another model; `out` is not touched.
        MissingExtraError: When open_clip is not installed.
    """
    path, out = Path(path), Path(out)
    weights = _authors_weights(path)
    encoder = DualEncoder(AUTHORS_CLIP)
    fit_weights(encoder, weights, path)
    encoder.eval().save_pretrained(
        out,
        title=f"{method} (converted)",
        start="the authors' released checkpoint",
        method=METHODS[method],
        data="EPIC-KITCHENS-100, by the authors, starting from OpenAI's CLIP RN50.",
    )
    return out


def _authors_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors in the authors' file under our names; settings and temperature are left out."""
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
