"""Time of ICon's loss, forward and backward on one thread, beside the authors' algorithm written plainly.

    OMP_NUM_THREADS=1 python benchmarks/icon_loss.py [--quick] [--rounds 5] [--out benchmarks/results/icon_loss.json]

128 images of 14 x 14 tokens and 384 numbers, 12 layers, 10 and 50 keys; random tokens, in every image one rectangle of
the agent's. `plain` is `icon_loss_plain.py`. Each round takes every candidate in turn, in a process of its own, and
gives it fresh gradients; figures are medians over rounds, a ratio is the median of the rounds' ratios, in wall-clock
and in processor milliseconds (the second holds on a busy machine too). Library and plain must first agree in value and
gradient, on the same keys.

- `library`: keys once an image, shared by the layers. `per_layer`: keys anew for every layer, as the authors have it.
- `random`: uniformly drawn keys. `automatic`: the library's loss with automatic differentiation in the place of its own
  backward pass, on the keys of `library`.
- `sampling`: farthest points alone, once (`shared`), for all layers at once (`per_layer`), and plainly (`plain`).
- `growth`: `library` with one number changed and a quarter of the images, so that 784 tokens fit; a ratio is with the
  first of its row.
- `memory_kept`: the candidates again with an allocator that gives no memory back. Otherwise every gradient is new
  memory, which the system hands over page by page.
- `one_process`: the candidates once more, all in one process, where each finds the memory that the one before it left.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import Tensor
from torch.nn import functional

from apart import Candidate, Times, time_apart, timed
from counterpoint.objectives import icon
from counterpoint.objectives import icon as library
from counterpoint.objectives.icon import farthest_point_sampling, grid_positions, random_point_sampling
from counterpoint.provenance import provenance
from icon_loss_plain import plain_icon_loss, plain_sampling

SIDE, WIDTH, LAYERS, AGENT, ENVIRONMENT = 14, 384, 12, 10, 50
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
    "MALLOC_TOP_PAD_": str(2**26),
}
Keys = tuple[Tensor, Tensor]


def rectangles(images: int, side: int) -> Tensor:
    """Masks [n, side^2] of one rectangle each: half of the side high and wide."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.zeros(images, side, side, dtype=torch.bool)
    corners = torch.randint(side // 2 + 1, (images, 2), generator=generator).tolist()
    for image, (top, left) in enumerate(corners):
        mask[image, top : top + side // 2, left : left + side // 2] = True
    return mask.flatten(1)


def random_tokens(images: int, side: int, layers: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(images, side * side, WIDTH, generator=generator).requires_grad_() for _ in range(layers)]


def farthest(mask: Tensor, side: int, agent: int = AGENT, environment: int = ENVIRONMENT) -> Keys:
    positions = grid_positions(side, side)
    return (
        farthest_point_sampling(mask, agent, positions=positions),
        farthest_point_sampling(~mask, environment, positions=positions),
    )


def farthest_per_layer(mask: Tensor, side: int, layers: int) -> Keys:
    agent, environment = farthest(mask.repeat(layers, 1), side)
    return agent.view(layers, len(mask), -1), environment.view(layers, len(mask), -1)


def uniform(mask: Tensor) -> Keys:
    return random_point_sampling(mask, AGENT), random_point_sampling(~mask, ENVIRONMENT)


def plainly(mask: Tensor, side: int, layers: int) -> None:
    inside = mask.float()
    for _ in range(layers):
        plain_sampling(1 - inside, ENVIRONMENT, side)
        plain_sampling(inside, AGENT, side)


def automatic_loss(tokens: list[Tensor], mask: Tensor, agent: Tensor, environment: Tensor) -> Tensor:
    """`icon_loss` with automatic differentiation all the way."""
    keys = torch.cat([agent, environment], 1)
    layers = []
    for x in tokens:
        queries = torch.stack(icon.token_queries(x, mask), 1)
        chosen = x.gather(1, keys[..., None].expand(-1, -1, x.shape[-1]))
        layers.append(functional.normalize(queries, dim=-1) @ functional.normalize(chosen, dim=-1).mT)
    losses = icon.icon_image_losses(torch.stack(layers) / 0.3, agent.shape[1])
    good = icon.qualifying(mask, agent.shape[1], environment.shape[1])
    return icon.weighted_mean(losses, good)


def passes(loss: Callable[[], Tensor], leaves: list[Tensor]) -> Candidate:
    """Forward and backward, with fresh gradients."""

    def run() -> None:
        for leaf in leaves:
            leaf.grad = None
        torch.autograd.backward([loss()])

    return run


def agree() -> None:
    """Refuse to compare what does not compute the same."""
    mask, tokens = rectangles(6, SIDE), random_tokens(6, SIDE, 3)
    keys = farthest(mask, SIDE)
    values = [
        library.icon_loss(tokens, mask, *keys),
        automatic_loss(tokens, mask, *keys),
        plain_icon_loss(tokens, mask.float(), AGENT, ENVIRONMENT, given=keys),
    ]
    found = [(value.detach(), *torch.autograd.grad(value, tokens)) for value in values]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-4, atol=1e-7)


def candidates(images: int) -> dict[str, Candidate]:
    mask, tokens = rectangles(images, SIDE), random_tokens(images, SIDE, LAYERS)

    def loss(keys: Callable[[], Keys]) -> Candidate:
        return passes(lambda: library.icon_loss(tokens, mask, *keys()), tokens)

    plain = partial(plain_icon_loss, tokens, mask.float(), AGENT, ENVIRONMENT)
    automatic = passes(lambda: automatic_loss(tokens, mask, *farthest(mask, SIDE)), tokens)
    return {
        "plain": passes(plain, tokens),
        "library": loss(lambda: farthest(mask, SIDE)),
        "per_layer": loss(lambda: farthest_per_layer(mask, SIDE, LAYERS)),
        "random": loss(lambda: uniform(mask)),
        "automatic": automatic,
    }


def sampling(images: int) -> dict[str, Candidate]:
    mask = rectangles(images, SIDE)
    return {
        "plain": lambda: plainly(mask, SIDE, LAYERS),
        "shared": lambda: farthest(mask, SIDE),
        "per_layer": lambda: farthest_per_layer(mask, SIDE, LAYERS),
    }


def growth(images: int) -> dict[str, dict[str, Candidate]]:
    def case(side: int = SIDE, layers: int = LAYERS, keys: tuple[int, int] = (AGENT, ENVIRONMENT)) -> Candidate:
        mask, tokens = rectangles(images, side), random_tokens(images, side, layers)
        return passes(lambda: library.icon_loss(tokens, mask, *farthest(mask, side, *keys)), tokens)

    return {
        "tokens": {str(side * side): case(side=side) for side in (14, 28)},
        "layers": {str(layers): case(layers=layers) for layers in (3, 6, 12)},
        "keys": {f"{Na}+{Ne}": case(keys=(Na, Ne)) for Na, Ne in ((5, 25), (10, 50), (20, 100))},
    }


def candidate(name: str, images: int) -> Candidate:
    """One of the candidates, for a process of its own."""
    return candidates(images)[name]


def measure(runs: dict[str, Candidate], rounds: int, base: str) -> dict[str, dict[str, float]]:
    """Every candidate's times, in this process."""
    spent: dict[str, Times] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            took = timed(run)
            if number:  # the first round warms up
                spent[name].append(took)
    return summary(spent, base)


def summary(spent: dict[str, Times], base: str) -> dict[str, dict[str, float]]:
    """Medians of every candidate, and of how many times as long `base` takes."""
    found = {}
    for name, times in spent.items():
        wall, processor = (median(column) for column in zip(*times, strict=True))
        over = [median(b[k] / own[k] for b, own in zip(spent[base], times, strict=True)) for k in (0, 1)]
        found[name] = {
            "wall_ms": round(wall, 1),
            "processor_ms": round(processor, 1),
            f"{base}_over_this_wall": round(over[0], 2),
            f"{base}_over_this_processor": round(over[1], 2),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="16 images, two rounds")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "icon_loss.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rounds, images = (2, 16) if arguments.quick else (arguments.rounds, 128)
    options = [*(["--quick"] if arguments.quick else []), "--rounds", str(rounds)]
    agree()
    names, make = ("plain", "library", "per_layer", "random", "automatic"), partial(candidate, images=images)
    result = {
        "command": f"python benchmarks/icon_loss.py {' '.join(options)}",
        "threads": 1,
        "rounds": rounds,
        "base": {
            "images": images,
            "tokens": SIDE * SIDE,
            "width": WIDTH,
            "layers": LAYERS,
            "keys": [AGENT, ENVIRONMENT],
        },
        "loss": summary(time_apart(names, make, rounds), "plain"),
        "memory_kept": summary(time_apart(names, make, rounds, KEEP_MEMORY), "plain"),
        "one_process": measure(candidates(images), rounds, "plain"),
        "sampling": measure(sampling(images), rounds, "plain"),
        "growth": {name: measure(runs, rounds, next(iter(runs))) for name, runs in growth(images // 4).items()},
        "provenance": provenance(),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({name: value for name, value in result.items() if name != "provenance"}, indent=1))


if __name__ == "__main__":
    main()
