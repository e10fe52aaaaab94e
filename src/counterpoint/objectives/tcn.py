"""TCN: time-contrastive learning on single videos (Sermanet et al., ICRA 2018), in its InfoNCE form.

    loss = mean -log e^{S(a, p)} / (e^{S(a, p)} + sum_n e^{S(a, n)}),  S(x, y) = -||phi(x) - phi(y)||_2

Symbols: phi(a) -> `anchor`, phi(p) -> `positive`, phi(n) -> `negatives`. The positive is nearer in time to the anchor
than the negatives. All are frames of the same clip.

Where the sources differ: the original minimises a triplet loss; since R3M, papers on robot representations use the name
TCN for this softmax. The window and the number of negatives of `NearAndFar` are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from counterpoint.data.anchors import uniform_choice
from counterpoint.data.spec import Spec
from counterpoint.objectives.base import (
    Batch,
    ClipConfig,
    ClipObjective,
    Features,
    LossOutput,
    Similarity,
    candidate_metrics,
    in_full_precision,
    negative_distance,
    require_shapes,
)


@dataclass(frozen=True)
class NearAndFar:
    """A sampler of an anchor, a positive at most `window` steps away, and negatives farther away than that.

    Anchor, positive and negatives are sampled uniformly from the permitted steps, negatives with replacement. If a clip
    is so short that no step is farther than `window` from the anchor, the window shrinks until a negative is left.

    Attributes:
        window: Maximum distance of the positive, in steps.
        negatives: Number of negatives (N).
    """

    window: int = 5
    negatives: int = 4
    min_length: ClassVar[int] = 3

    @property
    def count(self) -> int:
        """The number of sampled steps, 2 + N."""
        return 2 + self.negatives

    def __call__(
        self, lengths: Int[NDArray[np.int64], " B"], rng: np.random.Generator
    ) -> Int[NDArray[np.int64], "B F"]:
        """Sample steps (anchor, positive, negatives...)."""
        steps = np.arange(lengths.max())
        reach = np.maximum(steps, lengths[:, None] - 1 - steps)  # distance from each step to the farther end
        inside = steps < lengths[:, None]
        anchor = uniform_choice(inside & (reach >= 2), 1, rng)
        distance = np.abs(steps - anchor)
        window = np.minimum(self.window, np.take_along_axis(reach, anchor, 1) - 1)
        positive = uniform_choice(inside & (distance >= 1) & (distance <= window), 1, rng)
        return np.concatenate([anchor, positive, uniform_choice(inside & (distance > window), self.negatives, rng)], 1)


class TCNConfig(ClipConfig):
    """Settings of TCN.

    Attributes:
        window: Maximum distance of the positive from the anchor, in steps.
        num_negatives: Number of negatives: frames of the same clip outside the window (N).
    """

    window: int = Field(default=5, ge=1)
    num_negatives: int = Field(default=4, ge=1)


def tcn_candidates(
    anchor: Float[Tensor, "B D"],
    positive: Float[Tensor, "B D"],
    negatives: Float[Tensor, "B N D"],
    *,
    similarity: Similarity = negative_distance,
) -> Float[Tensor, "B C"]:
    """Return logits of the time contrast: C = 1 + N candidates, the positive first."""
    return similarity(anchor[:, None], torch.cat([positive[:, None], negatives], dim=1))


@in_full_precision
def tcn_loss(
    anchor: Float[Tensor, "B D"],
    positive: Float[Tensor, "B D"],
    negatives: Float[Tensor, "B N D"],
    *,
    similarity: Similarity = negative_distance,
) -> Float[Tensor, ""]:
    """Return InfoNCE of each anchor's positive among the anchor's negatives.

    Args:
        anchor: Raw embeddings.
        positive: Raw embeddings of frames near the anchors in time.
        negatives: Raw embeddings of frames farther away in time.
        similarity: The similarity S of two embeddings.
    """
    ok = negatives.ndim == 3 and negatives.shape[1] and anchor.shape == positive.shape == negatives[:, 0].shape
    expected = "[B, D], [B, D] and [B, N, D] with N >= 1"
    hint = "pass one anchor, one positive and the same number of negatives a clip"
    require_shapes(ok, "anchor, positive, negatives", (anchor, positive, negatives), expected, hint)
    candidates = tcn_candidates(anchor, positive, negatives, similarity=similarity)
    return (candidates.logsumexp(1) - candidates[:, 0]).mean()


class TCN(ClipObjective):
    """TCN on clips; arguments are those of `ClipObjective`.

    It trains only the image tower; scores against language are not defined.
    """

    config_type = TCNConfig
    config: TCNConfig
    contrasts = False
    language = False
    reward_form = "goal"

    def sampling(self) -> Spec:
        """Return the sampling spec: an anchor, its positive and N negatives."""
        return self.clips(NearAndFar(self.config.window, self.config.num_negatives))

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """Return `tcn_loss` and the metrics of its candidates."""
        frames = features.rows["frames"]
        anchor, positive, negatives = frames[:, 0], frames[:, 1], frames[:, 2:]
        loss = tcn_loss(anchor, positive, negatives)
        return LossOutput(loss, candidate_metrics(tcn_candidates(anchor, positive, negatives)))
