"""Parts of episodes as episodes of their own: segments, and altered copies that a reward should score low.

A segment is a part of an episode with its own instruction. It ends where the next segment begins, or with the episode.

Altered copies show an instruction that is undone or not completed, and say so in their own instruction. An objective
that contrasts instructions thus learns to score the copy below the whole episode under the episode's instruction. The
copies follow ReWiND (arXiv 2505.10911: rewound videos) and RoboReward (arXiv 2601.00675: videos cut short,
counterfactual instructions). Both train a progress or a grade by regression, with a low target for such videos; here
contrast takes the place of the targets. A rewound copy shows only the way back, because objectives draw segments, and
a segment of the way there would be right. ReWiND's mismatched texts are the negatives of every contrast.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from counterpoint.data.draws import sample_rng
from counterpoint.data.episode import Array, EpisodeInfo
from counterpoint.data.store import EpisodeStore, spread
from counterpoint.data.store_views import Integers, StoreView, SubsetStore

Segments = Literal["episode", "task"]
"""`episode` takes whole episodes; `task` takes each segment of an episode as an episode of its own."""
Alteration = Literal["rewound", "clipped", "failed", "counterfactual"]
"""`rewound` adds a copy of each episode that goes back from a late step, `clipped` a copy that ends early; `failed`
gives failed episodes an instruction that says so; `counterfactual` adds instructions with opposite words."""
TEXTS: dict[str, str] = {"rewound": "undo: {}", "clipped": "begin to {}", "failed": "fail to {}"}
"""The instruction of an altered episode, given its own."""
OPPOSITES = (
    *(("open", "close"), ("on", "off"), ("left", "right"), ("up", "down"), ("top", "bottom"), ("push", "pull")),
    *(("pick up", "put down"), ("lift", "lower"), ("fold", "unfold"), ("lock", "unlock"), ("insert", "remove")),
    *(("in", "out of"), ("into", "out of"), ("front", "back"), ("under", "on top of"), ("fill", "empty")),
)
"""Words that turn an instruction into one that the episode does not carry out."""


class SegmentStore(StoreView):
    """A view with one episode for each segment of each episode; episodes without segments stay whole.

    A segment of a successful episode counts as a success. If an episode with several segments failed, the success of
    its segments is unknown (`None`), because any of them may have failed.

    Args:
        store: The whole store; kept as the attribute `whole`.

    Attributes:
        owner: int64 [E], the episode of the whole store that each segment belongs to.
        first: int64 [E], the first step of each segment in that episode.
    """

    def __init__(self, store: EpisodeStore) -> None:
        self.whole = store
        whole = [info.segments or ((0, info.instruction),) for info in store.episodes]
        found = [(episode, *part) for episode, parts in enumerate(whole) for part in parts]
        self.owner = np.array([episode for episode, _, _ in found], np.int64)
        self.first = np.array([first for _, first, _ in found], np.int64)
        super().__init__([store], np.zeros(len(found)), self.owner)
        last = np.append(self.owner[1:] != self.owner[:-1], True)
        stop = np.where(last, store.lengths[self.owner], np.append(self.first[1:], 0))
        parts = zip(self.episodes, (stop - self.first).tolist(), (words for _, _, words in found), strict=True)
        self.episodes = tuple(
            replace(
                info,
                length=length,
                instruction=words,
                success=_success(info),
                segments=(),
                wordings=() if info.segments else info.wordings,
            )
            for info, length, words in parts
        )

    @property
    def fingerprint(self) -> str:
        """The digest of the whole store combined with the segments."""
        return hashlib.sha256(f"{self.whole.fingerprint}{self.first.tolist()}{self.episodes}".encode()).hexdigest()

    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """Return the images, uint8 [N, H, W, 3]."""
        return super().frames(episode, np.asarray(indices, np.int64) + self.first[episode], camera)

    def depth(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """Return the distances [N, H, W]; see `EpisodeStore.depth`."""
        return super().depth(episode, np.asarray(indices, np.int64) + self.first[episode], camera)

    def _values(self, source: str, episode: int) -> Any:
        values, first = super()._values(source, episode), int(self.first[episode])
        if values is None:
            return None
        own = values[first : first + self.episodes[episode].length]
        return own - own[0] if source == "timestamps" else own

    def gather(
        self, source: str, episodes: Integers, steps: Integers, *, camera: str | None = None, out: Array | None = None
    ) -> Array:
        """Read frames at their steps in the whole episodes, and vectors from `column`."""
        inside = steps + spread(self.first[episodes], steps) if source == "frames" else steps
        return super().gather(source, episodes, inside, camera=camera, out=out)


def by_segments(store: EpisodeStore, segments: Segments) -> EpisodeStore:
    """Return the store, or its `SegmentStore`, as the recipe key `data.segments` says."""
    return SegmentStore(store) if segments == "task" else store


def whole_episodes(store: EpisodeStore) -> tuple[EpisodeStore, Integers, Integers]:
    """Return the store of whole episodes, and for each episode of `store`, which of them it comes from.

    Args:
        store: Whole episodes, or segments, or a subset of either.

    Returns:
        The store of whole episodes, the number [E] of the whole episode, and the first step [E] in it.
    """
    if isinstance(store, SubsetStore):
        whole, owner, first = whole_episodes(store.whole)
        chosen = np.asarray(store.indices, np.int64)
        return whole, owner[chosen], first[chosen]
    if isinstance(store, SegmentStore):
        return store.whole, store.owner, store.first
    return store, np.arange(len(store.episodes)), np.zeros(len(store.episodes), np.int64)


def mean_shares(store: SegmentStore) -> Float[NDArray[np.float64], " E"]:
    """Return each segment's share of its episode, as a mean over the episodes, [E].

    The mean is over the episodes that have a segment of this task. The shares of an episode's segments are scaled so
    that they add up to 1.
    """
    part = store.lengths / np.bincount(store.owner, store.lengths)[store.owner]
    tasks = np.unique([info.instruction for info in store.episodes], return_inverse=True)[1]
    share = (np.bincount(tasks, part) / np.bincount(tasks))[tasks]
    return np.asarray(share / np.bincount(store.owner, share)[store.owner])


def _success(info: EpisodeInfo) -> bool | None:
    return info.success if len(info.segments) < 2 or info.success else None


class AlteredStore(StoreView):
    """A view that adds altered copies of episodes after the episodes themselves, for objectives on clips.

    Frames, features and states of a copy are those of its steps; its times begin at 0 and rise. A copy counts as
    failed. Episodes of fewer than twice `least` steps have no copies.

    Args:
        store: The whole store; kept as the attribute `whole`.
        kinds: The alterations; `counterfactual` changes no episode.
        least: Minimum number of steps of a copy, at least 2.
        seed: Random seed of the copies' first and last steps.

    Attributes:
        owner: int64 [E], the episode of the whole store that each episode comes from.
        steps: For each episode, the steps of that episode that it shows, int64 [T].
    """

    def __init__(self, store: EpisodeStore, kinds: Sequence[Alteration], *, least: int = 2, seed: int = 0) -> None:
        self.whole = store
        found = [*_originals(store, kinds), *_copies(store, kinds, max(least, 2), seed)]
        self.owner = np.array([episode for episode, _, _ in found], np.int64)
        self.steps = [steps for _, steps, _ in found]
        super().__init__([store], np.zeros(len(found)), self.owner)
        infos = zip(self.episodes, found, strict=True)
        self.episodes = tuple(_altered(info, len(steps), kind) for info, (_, steps, kind) in infos)
        self._inside = np.concatenate(self.steps)

    @property
    def fingerprint(self) -> str:
        """The digest of the whole store combined with the episodes' instructions and steps."""
        shown = "".join(
            f"{info.instruction}{steps.tolist()}" for info, steps in zip(self.episodes, self.steps, strict=True)
        )
        return hashlib.sha256(f"{self.whole.fingerprint}{shown}".encode()).hexdigest()

    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """Return the images, uint8 [N, H, W, 3]."""
        return super().frames(episode, self.steps[episode][np.asarray(indices, np.int64)], camera)

    def depth(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """Return the distances [N, H, W]; see `EpisodeStore.depth`."""
        return super().depth(episode, self.steps[episode][np.asarray(indices, np.int64)], camera)

    def _values(self, source: str, episode: int) -> Any:
        values, steps = super()._values(source, episode), self.steps[episode]
        if values is None:
            return None
        return values[: len(steps)] if source == "timestamps" else values[steps]

    def gather(
        self, source: str, episodes: Integers, steps: Integers, *, camera: str | None = None, out: Array | None = None
    ) -> Array:
        """Read frames and vectors at their steps in the whole episodes."""
        inside = self._inside[spread(self._starts[episodes], steps) + steps]
        return self.whole.gather(source, self.owner[episodes], inside, camera=camera, out=out)


_Part = tuple[int, Integers, str]  # an episode, the steps that are shown, and the alteration ("" for none)


def _originals(store: EpisodeStore, kinds: Sequence[Alteration]) -> Iterator[_Part]:
    for episode, info in enumerate(store.episodes):
        yield episode, np.arange(info.length), "failed" if _marked(info, kinds) else ""


def _copies(store: EpisodeStore, kinds: Sequence[Alteration], least: int, seed: int) -> Iterator[_Part]:
    for episode, info in enumerate(store.episodes):
        T = info.length
        if 2 * least > T or _marked(info, kinds):
            continue
        if "rewound" in kinds:
            rng = sample_rng(seed, episode, "rewound")
            last = int(rng.integers(T // 2, T))
            first = int(rng.integers(0, last - least + 2))
            yield episode, np.arange(last, first - 1, -1), "rewound"
        if "clipped" in kinds:
            stop = int(sample_rng(seed, episode, "clipped").integers(T // 4, 3 * T // 4))
            yield episode, np.arange(max(stop, least)), "clipped"


def _marked(info: EpisodeInfo, kinds: Sequence[Alteration]) -> bool:
    return info.success is False and "failed" in kinds


def _altered(info: EpisodeInfo, length: int, kind: str) -> EpisodeInfo:
    if not kind:
        return info
    texts = tuple(TEXTS[kind].format(text) for text in (info.instruction, *info.wordings))
    own, *wordings = texts
    return replace(info, length=length, instruction=own, success=False, segments=(), wordings=tuple(wordings))


def counterfactuals(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the instructions with a word of `OPPOSITES` exchanged, without those that are in `texts` themselves."""
    known = list(dict.fromkeys(texts))
    found = []
    for text in known:
        for pair in OPPOSITES:
            word = re.compile(rf"\b({'|'.join(pair)})\b")
            parts = word.split(text)  # the words themselves have the odd places
            found.append("".join(pair[pair[0] == part] if at % 2 else part for at, part in enumerate(parts)))
    return tuple(text for text in dict.fromkeys(found) if text not in known)
