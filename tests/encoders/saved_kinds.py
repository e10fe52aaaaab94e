"""A small model of every kind that is saved, and the variables that its card's example names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from counterpoint.agents import SavedAgent, make_agent
from counterpoint.data.episode import Spaces
from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.folder import digests_of, seal
from counterpoint.policies.cloned import ClonedPolicy
from counterpoint.policies.demonstrations import Demonstrations
from counterpoint.policies.heads import ActionHead, HeadConfig
from tests.policies.demos import demonstrations
from tests.policies.small_diffusion import FRAME, P
from tests.policies.small_diffusion import policy as diffusion_policy


def write_digests(folder: Path) -> None:
    """Let a model's digests be those of the files that are there now."""
    seal(folder, digests_of(folder))


def made() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return kind -> the model, and the variables."""
    torch.manual_seed(0)
    one = ObservationConfig(size=16, width=4, embed_dim=8, stack=2)
    cloned = ClonedPolicy(
        ObservationEncoder(one), ActionHead(8, 2, P, HeadConfig(hidden=16)), Demonstrations.of(demonstrations(2))
    )
    spaces = Spaces(observation=(4,), goal=(2,), action=3, success_distance=0.1)
    agent = make_agent({"name": "gcbc", "hidden": [8]}, spaces)
    state, image = np.zeros(P, np.float32), np.zeros((16, 16, 3), np.uint8)
    large = np.zeros((FRAME, FRAME, 3), np.uint8)
    return {
        "dual_encoder": (
            DualEncoder(EncoderConfig(image_size=32, embed_dim=16)),
            {"images": torch.zeros(2, 32, 32, 3, dtype=torch.uint8)},
        ),
        "observation_encoder": (
            ObservationEncoder(one),
            {"observations": torch.zeros(2, 2, 16, 16, 3, dtype=torch.uint8)},
        ),
        "cloned_policy": (cloned, {"observation": {"front": image, "state": state}}),
        "diffusion_policy": (diffusion_policy(), {"observation": {"front": large, "wrist": large, "state": state}}),
        "agent": (
            SavedAgent(agent),
            {"observations": {"observation": np.zeros((1, 4)), "desired_goal": np.zeros((1, 2))}},
        ),
    }
