"""Held-out episodes of a run, every frame and instruction embedded once: the input of all numbers and figures."""

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
from counterpoint.errors import require
from counterpoint.progress import ProgressBar
from counterpoint.rewards.model import Embedder, check_instructions, embed_frames, embed_text

SPLITS = ("test", "val", "validation")
Array = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class HeldOut:
    """Episodes to report on.

    Attributes:
        store: Frames as the encoder was trained on them.
        source: The same episodes as recorded, for images.
        path: The data set.
        split: Name of the split; `None` for all episodes.
        seen: Whether the run may have been trained on them.
        left_out: Number of episodes without an instruction or of one step.
        drawn_from: Number of episodes before a sample was taken.
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
        config: The run's configuration: `data.path`, `data.size`, `data.camera` and `data.cache`.
        where: Its file, for errors.
        data: Another data set; the run's own by default.
        split: Name of the split; by default the first of `test`, `val` and `validation`, or all episodes of a data set
            without splits.
        most: Greatest number of episodes; of more, a sample is taken.
        seed: Random seed of that sample.

    Raises:
        BadInputError: A key or the data set is missing, or the data set has no such split.
    """
    found: Any = config.get("data")
    section = found if isinstance(found, Mapping) else {}
    good, hint = "path" in section and isinstance(section.get("size"), int), "give a run of this version"
    require(good, where, "no data.path or data.size", "the configuration that training writes", hint)
    path = Path(data or section["path"])
    require(path.exists(), path, "no such data set", "the run's data", "say where it is: --data PATH")
    splits = split_names(path)
    chosen = split or next((name for name in SPLITS if name in splits), None)
    hint = "name the split to report on: --split NAME (the training split flatters the encoder)"
    require(chosen is not None or not splits, path, f"splits {list(splits)}", f"one of {list(SPLITS)}", hint)
    source = open_dataset(path, split=chosen)
    camera = section.get("camera") or source.cameras[0]
    store = cached(source, size=section["size"], root=section.get("cache"), cameras=(camera,))
    good_ones = [at for at, info in enumerate(store.episodes) if info.length > 1 and info.instruction.strip()]
    require(good_ones, path, "no episode with an instruction", "some", "report on instructed episodes")
    sample = np.random.default_rng(seed).choice(len(good_ones), min(most, len(good_ones)), replace=False)
    kept = [good_ones[at] for at in sorted(sample.tolist())]
    own = path.resolve() == Path(section["path"]).resolve()
    return HeldOut(
        store=SubsetStore(store, kept),
        source=SubsetStore(source, kept),
        path=path,
        split=chosen,
        seen=own and chosen in (None, section.get("train_split", "train")),
        left_out=len(store.episodes) - len(good_ones),
        drawn_from=len(good_ones),
    )


@dataclass(frozen=True)
class EmbeddedVideos:
    """Raw embeddings of V videos and L instructions.

    Attributes:
        videos: One [T, D] a video, in the order of time.
        steps: One [T] a video: the episode's step of each row.
        own: Column of each video's instruction.
        instructions: L texts.
        text: [L, D].
        fingerprint: Content of the store.
    """

    videos: tuple[Float[Array, "T D"], ...]
    steps: tuple[Int[Indices, " T"], ...]
    own: Int[Indices, " V"]
    instructions: tuple[str, ...]
    text: Float[Array, "L D"]
    fingerprint: str

    def frames_at(self, rows: Sequence[int] | Indices) -> Float[Array, "V D"]:
        """Return one row of each video; a negative index counts from the end."""
        return np.stack([video[at] for video, at in zip(self.videos, rows, strict=True)])

    def first(self) -> Float[Array, "V D"]:
        """Return the first embedding of every video."""
        return self.frames_at([0] * len(self.videos))

    def last(self) -> Float[Array, "V D"]:
        """Return the last embedding of every video."""
        return self.frames_at([-1] * len(self.videos))

    def mean(self) -> Float[Array, " D"]:
        """Return the mean embedding, each video with the same weight."""
        centre: Array = np.mean([video.mean(axis=0) for video in self.videos], axis=0)
        return centre

    def in_other_words(self, text: Float[Array, "L D"]) -> EmbeddedVideos:
        """Return the same videos with paraphrased instructions."""
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
        encoder: The encoder.
        store: Held-out episodes, each of at least two steps and with an instruction.
        instructions: The L candidates; by default the store's own, in order of appearance.
        camera: The view; by default the store's first.
        max_frames: Greatest number of frames of an episode, evenly spread.
        batch_size: Frames encoded at once.

    Raises:
        BadInputError: An episode without an instruction, with one that is no candidate, or of one step; or fewer than
            two candidates.
    """
    candidates = tuple(instructions or dict.fromkeys(info.instruction for info in store.episodes))
    for number, info in enumerate(store.episodes):
        good, where = info.length > 1 and bool(info.instruction.strip()), f"episode {number}"
        found, hint = f"{info.length} step(s), instruction {info.instruction!r}", "leave such episodes out: SubsetStore"
        require(good, where, found, "at least two steps and an instruction", hint)
    check_instructions(candidates)
    different = len(set(candidates))
    found, hint = (
        f"{different} different of {len(candidates)}",
        "give instructions=[...] that videos may be confused with",
    )
    require(different >= max(2, len(candidates)), "instructions", found, "two or more, each once", hint)
    for number, info in enumerate(store.episodes):
        found, hint = f"instruction {info.instruction!r}", "add it to instructions=[...]"
        require(info.instruction in candidates, f"episode {number}", found, "one of the candidates", hint)
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
    """Embed paraphrased instructions: the k-th array holds the k-th paraphrase of each.

    Raises:
        BadInputError: An instruction without a paraphrase.
    """
    for text in instructions:
        require(paraphrases.get(text), "paraphrases", f"none of {text!r}", "one or more of each", "say it otherwise")
    rounds = min(len(paraphrases[text]) for text in instructions)
    return [embed_text(encoder, [paraphrases[text][k] for text in instructions]) for k in range(rounds)]


def spread(length: int, most: int) -> Int[Indices, " T"]:
    """Return up to `most` (at least two) steps of an episode, evenly spread, the first and the last among them."""
    if length <= most:
        return np.arange(length, dtype=np.int64)
    return np.linspace(0, length - 1, most).round().astype(np.int64)
