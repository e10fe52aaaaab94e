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
from counterpoint.encoders.weights import fit_weights, is_local, read_weights
from counterpoint.errors import BadInputError, MissingExtraError

__all__ = ["ViT", "ViTConfig"]


class ViTConfig(FrozenConfig):
    """Which vision transformer.

    Attributes:
        model: A name of timm's; the paper's is ViT-S/16.
        patch: Side of a patch in pixels, where it shall be another than the model's.
        embed_dim: Width of a token, likewise.
        depth: Blocks, likewise.
        heads: Of attention, likewise.
    """

    model: str = "vit_small_patch16_224"
    patch: PositiveInt | None = None
    embed_dim: PositiveInt | None = None
    depth: PositiveInt | None = None
    heads: PositiveInt | None = None


class ViT(nn.Module):
    """Stacks of S frames into [N, D].

    The embedding is the class token after the last block's norm, or what the model pools its tokens to where it has
    no class token.

    Args:
        config: Which.
        size: Height and width of the pictures, in pixels.
        stack: S; a stack's frames are the channels of one picture.
        start: Weights: a file, or a tag that timm knows, which is fetched; `None` for random ones.

    Attributes:
        vit: timm's model.
        embed_dim: D.

    Raises:
        BadInputError: An unknown model, one that is no vision transformer, or weights that do not fit.
        MissingExtraError: timm is not installed.
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
        name = f"{config.model}.{tag}" if tag else config.model
        try:
            self.vit: nn.Module = timm.create_model(
                name,
                pretrained=tag is not None,
                num_classes=0,
                img_size=size,
                in_chans=3 * stack,
                **{key: value for key, value in own.items() if value is not None},
            )
        except (RuntimeError, TypeError, AssertionError, ValueError, OSError) as error:
            raise BadInputError(
                "vit",
                f"{name} at {size} pixels: {str(error).splitlines()[0]}",
                "a vision transformer of timm's, with patches that divide the picture",
                "choose one of timm.list_models('vit_*') and a size that its patch divides",
            ) from error
        if start is not None and tag is None:
            fit_weights(self.vit, read_weights(Path(start).expanduser()), Path(start))
        model: Any = self.vit
        self.embed_dim = int(model.num_features)
        expects = model.pretrained_cfg
        for buffer, key in (("mean", "mean"), ("deviation", "std")):
            values = torch.tensor(expects.get(key) or (0.5, 0.5, 0.5)).repeat(stack)
            self.register_buffer(buffer, values[:, None, None])

    def forward(self, frames: Shaped[Tensor, "N S H W 3"]) -> Float[Tensor, "N D"]:
        """Embed N stacks, uint8 in [0, 255] or float in [0, 1]."""
        unit = 255 if frames.dtype == torch.uint8 else 1
        pixels = torch.cat(frames.unbind(1), -1).permute(0, 3, 1, 2)
        embedded: Tensor = self.vit((pixels / unit - self.mean) / self.deviation)
        return embedded
