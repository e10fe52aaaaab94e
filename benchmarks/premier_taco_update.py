"""Time of one Premier-TACO update, compared with a plain implementation of the authors' step in the same run.

    OMP_NUM_THREADS=1 python benchmarks/premier_taco_update.py [--batch 256] [--rounds 15] [--out FILE]
    python benchmarks/premier_taco_update.py --device cuda --batch 4096

Observations of 9x84x84 with random pixels, the paper's ConvNet (3.95 M parameters) and heads, K = 3, random shifts of 4
pixels, future states without gradient. `library` is the library's whole update (`ObjectiveLearner`), with its metrics
and its checks of finite losses. Both start from the same weights and must first agree in the loss over three updates;
then they take turns. Numbers are medians over rounds. A ratio is the median of the rounds' ratios, in wall-clock and in
processor milliseconds (the latter are valid on a busy machine too). `bf16` runs under autocast, and its losses need to
agree only to a hundredth. `stages` divides an update into its parts, in processor milliseconds.

On a GPU, the update's rate is reported in samples, observations (three per sample) and frames (three per observation)
per second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn
from torch.nn import functional

from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.objectives.premier_taco import PremierTACO
from counterpoint.training.learner import ObjectiveLearner, OptimizerConfig
from measuring import in_turns, parser, write

PAD, ACTION, STEPS, RATE = 4, 4, 3, 1e-4
Candidate = Callable[[], float]


def shifted_by_grid(images: Tensor, shift: Tensor) -> Tensor:
    """Return images [N, C, H, W] shifted as by DrQ-v2's `RandomShiftsAug`, with given shifts [N, 2]."""
    N, _, H, _ = images.shape
    padded = functional.pad(images, (PAD,) * 4, "replicate")
    edge = 1.0 / (H + 2 * PAD)
    line = torch.linspace(-1 + edge, 1 - edge, H + 2 * PAD, device=images.device)[:H]
    across = line.unsqueeze(0).repeat(H, 1).unsqueeze(2)
    grid = torch.cat([across, across.transpose(1, 0)], dim=2).unsqueeze(0).repeat(N, 1, 1, 1)
    grid = grid + shift.to(images.dtype).view(N, 1, 1, 2) * (2.0 / (H + 2 * PAD))
    return functional.grid_sample(padded, grid, padding_mode="zeros", align_corners=False)


class Plain:
    """The authors' update, float32 and channels first: networks, optimiser and one step.

    Each of the three observations is converted, shifted by `grid_sample` and encoded separately, the two later ones
    without gradient. The loss is binary, the optimiser is Adam, and the heads are the paper's (Appendix C).

    Args:
        action_dim: A.
        steps: K.
        lr: Adam's learning rate.
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
        """Yield the name of each stage of an update when it is done.

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
        """Run all stages and return the loss."""
        for _ in self.stages(images, shift, actions):
            pass
        return self.loss.item()


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
    """Return the plain networks with the library's initial weights."""
    objective, plain = make_objective(), Plain(ACTION, STEPS, RATE)
    body: Any = objective.encoder.body
    heads = objective.heads
    for own, theirs in zip(plain.networks, [body.convnet, body.trunk, heads.psi, heads.G, heads.H], strict=True):
        with torch.no_grad():
            for mine, other in zip(own.parameters(), theirs.parameters(), strict=True):
                mine.copy_(other)
    return plain


