"""Training clips that go on into another episode, and other kinds of segments."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from counterpoint.data.draws import Pick
from counterpoint.data.episode import Array, EpisodeInfo
from counterpoint.data.store import EpisodeStore

Integers = NDArray[np.int64]


class FeatureStore(EpisodeStore):
    """Features in memory.

    Args:
        episodes: One entry per episode.
        features: Features of each episode, float32 [T, 1, E].
        cameras: Names of the cameras; the features come from the first one.
    """

    def __init__(self, episodes: Sequence[EpisodeInfo], features: Sequence[Array], cameras: tuple[str, ...]) -> None:
        self.episodes, self.cameras, self._features = tuple(episodes), cameras, tuple(features)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over features and instructions."""
        digest = hashlib.sha256()
        for info, features in zip(self.episodes, self._features, strict=True):
            digest.update(info.instruction.encode() + np.ascontiguousarray(features).tobytes())
        return digest.hexdigest()

    def _values(self, source: str, episode: int) -> Any:
        return self._features[episode] if source == "features" else None


def padded(store: EpisodeStore, share: float) -> EpisodeStore:
    """Return clips that go on into the next episode with another instruction.

    Args:
        store: Clips, as features of a frozen backbone.
        share: Number of appended frames, as a share of the clip's frames; 0 appends none.
    """
    if share == 0:
        return store
    own = [np.asarray(store.features(episode)) for episode in range(len(store.episodes))]
    texts = [info.instruction for info in store.episodes]
    found = []
    for episode, features in enumerate(own):
        found.append(np.concatenate([features, own[_next(texts, episode)][: round(share * len(features))]]))
    infos = [replace(info, length=len(features)) for info, features in zip(store.episodes, found, strict=True)]
    return FeatureStore(infos, found, store.cameras)


def _next(texts: list[str], episode: int) -> int:
    others = [at for at, text in enumerate(texts) if text != texts[episode]]
    return next((at for at in others if at > episode), others[0])


@dataclass(frozen=True)
class FixedShare:
    """Draws start and goal of a segment whose length is a fixed share of its clip; the start is uniform."""

    share: float
    count: ClassVar[int] = 2
    min_length: ClassVar[int] = 2

    def __call__(self, lengths: Integers, rng: np.random.Generator) -> Integers:
        """Pick steps (start, goal)."""
        span = np.maximum(1, np.round(self.share * (lengths - 1)).astype(np.int64))
        start = rng.integers(lengths - span)
        return np.stack([start, start + span], 1)


PICKS: Mapping[str, Pick] = {"a tenth": FixedShare(0.1), "half": FixedShare(0.5), "whole": FixedShare(1.0)}
"""Ways to draw a clip's frames, instead of the objective's own way."""
