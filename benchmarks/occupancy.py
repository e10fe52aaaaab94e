"""The tabular study of `python -m studies.occupancy`, its numbers and figures put where the documentation reads them.

    python benchmarks/occupancy.py --study runs/occupancy

Runs the study in that folder, or what is left of it, and fills the tables of `docs/studies/occupancy.md`. Learning
curves stay in the folder; the result file keeps the rest.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for who runs this file by its path from elsewhere
import occupancy_tables
from counterpoint.evaluation.statistics import seeds_interval
from studies.occupancy.data import Counted
from studies.occupancy.figures import FIGURES
from studies.occupancy.run import OccupancyConfig, occupancy_study
from studies.occupancy.training import Setting, train

HERE = Path(__file__).parent
BATCHES, BATCH_STEPS, BATCH_RATE = (64, 256, 1024), 25_000, 3e-3


def rounded(value: Any) -> Any:
    """Four figures are more than the intervals allow."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def by_batch(config: OccupancyConfig, study: Path) -> dict[str, Any]:
    """Final errors for several batch sizes, at the most data and one decayed learning rate for all."""
    kept = study / "by_batch.json"
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    size = config.sizes[-1]
    data = [Counted.load(study / "data" / f"episodes-{size}-{seed}.npz") for seed in range(config.seeds)]
    found: dict[str, Any] = {"steps": BATCH_STEPS, "learning_rate": BATCH_RATE, "schedule": "decayed"}
    for method in ("c_learning_both", "c_learning_pairs", "td_infonce"):
        found[method] = {}
        for batch in BATCHES:
            trained = train(
                method, data, config.truth(), [Setting(BATCH_RATE, "decayed")],
                discount=config.discount, steps=BATCH_STEPS, size=batch, seed=0,
            )  # fmt: skip
            final = seeds_interval(np.array(trained["error"][-1])[:, 0])
            found[method][str(batch)] = {"mean": final.value, "low": final.low, "high": final.high}
    kept.write_text(json.dumps(found, indent=1) + "\n")
    return found


def main() -> None:
    """Run, and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--result", type=Path, default=HERE / "results" / "occupancy.json")
    parser.add_argument("--figures", type=Path, default=HERE.parent / "docs" / "assets")
    arguments = parser.parse_args()
    config = OccupancyConfig(processes=arguments.processes)
    found = occupancy_study(config, arguments.study)
    found["by_batch"] = by_batch(config, arguments.study)
    about = found.pop("provenance")
    command = "python benchmarks/occupancy.py --study runs/occupancy"
    known = {name: curve["error"][-1] for name, curve in found.pop("known_model").items()}
    del found["curves"]
    kept = {"command": command, **rounded({**found, "known_model_error": known}), "provenance": about}
    arguments.result.write_text(json.dumps(kept, indent=1) + "\n")
    for name in FIGURES:
        shutil.copy(arguments.study / f"occupancy_{name}.png", arguments.figures)
    occupancy_tables.PAGE.write_text(occupancy_tables.fill(occupancy_tables.PAGE.read_text()))
    print(occupancy_tables.ratios(kept))


if __name__ == "__main__":
    main()
