"""Networks of observation encoders: DrQ-v2's ConvNet, ResNet-18 with an instruction, timm's vision transformers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Float, Shaped
from pydantic import PositiveInt
from torch import Tensor, nn

from counterpoint.config import FrozenConfig
from counterpoint.encoders.dual import SentenceTower
from counterpoint.encoders.towers import ResNet18
from counterpoint.encoders.weights import MINILM, fit_weights, note_hub, read_weights, tag_or_file
from counterpoint.errors import BadInputError, import_extra, require


def stack_frames(
    frames: Shaped[Tensor, "N S H W 3"], mean: Float[Tensor, "*image 3"], deviation: Float[Tensor, "*channels"]
) -> Float[Tensor, "N L H W"]:
    """Return normalised images with the channels of S frames, the oldest first, in channels-last memory.

    For speed, bytes are reordered before the conversion to floats, and one fused operation normalises them.

    Args:
        frames: uint8 in [0, 255] or float in [0, 1].
        mean: Mean of pixels in [0, 1]: an image [H, W, 3], or one number for each channel [3].
        deviation: Standard deviation of these pixels: one number, or one for each channel.

    Returns:
        Images with L = 3 S channels.
    """
    S, unit = frames.shape[1], 255.0 if frames.dtype == torch.uint8 else 1.0
    pixels = torch.cat(frames.unbind(1), -1).to(mean.dtype)
    offset = (-mean / deviation).repeat(*[1] * (mean.ndim - 1), S)
    scale = 1 / (unit * deviation)
    return torch.addcmul(offset, pixels, scale.repeat(S) if scale.ndim else scale).permute(0, 3, 1, 2)


@torch.no_grad()
def drq_weights(module: nn.Module) -> None:
    """Set the weights of a linear or convolutional layer to DrQ-v2's initial values: `network.apply(drq_weights)`.

    Weights have orthogonal rows (one row per output), or orthogonal columns if there are more outputs than inputs; they
    are multiplied by sqrt 2 in convolutions. Biases are zero. Source: code of Yarats et al., 2022; Premier-TACO's code
    initialises encoder, heads and policy in the same way. Weights are drawn in a new tensor and copied, because torch's
    `orthogonal_` cannot write channels-last weights.
    """
    if isinstance(module, nn.Linear | nn.Conv2d):
        gain = math.sqrt(2) if isinstance(module, nn.Conv2d) else 1.0
        module.weight.copy_(nn.init.orthogonal_(torch.empty(module.weight.shape), gain))
        if module.bias is not None:
            module.bias.zero_()


class DrQConvNet(nn.Module):
    """The shallow ConvNet of DrQ-v2 with Premier-TACO's trunk (Appendix C, Listing 1).

    Four 3 x 3 convolutions, the first of stride 2, then a linear layer, layer normalisation and tanh. For inputs of
    9 x 84 x 84, width 32 and D = 100 it has 3.95 million parameters, as the paper says. (Listing 1 has
    `Conv2d(84, 32, ...)`, but 84 is the image's side; there are 9 channels.) Its initial weights are `drq_weights`.

    Args:
        channels: Input channels: three per frame of the stack.
        size: Height and width, in pixels.
        embed_dim: Dimensions of the embedding (D).
        width: Channels of every convolution.
    """

    def __init__(self, channels: int, size: int, embed_dim: int, *, width: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for number in range(4):
            layers += [nn.Conv2d(channels if number == 0 else width, width, 3, 2 if number == 0 else 1), nn.ReLU()]
        self.convnet = nn.Sequential(*layers)
        side = (size - 3) // 2 + 1 - 6
        self.trunk = nn.Sequential(nn.Linear(width * side * side, embed_dim), nn.LayerNorm(embed_dim), nn.Tanh())
        self.apply(drq_weights)

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D"]:
        """Embed normalised images."""
        embedded: Tensor = self.trunk(self.convnet(images).flatten(1))
        return embedded


Instruction = Sequence[str] | Tensor
"""B texts, or their sentence embeddings [B, E]."""

_WIDTHS = (64, 64, 128, 128, 256, 256, 512, 512)
"""Number of channels of each of the eight blocks."""


class SpatialSoftmax(nn.Module):
    """The mean location, x and y in [-1, 1], of each of K learned maps (Levine et al., 2016).

    Args:
        channels: Input channels.
        keypoints: Number of learned maps (K).
    """

    def __init__(self, channels: int, keypoints: int) -> None:
        super().__init__()
        self.maps = nn.Conv2d(channels, keypoints, 1)

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N L"]:
        """Return L = 2 K numbers: the x coordinates of all maps, then the y coordinates."""
        attention = self.maps(images).float().flatten(2).softmax(-1).unflatten(-1, images.shape[-2:])
        y, x = (torch.linspace(-1, 1, side, device=images.device) for side in images.shape[-2:])
        return torch.cat([attention.sum(-2) @ x, attention.sum(-1) @ y], 1)


class FilmResNet18(nn.Module):
    """ResNet-18 with FiLM (Perez et al., 2018) after every block: h <- (1 + gamma) h + beta.

    gamma and beta are linear in the embedded text. The network follows LIBERO (Liu et al., 2023), whose encoder
    (`keypoints`) has the first four of the eight blocks, then D / 2 keypoints and a linear layer. Unlike in LIBERO,
    normalisation is by group, so that frames do not depend on each other, and the frozen sentence encoder is MiniLM,
    not BERT. Premier-TACO (Appendix C) uses one such network per camera.

    Args:
        channels: Input channels: three per frame of the stack.
        embed_dim: Dimensions of the embedding (D).
        keypoints: True for LIBERO's form; False for all eight blocks, average pooling and a linear layer.
        text_model: Sentence encoder, as in `SentenceTower`.
    """

    def __init__(self, channels: int, embed_dim: int, *, keypoints: bool = False, text_model: str = MINILM) -> None:
        super().__init__()
        plain = ResNet18(embed_dim, channels=channels)
        self.widths = _WIDTHS[:4] if keypoints else _WIDTHS
        self.stem = plain.stem
        self.blocks = nn.ModuleList(list(plain.stages)[: len(self.widths)])
        if keypoints:
            count = max(1, embed_dim // 2)
            self.pool: nn.Module = SpatialSoftmax(self.widths[-1], count)
            self.head = nn.Linear(2 * count, embed_dim)
        else:
            self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
            self.head = plain.head
        # One linear map computes beta and gamma of every block.
        self.language = SentenceTower(text_model, 2 * sum(self.widths))

    def forward(self, images: Float[Tensor, "N C H W"], instruction: Instruction) -> Float[Tensor, "N D"]:
        """Embed normalised images with their instructions.

        Args:
            images: N observations.
            instruction: B texts or sentence embeddings [B, E]; N is a multiple of B, and each instruction belongs to
                N / B consecutive observations.

        Raises:
            BadInputError: If the number of images is not a multiple of the number of instructions.
        """
        text = self._modulation(instruction, len(images))
        hidden = self.stem(images)
        for block, both in zip(self.blocks, text, strict=True):
            beta, gamma = both[:, :, None, None].chunk(2, 1)
            hidden = (1 + gamma) * block(hidden) + beta
        embedded: Tensor = self.head(self.pool(hidden))
        return embedded

    def _modulation(self, instruction: Instruction, count: int) -> tuple[Tensor, ...]:
        """Return beta and gamma of every block, concatenated, with one row per observation."""
        projection = self.language.projection
        if isinstance(instruction, Tensor):
            found, fits = f"embeddings {list(instruction.shape)}", instruction.shape[1:] == (projection.in_features,)
        else:
            found, fits = f"{len(instruction)} texts", not isinstance(instruction, str)
        fits = fits and len(instruction) > 0 and count % len(instruction) == 0
        expected = f"texts or embeddings [B, {projection.in_features}], one for each observation or equal run of them"
        hint = "pass the instruction of every observation"
        require(fits, "instruction", f"{found} for {count} observations", expected, hint)
        if isinstance(instruction, Tensor):
            rows: Tensor = projection(instruction.to(projection.weight))
        else:
            rows = self.language(list(instruction))
        ends = list(accumulate(2 * width for width in self.widths))[:-1]
        return torch.tensor_split(rows.repeat_interleave(count // len(instruction), 0), ends, 1)


class ViTConfig(FrozenConfig):
    """Settings of a vision transformer; fields left `None` get the timm model's values.

    Attributes:
        model: Name of a timm model; the ICon paper uses ViT-S/16.
        patch: Side of a patch in pixels.
        embed_dim: Width of a token.
        depth: Number of blocks.
        heads: Number of attention heads.
    """

    model: str = "vit_small_patch16_224"
    patch: PositiveInt | None = None
    embed_dim: PositiveInt | None = None
    depth: PositiveInt | None = None
    heads: PositiveInt | None = None


class ViT(nn.Module):
    """A timm vision transformer over stacks of S frames; it returns the class token or, without one, pooled tokens.

    ICon (Wang and Lin, 2025, Appendix A.2) uses ViT-S with patches of 16 pixels at 224 x 224, one for each camera.

    Args:
        config: Settings of the transformer.
        size: Height and width of the images, in pixels.
        stack: Number of frames in a stack (S); they are the channels of one image.
        start: A weight file, or a tag that timm fetches; `None` for random weights.

    Attributes:
        vit: The timm model.
        embed_dim: Dimensions of the embedding (D).

    Raises:
        BadInputError: If the model is unknown or not a vision transformer, or weights do not fit.
        MissingExtraError: If timm is not installed.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, config: ViTConfig, *, size: int, stack: int = 1, start: str | None = None) -> None:
        super().__init__()
        timm, (tag, path) = import_extra("timm", "clip"), tag_or_file(start)
        own = {"patch_size": config.patch, "embed_dim": config.embed_dim, "depth": config.depth}
        own = {key: value for key, value in (own | {"num_heads": config.heads}).items() if value is not None}
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
        if tag and (where := model.pretrained_cfg.get("hf_hub_id")):
            note_hub(where)
        if path:
            fit_weights(self.vit, read_weights(path), path)
        self.embed_dim = int(model.num_features)
        for buffer, key in (("mean", "mean"), ("deviation", "std")):
            self.register_buffer(buffer, torch.tensor(model.pretrained_cfg.get(key) or (0.5, 0.5, 0.5)))

    def forward(self, frames: Shaped[Tensor, "N S H W 3"]) -> Float[Tensor, "N D"]:
        """Embed N stacks, uint8 in [0, 255] or float in [0, 1]."""
        embedded: Tensor = self.vit(stack_frames(frames, self.mean, self.deviation))
        return embedded
