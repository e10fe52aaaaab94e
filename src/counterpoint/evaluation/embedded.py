"""Every frame and instruction embedded once; all numbers and figures are computed from this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError
from counterpoint.progress import ProgressBar
from counterpoint.rewards.embedding import Embedder, check_instructions, embed_frames, embed_text

__all__ = ["EmbeddedVideos", "embed_paraphrases", "embed_store", "spread"]

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class EmbeddedVideos:
    """Raw embeddings of V videos and L instructions.

    Attributes:
        videos: One [T, D] a video, in the order of time.
        steps: One [T] a video: the step of the episode that each row is.
        own: Column of the instruction that each video carries out.
        instructions: L texts.
        text: [L, D].
        fingerprint: Of the store the videos come from.
    """

    videos: tuple[Float[Array, "T D"], ...]
    steps: tuple[Int[Indices, " T"], ...]
    own: Int[Indices, " V"]
    instructions: tuple[str, ...]
    text: Float[Array, "L D"]
    fingerprint: str

    def frames_at(self, place: Sequence[int] | Indices) -> Float[Array, "V D"]:
        """One row of each video, counted within its rows; negative counts from the end."""
        return np.stack([video[at] for video, at in zip(self.videos, place, strict=True)])

    def first(self) -> Float[Array, "V D"]:
        """phi(o_1) of every video."""
        return self.frames_at([0] * len(self.videos))

    def last(self) -> Float[Array, "V D"]:
        """phi(o_T) of every video."""
        return self.frames_at([-1] * len(self.videos))

    def mean(self) -> Float[Array, " D"]:
        """The mean embedding, each video weighing the same."""
        centre: Array = np.mean([video.mean(axis=0) for video in self.videos], axis=0)
        return centre

    def in_other_words(self, text: Float[Array, "L D"]) -> EmbeddedVideos:
        """The same videos with the instructions said otherwise."""
        return replace(self, text=text)


def embed_store(
    encoder: Embedder,
    store: EpisodeStore,
    *,
    instructions: Sequence[str] | None = None,
    camera: str | None = None,
    max_frames: int = 128,
    batch_size: int = 64,
) -> EmbeddedVideos:
    """Embed every episode of a store and its instructions.

    Args:
        encoder: What embeds.
        store: Held-out episodes, each of at least two steps and with an instruction.
        instructions: The L candidates; by default the store's own, in the order in which they appear.
        camera: Which view; the store's first by default.
        max_frames: Longer episodes give this many frames, evenly spread from the first to the last.
        batch_size: Frames encoded at once.

    Raises:
        BadInputError: When an episode has no instruction, one not among the candidates, or fewer than two
            steps; or when there are fewer than two candidates.
    """
    for number, info in enumerate(store.episodes):
        if info.length < 2 or not info.instruction.strip():
            raise BadInputError(
                f"episode {number}",
                found=f"{info.length} step(s), instruction {info.instruction!r}",
                expected="at least two steps and an instruction",
                mend="leave such episodes out: counterpoint.data.store.SubsetStore",
            )
    candidates = tuple(instructions or dict.fromkeys(info.instruction for info in store.episodes))
    _check_candidates(candidates, store)
    column = {text: at for at, text in enumerate(candidates)}
    steps = tuple(spread(info.length, max_frames) for info in store.episodes)
    videos = []
    with ProgressBar("Embedding", len(steps), "videos") as progress:
        for number, wanted in enumerate(steps):
            videos.append(embed_frames(encoder, store.frames(number, wanted, camera), batch_size))
            progress.advance()
    return EmbeddedVideos(
        videos=tuple(videos),
        steps=steps,
        own=np.array([column[info.instruction] for info in store.episodes], dtype=np.int64),
        instructions=candidates,
        text=embed_text(encoder, candidates),
        fingerprint=store.fingerprint,
    )


def embed_paraphrases(
    encoder: Embedder, instructions: Sequence[str], paraphrases: Mapping[str, Sequence[str]]
) -> list[Float[Array, "L D"]]:
    """The instructions said otherwise: the k-th array holds everybody's k-th paraphrase.

    Raises:
        BadInputError: When an instruction has no paraphrase.
    """
    for text in instructions:
        if not paraphrases.get(text):
            raise BadInputError(
                "paraphrases",
                found=f"none of {text!r}",
                expected="one or more of each",
                mend="say it otherwise",
            )
    rounds = min(len(paraphrases[text]) for text in instructions)
    return [embed_text(encoder, [paraphrases[text][k] for text in instructions]) for k in range(rounds)]


def spread(length: int, most: int) -> Int[Indices, " T"]:
    """Up to `most` (at least two) steps of an episode, evenly spread, with the first and the last."""
    if length <= most:
        return np.arange(length, dtype=np.int64)
    return np.linspace(0, length - 1, most).round().astype(np.int64)


def _check_candidates(candidates: tuple[str, ...], store: EpisodeStore) -> None:
    check_instructions(candidates)
    if len(set(candidates)) < max(2, len(candidates)):
        raise BadInputError(
            "instructions",
            found=f"{len(set(candidates))} different of {len(candidates)}",
            expected="two or more, each once: grounding is told from mismatches",
            mend="give instructions=[...] that these videos could be confused with",
        )
    for number, info in enumerate(store.episodes):
        if info.instruction not in candidates:
            raise BadInputError(
                f"episode {number}",
                found=f"instruction {info.instruction!r}",
                expected="one of the candidates",
                mend="add it to instructions=[...]",
            )
