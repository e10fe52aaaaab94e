"""A few-shot benchmark run whole, its numbers and figures put where the documentation reads them.

    python benchmarks/fewshot.py --preset cpu --out runs/fewshot

Runs `python -m studies.fewshot` in that folder, or what is left of it, and keeps the result without every single
episode's steps.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from studies.fewshot.presets import PRESETS, preset
from studies.fewshot.run import fewshot_benchmark
from studies.parts import dump

HERE = Path(__file__).parent


def compact(value: Any) -> Any:
    """Four figures are more than the intervals allow; steps of single episodes stay in the run's folder."""
    if isinstance(value, dict):
        return {key: compact(part) for key, part in value.items() if key != "steps" or not isinstance(part, list)}
    if isinstance(value, list):
        return [compact(part) for part in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> None:
    """Run, and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=list(PRESETS), default="cpu")
    parser.add_argument("--out", type=Path, default=Path("runs/fewshot"))
    parser.add_argument("--result", type=Path)
    parser.add_argument("--figures", type=Path, default=HERE.parent / "docs" / "assets")
    arguments = parser.parse_args()
    found = fewshot_benchmark(preset(arguments.preset), arguments.out)
    about = found.pop("provenance")
    command = f"python benchmarks/fewshot.py --preset {arguments.preset} --out runs/fewshot"
    kept = {"command": command, **compact(found), "provenance": about}
    path = arguments.result or HERE / "results" / f"fewshot_{arguments.preset.replace('-', '_')}.json"
    path.write_text(dump(kept))
    for figure in sorted(arguments.out.glob("*.png")):
        shutil.copyfile(figure, arguments.figures / f"{figure.stem}_{arguments.preset}.png")


if __name__ == "__main__":
    main()
