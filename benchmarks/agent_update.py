"""Time of one TD InfoNCE update (critic, policy, target), on one thread, beside the same update in jitted JAX.

    OMP_NUM_THREADS=1 python benchmarks/agent_update.py [--rounds 15] [--out benchmarks/results/agent_update.json]

Networks of 4 x 512 with twins, d = 16, and FetchReach's sizes (observation 10, goal 3, action 4); random inputs. All
candidates start from the same weights and must first agree in both losses over three updates. Then each round takes
every candidate in turn, twice, and the second update counts. Figures are medians over rounds; a ratio is the median of
the rounds' ratios, in wall-clock and in processor milliseconds (the second holds on a busy machine too). bf16 is this
library with matrix products in bfloat16, JAX is in float32. `update_memory_kept` is the same with an allocator that
gives no memory back: JAX asks the system for its scratch memory anew with every update, and pays in page faults.

`scale` gives processor time and peak memory (Adam's moments, gradients and everything else an update needs beside the
parameters) of float32 updates for batches of 256 to 4096. `losses_alone_ms` is the part that grows with the square of
the batch (all batch by batch logits, their losses and gradients), `twin_logits_mb` the size of one of the four such
matrices; the networks' part grows with the batch.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

# Before JAX starts its threads.
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import torch
from torch import Tensor

from counterpoint.agents.base import Spaces
from counterpoint.agents.critics import ContrastiveCritic
from counterpoint.agents.networks import EnsembleMLP
from counterpoint.agents.td_infonce import TDInfoNCE, TDInfoNCEConfig
from counterpoint.objectives.td_infonce import goal_reaching_loss, td_infonce_loss
from counterpoint.provenance import provenance

SPACES = Spaces(observation=(10,), goal=(3,), action=4)
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**31),
    "MALLOC_TOP_PAD_": str(2**26),
}
Candidate = Callable[[], Any]


def random_batch(rows: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    widths = {"observation": 10, "action": 4, "next_observation": 10, "next_goal": 3, "random_goal": 3}
    return {key: torch.randn(rows, width, generator=generator).tanh() for key, width in widths.items()}


def make_agent(**settings: Any) -> TDInfoNCE:
    return TDInfoNCE(TDInfoNCEConfig(**settings), SPACES)


def library_update(batch: dict[str, Tensor], **settings: Any) -> Candidate:
    agent = make_agent(**settings)
    steps = iter(range(10**9))
    return lambda: agent.update(batch, next(steps))


def jax_update(batch: dict[str, Tensor]) -> Candidate:
    """JAX from the same weights; its noise is the library's, so that the losses must agree."""
    import jax
    import jax.numpy as jnp

    from agent_update_jax import make_step

    def layers(network: EnsembleMLP) -> list[tuple[Any, Any]]:
        return [
            (jnp.array(weight.detach().numpy()), jnp.array(bias.detach().numpy()))
            for weight, bias in zip(network.weights, network.biases, strict=True)
        ]

    agent = make_agent()
    actor: Any = agent.actor
    state, step = make_step(
        {"phi": layers(agent.critic.phi), "psi": layers(agent.critic.psi)},
        {"body": layers(actor.body), "heads": layers(actor.heads)},
        actor_lr=agent.config.actor_lr,
        critic_lr=agent.config.critic_lr,
        discount=agent.config.discount,
        tau=agent.config.tau,
    )
    inputs = {key: jnp.array(value.numpy()) for key, value in batch.items()}
    held = [state]

    def run() -> list[float]:
        noise = [jnp.array(agent.action_noise(len(batch["action"]), agent.generator).numpy()) for _ in range(2)]
        held[0], losses = step(held[0], inputs, *noise)
        jax.block_until_ready(held[0])
        return [float(loss) for loss in losses]

    return run


def agree(candidates: dict[str, Candidate]) -> None:
    """Refuse to compare what does not compute the same."""
    for _ in range(3):
        found = {name: run() for name, run in candidates.items()}
        losses = {
            name: value if isinstance(value, list) else [float(value[f"{part}/loss"]) for part in ("critic", "actor")]
            for name, value in found.items()
        }
        for name, value in losses.items():
            tolerance = 2e-2 if "bf16" in name else 1e-4
            torch.testing.assert_close(
                torch.tensor(value), torch.tensor(losses["jax"]), rtol=tolerance, atol=0, msg=f"{name}: {losses}"
            )


