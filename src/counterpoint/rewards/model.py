"""`RewardModel`: an encoder of images and text, asked how far a video has come with an instruction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoint.errors import BadInputError
from counterpoint.rewards.embedding import Embedder, embed_frames, embed_text
from counterpoint.rewards.scores import direction, potential

__all__ = ["RewardForm", "RewardModel", "as_form", "read_run_config"]

RewardForm = Literal["potential", "direction"]
Video = TypeVar("Video", NDArray[Any], Tensor)
Array = NDArray[np.float64]


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
            source: A run's folder (its `pretrained/`, and `reward_form` of its `config.json`), a folder with
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
    raise BadInputError(where, found=repr(form), expected=expected, mend="choose one of the two")


def read_run_config(run: Path) -> dict[str, Any]:
    """`RUN/config.json`.

    Raises:
        BadInputError: When it is absent or broken.
    """
    path = run / "config.json"
    if not path.is_file():
        raise BadInputError(
            path, found="no such file", expected="a run's folder", mend="give the folder that training wrote"
        )
    try:
        config = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise BadInputError(
            path, found=f"broken JSON ({error})", expected="a run's configuration", mend="restore the file"
        ) from None
    if not isinstance(config, dict):
        kind = type(config).__name__
        raise BadInputError(path, found=kind, expected="a JSON object", mend="restore the file")
    return config


def _saved_form(source: Path) -> RewardForm:
    """What a run calls its reward; the potential for an encoder outside a run."""
    if not (source / "pretrained").is_dir():
        return "potential"
    form = read_run_config(source).get("reward_form") or "potential"
    return as_form(form, f"{source / 'config.json'}: reward_form")


def _like(frames: Video, instructions: str | Sequence[str], scores: Array) -> Video:
    """Scores [L, T] in the caller's terms: one row for one text, and the kind of the frames."""
    rewards = (scores[0] if isinstance(instructions, str) else scores).astype(np.float32)
    if isinstance(frames, Tensor):
        return torch.from_numpy(rewards).to(frames.device)
    return rewards
