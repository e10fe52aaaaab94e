"""Frames per second of `counterpoint embed` with its engines, on one machine in one run.

    OMP_NUM_THREADS=2 python benchmarks/corpora.py [--encoder convnet] [--episodes 100] [--rounds 3] [--out FILE]

A LeRobot data set of H.264 videos is made (episodes of 120 frames, 128 x 128). In every round, each engine embeds the
whole data set in a fresh process:

- 1 process: the default, with one thread per core.
- 2, 4 and 8 processes: they share the cores; on two cores each computes with one thread.
- Ray, 2 workers: a cluster of two nodes with one processor each, which runs on this machine and was started before.

`whole` is timed from the call to the finished folder, including the start of processes. `steady` is timed from the end
of as many blocks as are computed at once to the end of the last one; this is the rate on a large corpus. The files of
all engines are compared byte by byte. Processor seconds, which are valid on a busy machine too, are given only for one
process: the caller cannot count those of Ray's workers, which are not its children. Encoders are those of
`labelling.py`, with random weights.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image

from collection import Measured, measured
from counterpoint.blocks import Engine
from counterpoint.data.episode import Episode
from counterpoint.encoders.dual import DualEncoder
from counterpoint.encoders.embed import embed
from counterpoint.formats.lerobot.writer import LeRobotWriter
from labelling import ENCODERS, in_fresh_process
from measuring import parser, write

FRAMES, SIZE, FPS = 120, 128, 10
PROCESSES = (1, 2, 4, 8)


def make_data(folder: Path, episodes: int) -> None:
    """Write images that drift sideways."""
    writer = LeRobotWriter(
        folder, fps=FPS, cameras={"front": (SIZE, SIZE)}, action_dim=None, state_dim=None, robot_type="none"
    )
    for number in range(episodes):
        coarse = np.random.default_rng(number).integers(0, 256, (8, 16, 3), dtype=np.uint8)
        wide = np.asarray(Image.fromarray(coarse).resize((SIZE + 2 * FRAMES, SIZE), Image.Resampling.BICUBIC))
        frames = np.stack([wide[:, 2 * t : 2 * t + SIZE] for t in range(FRAMES)])
        writer.add_episode(Episode({"front": frames}, "drift", np.arange(FRAMES) / FPS))
    writer.finalize(None)


def embedded(data: Path, model: Path, out: Path, engine: Engine) -> Measured:
    found = measured(lambda: FRAMES * len(list_of(embed(data, model=model, out=out, engine=engine))))
    ends = sorted((path.stat().st_mtime, path.stat().st_size) for path in (out / "blocks").iterdir())
    whole = sum(size for _, size in ends)
    first = max(2, engine.workers or 1)  # as many blocks as are computed at once
    share = sum(size for _, size in ends[first:]) / whole
    found["steady_frames_per_s"] = found["frames"] * share / (ends[-1][0] - ends[first - 1][0])
    return found | {"bytes_per_frame": whole / found["frames"], "blocks": len(ends)}


def list_of(out: Path) -> list[int]:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    episodes: list[int] = pc.unique(pq.read_table(out / "blocks", columns=["episode"])["episode"]).to_pylist()
    return episodes


def main() -> None:
    options = parser(3)
    options.add_argument("--encoder", choices=list(ENCODERS), default="convnet")
    options.add_argument("--episodes", type=int, default=100)
    options.add_argument("--processes", type=int, nargs="+", default=PROCESSES)
    chosen = options.parse_args()
    rounds: list[dict[str, Measured]] = []
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.ray_nodes import two_nodes

    engines = {f"{n} process{'es' * (n > 1)}": Engine(workers=n) for n in chosen.processes}
    with tempfile.TemporaryDirectory() as place, two_nodes() as address:
        engines["Ray, 2 workers"] = Engine("ray", workers=2, address=address)
        folder = Path(place)
        make_data(folder / "data", chosen.episodes)
        torch.manual_seed(0)
        DualEncoder(ENCODERS[chosen.encoder]).save_pretrained(folder / "model")
        for number in range(chosen.rounds):
            outs = {name: folder / f"{number}-{place}" for place, name in enumerate(engines)}
            rounds.append(
                {
                    name: in_fresh_process(embedded, folder / "data", folder / "model", outs[name], engine)
                    for name, engine in engines.items()
                }
            )
            contents = [[path.read_bytes() for path in sorted((out / "blocks").iterdir())] for out in outs.values()]
            assert all(one == contents[0] for one in contents), "engines wrote different bytes"
    rows = [[chosen.encoder, name, *shown(rounds, name)] for name in engines]
    head = ["encoder", "engine", "whole, frames a second", "steady, frames a second", "steady, speed / 1 process's"]
    first = [one["1 process"] for one in rounds]
    found = {
        "encoder": chosen.encoder,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "frames": first[0]["frames"],
        "blocks": first[0]["blocks"],
        "n": chosen.rounds,
        "interval": "lowest, median, highest of the rounds; ratios within a round",
        "load_at_end": os.getloadavg(),
        "same_bytes": True,
        "processor_ms_per_frame": [
            round(1e3 / f([one["frames_per_cpu_s"] for one in first]), 3) for f in (max, median, min)
        ],
        "bytes_per_frame": round(first[0]["bytes_per_frame"], 1),
        "rounds": rounds,
        "tables": {f"corpora_{chosen.encoder}": {"head": head, "rows": rows}},
    }
    write(f"corpora_{chosen.encoder}", found, chosen.out)


def shown(rounds: list[dict[str, Measured]], name: str) -> list[str]:
    cells = []
    for key in ("frames_per_s", "steady_frames_per_s"):
        values = [one[name][key] for one in rounds]
        cells.append(f"{median(values):.0f} ({min(values):.0f} to {max(values):.0f})")
    key = "steady_frames_per_s"
    ratios = [one[name][key] / one["1 process"][key] for one in rounds]
    return [*cells, f"{median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"]


if __name__ == "__main__":
    main()
