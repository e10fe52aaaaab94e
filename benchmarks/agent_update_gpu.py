"""Updates a second of TD InfoNCE on a GPU, launched kernel by kernel and as one CUDA graph.

    python benchmarks/agent_update_gpu.py [--updates 2000] [--out benchmarks/results/agent_update_gpu.json]

Sizes as in `agent_update.py`; every update copies a fresh batch from the host. The two ways must first agree. Products
are in full float32 unless bf16 is named, as in `counterpoint train`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from agent_update import SPACES, random_batch
from counterpoint.agents.td_infonce import TDInfoNCE, TDInfoNCEConfig
from counterpoint.provenance import provenance


def make(**settings: Any) -> TDInfoNCE:
    return TDInfoNCE(TDInfoNCEConfig(**settings), SPACES, device="cuda")


def agree(rows: int) -> float:
    """The greatest difference of losses over eight updates, five of them replayed."""
    one, other = make(), make(compile=True)
    batch = random_batch(rows)
    worst = 0.0
    for step in range(8):
        found = [float(agent.update(batch, step)["loss"]) for agent in (one, other)]
        worst = max(worst, abs(found[0] - found[1]))
    if worst > 1e-3:
        raise SystemExit(f"the recorded update departs from the launched one by {worst}")
    return worst


def updates_a_second(agent: TDInfoNCE, rows: int, updates: int) -> float:
    batch = {key: value.pin_memory() for key, value in random_batch(rows).items()}
    for step in range(20):
        agent.update(batch, step)
    torch.cuda.synchronize()
    started = time.perf_counter()
    for step in range(updates):
        agent.update(batch, step)
    torch.cuda.synchronize()
    return updates / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "agent_update_gpu.json")
    arguments = parser.parse_args()
    ways: dict[str, dict[str, Any]] = {
        "launched": {},
        "recorded": {"compile": True},
        "recorded bf16": {"compile": True, "bf16": True},
    }
    result = {
        "command": f"python benchmarks/agent_update_gpu.py --updates {arguments.updates}",
        "greatest_difference_of_losses": agree(256),
        "updates_a_second": {
            str(rows): {
                name: round(updates_a_second(make(**way), rows, arguments.updates)) for name, way in ways.items()
            }
            for rows in (256, 1024, 4096)
        },
        "provenance": provenance(),
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
