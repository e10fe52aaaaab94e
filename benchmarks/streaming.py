"""Decoding on the fly from a tenth of EPIC-KITCHENS-100's layout: time to the first batch, and frames per second.

    python benchmarks/streaming.py [--clips 6700] [--batches 8] [--folder DIR] [--out benchmarks/results/streaming.json]

A helper of the tests writes the layout: 6,700 clips of 222 frames on average, as hard links to 20,000 distinct JPEGs of
256 x 456. The sampler serves the batches of the recipe decisionnce_t-epic100 with `--data.decode=always`, in a fresh
process each time: first with an empty page cache (which needs a superuser), then with everything that the process
before has read. Two numbers of bytes are reported: those that the reader read, and those that came from the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from measuring import parser, write

CLIPS, VIDEOS, SENTENCES, LENGTH, DISTINCT = 6700, 70, 2000, 222, 20_000
HERE = Path(__file__).parents[1]


def make(root: Path, clips: int) -> None:
    """Write the layout, smaller for fewer clips."""
    sys.path.insert(0, str(HERE))
    from tests.formats.made import write_epic_at_scale

    share = clips / CLIPS
    videos, sentences, distinct = (max(2, round(share * whole)) for whole in (VIDEOS, SENTENCES, DISTINCT))
    write_epic_at_scale(root, clips=clips, videos=videos, sentences=sentences, mean_length=LENGTH, distinct=distinct)


def drop_page_cache(root: Path) -> bool:
    """Drop the JPEGs' pages, folders and inodes from the cache; return True if the system allows it."""
    for image in (root / "images").iterdir():
        with image.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True


def measure(root: Path, batches: int, workers: int) -> dict[str, Any]:
    """Open the data as training does, and time its batches."""
    import torch

    from counterpoint.data.cache import prepared
    from counterpoint.data.draws import StartGoal
    from counterpoint.data.sampler import Sampler
    from counterpoint.data.spec import Spec
    from counterpoint.formats import epic
    from counterpoint.training.clips import open_clips
    from counterpoint.training.recipe import load_recipe

    torch.set_num_threads(1)
    recipe: Any = load_recipe("decisionnce_t-epic100")
    data, objective = recipe.data, recipe.objective
    # The objective's own spec, without its networks, whose weights would have to be there.
    per_instruction, changes = objective.unique_instructions, objective.augmentation
    spec = Spec.clips(StartGoal(objective.frames), per_instruction=per_instruction, transforms=changes)
    counted, plain = [0, 0], epic._Frames.read

    def read(frames: epic._Frames, number: int) -> bytes:
        data = plain(frames, number)
        counted[0], counted[1] = counted[0] + 1, counted[1] + len(data)
        return data

    epic._Frames.read = read  # type: ignore[assignment, method-assign]
    before, began, worked = off_disk(), time.perf_counter(), time.process_time()
    train, _ = open_clips(root, data)
    opened = time.perf_counter()
    train.fingerprint  # noqa: B018 (training compares it with the run's)
    identified = time.perf_counter()
    store = prepared(train, decode="always", size=data.size, fit=data.fit, cameras=train.cameras[:1])
    bound = spec.bind(store)
    B = recipe.train.batch_size
    sampler = Sampler(store, bound, batch_size=B, seed=0, workers=workers)
    ready = time.perf_counter()
    times, frames, spent = [ready], 0, 0.0
    for batch in sampler.batches(0, 1 + batches):
        times.append(time.perf_counter())
        spent = spent or time.process_time() - worked  # holds on a busy machine too
        frames += batch["frames"].shape[0] * batch["frames"].shape[1]
    peak = [resource.getrusage(who).ru_maxrss / 1e6 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "workers": workers,
        "clips": len(train.episodes),
        "frames": int(train.lengths.sum()),
        "frames_a_batch": frames // (1 + batches),
        "open_s": opened - began,
        "fingerprint_s": identified - opened,
        "sampler_s": ready - identified,
        "first_batch_s": times[1] - began,
        "first_batch_processor_s": spent,
        "load": os.getloadavg()[0],
        "frames_a_second": (frames - frames // (1 + batches)) / (times[-1] - times[1]),
        "median_batch_s": median(b - a for a, b in pairwise(times[1:])),
        "read_frames": counted[0],
        "bytes_a_frame": counted[1] / counted[0] if counted[0] > 1 and not workers else None,
        "off_disk_bytes": off_disk() - before,
        "peak_gb": peak[0],
        "peak_worker_gb": peak[1],
    }


def off_disk() -> int:
    """Return the number of bytes that this process has read from the disk."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["read_bytes"])


def main() -> None:
    """Measure and write the result."""
    words = parser(1)
    words.add_argument("--clips", type=int, default=CLIPS)
    words.add_argument("--batches", type=int, default=8, help="batches after the first")
    words.add_argument("--folder", type=Path, help="where to make the data; a temporary folder by default")
    words.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    words.add_argument("--workers", type=int, default=0, help=argparse.SUPPRESS)
    arguments = words.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, arguments.batches, arguments.workers)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        root = Path(folder) / "epic"
        began = time.perf_counter()
        make(root, arguments.clips)
        made = time.perf_counter() - began
        runs = []
        for cold, workers in ((True, 0), (False, 0), (False, 2)):
            dropped = cold and drop_page_cache(root)
            script = [sys.executable, __file__, "--measure", str(root), "--batches", str(arguments.batches)]
            done = subprocess.run([*script, "--workers", str(workers)], stdout=subprocess.PIPE, check=True, text=True)
            state = "cold (dropped)" if dropped else "images cold, folders warm" if cold else "warm"
            runs.append({"page_cache": state, **json.loads(done.stdout.splitlines()[-1])})
            print(json.dumps(runs[-1], indent=1), file=sys.stderr, flush=True)
    head = ["page cache", "workers", "first batch, s", "opening, s (part of the first batch)"]
    head += ["fingerprint, s (part of the first batch)", "processor s of the first batch", "frames a second"]
    head += ["load of the machine", "bytes read a frame", "read from disk, MB", "peak memory, GB"]
    rows = [
        [
            run["page_cache"],
            str(run["workers"]),
            f"{run['first_batch_s']:.1f}",
            f"{run['open_s']:.1f}",
            f"{run['fingerprint_s']:.1f}",
            f"{run['first_batch_processor_s']:.1f}" if not run["workers"] else "",
            f"{run['frames_a_second']:,.0f}",
            f"{run['load']:.1f}",
            f"{run['bytes_a_frame']:,.0f}" if run["bytes_a_frame"] else "",
            f"{run['off_disk_bytes'] / 1e6:,.0f}" if not run["workers"] else "",
            f"{run['peak_gb']:.2f}" + (f" + {run['peak_worker_gb']:.2f} a worker" if run["workers"] else ""),
        ]
        for run in runs
    ]
    found = {"made_s": made, "runs": runs, "tables": {"streaming": {"head": head, "rows": rows}}}
    write("streaming", found, arguments.out)


if __name__ == "__main__":
    main()
