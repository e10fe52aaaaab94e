"""Numbers the authors' own functions gave: `<name>.npz` holds arrays, `<name>.json` how they were made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["golden"]


def golden(name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The arrays of golden `name` as tensors of their own dtype (float64, int64), and its notes."""
    folder = Path(__file__).parent
    with np.load(folder / f"{name}.npz", allow_pickle=False) as stored:
        arrays = {key: torch.from_numpy(stored[key]) for key in stored.files}
    meta: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return arrays, meta
