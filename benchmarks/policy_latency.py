"""Time that a diffusion policy takes for an action, and the parts of this time.

    python benchmarks/policy_latency.py [--small] [--device cuda] [--rounds 7] [--out FILE]

The policy is Diff-C as in ICon's experiments: a ViT-S/16 at 224 pixels for each of two cameras with images of 256
pixels, two observations, the recipes' U-Net (256, 512 and 1024 channels) on windows of 16 actions, 8 steps of DDIM, 8
actions executed. Weights are random. `--small` has a small ViT and U-Net. Numbers are medians in milliseconds, for 1
and for 16 environments, over rounds in which the compared cases alternate. On a CPU they are processor time in one
thread, which is valid on a busy machine too; on a GPU they are wall-clock time.

- `planning`: a call of `act()` that makes a plan, including the encoding of two observations of each environment.
- `executing`: a call of `act()` that takes the next action of a plan.
- `per_step`: their mean over the 8 steps of a plan.
- `stages`: shares of `planning`. `look` crops and stores the images, `encode` is everything up to the conditioning of
  the head, `network` the U-Net, `schedule` the rest of sampling, `rest` everything else.
- `sample_over_network`: the time of `sample()` divided by the time of the same number of plain calls of the U-Net, each
  with its own conditioning. It may be below 1, because sampling computes the conditioning of all steps at once.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch

from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.encoders.observation_networks import ViTConfig
from counterpoint.policies.diffusion import DiffusionHead
from counterpoint.policies.diffusion_policy import DiffusionPolicy
from counterpoint.policies.networks import DiffusionConfig
from measuring import parser, write

CAMERAS, ACTIONS, STATE, STATE_EMBED, BATCHES = 2, 7, 9, 128, (1, 16)


def built(small: bool, device: str) -> DiffusionPolicy:
    torch.manual_seed(0)
    if small:
        vit = ViTConfig(patch=8, embed_dim=96, depth=4, heads=3)
        encoder = ObservationConfig(kind="vit", size=80, stack=1, cameras=CAMERAS, vit=vit)
        config, frame = DiffusionConfig(down_dims=(64, 128, 256)), 96
    else:
        encoder = ObservationConfig(kind="vit", size=224, stack=1, cameras=CAMERAS, vit=ViTConfig())
        config, frame = DiffusionConfig(), 256
    tower = ObservationEncoder(encoder)
    head = DiffusionHead(ACTIONS, tower.embed_dim + STATE_EMBED, config)
    policy = DiffusionPolicy(tower, head, state_dim=STATE, use_state=True, state_embed_dim=STATE_EMBED, frame=frame)
    return policy.to(device).eval()


class Clock:
    """A clock for calls, in milliseconds of processor time or, on a GPU, of wall-clock time until the GPU is done."""

    def __init__(self, device: str) -> None:
        self._gpu = device.startswith("cuda")
        self.spent: dict[str, float] = defaultdict(float)

    def now(self) -> float:
        """Return the present time in milliseconds."""
        if self._gpu:
            torch.cuda.synchronize()
            return 1000 * time.perf_counter()
        return 1000 * time.process_time()

    def time(self, work: Callable[[], object]) -> float:
        """Time one call."""
        began = self.now()
        work()
        return self.now() - began

    def watch(self, thing: Any, name: str, stage: str) -> None:
        """Count the time of a method's calls under `stage`."""
        method = getattr(thing, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            began = self.now()
            try:
                return method(*arguments, **named)
            finally:
                self.spent[stage] += self.now() - began

        setattr(thing, name, timed)


def measure(small: bool, device: str, batch: int, rounds: int) -> dict[str, Any]:
    policy, clock = built(small, device), Clock(device)
    config, size = policy.head.config, policy.frame
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (CAMERAS, batch, size, size, 3), dtype=np.uint8)
    observation = {f"camera{number}": image for number, image in enumerate(frames)}
    observation["state"] = rng.normal(size=(batch, STATE)).astype(np.float32)
    rows = list(range(batch))
    condition = torch.randn(batch, config.obs_steps, policy.head.condition_dim, device=device)
    noise = torch.randn(batch, config.horizon, ACTIONS, device=device)
    network, steps = policy.head.network, policy.head.schedule.steps

    @torch.no_grad()
    def plain() -> None:
        for step in steps:
            network(noise, network.conditioning(step.expand(batch), condition))

    times: dict[str, list[float]] = defaultdict(list)
    policy.reset(rows)
    for number in range(rounds + 1):
        kept = times if number else defaultdict(list)  # the first round warms up
        kept["plain"].append(clock.time(plain))
        kept["sample"].append(clock.time(lambda: policy.head.sample(condition)))
        for step in range(config.executed):
            spent = clock.time(lambda: policy.act(observation, rows=rows))
            kept["executing" if step else "planning"].append(spent)
    shares = stages(policy, clock, lambda: policy.act(observation, rows=rows), rounds)
    planning, executing = median(times["planning"]), median(times["executing"])
    return {
        "planning_ms": round(planning, 2),
        "executing_ms": round(executing, 3),
        "per_step_ms": round((planning + (config.executed - 1) * executing) / config.executed, 2),
        "stages": shares,
        "network_ms": round(median(times["plain"]), 2),
        "sample_ms": round(median(times["sample"]), 2),
        "sample_over_network": round(median(a / b for a, b in zip(times["sample"], times["plain"], strict=True)), 3),
    }


