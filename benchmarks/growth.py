"""Time and peak memory of commands on data sets of 100 to 100,000 episodes, and how fast they grow.

    OMP_NUM_THREADS=1 python benchmarks/growth.py [--sizes 100 1000 10000 100000] [--opening 50000] [--folder DIR]

For every size, a LeRobot v3 data set with one file of each kind is made from 100 episodes of four frames (32 x 32,
H.264) with actions, states and 20 instructions: rows, episode table and packets of the video are copied. Nine tenths
are the split `train`, the rest is `val`. Every command runs in a fresh process:

- open: `counterpoint.formats.open_dataset`, also at `--opening` episodes, where the aim is 5 s and 500 MB.
- data info
- train: 20 steps of `decisionnce_t-demo` at 32 pixels, after all frames were decoded into the training store.
- label: all frames.
- report: 20 videos.
- rank: all episodes.

Seconds and memory are those of the whole process, with start and imports. Memory is the peak resident memory of the
process or of its largest child. The growth between the two largest sizes is log(ratio of the seconds) / log(ratio of
the sizes), and the same for processor seconds of all processes and threads, which are valid on a busy machine too, and
for memory: 1 is linear, as the index of episodes grows; 0 does not grow.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import parser, write

SOURCE, FRAMES, SIDE, FPS, TASKS = 100, 4, 32, 10, 20
SIZES, OPENING, STEPS, VIDEOS = [100, 1000, 10_000, 100_000], 50_000, 20, 20
AIM_S, AIM_MB = 5, 500
OPEN = "import sys; from counterpoint.formats import open_dataset; open_dataset(sys.argv[1])"
Measured = dict[str, float]


def make(root: Path, episodes: int) -> None:
    """Write a data set: 100 episodes, and copies of them up to a number of episodes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from counterpoint.formats.lerobot import layout
    from counterpoint.formats.video import remux

    copies = -(-episodes // SOURCE)
    with tempfile.TemporaryDirectory(dir=root.parent) as folder:
        source = Path(folder) / "source"
        make_source(source)
        key = "observation.images.front"
        places = {"chunk_index": 0, "file_index": 0}
        data, video = layout.DATA_PATH.format(**places), layout.VIDEO_PATH.format(video_key=key, **places)
        table, info = "meta/episodes/chunk-000/file-000.parquet", json.loads((source / layout.INFO).read_text())
        for name, shifts in (
            (data, {"index": SOURCE * FRAMES, "episode_index": SOURCE}),
            (
                table,
                {
                    "episode_index": SOURCE,
                    **dict.fromkeys(("dataset_from_index", "dataset_to_index"), SOURCE * FRAMES),
                    **{f"videos/{key}/{end}_timestamp": SOURCE * FRAMES / FPS for end in ("from", "to")},
                },
            ),
        ):
            own = pq.read_table(source / name)
            rows = len(own) // SOURCE * episodes
            whole = pa.concat_tables([own] * copies).slice(0, rows).combine_chunks()
            number = pa.array([copy for copy in range(copies) for _ in range(len(own))][:rows])
            for column, shift in shifts.items():
                at, kind = whole.column_names.index(column), whole.schema.field(column)
                values = pa.compute.add(whole[column], pa.compute.multiply(number, shift)).cast(kind.type)
                whole = whole.set_column(at, kind, values)
            (root / name).parent.mkdir(parents=True)
            pq.write_table(whole, root / name)
        remux([source / video] * copies, root / video)
        for path in (layout.TASKS, "meta/stats.json"):
            (root / path).write_bytes((source / path).read_bytes())
        first = round(0.9 * episodes)
        info |= {"total_episodes": episodes, "total_frames": episodes * FRAMES}
        info |= {"splits": {"train": f"0:{first}", "val": f"{first}:{episodes}"}}
        (root / layout.INFO).write_text(json.dumps(info))


def make_source(root: Path) -> None:
    """Write the episodes that are copied: a square that moves over an image of its task's colour."""
    import numpy as np

    from counterpoint.data.episode import Episode
    from counterpoint.formats.lerobot.writer import LeRobotWriter

    writer = LeRobotWriter(root, fps=FPS, cameras={"front": (SIDE, SIDE)}, action_dim=4, state_dim=4, robot_type="none")
    for number in range(SOURCE):
        task, chance = number % TASKS, np.random.default_rng(number)
        frames = np.full((FRAMES, SIDE, SIDE, 3), np.random.default_rng(task).integers(64, 192, 3), np.uint8)
        for step in range(FRAMES):
            frames[step, 4 : 4 + SIDE // 4, 6 * step : 6 * step + 8] = 255
        actions, state = chance.normal(size=(2, FRAMES, 4)).astype(np.float32)
        success = bool(chance.random() < 0.9)
        times, text = np.arange(FRAMES) / FPS, f"move object {task}"
        writer.add_episode(Episode({"front": frames}, text, times, actions, state, success))
    writer.finalize(None)


def commands(data: Path, folder: Path) -> dict[str, list[str]]:
    """Return the commands on a data set; the later ones read the run of `train`."""
    run = [sys.executable, "-m", "counterpoint"]
    model, root = str(folder / "run"), str(data)
    settings = [f"--train.steps={STEPS}", f"--train.eval-every={STEPS}", f"--train.save-every={STEPS}"]
    settings += [f"--encoder.image-size={SIDE}", f"--data.size={SIDE}", f"--data.cache={folder / 'cache'}"]
    return {
        "open": [sys.executable, "-c", OPEN, root],
        "data info": [*run, "data", "info", root],
        "train": [*run, "train", "decisionnce_t-demo", "--data", root, "--out", model, "--device=cpu", *settings],
        "label": [*run, "label", root, "--model", model, "--out", str(folder / "labels.parquet"), "--anyway"],
        "report": [*run, "report", model, f"--max-videos={VIDEOS}"],
        "rank": [*run, "rank", root, "--model", model, "--out", str(folder / "ranking")],
    }


def measured(command: list[str], log: Path) -> Measured:
    """Run a command; return its seconds and its peak resident memory in MB."""
    began = time.perf_counter()
    with log.open("w") as file:
        started = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(started.pid, 0)
    started.returncode = os.waitstatus_to_exitcode(status)
    if started.returncode:
        raise SystemExit(f"{' '.join(command)}\n{log.read_text()}")
    return {"s": time.perf_counter() - began, "processor_s": used.ru_utime + used.ru_stime, "mb": used.ru_maxrss / 1024}


def growth(sizes: list[int], values: list[float]) -> str:
    """Return the exponent of growth between the two largest sizes."""
    if len(sizes) < 2:
        return ""
    return f"{math.log(values[-1] / values[-2]) / math.log(sizes[-1] / sizes[-2]):.2f}"


def tables(found: dict[str, dict[int, Measured]], sizes: list[int], opening: int) -> dict[str, Any]:
    """Return the table of all commands and sizes, and the table of opening."""
    head = ["command", *(f"{size:,} episodes" for size in sizes)]
    head += ["growth of time", "growth of processor time", "growth of memory"]
    rows: list[list[str]] = []
    for command, by_size in found.items():
        each = [by_size[size] for size in sizes]
        cells = [f"{one['s']:.1f} s, {one['mb']:,.0f} MB" for one in each]
        rates = [growth(sizes, [one[key] for one in each]) for key in ("s", "processor_s", "mb")]
        rows.append([command, *cells, *rates])
    made: dict[str, Any] = {"growth": {"head": head, "rows": rows}}
    if opened := found.get("open", {}).get(opening):
        head = ["episodes opened", "s", "MB", "aim"]
        row = [f"{opening:,}", f"{opened['s']:.1f}", f"{opened['mb']:,.0f}", f"{AIM_S} s, {AIM_MB} MB"]
        made["opening"] = {"head": head, "rows": [row]}
    return made


def main() -> None:
    """Measure every size and command, and write the result file."""
    options = parser(1)
    options.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of episodes")
    options.add_argument("--opening", type=int, default=OPENING, help="number of episodes that are only opened")
    options.add_argument("--folder", type=Path, help="where to make the data; a temporary folder by default")
    options.add_argument("--make", nargs=2, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.make:
        make(Path(given.make[0]), int(given.make[1]))
        return
    sizes, found = sorted(given.sizes), dict[str, dict[int, Measured]]()
    for size in sorted({*sizes, given.opening}):
        with tempfile.TemporaryDirectory(dir=given.folder) as name:
            folder = Path(name)
            data = folder / "data"
            # Made by another process: a child's peak would count the memory of this one, from which it is forked.
            subprocess.run([sys.executable, __file__, "--make", str(data), str(size)], check=True)
            for command, line in commands(data, folder).items():
                if size not in sizes and command != "open":
                    continue
                rounds = 1 if command == "train" else given.rounds  # a run that was trained is not trained again
                each = [measured(_again(line, turn), folder / "log.txt") for turn in range(rounds)]
                found.setdefault(command, {})[size] = {key: min(one[key] for one in each) for key in each[0]}
                print(size, command, found[command][size], file=sys.stderr, flush=True)
    about = {"sizes": sizes, "n": given.rounds, "load_at_end": os.getloadavg(), "measured": found}
    write("growth", {**about, "tables": tables(found, sizes, given.opening)}, given.out)


def _again(line: list[str], turn: int) -> list[str]:
    """Return a command that writes the same once more."""
    return [*line, "--overwrite"] if turn and "label" in line else line


if __name__ == "__main__":
    main()
