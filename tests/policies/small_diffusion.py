"""A small diffusion policy with two cameras, and what it may see."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.policies.demonstrations import Demonstrations
from counterpoint.policies.diffusion import DiffusionHead
from counterpoint.policies.diffusion_policy import DiffusionPolicy
from counterpoint.policies.networks import DiffusionConfig
from tests.policies.demos import demonstrations

__all__ = ["DIFFUSION", "FRAME", "SIZE", "A", "C", "P", "policy", "sights"]

C, SIZE, FRAME, P, A = 2, 16, 21, 3, 2
SMALL: dict[str, Any] = {"down_dims": (8, 16), "step_dim": 8, "train_steps": 20, "inference_steps": 3}
DIFFUSION: dict[str, Any] = SMALL | {"horizon": 8, "executed": 3}


def policy(
    *, use_state: bool = True, ensemble: float | None = None, seed: int = 0, **diffusion: Any
) -> DiffusionPolicy:
    torch.manual_seed(seed)
    encoder = ObservationEncoder(ObservationConfig(size=SIZE, width=4, embed_dim=6, stack=1, cameras=C))
    head = DiffusionHead(A, C * 6 + P * use_state, DiffusionConfig(**DIFFUSION | diffusion))
    made = Demonstrations.of(demonstrations(2), (FRAME, FRAME))
    head.normalizer.normalise_by(made.actions)
    return DiffusionPolicy(
        encoder,
        head,
        state_dim=P,
        use_state=use_state,
        frame=FRAME,
        cameras=("front", "wrist"),
        demonstrations=made,
        ensemble=ensemble,
    )


def sights(steps: int, n: int, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """What n rows see at each step: frames [T, n, C, H, W, 3] and state [T, n, P]."""
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, 256, (steps, n, C, FRAME, FRAME, 3), dtype=np.uint8)
    return frames, rng.normal(5, 2, (steps, n, P)).astype(np.float32)
