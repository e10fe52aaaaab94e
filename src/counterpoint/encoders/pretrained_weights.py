"""Reading the files that authors of pretrained visual representations released."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from counterpoint.encoders.pretrained_models import Layout
from counterpoint.encoders.weights import fit_weights, read_torch_file, read_weights
from counterpoint.errors import BadInputError

__all__ = ["load_released"]


def load_released(module: nn.Module, path: Path, layout: Layout) -> None:
    """Load the image model in the file at `path` into `module`.

    The file is read without running code from it. Every name and every shape must agree; what the layout calls
    ignored is left out. Half-precision weights, as OpenAI ships CLIP's, become single precision.

    Raises:
        BadInputError: No such file, a damaged one, or one of another layout or architecture.
    """
    fit_weights(module, _image_model(_state_dict(path, layout), layout), path)


def _state_dict(path: Path, layout: Layout) -> dict[str, Tensor]:
    """The tensors under the layout's outer key, names without the "module." of `DataParallel`."""
    found: Mapping[str, object]
    if path.suffix == ".safetensors":
        found = {layout.outer: read_weights(path)} if layout.outer else read_weights(path)
    else:
        # MAE's training script leaves its arguments in the file: a plain container, that runs nothing.
        with torch.serialization.safe_globals([argparse.Namespace]):
            found = read_torch_file(path)
    inner = found.get(layout.outer) if layout.outer else found
    if not isinstance(inner, Mapping):
        raise BadInputError(
            path,
            found=f"the entries {', '.join(sorted(found)[:5]) or '(none)'}",
            expected=f"a state dict under {layout.outer!r}, as its authors released it",
            mend="check that `checkpoint` is the file that belongs to `model`",
        )
    return {
        str(name).removeprefix("module."): value for name, value in inner.items() if isinstance(value, Tensor)
    }


def _image_model(weights: Mapping[str, Tensor], layout: Layout) -> dict[str, Tensor]:
    """Names as the image model has them; a name the layout does not explain stays, for the check to tell."""
    return {
        name.removeprefix(layout.prefix): value.float() if value.is_floating_point() else value
        for name, value in weights.items()
        if not name.startswith(layout.ignored)
    }
