"""Embed frames, the steps of episodes and texts by an encoder, and check them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from counterpoint.data.episode import visible
from counterpoint.data.store import EpisodeStore, states_of
from counterpoint.encoders import dual
from counterpoint.encoders.dual import DualEncoder
from counterpoint.errors import require

Array = NDArray[np.float64]

STATE = "state"
"""Key of the robot's state [T, S] in a mapping of cameras to frames; encoders that read only images ignore it."""


class Embedder(Protocol):
    """An encoder of frames and text; `counterpoint.encoders.dual.DualEncoder` is one.

    An encoder whose `reads_state` is true takes the robot's state [T, S] in addition to the frames.
    """

    def encode_image(self, frames: Tensor, /) -> Tensor:
        """Return raw embeddings [T, D] of frames [T, H, W, 3], uint8 or float in [0, 1]."""

    def encode_text(self, text: Sequence[str], /) -> Tensor:
        """Return raw embeddings [L, D] of L texts."""


class FrozenPart:
    """The frozen backbone of an encoder as an `Embedder`, whose embeddings are the backbone's features.

    Attributes:
        digest: Digest of the backbone.
    """

    def __init__(self, encoder: DualEncoder) -> None:
        self.encode_image, self.encode_text = encoder.features, encoder.encode_text
        self.digest = encoder.backbone_digest


def embed_frames(
    encoder: Embedder, frames: NDArray[Any] | Tensor | Mapping[str, Any], batch_size: int = 64
) -> Float[Array, "T *C D"]:
    """Return raw embeddings of frames [T, H, W, 3], uint8 in [0, 255] or float in [0, 1], `batch_size` at a time.

    `frames` may map C cameras to frames of any sizes, which gives [T, C, D], or [T, D] for one camera. For an encoder
    that reads the robot's state, the mapping must hold the state [T, S] under `STATE`.

    Raises:
        BadInputError: If frames have another dtype, shape or range, if cameras have unequal numbers of frames, or if
            there is no state for an encoder that reads it.
    """
    given = frames if isinstance(frames, Mapping) else {"": frames}
    state, views = given.get(STATE), {camera: check_frames(view) for camera, view in given.items() if camera != STATE}
    found = ", ".join(f"{len(view)} of {camera}" for camera, view in views.items()) or "no camera"
    even = len({len(view) for view in views.values()}) == 1
    require(even, "frames", found, "as many frames of every camera", "give the same steps of each")
    each = [_embed_view(encoder, view, state, batch_size) for view in views.values()]
    return np.stack(each, axis=1) if len(each) > 1 else each[0]


def reads_state(encoder: object) -> bool:
    """Return True if an encoder reads the robot's state together with each image."""
    return bool(getattr(encoder, "reads_state", False))


def _embed_view(encoder: Any, frames: Tensor, state: Any, batch_size: int) -> Float[Array, "T D"]:
    parts = [torch.split(frames, batch_size)]
    if reads_state(encoder):
        known = state is not None and len(state) == len(frames)
        found = "images alone" if state is None else f"{len(state)} states for {len(frames)} images"
        hint = f'give a mapping: {{"camera": frames, "{STATE}": state}}; bare videos and goal images have none'
        require(known, "state", found, "the robot's state beside each image, which this model reads", hint)
        parts.append(torch.split(torch.as_tensor(state).float(), batch_size))
    with _evaluating(encoder) as device:
        pieces = [encoder.encode_image(*(part.to(device) for part in some)) for some in zip(*parts, strict=True)]
        return np.asarray(torch.cat([piece.double().cpu() for piece in pieces]))


def observed(
    encoder: object, store: EpisodeStore, episode: int, steps: NDArray[np.int64], views: Sequence[str | None] = (None,)
) -> dict[str, NDArray[Any]]:
    """Return an encoder's inputs at an episode's steps: the frames of each view, and the state if the encoder reads it.

    Raises:
        BadInputError: If the encoder reads the state, and the episode has none.
    """
    seen = {view or "": store.frames(episode, steps, view) for view in views}
    return seen | ({STATE: states_of(store, episode)[steps]} if reads_state(encoder) else {})


def embed_steps(
    encoder: Any,
    store: EpisodeStore,
    episode: int,
    steps: NDArray[np.int64],
    views: Sequence[str | None] = (None,),
    batch_size: int = 64,
) -> Float[Array, "T D"] | Float[Array, "T C D"]:
    """Return raw embeddings of an episode's steps, from its frames or, if the store holds them, from its features.

    Args:
        encoder: The encoder; features in the store must come from its frozen backbone.
        store: Episodes.
        episode: Number of the episode.
        steps: T steps of the episode.
        views: C cameras, by default the store's first camera; one camera gives [T, D].
        batch_size: Number of frames encoded at once.
    """
    features = store.features(episode)
    if features is None:
        return embed_frames(encoder, observed(encoder, store, episode, steps, views), batch_size)
    parts = [features[steps, 0], *([states_of(store, episode)[steps]] if reads_state(encoder) else [])]
    with _evaluating(encoder) as device:
        return np.asarray(encoder.embed_features(*(torch.from_numpy(x).to(device) for x in parts)).double().cpu())


def embed_text(encoder: Embedder, texts: str | Sequence[str]) -> Float[Array, "L D"]:
    """Return raw embeddings of L texts.

    Raises:
        BadInputError: If there is no text, or a text is empty or not a string.
    """
    with _evaluating(encoder):
        return np.asarray(encoder.encode_text(check_instructions(texts)).double().cpu())


def check_frames(frames: NDArray[Any] | Tensor) -> Tensor:
    """Return frames as a tensor [T, H, W, 3]; the dtype implies the range: uint8 in [0, 255], float32 in [0, 1].

    Raises:
        BadInputError: If the frames are anything else.
    """
    known = isinstance(frames, Tensor) or (isinstance(frames, np.ndarray) and frames.dtype.kind in "biuf")
    found = f"{frames.dtype} {list(frames.shape)}" if known else type(frames).__name__
    hint = "give the frames of one video: np.stack(frames)"
    require(known and frames.ndim == 4 and len(frames), "frames", found, "numbers [T, H, W, 3], T at least 1", hint)
    pixels = frames if isinstance(frames, Tensor) else torch.from_numpy(np.ascontiguousarray(frames))
    pixels = dual.channels_last(pixels)
    dual.check_frames(pixels)
    return pixels if pixels.dtype == torch.uint8 else pixels.float()


def check_instructions(instructions: str | Sequence[str]) -> list[str]:
    """Return one instruction or several as a list.

    Raises:
        BadInputError: If there is no instruction, or an instruction is empty or not text.
    """
    texts = [instructions] if isinstance(instructions, str) else instructions
    good = isinstance(texts, Sequence) and not isinstance(texts, bytes) and len(texts) > 0
    good = good and all(isinstance(text, str) and visible(text) for text in texts)
    require(good, "instruction", repr(instructions), "text that is not empty", "say what should happen, in words")
    return list(texts)


@contextmanager
def _evaluating(encoder: Embedder) -> Iterator[torch.device]:
    """Disable gradients and set evaluation mode, on the encoder's device; restore the submodules' modes at the end."""
    modules = list(encoder.modules()) if isinstance(encoder, nn.Module) else []
    modes = [module.training for module in modules]
    devices = [parameter.device for module in modules[:1] for parameter in module.parameters()]
    try:
        for module in modules:
            module.training = False
        with torch.no_grad():
            yield devices[0] if devices else torch.device("cpu")
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
