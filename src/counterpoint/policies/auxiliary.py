"""Losses beside imitation: what shapes a policy's representation while the policy is learned.

    L = L_pred + sum over terms of lambda L_term          (ICon, Eq. 6)

`IConTerm` and `CrosswayTerm` look at what the policy's own pass over a batch left behind (`Seen`); `ObjectiveTerm` puts
any objective on transitions there (Premier-TACO, TACO, CURL, ...), which shares the policy's encoder and gets
batches of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor, nn

from counterpoint.data.nstep import NStepSpec
from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.objectives.base import Batch, LossOutput
from counterpoint.objectives.icon import ICon, IConConfig
from counterpoint.objectives.step import StepObjective
from counterpoint.policies.crossway import CrosswayDecoder

__all__ = ["AuxiliaryTerm", "CrosswayTerm", "IConTerm", "ObjectiveTerm", "Seen"]


@dataclass(frozen=True)
class Seen:
    """What a policy's pass over a batch leaves to auxiliary terms.

    Attributes:
        frames: uint8 [B, To, C, h, w, 3], cropped to the encoder's size.
        masks: bool [B, To, C, h, w], the robot in them, where the batch has masks.
        state: float [B, To, P], normalised, where the policy reads proprioception.
        bottleneck: [B, M, k], the U-Net's innermost features; `None` of another network.
        batch: All of it.
    """

    frames: UInt8[Tensor, "B To C h w 3"]
    masks: Bool[Tensor, "B To C h w"] | None
    state: Float[Tensor, "B To P"] | None
    bottleneck: Float[Tensor, "B M k"] | None
    batch: Batch


class AuxiliaryTerm(nn.Module):
    """One loss beside imitation.

    Args:
        weight: lambda.
    """

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight

    def demand(self, spec: NStepSpec) -> NStepSpec:
        """What the policy's batches must hold for this term, given what they hold without it."""
        return spec

    def own_sampling(self) -> NStepSpec | None:
        """Batches of its own, whose keys then begin with the term's name and a dot. Default: none."""
        return None

    def forward(self, seen: Seen, name: str) -> LossOutput:
        """The loss, without its weight. Called in training, after the policy's networks have seen the batch."""
        raise NotImplementedError

    def after_step(self) -> None:
        """Run after each optimiser step. Default: nothing."""


class IConTerm(AuxiliaryTerm):
    """Inter-token contrast in the encoder's vision transformers (ICon, Eq. 4 to 6), the mean over cameras.

    Args:
        encoder: The policy's, of kind `vit`.
        masked: Of each camera, whether it has masks; the others are left alone.
        config: Keys, temperature, layers and weight.

    Raises:
        BadInputError: An encoder without tokens, or more keys than a picture has tokens.
    """

    def __init__(self, encoder: ObservationEncoder, masked: Sequence[bool], config: IConConfig) -> None:
        super().__init__(config.weight)
        self._cameras = [camera for camera, has in enumerate(masked) if has]
        self.each = nn.ModuleList(ICon(encoder.vits[camera], config) for camera in self._cameras)

    def demand(self, spec: NStepSpec) -> NStepSpec:
        """Masks."""
        return replace(spec, masks=True)

    def forward(self, seen: Seen, name: str) -> LossOutput:
        """Of the tokens that the encoder has just made."""
        assert seen.masks is not None
        outputs: list[LossOutput] = [
            icon(seen.masks[:, :, camera].flatten(0, 1))
            for icon, camera in zip(self.each, self._cameras, strict=True)
        ]
        means = {key: torch.stack([o.metrics[key] for o in outputs]).mean() for key in outputs[0].metrics}
        return LossOutput(torch.stack([output.loss for output in outputs]).mean(), means)

    def after_step(self) -> None:
        """Terms with batches of their own may have passed them through the tapped encoder."""
        for icon in self.each:
            assert isinstance(icon, ICon)
            icon.tap.forget()


class CrosswayTerm(AuxiliaryTerm):
    """Crossway Diffusion's reconstruction of the newest observation from the U-Net's bottleneck.

    Args:
        decoder: Of pictures and proprioception.
        weight: 0.1 in the paper.
    """

    def __init__(self, decoder: CrosswayDecoder, weight: float) -> None:
        super().__init__(weight)
        self.decoder = decoder

    def forward(self, seen: Seen, name: str) -> LossOutput:
        """The decoder's error."""
        assert seen.bottleneck is not None
        state = None if seen.state is None else seen.state[:, -1]
        output: LossOutput = self.decoder(seen.bottleneck, seen.frames[:, -1], state)
        return output


class ObjectiveTerm(AuxiliaryTerm):
    """Any objective on transitions, on batches of its own, through the policy's encoder.

    Args:
        objective: Built around the policy's encoder.
        weight: lambda.
        crop: Side of random windows, where the policy's pictures are cropped; 0 where they are not.
    """

    def __init__(self, objective: StepObjective, weight: float, *, crop: int = 0) -> None:
        super().__init__(weight)
        objective.crop_to(crop)
        self.objective = objective

    def own_sampling(self) -> NStepSpec:
        """The objective's."""
        return self.objective.sampling()

    def forward(self, seen: Seen, name: str) -> LossOutput:
        """The objective's loss on the part of the batch that is this term's."""
        prefix = f"{name}."
        own = {key.removeprefix(prefix): value for key, value in seen.batch.items() if key.startswith(prefix)}
        features = self.objective.encode(own)
        with torch.autocast(seen.frames.device.type, enabled=False):
            return self.objective.loss(features.float(), own)

    def after_step(self) -> None:
        """Targets follow."""
        self.objective.after_step()
