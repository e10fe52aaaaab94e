"""`python -m studies.occupancy`."""

from __future__ import annotations

from pathlib import Path

import tyro

from studies.occupancy.run import OccupancyConfig, occupancy_study


def main(*, out: Path, quick: bool = False) -> None:
    """Run the study; an interrupted one continues.

    Args:
        out: Where results (JSON) and figures go.
        quick: A small version, in a minute.
    """
    occupancy_study(OccupancyConfig.quick() if quick else OccupancyConfig(), out)
    print(f"Wrote {out}")


if __name__ == "__main__":
    tyro.cli(main)
