"""Embed every frame and instruction of some episodes once, and measure the encoder's embedding space.

`counterpoint.evaluation.definitions.SPACE` defines the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from counterpoint.data.draws import sample_rng
from counterpoint.data.store import Cameras, EpisodeStore, camera_names
from counterpoint.errors import require
from counterpoint.evaluation import metrics
from counterpoint.evaluation.statistics import Drawn, Estimate, drawn_mean, resample_weights
from counterpoint.progress import ProgressBar
from counterpoint.rewards.embedding import Embedder, check_instructions, embed_steps, embed_text
from counterpoint.rewards.model import cosine, potential

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

RECORDED, SHUFFLED, CENTRED = "as recorded", "shuffled", "mean taken away"
"""Inputs for the numbers of an embedding space: frames in order, in random order, and minus the mean of all frames."""


@dataclass(frozen=True)
class EmbeddedVideos:
    """Raw embeddings of V videos and L instructions.

    Attributes:
        videos: Embeddings of each video in temporal order: [T, D], or [T, C, D] with several cameras.
        steps: For each video, the episode's step of each embedding, [T].
        own: Index of each video's instruction in `instructions`.
        instructions: The L instructions.
        text: Embeddings of the instructions, [L, D].
        fingerprint: Digest of the store's content.
    """

    videos: tuple[Float[Array, "T *C D"], ...]
    steps: tuple[Int[Indices, " T"], ...]
    own: Int[Indices, " V"]
    instructions: tuple[str, ...]
    text: Float[Array, "L D"]
    fingerprint: str

    def frames_at(self, rows: int | Int[Indices, " V"]) -> Float[Array, "V *C D"]:
        """Return the embedding at one row of each video; a negative row counts from the end."""
        each = np.broadcast_to(rows, len(self.videos))
        return np.stack([video[at] for video, at in zip(self.videos, each, strict=True)])

    def side_by_side(self) -> EmbeddedVideos:
        """Return frames' embeddings joined over cameras, [T, C * D], and texts' repeated C times, [L, C * D]."""
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
        store: Held-out episodes with frames, or with features of the encoder's frozen backbone. Each has an instruction
            and at least two steps.
        instructions: The L candidate instructions; by default the store's instructions, in order of appearance.
        cameras: The camera, by default the store's first; with several, scores are the mean over cameras (late fusion).
        max_frames: Maximum number of frames of an episode, evenly spread.
        batch_size: Number of frames encoded at once.

    Raises:
        BadInputError: If an episode has no instruction, an instruction that is not a candidate, or only one step, or
            if there are fewer than two candidates.
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
    views = camera_names(cameras, store) if store.cameras else ()  # a store of features has no cameras
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
    """Return up to `most` (at least two) evenly spread steps of an episode, including the first and the last."""
    if length <= most:
        return np.arange(length, dtype=np.int64)
    return np.linspace(0, length - 1, most).round().astype(np.int64)


def measure_space(embedded: EmbeddedVideos, *, words: bool = True, seed: int = 0) -> dict[str, dict[str, Estimate]]:
    """Return the numbers of an encoder's embedding space, keyed by input and then by name in `definitions.SPACE`.

    Intervals come from bootstrap samples of tasks and then of their videos, the same samples for all numbers. The
    interval of the effective rank comes from a jackknife. Numbers that are not defined for any video are left out.

    Args:
        embedded: Videos and instructions; the embeddings of several cameras are concatenated.
        words: False for an encoder that was not trained to compare frames with instructions; numbers that compare them
            are left out.
        seed: Random seed of the shuffles and samples.
    """
    joint, weights = embedded.side_by_side(), resample_weights(embedded.own.tolist(), seed=seed)
    found = _smoothness(embedded, weights, seed)
    centre = np.mean([video.mean(axis=0) for video in joint.videos], axis=0)
    found[RECORDED] |= _likeness(joint, 0.0, weights, seed)
    found[CENTRED] = _likeness(joint, centre, weights, seed)
    found[RECORDED]["time_probe_r2"] = Drawn(metrics.time_probe(joint.videos, weights), len(joint.videos)).estimate()
    found[RECORDED]["effective_rank"] = metrics.effective_rank_estimate(joint.videos)
    spoken = () if words else ("ordering", "first_frame_to_language")
    return {
        name: {key: one for key, one in numbers.items() if np.isfinite(one.value) and key not in spoken}
        for name, numbers in found.items()
    }


def _smoothness(embedded: EmbeddedVideos, weights: Array, seed: int) -> dict[str, dict[str, Estimate]]:
    """Return the numbers of AcTOL's two properties (order and smoothness), for frames in order and in random order."""
    rows: dict[str, list[dict[str, float]]] = {RECORDED: [], SHUFFLED: []}
    for number, (video, steps, own) in enumerate(zip(embedded.videos, embedded.steps, embedded.own, strict=True)):
        times = steps.astype(np.float64)
        similarity = potential(video, embedded.text[own : own + 1])[0]
        flat = video.reshape(len(video), -1)
        unit = flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-12)
        shuffled = sample_rng(seed, number, "shuffle").permutation(len(video))
        for name, order in ((RECORDED, np.arange(len(video))), (SHUFFLED, shuffled)):
            row = {
                "ordering": metrics.ordering(similarity[order], times),
                "step_norm": float(metrics.step_norms(unit[order]).mean()),
                "jump_ratio": metrics.jump_ratio(unit[order]),
                "bridge_residual": metrics.bridge_residual(unit[order], times),
            }
            rows[name].append(row)
    return {
        name: {key: drawn_mean(np.array([row[key] for row in each]), weights).estimate() for key in each[0]}
        for name, each in rows.items()
    }


def _likeness(embedded: EmbeddedVideos, offset: Array | float, weights: Array, seed: int) -> dict[str, Estimate]:
    """Return the numbers of DecisionNCE's Table 2 over all pairs of videos, also for last frames and random frames.

    The mean instruction counts an instruction once per video, because the paper averages over annotations.
    """
    rng = sample_rng(seed, 0, "table 2")
    anywhere = [int(rng.integers(len(video))) for video in embedded.videos]
    frames: dict[str, int | Indices] = {"first": 0, "last": -1, "random": np.array(anywhere)}
    rows = {name: embedded.frames_at(at) - offset for name, at in frames.items()}
    found = {
        f"{name}_frame_similarity": Drawn(metrics.pairwise_cosine(some, weights), len(some)).estimate()
        for name, some in rows.items()
    }
    near = cosine(rows["first"], embedded.text[embedded.own].mean(axis=0, keepdims=True))[:, 0]
    return found | {"first_frame_to_language": drawn_mean(near, weights).estimate()}
