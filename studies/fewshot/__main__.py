"""`python -m studies.fewshot`."""

from __future__ import annotations

from pathlib import Path

import tyro

from counterpoint.config import parse_overrides
from studies.fewshot.presets import preset as named
from studies.fewshot.run import fewshot_benchmark


def main(*overrides: str, out: Path, preset: str = "cpu") -> None:
    """Run the study; an interrupted one continues.

    Args:
        overrides: Any key of the preset: data.demonstrations=10 evaluation.episodes=40
        out: Where results (JSON), tables and figures go.
        preset: The preset's name.
    """
    fewshot_benchmark(named(preset, parse_overrides(overrides)), out)
    print(f"Wrote {out}")


if __name__ == "__main__":
    tyro.cli(main)
