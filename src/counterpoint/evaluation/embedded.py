"""Held-out episodes of a run, every frame and instruction embedded once: the input of all numbers and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from counterpoint.data.store import Cameras, EpisodeStore, camera_names
from counterpoint.errors import require
from counterpoint.progress import ProgressBar
from counterpoint.rewards.model import Embedder, check_instructions, embed_steps, embed_text

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class EmbeddedVideos:
    """Raw embeddings of V videos and L instructions.

    Attributes:
        videos: One [T, D] a video, in the order of time; of several cameras [T, C, D].
        steps: One [T] a video: the episode's step of each row.
        own: Column of each video's instruction.
        instructions: L texts.
        text: [L, D].
        fingerprint: Content of the store.
    """

    videos: tuple[Float[Array, "T *C D"], ...]
    steps: tuple[Int[Indices, " T"], ...]
    own: Int[Indices, " V"]
    instructions: tuple[str, ...]
    text: Float[Array, "L D"]
    fingerprint: str

    def frames_at(self, rows: int | Int[Indices, " V"]) -> Float[Array, "V *C D"]:
        """Return one row of each video; a negative index counts from the end."""
        each = np.broadcast_to(rows, len(self.videos))
        return np.stack([video[at] for video, at in zip(self.videos, each, strict=True)])

    def side_by_side(self) -> EmbeddedVideos:
        """Return the cameras' embeddings end to end, [T, C * D], and the text [L, C * D]: one space for all."""
        wide = tuple(video.reshape(len(video), -1) for video in self.videos)
        return replace(self, videos=wide, text=np.tile(self.text, wide[0].shape[1] // self.text.shape[1]))


def embed_store(
    encoder: Embedder,
    store: EpisodeStore,
    *,
    instructions: Sequence[str] | None = None,
    cameras: Cameras = None,
    max_frames: int = 128,
    batch_size: int = 64,
) -> EmbeddedVideos:
    """Embed every episode of a store and its instructions.

    Args:
        encoder: The encoder.
        store: Held-out episodes, each of at least two steps and with an instruction; frames, or features of the
            encoder's frozen backbone.
        instructions: The L candidates; by default the store's own, in order of appearance.
        cameras: The view, by default the store's first; of several, scores are the mean (late fusion).
        max_frames: Greatest number of frames of an episode, evenly spread.
        batch_size: Frames encoded at once.

    Raises:
        BadInputError: An episode without an instruction, with one that is no candidate, or of one step; or fewer than
            two candidates.
    """
    candidates = tuple(instructions or dict.fromkeys(info.instruction for info in store.episodes))
    different = len(set(candidates))
    found, hint = f"{different} different of {len(candidates)}", "give instructions=[...] that may be confused"
    require(different >= max(2, len(candidates)), "instructions", found, "two or more, each once", hint)
    for number, info in enumerate(store.episodes):
        good = info.length > 1 and info.instruction.strip() and info.instruction in candidates
        found = f"{info.length} step(s), instruction {info.instruction!r}"
        hint = "add it to instructions=[...], or leave the episode out: SubsetStore"
        require(good, f"episode {number}", found, "two steps or more, and one of the candidates", hint)
    check_instructions(candidates)
    views = camera_names(cameras, store.cameras) if store.cameras else ()  # a store of features has none
    column = {text: at for at, text in enumerate(candidates)}
    steps = tuple(spread(info.length, max_frames) for info in store.episodes)
    videos = []
    with ProgressBar("Embedding", len(steps), "videos") as progress:
        for number, wanted in enumerate(steps):
            videos.append(embed_steps(encoder, store, number, wanted, views or (None,), batch_size))
            progress.advance()
    return EmbeddedVideos(
        videos=tuple(videos),
        steps=steps,
        own=np.array([column[info.instruction] for info in store.episodes], dtype=np.int64),
        instructions=candidates,
        text=embed_text(encoder, candidates),
        fingerprint=store.fingerprint,
    )


def spread(length: int, most: int) -> Int[Indices, " T"]:
    """Return up to `most` (at least two) steps of an episode, evenly spread, the first and the last among them."""
    if length <= most:
        return np.arange(length, dtype=np.int64)
    return np.linspace(0, length - 1, most).round().astype(np.int64)
