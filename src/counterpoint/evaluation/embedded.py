"""Which episodes a run is reported on, at the pixels it was trained at and as they were recorded.

Every frame and instruction embedded once; all numbers and figures are computed from this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from counterpoint.data.cache import cached
from counterpoint.data.formats import open_dataset, split_names
from counterpoint.data.store import EpisodeStore, SubsetStore
from counterpoint.errors import BadInputError
from counterpoint.progress import ProgressBar
from counterpoint.rewards.model import Embedder, check_instructions, embed_frames, embed_text

__all__ = ["EmbeddedVideos", "HeldOut", "embed_paraphrases", "embed_store", "open_held_out", "spread"]


SPLITS = ("test", "val", "validation")


@dataclass(frozen=True)
class HeldOut:
    """Episodes to report on.

    Attributes:
        store: Frames as the encoder was trained on them.
        source: The same episodes as recorded, for showing.
        path: Of the data set.
        split: Its name; `None` for all episodes.
        seen: Whether the run may have been trained on them.
        left_out: Episodes without an instruction or of one step.
        drawn_from: How many there were before a sample was taken.
    """

    store: EpisodeStore
    source: EpisodeStore
    path: Path
    split: str | None
    seen: bool
    left_out: int
    drawn_from: int


def open_held_out(
    config: Mapping[str, Any], where: Path, data: Path | None, split: str | None, *, most: int, seed: int
) -> HeldOut:
    """Open the episodes to report on.

    Args:
        config: The run's; `data.path`, `data.size`, and `data.camera` and `data.cache` where it names them.
        where: The configuration's file, for errors.
        data: Another data set; the run's own by default.
        split: Which split; by default `test`, `val` or `validation`, the first there is, or all episodes of a
            data set that has none.
        most: Of more episodes than this, as many are drawn.
        seed: Of that draw.

    Raises:
        BadInputError: When a key is missing, the data set is elsewhere, or it has no such split.
    """
    section = config.get("data")
    if not isinstance(section, Mapping) or "path" not in section or not isinstance(section.get("size"), int):
        raise BadInputError(
            where,
            "no data.path or data.size",
            "the configuration that training writes",
            "give the folder of a run of this version",
        )
    path = Path(data or section["path"])
    if not path.exists():
        raise BadInputError(path, "no such data set", "the run's data", "say where it is: --data PATH")
    splits = split_names(path)
    chosen = split or next((name for name in SPLITS if name in splits), None)
    if chosen is None and splits:
        raise BadInputError(
            path,
            f"splits {list(splits)}",
            f"one of {list(SPLITS)}",
            "name the split to report on: --split NAME (what was trained on flatters the encoder)",
        )
    source = open_dataset(path, split=chosen)
    camera = section.get("camera") or source.cameras[0]
    store = cached(source, size=section["size"], root=section.get("cache"), cameras=(camera,))
    good = [at for at, info in enumerate(store.episodes) if info.length > 1 and info.instruction.strip()]
    if not good:
        raise BadInputError(path, "no episode with an instruction", "some", "report on instructed episodes")
    drawn = np.random.default_rng(seed).choice(len(good), min(most, len(good)), replace=False)
    kept = [good[at] for at in sorted(drawn.tolist())]
    own = path.resolve() == Path(section["path"]).resolve()
    return HeldOut(
        store=SubsetStore(store, kept),
        source=SubsetStore(source, kept),
        path=path,
        split=chosen,
        seen=own and chosen in (None, section.get("train_split", "train")),
        left_out=len(store.episodes) - len(good),
        drawn_from=len(good),
    )


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
                f"{info.length} step(s), instruction {info.instruction!r}",
                "at least two steps and an instruction",
                "leave such episodes out: counterpoint.data.store.SubsetStore",
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
            raise BadInputError("paraphrases", f"none of {text!r}", "one or more of each", "say it otherwise")
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
            f"{len(set(candidates))} different of {len(candidates)}",
            "two or more, each once: grounding is told from mismatches",
            "give instructions=[...] that these videos could be confused with",
        )
    for number, info in enumerate(store.episodes):
        if info.instruction not in candidates:
            raise BadInputError(
                f"episode {number}",
                f"instruction {info.instruction!r}",
                "one of the candidates",
                "add it to instructions=[...]",
            )
