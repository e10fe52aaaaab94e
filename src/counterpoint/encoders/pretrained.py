"""A pretrained visual representation over a stack of frames: each frame by itself, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional

from counterpoint.encoders import pretrained_backbone
from counterpoint.encoders.pretrained_models import PRETRAINED, PretrainedModel
from counterpoint.encoders.pretrained_weights import load_released
from counterpoint.encoders.weights import is_local
from counterpoint.errors import BadInputError

__all__ = ["PretrainedEncoder", "released_pixels"]


class PretrainedEncoder(nn.Module):
    """PVR, R3M, VIP, VC-1, MVP or CLIP over a stack of frames.

    Every frame is embedded by itself, and the S embeddings stand side by side, the oldest first; nothing else is
    done to them (papers differ: some put differences of neighbours beside them, which a linear layer finds too).
    All weights may train; whether they do is the policy's choice. Batch normalisation alone keeps the statistics
    it was pretrained with, in training too: a frame's embedding depends on no other frame, and weights that are
    frozen give the same features in either mode.

    Args:
        name: A key of `PRETRAINED`.
        checkpoint: The authors' file; for CLIP also a tag of open_clip ("openai"). `None`: random weights.
        stack: S.

    Attributes:
        embed_dim: D = S E.

    Raises:
        BadInputError: A file that cannot be read or does not fit, or a tag where there are none.
        MissingExtraError: torchvision, timm or open_clip is not installed.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, name: str, checkpoint: str | None = None, *, stack: int = 1) -> None:
        super().__init__()
        self.model: PretrainedModel = PRETRAINED[name]
        self.embed_dim = self.model.width * stack
        tag = checkpoint if checkpoint is not None and not is_local(checkpoint) else None
        if tag is not None and not name.startswith("clip"):
            raise BadInputError(
                "checkpoint",
                found=repr(tag),
                expected=f"the path of the file released for {name}: {self.model.title}",
                mend='download it, and write a file beside you as "./name"',
            )
        self.backbone = pretrained_backbone.build(self.model, tag=tag)
        if checkpoint is not None and tag is None:
            load_released(self.backbone, Path(checkpoint).expanduser(), self.model.layout)
        self.backbone.to(memory_format=torch.channels_last)
        self.register_buffer("mean", torch.tensor(self.model.mean), persistent=False)
        self.register_buffer("std", torch.tensor(self.model.std), persistent=False)
        self.train(self.training)

    def forward(self, frames: Shaped[Tensor, "N S H W 3"]) -> Float[Tensor, "N D"]:
        """Embed N observations, uint8 in [0, 255] or float in [0, 1]; D = S E."""
        pixels = released_pixels(frames.flatten(0, 1), self.model)
        images = (pixels - self.mean[:, None, None]) / self.std[:, None, None]
        features: Tensor = self.backbone(images)
        return features.reshape(len(frames), -1)

    def train(self, mode: bool = True) -> Self:
        """Switch to training or evaluation; batch normalisation stays in evaluation."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self


def released_pixels(frames: Shaped[Tensor, "M H W 3"], model: PretrainedModel) -> Float[Tensor, "M 3 S S"]:
    """Frames as the model's authors bring them to its size; pixels in [0, 1].

    The shorter edge is brought to `model.resize` pixels, then the centre is cut out. On tensors, antialiased.
    """
    images = (frames.float() / 255 if frames.dtype == torch.uint8 else frames).permute(0, 3, 1, 2)
    height, width = images.shape[-2:]
    if model.untouched and (height, width) == (model.size, model.size):
        return images
    short = min(height, width)
    if short != model.resize:
        scaled = (height * model.resize // short, width * model.resize // short)
        images = functional.interpolate(images, scaled, mode=model.resample, antialias=True)
        images = images.clamp(0, 1)  # bicubic overshoots
    top, left = (round((side - model.size) / 2) for side in images.shape[-2:])
    return images[..., top : top + model.size, left : left + model.size]
