"""Time of one Premier-TACO update beside a plain implementation of the authors' step, in the same run.

    OMP_NUM_THREADS=1 python benchmarks/premier_taco_update.py [--quick] [--rounds 15] [--out FILE]
    python benchmarks/premier_taco_update.py --device cuda --batch 4096

Batch 256, observations of 9x84x84, the paper's ConvNet (3.95 M parameters) and heads, K = 3, random shifts of 4 pixels,
future states without gradient; random images. `plain` is `premier_taco_plain.py`; `library` is the library's whole
update (`ObjectiveLearner`: with its metrics and its checks of finite losses). They start from the same weights and must
first agree in the loss over three updates; then each round takes every candidate in turn. Figures are medians over
rounds; a ratio is the median of the rounds' ratios, in wall-clock and in processor milliseconds (the second holds on a
busy machine too). `bf16` is under autocast: there losses need to agree to a hundredth only.

`stages` divides an update among its parts, in processor milliseconds. `memory_kept` is the whole again with an
allocator that gives no memory back: otherwise large tensors are asked of the system anew, page by page.

On a GPU: samples, observations (three a sample) and frames (three an observation) a second through the update.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.objectives.premier_taco import PremierTACO
from counterpoint.provenance import provenance
from counterpoint.training.learner import ObjectiveLearner, OptimizerConfig
from premier_taco_plain import PAD, Plain

ACTION, STEPS, RATE = 4, 3, 1e-4
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
    "MALLOC_TOP_PAD_": str(2**26),
}
Candidate = Callable[[], float]


def random_batch(rows: int, device: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    batch = {
        "frames": torch.randint(256, (rows, 3, 3, 84, 84, 3), dtype=torch.uint8, generator=generator),
        "shift": torch.randint(2 * PAD + 1, (rows, 3, 2), generator=generator),
        "actions": torch.rand(rows, STEPS, ACTION, generator=generator) * 2 - 1,
        "near_valid": torch.ones(rows, 1, dtype=torch.bool),
        "sample": torch.arange(rows),
    }
    return {name: value.to(device) for name, value in batch.items()}


def make_objective() -> PremierTACO:
    torch.manual_seed(0)
    return PremierTACO(ObservationEncoder(ObservationConfig()), ACTION)


def library(batch: dict[str, Tensor], precision: str = "no") -> Candidate:
    objective = make_objective()
    learner = ObjectiveLearner(
        objective,
        OptimizerConfig(lr=RATE),
        total_steps=10**9,
        accelerator=Accelerator(mixed_precision=precision, cpu=batch["frames"].device.type == "cpu"),
    )
    steps = iter(range(10**9))
    return lambda: float(learner.update(batch, next(steps))["loss"])


def make_plain() -> Plain:
    """The plain networks with the library's first weights."""
    objective, plain = make_objective(), Plain(ACTION, STEPS, RATE)
    body, heads = objective.encoder.body, objective.heads
    sources = [body.convnet, body.trunk, heads.psi, heads.G, heads.H]
    for own, theirs in zip(plain.networks, sources, strict=True):
        copy_parameters(theirs, own)
    return plain


def copy_parameters(source: Any, target: nn.Module) -> None:
    with torch.no_grad():
        for one, other in zip(source.parameters(), target.parameters(), strict=True):
            other.copy_(one)


