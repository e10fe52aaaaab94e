"""Batches straight from EPIC-KITCHENS' JPEGs at a tenth of its size: `--data.no-store`.

    python benchmarks/streaming.py [--clips 6700] [--workers 0 1 2]

The layout has `--clips` segments of 222 frames on average, EPIC's own, in the folders of 70 videos. Its frames are hard
links to `--images` distinct JPEGs of 456 x 256 pixels, so that it fits a small disk. Batches are those of recipe
`decisionnce_t-epic100`: two frames of 64 clips, at 256 pixels of the shorter side. Counted from the path on: the time
until the reader is open, until the fingerprint is known, and until the first batch is there; then frames a second, bytes
that the reader asked for a frame, and the greatest memory of the process. The page cache is dropped before where the
process may do that; because of the links it is warm once every image was read.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from counterpoint.data.cache import ResizedStore
from counterpoint.data.formats import epic, open_dataset
from counterpoint.data.sampler import Sampler
from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from counterpoint.objectives import ClipObjective, objective_class
from counterpoint.training.recipe import load_recipe
from measuring import parser, write

MEAN_FRAMES, VIDEOS = 222, 70
DROP = Path("/proc/sys/vm/drop_caches")


def write_layout(root: Path, clips: int, images: int) -> int:
    """Write the layout and return its number of frames."""
    rng = np.random.default_rng(0)
    distinct = root / "distinct"
    distinct.mkdir(parents=True)
    for number in range(images):
        small = rng.integers(0, 255, (16, 28, 3), dtype=np.uint8)
        Image.fromarray(small).resize((456, 256)).save(distinct / f"{number}.jpg", quality=92)
    lengths = np.maximum(2, rng.gamma(1.0, MEAN_FRAMES, clips).astype(int))
    rows = ["narration_id,participant_id,video_id,start_timestamp,start_frame,stop_frame,narration"]
    infos, linked = ["video_id,duration,fps,resolution"], 0
    for video, own in enumerate(np.array_split(lengths, VIDEOS)):
        name = f"P{video % 37 + 1:02d}_{video:02d}"
        folder = root / name[:3] / "rgb_frames" / name
        folder.mkdir(parents=True)
        for frame in range(1, int(own.sum()) + 1):
            os.link(distinct / f"{linked % images}.jpg", folder / f"frame_{frame:010d}.jpg")
            linked += 1
        start = 1
        for number, length in enumerate(own.tolist()):
            text = f"move thing {rng.integers(clips // 3)}"
            rows.append(f"{name}_{number},{name[:3]},{name},00:00:00.00,{start},{start + length - 1},{text}")
            start += length
        infos.append(f"{name},1000.0,60.0,456x256")
    (root / "EPIC_100_train.csv").write_text("\n".join(rows) + "\n")
    (root / "EPIC_100_video_info.csv").write_text("\n".join(infos) + "\n")
    return linked


def drop_caches() -> str:
    """Drop the page cache, and say whether that was allowed."""
    os.sync()
    try:
        DROP.write_text("3")
    except OSError:
        return "warm: this process may not drop it"
    return "dropped before"


class Counted:
    """Bytes that the reader's frames asked for."""

    def __init__(self) -> None:
        self.bytes = self.frames = 0
        plain = epic._Frames.read

        def read(frames: Any, number: int) -> bytes:
            found = plain(frames, number)
            self.bytes, self.frames = self.bytes + len(found), self.frames + 1
            return found

        epic._Frames.read = read  # type: ignore[assignment]


def main() -> None:
    """Make the layout, measure, and write the result file."""
    options = parser(20)
    options.add_argument("--clips", type=int, default=6700)
    options.add_argument("--images", type=int, default=20000)
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    given = options.parse_args()
    recipe: Any = load_recipe("decisionnce_t-epic100")
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as name:
        began = time.perf_counter()
        frames = write_layout(Path(name), given.clips, given.images)
        print(f"{frames} frames linked in {time.perf_counter() - began:.0f} s", flush=True)
        state = drop_caches()
        counted, began = Counted(), time.perf_counter()
        source = open_dataset(name, split="train")
        opened = time.perf_counter() - began
        store = ResizedStore(source, recipe.data.size, recipe.data.fit)
        assert store.fingerprint
        known = time.perf_counter() - began
        kind: Any = objective_class("decisionnce_t", ClipObjective)
        objective = kind(DualEncoder(EncoderConfig(image_size=64, embed_dim=8)), recipe.objective)
        bound = objective.sampling().bind(store, store.cameras[:1])
        Sampler(store, bound, batch_size=given.batch, seed=0)[0]
        first = time.perf_counter() - began
        read, of = counted.bytes, counted.frames
        for label, value in {
            "open, s": opened,
            "fingerprint known, s": known,
            "first batch there, s": first,
            "kB read a frame": read / of / 1e3,
            "frames read a frame of the batch": of / (2 * given.batch),
        }.items():
            rows.append([label, f"{value:.2f}"])
        for workers in given.workers:
            sampler = Sampler(store, bound, batch_size=given.batch, seed=0, workers=workers)
            batches = sampler.batches(1, given.rounds + 2)
            next(batches)
            began = time.perf_counter()
            count = sum(len(batch["frames"]) * 2 for batch in batches)
            rows.append([f"frames a second, {workers} workers", f"{count / (time.perf_counter() - began):,.0f}"])
        rows.append(["peak memory, MB", f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f}"])
    about = {"clips": given.clips, "frames": frames, "images": given.images, "batch": given.batch, "page cache": state}
    head = ["measure", "value"]
    write("streaming", {**about, "n": given.rounds, "tables": {"streaming": {"head": head, "rows": rows}}}, given.out)


if __name__ == "__main__":
    main()
