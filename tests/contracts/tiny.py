"""A dual encoder of a few hundred parameters, for tests that need one and not a particular one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder

__all__ = ["Pixels", "TinyEncoder"]


class TinyEncoder(DualEncoder):
    """Two perceptrons: of 8 x 8 pixels, and of the counts of a text's bytes. No dropout, no batch norm."""

    def __init__(self, embed_dim: int = 8, seed: int = 0) -> None:
        nn.Module.__init__(self)
        self.embed_dim, self.image_size = embed_dim, 8
        self.config, self.state = EncoderConfig(image_size=8, embed_dim=embed_dim), None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.image = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 16), nn.Tanh(), nn.Linear(16, embed_dim))
            self.text = _Bytes(embed_dim)
        self.register_buffer("mean", torch.full((3,), 0.5))
        self.register_buffer("std", torch.full((3,), 0.25))


class Pixels(nn.Module):
    """Three numbers of an image, its mean colours, and three of a text, each with a scale that learns."""

    embed_dim, image_size = 3, 4

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def encode_image(self, frames: Tensor) -> Tensor:
        return frames.float().mean((-3, -2)) * self.scale

    def encode_text(self, texts: list[str]) -> Tensor:
        return torch.tensor([[len(t), t.count("o"), 1.0] for t in texts]) * self.scale


class _Bytes(nn.Module):
    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.project = nn.Linear(64, embed_dim)

    def forward(self, texts: list[str]) -> Tensor:
        counts = torch.zeros(len(texts), 64).to(self.project.weight)
        for row, text in enumerate(texts):
            for byte in text.encode():
                counts[row, byte % 64] += 1
        embedded: Tensor = self.project(nn.functional.normalize(counts, dim=-1))
        return embedded
