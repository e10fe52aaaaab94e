"""Training clips with defects of real data (foreign ends, other words), and other kinds of segments.

All changes are made to a frozen backbone's features. Their randomness depends only on the episode's number, so that
every row and seed sees the same changed clips.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from counterpoint.config import FrozenConfig
from counterpoint.data.draws import Pick, sample_rng
from counterpoint.data.episode import Array, EpisodeInfo
from counterpoint.data.store import EpisodeStore
from studies.rewards.rewordings import REWORDINGS

Integers = NDArray[np.int64]


class Changes(FrozenConfig):
    """Changes to clips; a share of 0 changes nothing.

    Attributes:
        padding: Number of appended frames, as a share of the clip's frames; they come from the next episode with
            another instruction.
        reworded: Share of episodes whose instruction lacks its articles.
    """

    padding: float = Field(0.0, ge=0)
    reworded: float = Field(0.0, ge=0, le=1)


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


def changed(store: EpisodeStore, changes: Changes) -> EpisodeStore:
    """Return a store with changed clips, from the features of the clips as recorded."""
    if changes == Changes():
        return store
    own = [np.asarray(store.features(episode)) for episode in range(len(store.episodes))]
    texts = [info.instruction for info in store.episodes]
    found = []
    for episode, features in enumerate(own):
        count, after = round(changes.padding * len(features)), _next(texts, episode)
        found.append(np.concatenate([features, own[after][:count]]))
    plain = REWORDINGS["order and form"]["no articles"]
    words = [
        plain(text) if sample_rng(0, episode, "reworded").random() < changes.reworded else text
        for episode, text in enumerate(texts)
    ]
    infos = [
        replace(info, length=len(features), instruction=text)
        for info, features, text in zip(store.episodes, found, words, strict=True)
    ]
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
