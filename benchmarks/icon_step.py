"""What ICon adds to a training step of a ViT-S/16 on 224 pixels.

    OMP_NUM_THREADS=1 python benchmarks/icon_step.py [--images 8] [--rounds 7] [--depth 12] [--out FILE]
    python benchmarks/icon_step.py --device cuda --images 128 [--rounds 30]

One step is forward pass, loss, backward pass and AdamW on random pictures, in float32 on one thread of a processor and
under bf16 autocast on a GPU. Without ICon the loss is the mean square of the class token, next to nothing, so the share
of a whole policy's step is smaller. With ICon its term is added, from pixel masks on: 10 and 50 keys, all layers.

Each round takes both steps in turn, once in either order. `share_of_step` is ICon's addition over the step without it,
as the median of the rounds' ratios. On a processor, where two long steps differ by chance as much as by ICon,
`parts_processor_ms` times its parts by themselves as well: the mask of patches, sampling, the loss, its backward pass
down to the tokens, and the adding up of both gradients of a layer's tokens, which is then due in the ViT's own backward
pass; `parts_share` is their sum over the step.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import timm
import torch
from torch import Tensor

from counterpoint.objectives.icon import ICon, icon_image_losses, icon_logits, patch_mask
from counterpoint.provenance import provenance

SIZE = 224


def rectangles(images: int, device: str) -> Tensor:
    """A rectangle of half the side in every picture: bool [n, 224, 224]."""
    mask = torch.zeros(images, SIZE, SIZE, dtype=torch.bool)
    for image in range(images):
        start = 16 * (image % 8)
        mask[image, start : start + SIZE // 2, 48 : 48 + SIZE // 2] = True
    return mask.to(device)


class Steps:
    """One ViT, its optimiser and its batch.

    Args:
        images: Pictures of a step.
        depth: Blocks.
        device: cpu or cuda.
    """

    def __init__(self, images: int, depth: int, device: str) -> None:
        torch.manual_seed(0)
        self.device = device
        self.vit: Any = timm.create_model("vit_small_patch16_224", depth=depth, num_classes=0).to(device)
        self.optimiser = torch.optim.AdamW(self.vit.parameters(), lr=1e-4)
        self.pictures = torch.randn(images, 3, SIZE, SIZE).to(device)
        self.masks = rectangles(images, device)
        self.icon = ICon(self.vit)

    def step(self, *, icon: bool) -> None:
        """One step, with ICon's term or without."""
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            features = self.vit(self.pictures)
            loss = features.float().square().mean()
            if icon:
                loss = loss + self.icon(self.masks).loss
        if not icon:
            self.icon.tap.take_whole()  # kept for ICon, they would outlive the step
        self.optimiser.zero_grad()
        torch.autograd.backward([loss])
        self.optimiser.step()

    def parts(self) -> dict[str, float]:
        """Processor milliseconds of what ICon does in a step, one part after the other."""
        with torch.no_grad():
            features = self.vit.forward_intermediates(self.pictures, output_fmt="NLC", return_prefix_tokens=True)[1]
        tokens = [torch.cat([prefix, patches], 1).requires_grad_() for patches, prefix in features]
        config, clock = self.icon.config, _Clock()
        mask = patch_mask(self.masks, 16)
        clock("mask of patches")
        agent, environment = self.icon.sample_keys(mask, len(tokens))
        clock("sampling")
        logits = icon_logits(tokens, mask, agent, environment, temperature=config.temperature, prefix=1)
        loss = icon_image_losses(logits, config.agent_keys).mean()
        clock("loss")
        torch.autograd.backward([loss])
        clock("backward")
        for x in tokens:
            torch.add(x.detach(), torch.zeros(()) if x.grad is None else x.grad)
        clock("adding gradients up")
        return clock.spent


class _Clock:
    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._last = time.process_time()

    def __call__(self, name: str) -> None:
        now = time.process_time()
        self.spent[name] = 1e3 * (now - self._last)
        self._last = now


def timed(run: Callable[[], None], device: str) -> tuple[float, float]:
    """Wall-clock and processor milliseconds."""
    if device == "cuda":
        torch.cuda.synchronize()
    started, busy = time.perf_counter(), time.process_time()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - started), 1e3 * (time.process_time() - busy)


def measure(images: int, depth: int, rounds: int, device: str) -> dict[str, Any]:
    steps = Steps(images, depth, device)
    spent: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for number in range(rounds + (5 if device == "cuda" else 1)):
        order = (False, True) if number % 2 else (True, False)
        times = {icon: timed(lambda icon=icon: steps.step(icon=icon), device) for icon in order}  # type: ignore[misc]
        if number >= (5 if device == "cuda" else 1):
            for icon in order:
                spent[icon].append(times[icon])
    result: dict[str, Any] = {}
    for name, kind in (("wall", 0), ("processor", 1)):
        if device == "cuda" and kind:
            continue
        without, with_icon = ([times[kind] for times in spent[icon]] for icon in (False, True))
        result[name] = {
            "without_ms": round(median(without), 2),
            "with_icon_ms": round(median(with_icon), 2),
            "share_of_step": round(median(b / a - 1 for a, b in zip(without, with_icon, strict=True)), 4),
        }
    if device == "cpu":
        steps.icon.tap.close()
        found = [steps.parts() for _ in range(rounds + 1)][1:]
        parts = {name: median(each[name] for each in found) for name in found[0]}
        step = result["processor"]["without_ms"]
        result["parts_processor_ms"] = {name: round(value, 2) for name, value in parts.items()}
        result["parts_share"] = round(sum(parts.values()) / step, 4)
        result["sampling_share"] = round(parts["sampling"] / step, 4)
    else:
        result["gpu"] = torch.cuda.get_device_name()
        result["peak_memory_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        torch.set_num_threads(1)
    else:
        torch.set_float32_matmul_precision("high")
    sizes = f"--images {arguments.images} --depth {arguments.depth} --rounds {arguments.rounds}"
    result = {
        "command": f"python benchmarks/icon_step.py --device {arguments.device} {sizes}",
        "threads": torch.get_num_threads(),
        "precision": "bf16 autocast" if arguments.device == "cuda" else "float32",
        "images": arguments.images,
        "depth": arguments.depth,
        **measure(arguments.images, arguments.depth, arguments.rounds, arguments.device),
        "provenance": provenance(),
    }
    print(json.dumps({name: value for name, value in result.items() if name != "provenance"}, indent=1))
    name = "icon_step" + ("_gpu" if arguments.device == "cuda" else "")
    out = arguments.out or Path(__file__).parent / "results" / f"{name}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
