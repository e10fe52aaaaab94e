"""Frames and instructions in, embeddings out: checked, in bounded batches, without gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from counterpoint.errors import BadInputError

__all__ = ["Embedder", "check_frames", "check_instructions", "embed_frames", "embed_text"]

Array = NDArray[np.float64]


class Embedder(Protocol):
    """What a reward needs of an encoder; `counterpoint.encoders.base.DualEncoder` is one."""

    @property
    def embed_dim(self) -> int:
        """D."""

    def encode_image(self, frames: Tensor, /) -> Tensor:
        """Raw embeddings [T, D] of frames [T, H, W, 3], uint8 or float in [0, 1]."""

    def encode_text(self, text: Sequence[str], /) -> Tensor:
        """Raw embeddings [L, D] of L texts."""


def embed_frames(
    encoder: Embedder, frames: NDArray[Any] | Tensor, batch_size: int = 64
) -> Float[Array, "T D"]:
    """Raw embeddings of a video, `batch_size` frames at a time.

    Args:
        encoder: What embeds.
        frames: [T, H, W, 3], uint8 in [0, 255] or float in [0, 1].
        batch_size: Frames encoded at once.

    Raises:
        BadInputError: When the frames have another dtype, shape or range.
    """
    pixels = check_frames(frames)
    device = _device(encoder)
    with _scoring(encoder):
        parts = [
            encoder.encode_image(pixels[at : at + batch_size].to(device)).double().cpu()
            for at in range(0, len(pixels), batch_size)
        ]
    embeddings: Array = torch.cat(parts).numpy()
    return embeddings


def embed_text(encoder: Embedder, texts: str | Sequence[str]) -> Float[Array, "L D"]:
    """Raw embeddings of L texts.

    Raises:
        BadInputError: When there is none, or one is empty or not text.
    """
    with _scoring(encoder):
        embeddings: Array = encoder.encode_text(check_instructions(texts)).double().cpu().numpy()
    return embeddings


def check_frames(frames: NDArray[Any] | Tensor) -> Tensor:
    """Frames as a tensor [T, H, W, 3]: uint8 in [0, 255] or float32 in [0, 1].

    Raises:
        BadInputError: When they are anything else. The dtype decides the range, never the values.
    """
    if not isinstance(frames, np.ndarray | Tensor):
        raise _bad_frames(type(frames).__name__, "stack them: np.stack(frames)")
    if frames.ndim != 4 or frames.shape[-1] != 3:
        channels_first = frames.ndim == 4 and frames.shape[1] == 3
        mend = "move the channels last" if channels_first else "give the RGB frames of one video"
        raise _bad_frames(f"shape {tuple(frames.shape)}", mend)
    if 0 in frames.shape:
        raise _bad_frames(f"no pixels, shape {tuple(frames.shape)}", "give at least one frame")
    name = str(frames.dtype).removeprefix("torch.")
    if name not in ("uint8", "float16", "float32", "float64"):
        raise _bad_frames(f"dtype {name}", "convert to uint8, or divide to [0, 1] as float32")
    pixels = frames if isinstance(frames, Tensor) else torch.from_numpy(np.ascontiguousarray(frames))
    if pixels.dtype == torch.uint8:
        return pixels
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= 0.0 and high <= 1.0):  # written so that nan fails too
        raise _bad_frames(f"floats in [{low:g}, {high:g}]", "divide by 255, or give uint8")
    return pixels.float()


def check_instructions(instructions: str | Sequence[str]) -> list[str]:
    """One instruction or several, as a list.

    Raises:
        BadInputError: When there is none, or one is empty or not text.
    """
    texts = [instructions] if isinstance(instructions, str) else instructions
    if not isinstance(texts, Sequence) or isinstance(texts, bytes) or len(texts) == 0:
        raise _bad_instruction("instruction", repr(instructions))
    for index, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            raise _bad_instruction("instruction" if len(texts) == 1 else f"instruction {index}", repr(text))
    return list(texts)


def _bad_frames(found: str, mend: str) -> BadInputError:
    expected = "frames [T, H, W, 3], uint8 in [0, 255] or float in [0, 1]"
    return BadInputError("frames", found=found, expected=expected, mend=mend)


def _bad_instruction(where: str, found: str) -> BadInputError:
    expected = "text that is not empty"
    return BadInputError(where, found=found, expected=expected, mend="say what should happen, in words")


def _device(encoder: Embedder) -> torch.device:
    parameter = next(encoder.parameters(), None) if isinstance(encoder, nn.Module) else None
    return parameter.device if parameter is not None else torch.device("cpu")


@contextmanager
def _scoring(encoder: Embedder) -> Iterator[None]:
    """No gradient and evaluation mode; every submodule is given its own mode back."""
    modules = list(encoder.modules()) if isinstance(encoder, nn.Module) else []
    modes = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        with torch.no_grad():
            yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
