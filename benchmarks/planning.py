"""Simulated actions per second of planning in the kitchen, and the gain from rendering only the last image of a plan.

    python benchmarks/planning.py [--rounds 5] [--out FILE]

64 plans of 20 actions from one state, as in `counterpoint plan`, are rolled out in three ways: by a loop that steps one
environment, by `KitchenDynamics` in the calling thread, and by two threads. The same plans are then scored by a reward
of images at 112 pixels in two equal ways: as the sum of the rewards of all steps, and as the difference between the
values of the last and the first image. Times are wall-clock seconds; candidates take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch

from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from counterpoint.envs.kitchen.dynamics import KitchenDynamics
from counterpoint.envs.kitchen.env import KitchenEnv
from counterpoint.rewards.model import RewardModel
from measuring import in_turns, parser, write

PLANS, STEPS, LOOPED, SIZE = 64, 20, 4, 112


def seconds(run: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def main() -> None:
    """Measure and write `benchmarks/results/planning.json`."""
    options = parser(5).parse_args()
    torch.manual_seed(0)
    env = KitchenEnv("sdoor_open", size=SIZE)
    env.reset(seed=0)
    env.look = False
    plans = np.random.default_rng(0).uniform(-1, 1, (PLANS, STEPS, 9))
    backbone = EncoderConfig(image="timm", image_model="tf_efficientnet_lite0", image_size=SIZE, embed_dim=256)
    model = RewardModel(DualEncoder(backbone).eval())
    one, two = KitchenDynamics(env), KitchenDynamics(env, threads=2)

    def loop() -> None:
        for plan in plans[:LOOPED]:
            env.reset(seed=0)
            for action in plan:
                env.step(action)

    def last() -> None:
        model.reward(one.images(one.roll(plans)[:, -1]), env.instruction, form="potential")

    def every() -> None:
        states = one.roll(plans)
        frames = one.images(states.reshape(-1, states.shape[-1]))
        model.reward(frames, env.instruction, form="potential")

    timed = in_turns(
        options.rounds,
        {"loop": loop, "one": lambda: one.roll(plans), "two": lambda: two.roll(plans), "last": last, "every": every},
        seconds,
    )
    titles = {"loop": "a loop of one environment", "one": "one thread", "two": "two threads"}
    actions = {"loop": LOOPED * STEPS, "one": PLANS * STEPS, "two": PLANS * STEPS}
    rates = {name: [count / spent for spent in timed[name]] for name, count in actions.items()}
    rows: list[list[Any]] = []
    for name, title in titles.items():
        over = [own / base for own, base in zip(rates[name], rates["loop"], strict=True)]
        rows.append([title, f"{median(rates[name]):.0f}", f"{median(over):.2f}x ({min(over):.2f} to {max(over):.2f})"])
    saved = [whole / part for whole, part in zip(timed["every"], timed["last"], strict=True)]
    found = {
        "n": options.rounds,
        "interval": "lowest and highest of the rounds",
        "seconds": timed,
        "last_image_saves": {"median": median(saved), "low": min(saved), "high": max(saved)},
        "tables": {
            "planning": {"head": ["plans rolled out by", "actions a second", "speed / the loop's"], "rows": rows}
        },
    }
    write("planning", found, options.out)


if __name__ == "__main__":
    main()
