"""ResNet-18 that an instruction modulates: feature-wise linear modulation (FiLM; Perez et al., AAAI 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.encoders.config import MINILM
from counterpoint.encoders.resnet import ResNet18
from counterpoint.encoders.text import SentenceTower
from counterpoint.errors import BadInputError

__all__ = ["FilmResNet18", "Instruction", "SpatialSoftmax"]

Instruction = Sequence[str] | Tensor
"""Texts, or their sentence embeddings [B, E]."""

_WIDTHS = (64, 64, 128, 128, 256, 256, 512, 512)
"""Channels of the eight blocks."""


class SpatialSoftmax(nn.Module):
    """Where a learned map lies, on average, for each of K maps: x and y in [-1, 1] (Levine et al., 2016).

    Args:
        channels: Of the input.
        keypoints: K.
    """

    def __init__(self, channels: int, keypoints: int) -> None:
        super().__init__()
        self.maps = nn.Conv2d(channels, keypoints, 1)

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N L"]:
        """L = 2 K: the x of all maps, then the y."""
        attention = self.maps(images).float().flatten(2).softmax(-1).unflatten(-1, images.shape[-2:])
        y, x = (torch.linspace(-1, 1, side, device=images.device) for side in images.shape[-2:])
        return torch.cat([attention.sum(-2) @ x, attention.sum(-1) @ y], 1)


class FilmResNet18(nn.Module):
    """ResNet-18 with FiLM after every block: h <- (1 + gamma) h + beta, gamma and beta linear in the text.

    Modulation and, with `keypoints`, the whole follow LIBERO (Liu et al., 2023): its encoder keeps the first four
    of the eight blocks, then takes D / 2 keypoints and a linear layer. Unlike LIBERO's, normalisation is by
    group, so that no frame sees another, and the sentence encoder is MiniLM where LIBERO has BERT (both frozen;
    another is a name away). Premier-TACO (Appendix C) takes one such encoder a camera.

    Args:
        channels: Of the input: three a frame of the stack.
        embed_dim: D.
        keypoints: LIBERO's form, instead of all eight blocks, average pooling and a linear layer.
        text_model: Sentence encoder, as in `SentenceTower`.
    """

    def __init__(
        self, channels: int, embed_dim: int, *, keypoints: bool = False, text_model: str = MINILM
    ) -> None:
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
        # One linear map gives every block's beta and gamma.
        self.language = SentenceTower(text_model, 2 * sum(self.widths))

    def forward(self, images: Float[Tensor, "N C H W"], instruction: Instruction) -> Float[Tensor, "N D"]:
        """Embed normalised images under their instructions.

        Args:
            images: N observations.
            instruction: B texts or sentence embeddings [B, E]; N is a multiple of B, and each belongs to N / B
                observations in a row.

        Raises:
            BadInputError: Numbers that do not fit.
        """
        text = self._modulation(instruction, len(images))
        hidden = self.stem(images)
        for block, both in zip(self.blocks, text, strict=True):
            beta, gamma = both[:, :, None, None].chunk(2, 1)
            hidden = (1 + gamma) * block(hidden) + beta
        embedded: Tensor = self.head(self.pool(hidden))
        return embedded

    def _modulation(self, instruction: Instruction, count: int) -> tuple[Tensor, ...]:
        """Beta and gamma, side by side, of every block: one row an observation."""
        projection = self.language.projection
        if isinstance(instruction, Tensor):
            found, fits = (
                f"embeddings {list(instruction.shape)}",
                instruction.shape[1:] == (projection.in_features,),
            )
        else:
            # A single string would be taken for its letters.
            found, fits = f"{len(instruction)} texts", not isinstance(instruction, str)
        if not fits or len(instruction) == 0 or count % len(instruction):
            raise BadInputError(
                "instruction",
                found=f"{found} for {count} observations",
                expected="a list of texts, or embeddings "
                f"[B, {projection.in_features}]: one for each observation, or for each of equal runs of them",
                mend="pass the instruction of every observation",
            )
        rows: Tensor = (
            projection(instruction.to(projection.weight))
            if isinstance(instruction, Tensor)
            else self.language(list(instruction))
        )
        ends = list(accumulate(2 * width for width in self.widths))[:-1]
        return torch.tensor_split(rows.repeat_interleave(count // len(instruction), 0), ends, 1)
