"""The whole off-policy study (stitching and shortcuts), and the figures of `docs/studies/stitching.md`.

    python benchmarks/offpolicy.py --run runs/stitching [--out benchmarks/results/offpolicy.json]

About three minutes on two idle cores; a folder that an interrupted run left is finished.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from counterpoint.bench.stitching import StitchingConfig, stitching_study

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ("stitching_alternating", "stitching_random", "shortcuts_branching", "shortcuts_two_pieces")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "offpolicy.json")
    arguments = parser.parse_args()
    found = stitching_study(StitchingConfig(), arguments.run)
    result = {"command": f"python benchmarks/offpolicy.py --run {arguments.run}", **found}
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    for name in FIGURES:
        shutil.copy(arguments.run / f"{name}.png", ROOT / "docs" / "assets" / f"{name}.png")
    print(json.dumps({"stitching": found["stitching"], "shortcuts": found["shortcuts"]}, indent=1))


if __name__ == "__main__":
    main()
