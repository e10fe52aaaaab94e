"""Frames and instructions in, embeddings out: checked, in bounded batches, without gradient.

`RewardModel`: an encoder of images and text, asked how far a video has come with an instruction.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from counterpoint.errors import BadInputError
from counterpoint.rewards.scores import direction, potential

__all__ = [
    "Embedder",
    "RewardForm",
    "RewardModel",
    "as_form",
    "check_frames",
    "check_instructions",
    "embed_frames",
    "embed_text",
    "read_run_config",
]


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


def embed_frames(encoder: Embedder, frames: NDArray[Any] | Tensor, batch_size: int = 64) -> Float[Array, "T D"]:
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
        hint = "move the channels last" if channels_first else "give the RGB frames of one video"
        raise _bad_frames(f"shape {tuple(frames.shape)}", hint)
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


def _bad_frames(found: str, hint: str) -> BadInputError:
    expected = "frames [T, H, W, 3], uint8 in [0, 255] or float in [0, 1]"
    return BadInputError("frames", found, expected, hint)


def _bad_instruction(where: str, found: str) -> BadInputError:
    expected = "text that is not empty"
    return BadInputError(where, found, expected, "say what should happen, in words")


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


RewardForm = Literal["potential", "direction"]
Video = TypeVar("Video", NDArray[Any], Tensor)


class RewardModel:
    """Rewards of a video under instructions, with no training and no gradient.

    Every method takes frames [T, H, W, 3], uint8 in [0, 255] or float in [0, 1], and one instruction or
    several. One instruction gives [T] and a list of L gives [L, T], float32, in the kind of the frames: an
    array for an array, a tensor for a tensor. Frames of another dtype, shape or range, and instructions that
    are empty or no text, raise `BadInputError`.

    Args:
        encoder: Image and text towers into one space.
        form: What `reward` means; a run writes it into its configuration as `reward_form`.
        batch_size: Frames encoded at once, which bounds memory whatever the video's length.

    Example:
        >>> model = RewardModel.from_pretrained("runs/drawer")  # doctest: +SKIP
        >>> model.reward(frames, ["open the drawer", "close the drawer"])  # doctest: +SKIP
    """

    def __init__(self, encoder: Embedder, *, form: RewardForm = "potential", batch_size: int = 64) -> None:
        self.encoder, self.form, self.batch_size = encoder, as_form(form, "form"), batch_size

    @classmethod
    def from_pretrained(cls, source: str | Path, *, device: str | torch.device = "cpu") -> RewardModel:
        """The reward of a run, of a folder written by `save_pretrained`, or of a model on the Hub.

        Args:
            source: A run's folder (its `model/`, and `reward_form` of its `config.json`), a folder with
                `config.json` and `model.safetensors`, or a Hub id such as `name/model`.
            device: Where to compute.

        Raises:
            BadInputError: When there is no such folder or model, or training has not written one yet.
        """
        from counterpoint.encoders.base import DualEncoder

        encoder = DualEncoder.from_pretrained(source, map_location=str(device))
        return cls(encoder, form=_saved_form(Path(source)))

    def potential(self, frames: Video, instructions: str | Sequence[str]) -> Video:
        """S(phi(o_t), psi(l)) of every frame: [T], or [L, T] for a list."""
        return _like(frames, instructions, potential(*self._embed(frames, instructions)))

    def direction(self, frames: Video, instructions: str | Sequence[str]) -> Video:
        """S(phi(o_t) - phi(o_0), psi(l)) of every frame, 0 at t = 0: [T], or [L, T] for a list."""
        return _like(frames, instructions, direction(*self._embed(frames, instructions)))

    def steps(self, frames: Video, instructions: str | Sequence[str]) -> Video:
        """What each step adds to the potential (DecisionNCE, Eq. 3): [T-1], or [L, T-1] for a list."""
        return _like(frames, instructions, np.diff(potential(*self._embed(frames, instructions)), axis=1))

    def reward(self, frames: Video, instructions: str | Sequence[str]) -> Video:
        """The reward the encoder was trained for: `potential` or `direction`, as `form` says."""
        return (self.potential if self.form == "potential" else self.direction)(frames, instructions)

    def _embed(self, frames: Video, instructions: str | Sequence[str]) -> tuple[Array, Array]:
        text = embed_text(self.encoder, instructions)
        return embed_frames(self.encoder, frames, self.batch_size), text


def as_form(form: object, where: str | Path) -> RewardForm:
    """`form`, if it is one.

    Raises:
        BadInputError: When it is neither "potential" nor "direction".
    """
    if form == "potential" or form == "direction":
        return form
    expected = "'potential' or 'direction'"
    raise BadInputError(where, repr(form), expected, "choose one of the two")


def read_run_config(run: Path) -> dict[str, Any]:
    """`RUN/config.json`.

    Raises:
        BadInputError: When it is absent or broken.
    """
    path = run / "config.json"
    if not path.is_file():
        raise BadInputError(path, "no such file", "a run's folder", "give the folder that training wrote")
    try:
        config = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise BadInputError(path, f"broken JSON ({error})", "a run's configuration", "restore the file") from None
    if not isinstance(config, dict):
        kind = type(config).__name__
        raise BadInputError(path, kind, "a JSON object", "restore the file")
    return config


def _saved_form(source: Path) -> RewardForm:
    """What a run calls its reward; the potential for an encoder outside a run."""
    if not (source / "model").is_dir():
        return "potential"
    form = read_run_config(source).get("reward_form") or "potential"
    return as_form(form, f"{source / 'config.json'}: reward_form")


def _like(frames: Video, instructions: str | Sequence[str], scores: Array) -> Video:
    """Scores [L, T] in the caller's terms: one row for one text, and the kind of the frames."""
    rewards = (scores[0] if isinstance(instructions, str) else scores).astype(np.float32)
    if isinstance(frames, Tensor):
        return torch.from_numpy(rewards).to(frames.device)
    return rewards
