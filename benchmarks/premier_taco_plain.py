"""One update of Premier-TACO written plainly, step by step as its authors' code takes it.

float32, channels first; each of the three observations is converted, shifted by `grid_sample` and encoded by itself,
the two later ones without gradient; the binary loss; Adam. Heads are the paper's (Appendix C).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

PAD = 4


def shifted_by_grid(images: Tensor, shift: Tensor) -> Tensor:
    """DrQ-v2's `RandomShiftsAug` of [N, C, H, W] with the shifts [N, 2] given."""
    N, _, H, _ = images.shape
    padded = functional.pad(images, (PAD,) * 4, "replicate")
    edge = 1.0 / (H + 2 * PAD)
    line = torch.linspace(-1 + edge, 1 - edge, H + 2 * PAD, device=images.device)[:H]
    across = line.unsqueeze(0).repeat(H, 1).unsqueeze(2)
    grid = torch.cat([across, across.transpose(1, 0)], dim=2).unsqueeze(0).repeat(N, 1, 1, 1)
    grid = grid + shift.to(images.dtype).view(N, 1, 1, 2) * (2.0 / (H + 2 * PAD))
    return functional.grid_sample(padded, grid, padding_mode="zeros", align_corners=False)


class Plain:
    """Networks, optimiser and one update.

    Args:
        action_dim: A.
        steps: K.
        lr: Of Adam.
    """

    def __init__(self, action_dim: int, steps: int, lr: float) -> None:
        self.convnet = nn.Sequential(
            *(nn.Conv2d(9, 32, 3, 2), nn.ReLU()),
            *(layer for _ in range(3) for layer in (nn.Conv2d(32, 32, 3), nn.ReLU())),
        )
        self.trunk = nn.Sequential(nn.Linear(32 * 35 * 35, 100), nn.LayerNorm(100), nn.Tanh())
        self.psi = nn.Sequential(nn.Linear(action_dim, 64), nn.ReLU(), nn.Linear(64, action_dim))
        self.G = nn.Sequential(nn.Linear(100 + steps * action_dim, 1024), nn.ReLU(), nn.Linear(1024, 100))
        self.H = nn.Sequential(nn.Linear(100, 1024), nn.ReLU(), nn.Linear(1024, 100))
        self.networks = nn.ModuleList([self.convnet, self.trunk, self.psi, self.G, self.H])
        self.optimizer = torch.optim.Adam(self.networks.parameters(), lr=lr)

    def encode(self, images: Tensor) -> Tensor:
        """Embed images in [0, 255]."""
        embedded: Tensor = self.trunk(self.convnet(images / 255.0 - 0.5).flatten(1))
        return embedded

    def stages(self, images: Tensor, shift: Tensor, actions: Tensor) -> Iterator[str]:
        """One update, yielding each stage's name when it is done.

        Args:
            images: uint8 [B, 3, 9, 84, 84]: anchor, positive, negative.
            shift: [B, 3, 2].
            actions: [B, K, A].
        """
        anchor, positive, negative = (shifted_by_grid(images[:, v].float(), shift[:, v]) for v in range(3))
        yield "augmentation"
        z = self.encode(anchor)
        yield "encode anchor"
        with torch.no_grad():
            z_positive = self.encode(positive)
            z_negative = self.encode(negative)
        yield "encode targets"
        g = self.G(torch.cat([z, self.psi(actions).flatten(1)], 1))
        right, wrong = (g * self.H(z_positive)).sum(1), (g * self.H(z_negative)).sum(1)
        scores = torch.cat([right, wrong])
        labels = torch.cat([torch.ones_like(right), torch.zeros_like(wrong)])
        self.loss = functional.binary_cross_entropy_with_logits(scores, labels)
        yield "heads and loss"
        self.optimizer.zero_grad()
        self.loss.backward()  # type: ignore[no-untyped-call]
        yield "backward"
        self.optimizer.step()
        yield "Adam"

    def update(self, images: Tensor, shift: Tensor, actions: Tensor) -> float:
        """All stages; the loss."""
        for _ in self.stages(images, shift, actions):
            pass
        return self.loss.item()
