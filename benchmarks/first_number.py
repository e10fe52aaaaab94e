"""Seconds from 18 videos to a first number: training from an empty cache, then the reward of a clip in a new process.

    python benchmarks/first_number.py --data WIDOWX [--rounds 3] [--out FILE]

WIDOWX is a folder of videos with a manifest; a round trains `decisionnce_p-videos` on it with `counterpoint train`, and
then scores its first video with `counterpoint reward` under an instruction of the training, and under a new one. Each
command runs in a fresh process with torch's default number of threads, and with an empty folder as the cache before the
training. The disk's own cache is not dropped. Use an environment with what the README installs (`vision,text,report`),
because timm also imports further packages if they are there.

A command's seconds are divided into parts by wrappers around the functions that do the work. A part counts only the
time outside the other parts, in the main thread; `rest` is the remainder, with the start of Python and the time until
the process has ended.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from measuring import parser, write

PARTS = {
    "import": [],
    "decode": ["counterpoint.rewards.curves:in_worker"],
    "sentence encoder": ["counterpoint.encoders.dual:SentenceTower._computed"],
    "backbone": ["counterpoint.encoders.features:featured", "counterpoint.encoders.dual:DualEncoder.encode_image"],
    "fit": ["counterpoint.training.train:fit"],
    "wait for judges": ["counterpoint.training.train:_finish"],
    "calibrate": ["counterpoint.training.clips:calibrate"],
    "page": ["counterpoint.rewards.curves:curve_page", "counterpoint.rewards.curves:line_image"],
}
"""The functions of each part; imports are wrapped as a whole."""


class Clock:
    """Adds up the seconds of nested parts; each second counts for the innermost part."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self._since = time.perf_counter()

    def _switch(self) -> None:
        now = time.perf_counter()
        if self._open:
            self.spent[self._open[-1]] += now - self._since
        self._since = now

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose time counts for a part; a part within itself is not opened twice."""

        @functools.wraps(function)
        def timed(*arguments: Any, **options: Any) -> Any:
            if self._open[-1:] == [part]:
                return function(*arguments, **options)
            self._switch()
            self._open.append(part)
            try:
                return function(*arguments, **options)
            finally:
                self._switch()
                self._open.pop()

        return timed


def run_command(out: str, arguments: list[str]) -> None:
    """Run a command in this process and write the seconds of its parts to a file."""
    clock = Clock()
    loader: Any = sys.modules["_frozen_importlib"]  # whose function loads modules that are not loaded yet
    loader._find_and_load = clock.around("import", loader._find_and_load)
    command_line: Any = importlib.import_module("counterpoint.cli.main")
    function = command_line._function

    def loaded(target: str) -> Any:
        found = function(target)
        wrap(clock)
        return found

    command_line._function = loaded
    try:
        command_line.main(arguments)
    finally:
        Path(out).write_text(json.dumps(clock.spent))


def wrap(clock: Clock) -> None:
    """Wrap the functions of all parts, in the modules that the command has imported."""
    for part, targets in PARTS.items():
        for target in targets:
            name, _, path = target.partition(":")
            if name in sys.modules or part == "sentence encoder":
                owner: Any = importlib.import_module(name)
                *owners, last = path.split(".")
                for one in owners:
                    owner = getattr(owner, one)
                setattr(owner, last, clock.around(part, getattr(owner, last)))


def timed(arguments: list[str], cache: Path) -> dict[str, float]:
    """Run a command in a fresh process; return the seconds of its parts and the whole."""
    with tempfile.TemporaryDirectory() as folder:
        out, started = Path(folder) / "parts.json", time.perf_counter()
        command = [sys.executable, __file__, "--command", str(out), *arguments]
        environment = {**os.environ, "COUNTERPOINT_CACHE": str(cache)}
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        whole = time.perf_counter() - started
        parts: dict[str, float] = json.loads(out.read_text())
    return {**parts, "rest": whole - sum(parts.values()), "whole": whole}


def main() -> None:
    options = parser(3)
    options.add_argument("--data", type=Path, required=True, help="a folder of videos with a manifest.csv")
    chosen = options.parse_args()
    video = sorted((chosen.data / "videos").iterdir())[0]
    rounds: list[dict[str, dict[str, float]]] = []
    for _ in range(chosen.rounds):
        with tempfile.TemporaryDirectory() as place:
            folder, run = Path(place), str(Path(place) / "run")
            reward = ["reward", str(video), "--model", run, "--out", str(folder / "curves"), "--instruction"]
            rounds.append(
                {
                    "train": timed(
                        ["train", "decisionnce_p-videos", "--data", str(chosen.data), "--out", run], folder / "cache"
                    ),
                    "reward, known instruction": timed([*reward, "close the microwave"], folder / "cache"),
                    "reward, new instruction": timed([*reward, "hide the spoon under the cloth"], folder / "cache"),
                }
            )
    names = list(rounds[0])
    parts = [*PARTS, "rest", "whole"]
    rows = [[part, *(shown([one[name].get(part, 0.0) for one in rounds]) for name in names)] for part in parts]
    found = {
        "n": chosen.rounds,
        "interval": "medians of the rounds",
        "load_at_end": os.getloadavg(),
        "rounds": rounds,
        "tables": {"first number": {"head": ["seconds", *names], "rows": rows}},
    }
    write("first_number", found, chosen.out)


def shown(seconds: list[float]) -> str:
    return f"{median(seconds):.1f}" if any(seconds) else ""


if __name__ == "__main__":
    if sys.argv[1:2] == ["--command"]:
        run_command(sys.argv[2], sys.argv[3:])
    else:
        main()