def channels_first(batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the batch in the layout of the authors' replay, uint8 [B, 3, 9, 84, 84]; the conversion is not timed."""
    images = batch["frames"].permute(0, 1, 2, 5, 3, 4).flatten(2, 3).contiguous()
    return images, batch["shift"], batch["actions"]


def library_stages(batch: dict[str, Tensor], bf16: bool) -> Callable[[], Iterator[str]]:
    """Return the library's update, divided into the same stages as the plain update."""
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
    """Raise an error if the candidates' losses differ; return the losses."""
    losses = {name: [run() for _ in range(3)] for name, run in candidates.items()}
    for name, found in losses.items():
        tolerance = 1e-2 if "bf16" in name else 1e-4
        torch.testing.assert_close(found, losses["plain"], rtol=tolerance, atol=0, msg=str(losses))
    return losses


def wall_and_processor_ms(run: Callable[[], object]) -> tuple[float, float]:
    """Return the wall-clock and processor milliseconds of a call."""
    started, busy = time.perf_counter(), time.process_time()
    run()
    spent = time.process_time() - busy
    return 1e3 * (time.perf_counter() - started), 1e3 * spent


def share(stages: Callable[[], Iterator[str]], rounds: int) -> dict[str, float]:
    """Return the median processor milliseconds of every stage."""
    times: dict[str, list[float]] = {}
    for _ in range(rounds + 1):
        started = time.process_time()
        for name in stages():
            now = time.process_time()
            times.setdefault(name, []).append(1e3 * (now - started))
            started = now
    return {name: round(median(values[1:]), 1) for name, values in times.items()}


def compare(rows: int, rounds: int) -> dict[str, Any]:
    """Measure every candidate and its stages."""
    batch, plain = random_batch(rows, "cpu"), make_plain()
    inputs = channels_first(batch)
    candidates: dict[str, Candidate] = {"plain": lambda: plain.update(*inputs), "library": library(batch)}
    stages = {"plain": lambda: plain.stages(*inputs), "library": library_stages(batch, False)}
    capability = torch.cpu.get_capabilities()
    if capability.get("avx512_bf16") or capability.get("amx_bf16"):  # the processor multiplies bfloat16 numbers itself
        AcceleratorState._reset_state()  # it keeps the first accelerator's precision for the process
        candidates["library bf16"] = library(batch, "bf16")
        stages["library bf16"] = library_stages(batch, True)
    losses = agree(candidates)
    spent = in_turns(rounds, candidates, wall_and_processor_ms)
    parts = {name: share(run, rounds) for name, run in stages.items()}
    update = {name: summary(times, spent["plain"]) for name, times in spent.items()}
    head = ["update, one thread", "ms", "plain's ms / ms", "processor ms: shift", "anchor", "targets", "heads, loss"]
    table = [
        [
            name,
            f"{one['wall_ms']:.0f}",
            f"{one['plain_over_this_wall']:.2f}",
            *(f"{ms:.0f}" for ms in parts[name].values()),
        ]
        for name, one in update.items()
    ]
    tables = {"premier taco update": {"head": [*head, "backward", "Adam"], "rows": table}}
    return {"losses": losses, "update": update, "stages_processor_ms": parts, "tables": tables}


def summary(times: list[tuple[float, float]], plain: list[tuple[float, float]]) -> dict[str, float]:
    wall, processor = (median(column) for column in zip(*times, strict=True))
    over = [median(other[kind] / own[kind] for own, other in zip(times, plain, strict=True)) for kind in (0, 1)]
    return {
        "wall_ms": round(wall, 1),
        "processor_ms": round(processor, 1),
        "plain_over_this_wall": round(over[0], 2),
        "plain_over_this_processor": round(over[1], 2),
    }


def on_gpu(rows: int, rounds: int) -> dict[str, Any]:
    """Measure the library's update on batches that are on the GPU already."""
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


def main() -> None:
    words = parser(15)
    words.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    words.add_argument("--batch", type=int, default=256)
    options = words.parse_args()
    if options.device == "cuda":
        write("premier_taco_update_gpu", {"cuda": on_gpu(options.batch, options.rounds)}, options.out)
        return
    torch.set_num_threads(1)
    found = compare(options.batch, options.rounds)
    write("premier_taco_update", {"threads": 1, "batch": options.batch, "rounds": options.rounds, **found}, options.out)


if __name__ == "__main__":
    main()
