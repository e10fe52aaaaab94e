"""Policies with and without ICon, compared whole; numbers and figures are put where the documentation reads them.

    python benchmarks/icon.py --preset cpu --out runs/icon

Runs `python -m studies.icon` in that folder, or what is left of it.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from fewshot import compact
from studies.icon.presets import PRESETS, preset
from studies.icon.run import icon_benchmark
from studies.parts import dump

HERE = Path(__file__).parent


def main() -> None:
    """Run, and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=list(PRESETS), default="cpu")
    parser.add_argument("--out", type=Path, default=Path("runs/icon"))
    parser.add_argument("--figures", type=Path, default=HERE.parent / "docs" / "assets")
    arguments = parser.parse_args()
    icon_benchmark(preset(arguments.preset), arguments.out)
    found = json.loads((arguments.out / "icon.json").read_text())
    about = found.pop("provenance")
    command = f"python benchmarks/icon.py --preset {arguments.preset} --out runs/icon"
    kept = {"command": command, **compact(found), "provenance": about}
    path = HERE / "results" / f"icon_{arguments.preset.replace('-', '_')}.json"
    path.write_text(dump(kept))
    for figure in sorted(arguments.out.glob("*.png")):
        name = figure.stem.split("-")[0]  # without the task, of which a small preset has one
        shutil.copyfile(figure, arguments.figures / f"{name}_{arguments.preset.replace('-', '_')}.png")


if __name__ == "__main__":
    main()