def stages(policy: DiffusionPolicy, clock: Clock, act: Callable[[], object], rounds: int) -> dict[str, float]:
    """Return each stage's share of planning, from separate rounds, which on a GPU wait for the end of each stage."""
    for thing, name, stage in (
        (policy, "_see", "look"),
        (policy, "_encode", "encode"),
        (policy.head, "sample", "sample"),
        (policy.head.network, "forward", "network"),
        (policy.head.network, "conditioning", "network"),
    ):
        clock.watch(thing, name, stage)
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for step in range(policy.head.config.executed):
            clock.spent.clear()
            total, spent = clock.time(act), clock.spent
            if step == 0:
                spent["schedule"] = spent["sample"] - spent["network"]
                spent["rest"] = total - spent["look"] - spent["encode"] - spent["sample"]
                for stage in ("look", "encode", "network", "schedule", "rest"):
                    found[stage].append(spent[stage] / total)
    return {stage: round(median(shares), 4) for stage, shares in found.items()}


def main() -> None:
    words = parser(7)
    words.add_argument("--small", action="store_true", help="a small ViT and U-Net at 96 pixels")
    words.add_argument("--device", default="cpu")
    options = words.parse_args()
    torch.set_num_threads(1)
    cases = {str(batch): measure(options.small, options.device, batch, options.rounds) for batch in BATCHES}
    policy = built(options.small, "cpu")
    parameters = {
        name: sum(value.numel() for value in part.parameters())
        for name, part in (("encoder", policy.encoder), ("network", policy.head.network))
    }
    device = torch.cuda.get_device_name() if options.device.startswith("cuda") else "cpu"
    parts = ("encode", "network", "schedule", "rest")
    head = ["environments", "a plan, ms", "a step without a plan, ms", "encode", "U-Net", "scheduler", "crop and rest"]
    rows = []
    for batch, one in cases.items():
        shares = one["stages"] | {"rest": one["stages"]["look"] + one["stages"]["rest"]}
        times = [
            f"{one['planning_ms']:.0f}",
            f"{one['executing_ms']:.2f}",
            *(f"{100 * shares[part]:.1f} %" for part in parts),
        ]
        rows.append([batch, *times, f"{one['sample_over_network']:.2f}"])
    tables = {"policy latency": {"head": [*head, "8 DDIM steps / 8 plain calls of the U-Net"], "rows": rows}}
    found = {"device": device, "threads": 1, "rounds": options.rounds, "parameters": parameters, "environments": cases}
    write("policy_latency", found | {"tables": tables}, options.out)


if __name__ == "__main__":
    main()