def measure(candidates: dict[str, Candidate], rounds: int) -> dict[str, Any]:
    """Medians of every candidate, and of how many times as long JAX takes."""
    wall: dict[str, list[float]] = {name: [] for name in candidates}
    processor: dict[str, list[float]] = {name: [] for name in candidates}
    faults: dict[str, list[int]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            run()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            started, busy = time.perf_counter(), time.process_time()
            run()
            processor[name].append(1e3 * (time.process_time() - busy))
            wall[name].append(1e3 * (time.perf_counter() - started))
            faults[name].append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

    def summary(name: str) -> dict[str, float]:
        ratios = [
            median(other / own for other, own in zip(times["jax"], times[name], strict=True))
            for times in (wall, processor)
        ]
        return {
            "wall_ms": round(median(wall[name]), 2),
            "least_wall_ms": round(min(wall[name]), 2),
            "processor_ms": round(median(processor[name]), 2),
            "jax_over_this_wall": round(ratios[0], 3),
            "jax_over_this_processor": round(ratios[1], 3),
            "page_faults": median(faults[name]),
        }

    return {name: summary(name) for name in candidates}


def scale(rows: int, rounds: int) -> dict[str, Any]:
    """One batch size, in a process of its own so that its peak memory is its own."""
    run = library_update(random_batch(rows))
    before = resident_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the kernel forgets the peak reached so far
    run()
    times = [timed(run) for _ in range(rounds)]
    peak = resident_mb("VmHWM")
    losses = pairwise_losses(rows)
    losses()
    return {
        "batch": rows,
        "update_ms": round(median(times), 1),
        "losses_alone_ms": round(median(timed(losses) for _ in range(rounds)), 1),
        "peak_mb_above_start": round(peak - before),
        "twin_logits_mb": round(2 * 4 * rows * rows / 2**20, 1),
    }


def resident_mb(field: str) -> float:
    """Memory of this process as Linux counts it: `VmRSS` now, `VmHWM` at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def pairwise_losses(rows: int) -> Candidate:
    """What an update does with its batch by batch logits, from representations to their gradients."""
    generator = torch.Generator().manual_seed(rows)
    phi, psi_next, psi_random, phi_goal = (
        torch.randn(2, rows, 16, generator=generator).requires_grad_() for _ in range(4)
    )
    target_phi, target_psi = (torch.randn(2, rows, 16, generator=generator) for _ in range(2))

    def run() -> None:
        pairs = ContrastiveCritic.pairs
        critic = td_infonce_loss(
            pairs(phi, psi_next), pairs(phi, psi_random), pairs(target_phi, target_psi), discount=0.99
        )
        actor = goal_reaching_loss(pairs(phi_goal, psi_random.detach()))
        torch.autograd.grad(critic + actor, [phi, psi_next, psi_random, phi_goal])

    return run


def timed(run: Candidate) -> float:
    """Processor milliseconds."""
    started = time.process_time()
    run()
    return 1e3 * (time.process_time() - started)


def compare(rows: int, rounds: int) -> dict[str, Any]:
    batch = random_batch(rows)
    candidates = {"jax": jax_update(batch), "float32": library_update(batch), "bf16": library_update(batch, bf16=True)}
    agree(candidates)
    return measure(candidates, rounds)


def in_a_process(*arguments: str, **environment: str) -> Any:
    """What this script prints when called with other arguments."""
    command = [sys.executable, __file__, *arguments]
    environ = {**os.environ, **environment}
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environ).stdout
    print(found, flush=True)
    return json.loads(found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--scale-of", type=int, help="measure this batch size alone and print it")
    parser.add_argument("--compare-only", action="store_true", help="measure beside JAX and print it")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "agent_update.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.scale_of:
        print(json.dumps(scale(arguments.scale_of, 3)))
        return
    if arguments.compare_only:
        print(json.dumps(compare(arguments.batch, arguments.rounds)))
        return
    sizes = ["--batch", str(arguments.batch), "--rounds", str(arguments.rounds)]
    result = {
        "command": f"python benchmarks/agent_update.py --rounds {arguments.rounds}",
        "environment": {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "")},
        "threads": 1,
        "rounds": arguments.rounds,
        "batch": arguments.batch,
        "update": in_a_process("--compare-only", *sizes),
        "update_memory_kept": in_a_process("--compare-only", *sizes, **KEEP_MEMORY),
        "scale": [in_a_process("--scale-of", str(rows)) for rows in (256, 512, 1024, 2048, 4096)],
        "provenance": provenance(),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    # One core for all: JAX's own flags do not keep it to one thread.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    main()
