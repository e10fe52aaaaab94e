"""`python -m studies.stitching`."""

from __future__ import annotations

from pathlib import Path

import tyro

from studies.stitching.run import StitchingConfig, stitching_study


def main(*, out: Path, quick: bool = False) -> None:
    """Run the study; an interrupted one continues.

    Args:
        out: Where results (JSON) and figures go.
        quick: A small version, in a minute.
    """
    stitching_study(StitchingConfig.quick() if quick else StitchingConfig(), out)
    print(f"Wrote {out}")


if __name__ == "__main__":
    tyro.cli(main)
