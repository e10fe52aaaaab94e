"""Whether bfloat16 matrix products harm learning: agents that steer a point to a goal, in both precisions.

    python benchmarks/agent_precision.py [--updates 1000] [--seeds 3]
        [--out benchmarks/results/agent_precision.json]

The point lives in the square [-1, 1]^2 and moves by 0.2 a (actions in [-1, 1]^2, walls stop it). Agents learn from
transitions of random actions, each with a future drawn as the replay buffer would from an endless episode (gamma .9, at
most 30 steps), with two hidden layers of 128 and Adam at 1e-3. Afterwards each one starts 500 times from a random place
with a random goal: the share of goals within 0.15 after 20 steps, and the mean distance left. Precisions differ in
nothing else: weights, data and noise are the same. One thread.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterpoint.agents.base import Spaces
from counterpoint.agents.c_learning import CLearning, CLearningConfig
from counterpoint.agents.contrastive import ContrastiveAgent
from counterpoint.agents.contrastive_rl import (
    ContrastiveRLConfig,
    ContrastiveRLInfoNCE,
    ContrastiveRLInfoNCEConfig,
    ContrastiveRLNCE,
)
from counterpoint.agents.td_infonce import TDInfoNCE, TDInfoNCEConfig
from counterpoint.provenance import provenance

AGENTS = {
    "td_infonce": (TDInfoNCE, TDInfoNCEConfig),
    "contrastive_rl": (ContrastiveRLInfoNCE, ContrastiveRLInfoNCEConfig),
    "contrastive_rl_nce": (ContrastiveRLNCE, ContrastiveRLConfig),
    "c_learning": (CLearning, CLearningConfig),
}
SPACES = Spaces(observation=(2,), goal=(2,), action=2)
DISCOUNT, LONGEST, STRIDE = 0.9, 30, 0.2


def transitions(generator: torch.Generator, rows: int = 128) -> dict[str, Tensor]:
    def uniform() -> Tensor:
        return torch.rand(rows, 2, generator=generator) * 2 - 1

    here, action = uniform(), uniform()
    there = (here + STRIDE * action).clamp(-1, 1)
    steps = torch.empty(rows, 1).geometric_(1 - DISCOUNT, generator=generator)
    future = there
    for step in range(1, LONGEST):
        future = torch.where(steps > step, (future + STRIDE * uniform()).clamp(-1, 1), future)
    return {
        "observation": here,
        "action": action,
        "next_observation": there,
        "next_goal": there,
        "future_goal": future,
        "random_goal": uniform(),
    }


def steer(agent: ContrastiveAgent) -> tuple[float, float]:
    """The share of goals reached and the mean distance left."""
    draws = np.random.default_rng(0)
    place, goal = draws.uniform(-1, 1, (2, 500, 2)).astype(np.float32)
    for _ in range(20):
        actions = agent.act({"observation": place, "desired_goal": goal}, rows=range(len(place)))
        place = np.clip(place + STRIDE * actions, -1, 1).astype(np.float32)
    left = np.linalg.norm(place - goal, axis=1)
    return float((left < 0.15).mean()), float(left.mean())


def trained(name: str, seed: int, updates: int, bf16: bool) -> dict[str, Any]:
    kind, config = AGENTS[name]
    settings = {"hidden": (128, 128), "discount": DISCOUNT, "actor_lr": 1e-3, "critic_lr": 1e-3}
    agent = kind(config(**settings, bf16=bf16), SPACES, seed=seed)
    generator = torch.Generator().manual_seed(1000 + seed)
    for step in range(updates):
        agent.update(transitions(generator), step)
    reached, left = steer(agent)
    found = {"agent": name, "seed": seed, "bf16": bf16, "reached": round(reached, 3), "left": round(left, 4)}
    print(json.dumps(found), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "agent_precision.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs = [
        trained(name, seed, arguments.updates, bf16)
        for name in AGENTS
        for seed in range(arguments.seeds)
        for bf16 in (False, True)
    ]
    result = {
        "command": f"python benchmarks/agent_precision.py --updates {arguments.updates} --seeds {arguments.seeds}",
        "runs": runs,
        "provenance": provenance(),
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