def channels_first(batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """What the authors' replay holds: uint8 [B, 3, 9, 84, 84]. Its making is not timed."""
    images = batch["frames"].permute(0, 1, 2, 5, 3, 4).flatten(2, 3).contiguous()
    return images, batch["shift"], batch["actions"]


def library_stages(batch: dict[str, Tensor], bf16: bool) -> Callable[[], Iterator[str]]:
    """The library's update cut into the parts of the plain one."""
    objective = make_objective()
    optimizer = torch.optim.Adam(objective.parameters(), lr=RATE)
    context = torch.autocast("cpu", torch.bfloat16, enabled=bf16)

    def stages() -> Iterator[str]:
        with context:
            views = objective.views(batch)
            yield "augmentation"
            z = objective.embed(views[:, :1], batch)[:, 0]
            yield "encode anchor"
            with torch.no_grad():
                rest = objective.embed(views[:, 1:], batch)
            yield "encode targets"
            h = objective.heads.project(rest, stop=True)
            g = objective.heads.G(objective.heads.join(z, batch["actions"]))
            loss = objective._loss(g, h[:, 0], h[:, 1:], batch["near_valid"])
            yield "heads and loss"
        optimizer.zero_grad()
        torch.autograd.backward([loss])
        yield "backward"
        optimizer.step()
        yield "Adam"

    return stages


def agree(candidates: dict[str, Candidate]) -> dict[str, list[float]]:
    """Refuse to compare what does not compute the same."""
    losses = {name: [run() for _ in range(3)] for name, run in candidates.items()}
    for name, found in losses.items():
        tolerance = 1e-2 if "bf16" in name else 1e-4
        torch.testing.assert_close(found, losses["plain"], rtol=tolerance, atol=0, msg=str(losses))
    return losses


def timed(run: Callable[[], Any]) -> tuple[float, float]:
    """Wall-clock and processor milliseconds."""
    started, busy = time.perf_counter(), time.process_time()
    run()
    spent = time.process_time() - busy
    return 1e3 * (time.perf_counter() - started), 1e3 * spent


def share(stages: Callable[[], Iterator[str]], rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {}
    for _ in range(rounds + 1):
        started = time.process_time()
        for name in stages():
            now = time.process_time()
            times.setdefault(name, []).append(1e3 * (now - started))
            started = now
    return {name: round(median(values[1:]), 1) for name, values in times.items()}


def compare(rows: int, rounds: int) -> dict[str, Any]:
    batch = random_batch(rows, "cpu")
    plain = make_plain()
    inputs = channels_first(batch)
    candidates: dict[str, Candidate] = {"plain": lambda: plain.update(*inputs), "library": library(batch)}
    if has_bf16():
        reset_precision()
        candidates["library bf16"] = library(batch, "bf16")
    losses = agree(candidates)
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            spent[name].append(timed(run))
    stages = {"plain": share(lambda: plain.stages(*inputs), rounds)}
    stages["library"] = share(library_stages(batch, False), rounds)
    if has_bf16():
        stages["library bf16"] = share(library_stages(batch, True), rounds)
    return {
        "losses": losses,
        "update": {name: summary(times, spent["plain"]) for name, times in spent.items()},
        "stages_processor_ms": stages,
    }


def summary(times: list[tuple[float, float]], plain: list[tuple[float, float]]) -> dict[str, float]:
    wall, processor = (median(column) for column in zip(*times, strict=True))
    over = [median(other[kind] / own[kind] for own, other in zip(times, plain, strict=True)) for kind in (0, 1)]
    return {
        "wall_ms": round(wall, 1),
        "processor_ms": round(processor, 1),
        "plain_over_this_wall": round(over[0], 2),
        "plain_over_this_processor": round(over[1], 2),
    }


def has_bf16() -> bool:
    """Whether this processor multiplies bfloat16 numbers itself."""
    capability = torch.cpu.get_capabilities()
    return bool(capability.get("avx512_bf16") or capability.get("amx_bf16"))


def reset_precision() -> None:
    """Accelerate keeps the first accelerator's precision for the process."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state()


def on_gpu(rows: int, rounds: int) -> dict[str, Any]:
    """Rates of the library's update on batches already there."""
    torch.set_float32_matmul_precision("high")
    batch = random_batch(rows, "cuda")
    run = library(batch, "bf16")
    for _ in range(5):
        run()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(rounds):
        run()
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - started) / rounds
    return {
        "gpu": torch.cuda.get_device_name(),
        "precision": "bf16",
        "batch": rows,
        "update_ms": round(1e3 * seconds, 2),
        "samples_per_second": round(rows / seconds),
        "observations_per_second": round(3 * rows / seconds),
        "frames_per_second": round(9 * rows / seconds),
        "peak_memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2),
    }


def in_a_process(*arguments: str, **environment: str) -> Any:
    """What this script prints when it only compares."""
    command = [sys.executable, __file__, "--compare-only", *arguments]
    environ = {**os.environ, **environment}
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environ).stdout
    return json.loads(found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="two rounds, memory as it is alone")
    parser.add_argument("--compare-only", action="store_true", help="compare once and print it")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rounds = 2 if arguments.quick else arguments.rounds
    sizes = ["--batch", str(arguments.batch), "--rounds", str(rounds)]
    result: dict[str, Any] = {"command": f"python benchmarks/premier_taco_update.py {' '.join(sizes)}"}
    if arguments.device == "cuda":
        result["command"] += " --device cuda"
        result["cuda"] = on_gpu(arguments.batch, rounds)
    else:
        torch.set_num_threads(1)
        if arguments.compare_only:
            print(json.dumps(compare(arguments.batch, rounds)))
            return
        result |= {"threads": 1, "batch": arguments.batch, "rounds": rounds}
        result["as_it_is"] = in_a_process(*sizes)
        if not arguments.quick:
            result["memory_kept"] = in_a_process(*sizes, **KEEP_MEMORY)
    result["provenance"] = provenance()
    print(json.dumps({key: value for key, value in result.items() if key != "provenance"}, indent=1))
    name = "premier_taco_update" + ("_gpu" if arguments.device == "cuda" else "")
    out = arguments.out or Path(__file__).parent / "results" / f"{name}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
