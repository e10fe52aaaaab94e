"""Measure at which frames of an episode a reward names the stage that the robot is in.

A stage is a segment of an episode, under its own instruction (`counterpoint.data.segments`). A reward names the stage
of a frame in one of three ways:

- a model of others says the stage's number (`Prediction.stage`);
- a model of others that has progress but no stages names the stage whose mean share of the episodes contains this
  progress, which inverts LeRobot's `progress_dense`. A ramp, which only counts frames, thus names stages by the clock;
- any other reward names the instruction of the episode with the highest score of the fifth of the episode around the
  frame. A tie counts as a miss.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from counterpoint.data.segments import SegmentStore, mean_shares, whole_episodes
from counterpoint.data.store import Cameras, EpisodeStore, camera_names, states_of
from counterpoint.evaluation.embedded import spread
from counterpoint.evaluation.metrics import matched
from counterpoint.progress import ProgressBar
from counterpoint.rewards.embedding import STATE, reads_state
from counterpoint.rewards.sources import EPISODE, Curves, EncoderReward, Frames, FunctionReward, Reward

Array = NDArray[np.float64]
Right = Bool[NDArray[np.bool_], " F"]

FRAMES = 64
"""Maximum number of frames of an episode whose stages are asked for, evenly spread."""
AROUND = 0.2
"""Length of the part of an episode around a frame that an encoder scores, as a share of the episode."""


def stage_accuracy(
    rewards: Sequence[Reward], store: EpisodeStore, *, cameras: Cameras = None, max_frames: int = FRAMES
) -> Float[Array, "R N"]:
    """Return, for each reward, the share of each video's frames whose stage it names right.

    The share is `nan` for a video that does not belong to an episode of two or more stages, and for a reward that names
    no stages. Frames without an instruction do not count.

    Args:
        rewards: R rewards.
        store: N videos: whole episodes, or segments of them.
        cameras: The cameras, as in `bench.ask`.
        max_frames: Maximum number of frames of an episode, at most `FRAMES`.
    """
    whole, numbers, first = whole_episodes(store)
    told = np.full((len(rewards), len(store.episodes)), np.nan)
    known = {number: {words for _, words in whole.episodes[number].segments} for number in np.unique(numbers).tolist()}
    several = [number for number, texts in known.items() if len(texts - {""}) > 1]
    if not several:
        return told
    parts, views = SegmentStore(whole), camera_names(cameras, store)
    shares = mean_shares(parts)
    with ProgressBar("Asking for stages", len(several), "videos", shorten="--max-videos") as progress:
        for number in several:
            own, names = parts.owner == number, [words for _, words in whole.episodes[number].segments]
            steps = spread(whole.episodes[number].length, min(max_frames, FRAMES))
            frames = {view: whole.frames(number, steps, view) for view in views}
            if any(map(reads_state, rewards)):
                frames[STATE] = states_of(whole, number)[steps]
            row = np.searchsorted(parts.first[own], steps, side="right") - 1
            text = whole.episodes[number].instruction
            episode = _Staged(names, row, np.cumsum(shares[own]), text)
            shared: dict[object, object] = {}
            said = [episode.said(one, frames) if isinstance(one, FunctionReward) else None for one in rewards]
            for video in np.flatnonzero(numbers == number).tolist():
                inside = (steps >= first[video]) & (steps < first[video] + store.episodes[video].length)
                asked = np.flatnonzero(inside & episode.named)
                if not len(asked):
                    continue
                shared[EPISODE] = video
                for at, (one, right) in enumerate(zip(rewards, said, strict=True)):
                    if right is not None:
                        told[at, video] = right[asked].mean()
                    elif not isinstance(one, FunctionReward) and episode.readable(one):
                        told[at, video] = episode.scored(one.watch(frames, shared), asked).mean()
            progress.advance()
    return told


class _Staged:
    """F frames of an episode with several stages.

    Args:
        names: Instruction of each stage, in order; empty for a part without one.
        row: Number of the stage of each frame, [F].
        until: Share of the episode that has passed at each stage's end, as a mean over episodes.
        instruction: The instruction of the whole episode.
    """

    def __init__(self, names: Sequence[str], row: NDArray[np.int64], until: Array, instruction: str) -> None:
        self.names, self.row, self.until, self.instruction = list(names), row, until, instruction
        self.texts = list(dict.fromkeys(name for name in names if name))
        self.own = np.array([self.texts.index(names[at]) if names[at] else -1 for at in row], np.int64)

    @property
    def named(self) -> Right:
        """True for frames of a stage with an instruction."""
        return self.own >= 0

    def said(self, reward: FunctionReward, frames: Frames) -> Right | None:
        """Return at which frames a model of others is right; `None` if it says neither stage nor progress."""
        found = reward.predict(frames, self.instruction)
        if found.stage is not None:
            known = dict(enumerate(reward.stages or self.texts))
            return self._right([known.get(at, "") for at in found.stage.tolist()])
        if not reward.progress:
            return None
        at = np.minimum(np.searchsorted(self.until, found.progress, side="right"), len(self.names) - 1)
        return self._right([self.names[one] for one in at])

    def _right(self, told: Sequence[str]) -> Right:
        return np.array([name == self.names[row] for name, row in zip(told, self.row, strict=True)])

    def readable(self, reward: Reward) -> bool:
        """Return False for a reward that needs goal images, if one of the stages has none."""
        if not (isinstance(reward, EncoderReward) and reward.model.form == "goal"):
            return True
        return all(text in reward.goals for text in self.texts)

    def scored(self, curves: Curves, frames: NDArray[np.int64]) -> Right:
        """Return at which of the given frames the stage's instruction scores highest."""
        last = len(self.row) - 1
        half = max(1, round(AROUND * last / 2))
        around = [np.array([max(0, at - half), at, min(last, at + half)]) for at in frames.tolist()]
        return matched(np.stack([curves(part, self.texts)[:, -1] for part in around]), self.own[frames])
