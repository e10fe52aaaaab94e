"""A vision transformer as an observation encoder: timm's, from scratch or from released weights.

ICon (Wang and Lin, 2025, Appendix A.2) puts ViT-S with patches of 16 pixels at 224 x 224 in the place of Diffusion
Policy's ResNet, one for each camera, and conditions the policy on the class token.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Shaped
from pydantic import PositiveInt
from torch import Tensor, nn

from counterpoint.config import FrozenConfig
from counterpoint.encoders.preprocess import stack_frames
from counterpoint.encoders.weights import fit_weights, is_local, read_weights
from counterpoint.errors import BadInputError, MissingExtraError

__all__ = ["ViT", "ViTConfig"]


class ViTConfig(FrozenConfig):
    """Settings of a vision transformer; fields left `None` are the model's own.

    Attributes:
        model: Name of a timm model; the paper's is ViT-S/16.
        patch: Side of a patch in pixels.
        embed_dim: Width of a token.
        depth: Number of blocks.
        heads: Attention heads.
    """

    model: str = "vit_small_patch16_224"
    patch: PositiveInt | None = None
    embed_dim: PositiveInt | None = None
    depth: PositiveInt | None = None
    heads: PositiveInt | None = None


class ViT(nn.Module):
    """Embeddings [N, D] of stacks of S frames: the class token, or the pooled tokens of a model without one.

    Args:
        config: The transformer.
        size: Height and width of the images, in pixels.
        stack: S; a stack's frames are the channels of one image.
        start: A weight file, or a tag that timm fetches; `None` for random weights.

    Attributes:
        vit: timm's model.
        embed_dim: D.

    Raises:
        BadInputError: When the model is unknown or no vision transformer, or weights do not fit.
        MissingExtraError: When timm is not installed.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, config: ViTConfig, *, size: int, stack: int = 1, start: str | None = None) -> None:
        super().__init__()
        try:
            import timm
        except ModuleNotFoundError as error:
            raise MissingExtraError("timm", "clip") from error
        tag = start if start is not None and not is_local(start) else None
        own: dict[str, Any] = {"patch_size": config.patch, "embed_dim": config.embed_dim}
        own |= {"depth": config.depth, "num_heads": config.heads}
        own = {key: value for key, value in own.items() if value is not None}
        name = f"{config.model}.{tag}" if tag else config.model
        try:
            model: Any = timm.create_model(
                name, pretrained=tag is not None, num_classes=0, img_size=size, in_chans=3 * stack, **own
            )
        except (RuntimeError, TypeError, AssertionError, ValueError, OSError) as error:
            found = f"{name} at {size} pixels: {str(error).splitlines()[0]}"
            expected = "a vision transformer of timm's, with patches that divide the image"
            raise BadInputError("vit", found, expected, "choose one of timm.list_models('vit_*')") from error
        self.vit: nn.Module = model
        if start is not None and tag is None:
            fit_weights(self.vit, read_weights(Path(start).expanduser()), Path(start))
        self.embed_dim = int(model.num_features)
        for buffer, key in (("mean", "mean"), ("deviation", "std")):
            self.register_buffer(buffer, torch.tensor(model.pretrained_cfg.get(key) or (0.5, 0.5, 0.5)))

    def forward(self, frames: Shaped[Tensor, "N S H W 3"]) -> Float[Tensor, "N D"]:
        """Embed N stacks, uint8 in [0, 255] or float in [0, 1]."""
        embedded: Tensor = self.vit(stack_frames(frames, self.mean, self.deviation))
        return embedded
