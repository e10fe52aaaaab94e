"""AcTOL: vision-language representations ordered and continuous in time (Zhang et al., 2025; arXiv 2502.01218).

    L_AcTOL = L_VLO + lambda L_BB                                                                (Eq. 5)

L_VLO is in `vlo`, L_BB in `brownian_bridge`. Both look inside one video; no instruction is contrasted with
another.

Symbols: v_i -> `frames[:, i]`; l -> `text`; n(i) -> `times`; T -> the frames drawn of a clip; lambda ->
`bridge_weight`; sim -> `frame_geometry.frame_similarity`.

Where the sources differ:
  - Temperature: "the default of CLIP" in the paper, 0.01 in the authors' code. Followed: 0.01.
  - N(i, j) is strict in Appendix A.1, ">=" in section 4.1 and in the proof itself. Followed: ">=", with j in it.
  - Variance: section 4.2's form holds for t counted from n(i); Eq. 30 stands. Eq. 4's mean includes the ends,
    where it is 0/0; here, as in the authors' code, it is over the frames inside.
  - Bridge: the paper takes the variance's logarithm (Appendix B) and lambda = 100, as the authors' first
    release does; their later code has 0.1 / (2 var). Followed: the paper; `bridge` names the others.
  - What the authors' training computes for L_BB is another loss, which collapses frames (`brownian_bridge`).
  - Interval: "any sampled interval" in the paper, the first to the last sampled frame in the code. With
    `interval="random"` each clip draws a sub-interval of its frames.
  - The authors drop clips shorter than T. Here they come with padding, which both losses leave out.
  - L_VLO does not know which way time runs. In the paper CLIP's weights do; for encoders that start from
    nothing there is `DirectedAcTOL`, which is ours.
"""

from __future__ import annotations

from typing import Literal

from jaxtyping import Bool, Float, Int, Shaped
from pydantic import Field
from torch import Tensor

from counterpoint.data.clips import SortedFrames
from counterpoint.encoders.base import DualEncoder
from counterpoint.objectives.base import Batch, ClipConfig, ClipObjective, Features, LossOutput
from counterpoint.objectives.brownian_bridge import (
    Bridge,
    log_pull_to_line,
    log_pull_to_point,
    pull_to_line,
    pull_to_point,
    random_intervals,
)
from counterpoint.objectives.frame_geometry import frame_geometry
from counterpoint.objectives.infonce import in_full_precision
from counterpoint.objectives.vlo import (
    Neighbours,
    either_way,
    lower_bound,
    ordering_loss,
    ordering_metrics,
    time_forward,
)

__all__ = ["AcTOL", "AcTOLConfig", "DirectedAcTOL", "actol_loss"]

BRIDGES = {
    "log_variance": log_pull_to_line,
    "variance": pull_to_line,
    "log_variance_as_trained": log_pull_to_point,
    "variance_as_trained": pull_to_point,
}


class AcTOLConfig(ClipConfig):
    """AcTOL's settings. The paper's recipe switches `augment` on.

    Attributes:
        temperature: What R is divided by.
        frames: T, frames drawn of a clip.
        bridge_weight: lambda. The paper's 100 goes with CLIP's weights; small encoders want 0.1 or less.
        bridge: `log_variance` (Appendix B), `variance` (Eq. 4), or what the authors' releases compute instead.
        interval: `clip`, from the first to the last frame drawn, or `random`, one sub-interval a clip.
    """

    temperature: float = Field(default=0.01, gt=0)
    frames: int = Field(default=10, ge=3)
    bridge_weight: float = Field(default=100.0, ge=0)
    bridge: Literal["log_variance", "variance", "log_variance_as_trained", "variance_as_trained"] = (
        "log_variance"
    )
    interval: Literal["clip", "random"] = "clip"


@in_full_precision
def actol_loss(
    frames: Float[Tensor, "B T D"],
    text: Float[Tensor, "B D"],
    times: Shaped[Tensor, "B T"],
    *,
    temperature: float = 0.01,
    bridge_weight: float = 100.0,
    valid: Bool[Tensor, "B T"] | None = None,
    interval: Int[Tensor, "B 2"] | None = None,
) -> Float[Tensor, ""]:
    """`vlo_loss` + `bridge_weight` * `brownian_bridge_log_loss` (Eq. 5), in fewer passes over the frames.

    Args:
        frames: Raw embeddings of each video's frames.
        text: Raw embeddings of their instructions.
        times: n(i), frame numbers (or any times).
        temperature: What R is divided by.
        bridge_weight: lambda.
        valid: False at padding, which then changes nothing.
        interval: Positions (i, j) of the bridge's ends; the first and the last valid frame by default.

    Raises:
        BadInputError: When the shapes do not pair up.
    """
    bridge = Bridge.over(frames, times, valid, interval)
    pull = log_pull_to_line(bridge)
    similarity, distance = frame_geometry(frames, text, bridge.ends, pull.share)
    order = ordering_loss(similarity, Neighbours.of(times, valid), temperature, either_way)
    return order.mean() + bridge_weight * pull.loss(frames, bridge, distance)


class AcTOL(ClipObjective):
    """AcTOL on clips.

    Args:
        encoder: Image and text towers. The paper's start from CLIP, which says which way similarity runs.
        config: Settings; the paper's by default.
    """

    def __init__(self, encoder: DualEncoder, config: AcTOLConfig | None = None) -> None:
        config = config or AcTOLConfig()
        super().__init__(encoder, SortedFrames(config.frames), augment=config.augmentation)
        self.config = config

    def direction(self, gap: Float[Tensor, "B T T"], neighbours: Neighbours) -> Float[Tensor, "B T T"]:
        """Which sign a gap in similarity should have: `vlo.either_way`."""
        return either_way(gap, neighbours)

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """Eq. 5.

        Metrics are the two terms (`vlo`; `bridge`, before its weight), how far `vlo` stands above its lower
        bound (`vlo_excess`), and the three of every InfoNCE objective over pairs of frames.
        """
        frames, text = features.rows["frames"], features.rows["text"]
        times, valid = batch["clip.indices"], batch["clip.valid"]
        interval = random_intervals(batch["sample"], valid) if self.config.interval == "random" else None
        bridge = Bridge.over(frames, times, valid, interval)
        pull = BRIDGES[self.config.bridge](bridge)
        similarity, distance = frame_geometry(frames, text, bridge.ends, pull.share)
        neighbours, temperature = Neighbours.of(times, valid), self.config.temperature
        vlo = ordering_loss(similarity, neighbours, temperature, self.direction)
        smoothness = pull.loss(frames, bridge, distance)
        metrics = {
            "vlo": vlo.mean(),
            "bridge": smoothness,
            "vlo_excess": (vlo - lower_bound(neighbours)).mean(),
            **ordering_metrics(similarity, neighbours, temperature, self.direction),
        }
        return LossOutput(vlo.mean() + self.config.bridge_weight * smoothness, metrics)


class DirectedAcTOL(AcTOL):
    """AcTOL on `vlo.directed_vlo_loss`: similarity must rise with time. For encoders that start from nothing."""

    def direction(self, gap: Float[Tensor, "B T T"], neighbours: Neighbours) -> Float[Tensor, "B T T"]:
        """Which sign a gap in similarity should have: `vlo.time_forward`."""
        return time_forward(gap, neighbours)
