"""Time of one training step of the small encoders: forward, backward, Adam, on 32 clips of two frames.

python benchmarks/encoders.py
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

import torch

from counterpoint.encoders.dual import DualEncoder, EncoderConfig
from counterpoint.provenance import provenance

CASES = (("convnet", 64, 64), ("convnet", 64, 96), ("convnet", 112, 112), ("resnet18", 64, 64))
STEPS = 9


def main() -> None:
    """Time every case and write the result file."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
    rows = []
    for image, size, pixels in CASES:
        encoder = DualEncoder(EncoderConfig.model_validate({"image": image, "image_size": size}))
        optimizer = torch.optim.Adam(encoder.parameters())
        frames = torch.randint(0, 256, (32, 2, pixels, pixels, 3), dtype=torch.uint8)
        times = []
        for _ in range(STEPS):
            began = time.perf_counter()
            torch.autograd.backward([encoder.encode_image(frames).square().mean()])
            optimizer.step()
            optimizer.zero_grad()
            times.append(1000 * (time.perf_counter() - began))
        rows.append({"tower": image, "sees": size, "frames": pixels, "median_ms": round(statistics.median(times), 1)})
    about = {
        "command": "python benchmarks/encoders.py",
        "threads": 2,
        "n": STEPS,
        "seed": 0,
        "provenance": provenance(),
    }
    result = Path(__file__).parent / "results" / "encoders.json"
    result.write_text(json.dumps({"cases": rows} | about, indent=1) + "\n")
    print(rows)


if __name__ == "__main__":
    main()
