"""The sentence tower: instructions through a frozen sentence encoder, under a learned projection."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.encoders.weights import MINILM, minilm_folder
from counterpoint.errors import MissingExtraError, require


class SentenceTower(nn.Module):
    """Unit-length sentence embeddings, computed once for each distinct text, then `nn.Linear` to D.

    The sentence encoder is no part of this module: it neither trains nor enters the state dict, is shared by the
    process, and runs on the CPU one text at a time, so that an embedding depends on its text alone.

    Args:
        name: A sentence-transformers name or folder; the default is loaded from an installed package, offline, or else
            from the Hub, and its weights are compared with their digest.
        embed_dim: D.

    Raises:
        MissingExtraError: When sentence-transformers is not installed.
    """

    def __init__(self, name: str, embed_dim: int) -> None:
        super().__init__()
        if importlib.util.find_spec("sentence_transformers") is None:
            raise MissingExtraError("sentence_transformers", "text")
        self.name = name
        self._seen: dict[str, Tensor] = {}
        # Importing sentence-transformers takes seconds: the default, whose width is known, waits for the first text.
        width = 384 if name == MINILM else len(self.embed("How wide is this?"))
        self.projection = nn.Linear(width, embed_dim)

    def forward(self, texts: list[str]) -> Float[Tensor, "N D"]:
        """Embed N texts."""
        weight = self.projection.weight
        sentences = torch.stack([self.embed(text) for text in texts])
        projected: Tensor = self.projection(sentences.to(weight.device, weight.dtype, non_blocking=True))
        return projected

    def embed(self, text: str) -> Float[Tensor, " E"]:
        """Return the frozen embedding of one text, on the CPU.

        Raises:
            BadInputError: The text is longer than the sentence encoder reads.
        """
        if text not in self._seen:
            sentence_encoder = _sentence_encoder(self.name)
            limit = sentence_encoder.max_seq_length or 10**9
            pieces = len(sentence_encoder.tokenizer(text, verbose=False)["input_ids"])
            check_length(text, pieces <= limit, f"{limit} word pieces, which {self.name} reads")
            found = sentence_encoder.encode(text, convert_to_tensor=True, normalize_embeddings=True)
            self._seen[text] = found.float()
        return self._seen[text]


def check_length(text: str, fits: object, limit: str) -> None:
    """Refuse a text that a tower would cut."""
    found, hint = f"{len(text.split())} words: {text[:60]!r} ...", "say what should happen in a sentence or two"
    require(fits, "instruction", found, f"at most {limit}", hint)


@lru_cache(maxsize=2)
def _sentence_encoder(name: str) -> Any:
    from sentence_transformers import SentenceTransformer

    with _no_progress_bar():
        if name != MINILM:
            return SentenceTransformer(name, device="cpu").eval()
        return SentenceTransformer(str(minilm_folder()), device="cpu", local_files_only=True).eval()


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
