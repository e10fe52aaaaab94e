"""A world of two balls on a table, an encoder that understands it, and one that does not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from counterpoint.data.episode import Episode
from counterpoint.data.store import MemoryStore

SIZE = 32
INSTRUCTIONS = (
    "push the red ball right",
    "push the red ball left",
    "push the blue ball right",
    "push the blue ball left",
)
COLOURS = {"red": (220, 40, 40), "blue": (40, 70, 220)}


def frame(red: float, blue: float, size: int = SIZE) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """A table with the red ball above and the blue one below; positions in [0, 1] from left to right."""
    image = np.full((size, size, 3), 225, dtype=np.uint8)
    rows, columns = np.mgrid[0:size, 0:size] / size
    for position, row, colour in ((red, 0.3, COLOURS["red"]), (blue, 0.7, COLOURS["blue"])):
        inside = (rows - row) ** 2 + (columns - 0.15 - 0.7 * position) ** 2 < 0.012
        image[inside] = colour
    return image


def episode(instruction: str, length: int, seed: int, size: int = SIZE) -> Episode:
    rng = np.random.default_rng(seed)
    ball, way = instruction.split()[2], instruction.split()[-1]
    path = np.linspace(0.5, 1.0 if way == "right" else 0.0, length) + rng.normal(0.0, 0.01, length)
    other = np.full(length, 0.5) + rng.normal(0.0, 0.01, length)
    red, blue = (path, other) if ball == "red" else (other, path)
    frames = np.stack([frame(r, b, size) for r, b in zip(red, blue, strict=True)])
    return Episode({"front": frames}, instruction, np.arange(length) / 10.0)


def store(each: int = 3, size: int = SIZE) -> MemoryStore:
    return MemoryStore(
        [
            episode(text, 12 + 2 * number, seed=10 * number + at, size=size)
            for at, text in enumerate(INSTRUCTIONS)
            for number in range(each)
        ]
    )


class SeeingEncoder(torch.nn.Module):
    """Embeds a frame as the two balls' positions, and an instruction as the change it names."""

    embed_dim = 3

    def encode_image(self, frames: Tensor) -> Tensor:
        colour = frames.float() if frames.dtype == torch.uint8 else frames * 255
        width = frames.shape[-2]
        across = (torch.arange(width) + 0.5) / width
        positions = []
        for name in ("red", "blue"):
            near = ((colour - torch.tensor(COLOURS[name])).abs().sum(-1) < 60).float()
            positions.append((near * across).sum((-1, -2)) / near.sum((-1, -2)).clamp(min=1) - 0.5)
        return torch.stack([*positions, torch.full_like(positions[0], 0.2)], dim=-1)

    def encode_text(self, text: Sequence[str]) -> Tensor:
        vectors = []
        for words in (sentence.split() for sentence in text):
            sign = 1.0 if "right" in words else -1.0
            vectors.append([sign * ("red" in words), sign * ("blue" in words), 0.0])
        return torch.tensor(vectors)


class RandomEncoder(torch.nn.Module):
    """An untrained network: a fixed random projection of pixels, and of characters."""

    embed_dim = 16

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.pixels = torch.nn.Parameter(torch.randn(SIZE * SIZE * 3, 16, generator=generator) / 30)
        self.letters = torch.nn.Parameter(torch.randn(128, 16, generator=generator))

    def encode_image(self, frames: Tensor) -> Tensor:
        unit = frames.float() / 255 if frames.dtype == torch.uint8 else frames
        return torch.tanh(unit.flatten(-3) @ self.pixels)

    def encode_text(self, text: Sequence[str]) -> Tensor:
        return torch.stack([self.letters[[ord(letter) for letter in t]].sum(0) for t in text])
