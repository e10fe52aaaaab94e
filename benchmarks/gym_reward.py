"""Time of one step of a reward inside gymnasium.

    python benchmarks/gym_reward.py [--rounds 15] [--out FILE]

A trivial environment shows images of 224 x 224 pixels. `step_ms` is the time of a whole step of `LanguageReward`, one
image at a time as on a robot: preprocessing, encoder, reward. `environment_ms` is the same step without the reward.
`vector_gain` compares N single wrappers with one `LanguageRewardVector` of the same N environments: the time of the
single wrappers divided by the time of the vector, as the median of the rounds' ratios. EfficientNet-Lite0 is frozen,
with the packaged weights; the convnets' weights are random. Times are processor time in one thread; cases take turns.
"""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from counterpoint.rewards import RewardModel
from counterpoint.rewards.gym import LanguageReward, LanguageRewardVector
from measuring import in_turns, parser, write

SIZE, ROWS = 224, (1, 4, 16)
ENCODERS = {
    "EfficientNet-Lite0 at 224": EncoderConfig(
        image="timm", image_model="tf_efficientnet_lite0", pretrained="package", freeze_image=True, embed_dim=256
    ),
    "convnet at 224": EncoderConfig(image="convnet", image_size=SIZE),
    "convnet at 64": EncoderConfig(image="convnet", image_size=64),
}


class Slides(gymnasium.Env[dict[str, Any], Any]):
    """An environment that shows one image after the other and ignores actions."""

    observation_space = spaces.Dict({"image": spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8)})
    action_space = spaces.Discrete(1)

    def __init__(self) -> None:
        self._images = np.random.default_rng(0).integers(0, 256, (8, SIZE, SIZE, 3), dtype=np.uint8)
        self._at = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Show the first image."""
        super().reset(seed=seed)
        return {"image": self._images[0]}, {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Show the next image."""
        self._at = (self._at + 1) % len(self._images)
        return {"image": self._images[self._at]}, 0.0, False, False, {}


def step_all(envs: list[LanguageReward]) -> None:
    for env in envs:
        env.step(0)


def measure(config: EncoderConfig, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model, text = RewardModel(DualEncoder(config).eval()), "open the drawer"
    found: dict[str, Any] = {"vector_gain": {}}
    for n in ROWS:
        plain = SyncVectorEnv([Slides for _ in range(n)])
        alone = [LanguageReward(Slides(), model, text, image="image") for _ in range(n)]
        together = LanguageRewardVector(SyncVectorEnv([Slides for _ in range(n)]), model, text, image="image")
        actions = np.zeros(n, np.int64)
        envs: list[Any] = [plain, *alone, together]
        for env in envs:
            env.reset()
        runs = {
            "plain": partial(plain.step, actions),
            "alone": partial(step_all, alone),
            "together": partial(together.step, actions),
        }
        spent = in_turns(rounds, runs)
        if n == 1:
            found["step_ms"] = round(median(spent["alone"]), 2)
            found["environment_ms"] = round(median(spent["plain"]), 3)
        ratios = [one / all_ for one, all_ in zip(spent["alone"], spent["together"], strict=True)]
        found["vector_gain"][str(n)] = round(median(ratios), 2)
    return found


def main() -> None:
    options = parser(15).parse_args()
    torch.set_num_threads(1)
    encoders = {name: measure(config, options.rounds) for name, config in ENCODERS.items()}
    head = ["encoder", "one step, ms", *(f"{n} single wrappers' ms / one vector's" for n in ROWS[1:])]
    rows = [
        [name, f"{one['step_ms']:.1f}", *(f"{one['vector_gain'][str(n)]:.2f} x" for n in ROWS[1:])]
        for name, one in encoders.items()
    ]
    tables = {"gym reward": {"head": head, "rows": rows}}
    write(
        "gym_reward",
        {"size": SIZE, "threads": 1, "rounds": options.rounds, "encoders": encoders, "tables": tables},
        options.out,
    )


if __name__ == "__main__":
    main()
