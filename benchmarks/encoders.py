"""Time of one training step of the small encoders: forward, backward, Adam, on 32 clips of two frames.

python benchmarks/encoders.py [--rounds 8] [--out FILE]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from measuring import in_turns, parser, write

CASES = (("convnet", 64, 64), ("convnet", 64, 96), ("convnet", 112, 112), ("resnet18", 64, 64))


def step(image: str, size: int, pixels: int) -> Callable[[], None]:
    """Return one training step of an encoder."""
    encoder = DualEncoder(EncoderConfig.model_validate({"image": image, "image_size": size}))
    optimizer = torch.optim.Adam(encoder.parameters())
    frames = torch.randint(0, 256, (32, 2, pixels, pixels, 3), dtype=torch.uint8)

    def run() -> None:
        torch.autograd.backward([encoder.encode_image(frames).square().mean()])
        optimizer.step()
        optimizer.zero_grad()

    return run


def wall_ms(run: Callable[[], object]) -> float:
    """Return the wall-clock milliseconds of a call."""
    began = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - began)


def main() -> None:
    """Time every case and write the result file."""
    options = parser(8).parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    spent = in_turns(options.rounds, {str(number): step(*case) for number, case in enumerate(CASES)}, wall_ms)
    rows = [
        {"tower": image, "sees": size, "frames": pixels, "median_ms": round(median(times), 1)}
        for (image, size, pixels), times in zip(CASES, spent.values(), strict=True)
    ]
    write("encoders", {"cases": rows, "threads": 2, "n": options.rounds, "seed": 0}, options.out)


if __name__ == "__main__":
    main()
