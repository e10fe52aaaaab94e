"""Every objective on scripted Meta-World episodes: train on `train`, choose on `val`, report on `test`.

    python -m studies.metaworld_rewards --data runs/demo-data --out runs/study

Runs three seeds of each row of `ROWS`, evaluates each on validation and test episodes, and writes one JSON a run
under `--out`, then `studies/results/metaworld_rewards.json` with the mean over seeds and its interval. A run whose
JSON exists is not repeated; `--rows` and `--seeds` choose some.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from counterpoint.data.formats import open_dataset
from counterpoint.data.store import EpisodeStore
from counterpoint.encoders.dual import DualEncoder
from counterpoint.envs.metaworld.instructions import INSTRUCTIONS
from counterpoint.evaluation.embedded import embed_store
from counterpoint.evaluation.metrics import value_order_correlation
from counterpoint.evaluation.reward_eval import evaluate_encoder
from counterpoint.evaluation.statistics import seeds_interval
from counterpoint.objectives import ClipObjective, objective_class
from counterpoint.provenance import provenance
from counterpoint.rewards import RewardForm
from counterpoint.training.clips import ClipsRecipe, DataConfig, prepared_clips
from counterpoint.training.recipe import load_recipe
from counterpoint.training.train import train
from studies.harness import RESULTS
from studies.metaworld_paraphrases import PARAPHRASES

RECIPE = "decisionnce_t-demo"


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        objective: The recipe's `[objective]` section; `None` leaves the encoder at its random weights.
        start: The row whose weights this one continues from.
        overrides: Changes to the recipe beside it.
    """

    objective: dict[str, Any] | None
    start: str | None = None
    overrides: dict[str, Any] = field(default_factory=dict)


def actol(name: str, weight: float) -> dict[str, Any]:
    """An AcTOL objective at the small recipes' temperature."""
    return {"name": name, "frames": 10, "temperature": 0.1, "bridge_weight": weight}


# A step encodes 64 to 80 frames whatever the method: 32 clips of two, 16 of five, 8 of ten.
FIVE_FRAMES = {"train.batch_size": 16}
SHORTER = {"train.batch_size": 16, "train.steps": 400}
SCRATCH = {"train.batch_size": 8, "train.steps": 800}
FINE_TUNE = {"train.batch_size": 16, "train.steps": 300, "optimizer.lr": 1e-4}

ROWS: dict[str, Row] = {
    "random encoder": Row(None),
    "decisionnce_t": Row({"name": "decisionnce_t", "temperature": 0.1}),
    "decisionnce_p": Row({"name": "decisionnce_p", "temperature": 0.1}),
    "liv": Row({"name": "liv"}, overrides=FIVE_FRAMES),
    "clip_goal": Row({"name": "clip_goal", "temperature": 0.1}),
    "vip": Row({"name": "vip"}, overrides=SHORTER),
    "r3m": Row({"name": "r3m"}, overrides=SHORTER),
    "tcn": Row({"name": "tcn"}, overrides=SHORTER),
    "vlo from scratch": Row(actol("actol", 0.0), overrides=SCRATCH),
    "directed vlo from scratch": Row(actol("directed_actol", 0.0), overrides=SCRATCH),
} | {
    f"actol {weight:g} from decisionnce_t": Row(actol("actol", weight), start="decisionnce_t", overrides=FINE_TUNE)
    for weight in (0.0, 0.1, 10.0)
}  # fmt: skip


def main() -> None:
    """Train and evaluate what is missing, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", nargs="*", default=list(ROWS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--result", type=Path, default=RESULTS / "metaworld_rewards.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for seed in arguments.seeds:
        for name in arguments.rows:
            measure(name, seed, arguments.data, arguments.out)
    write_table(arguments.out, arguments.result, arguments.data)


def measure(name: str, seed: int, data: Path, out: Path) -> dict[str, Any]:
    """One row, one seed; read from its file where it has been measured before."""
    run = out / f"{name.replace(' ', '_')}-seed{seed}"
    done = run / "measured.json"
    if done.exists():
        found: dict[str, Any] = json.loads(done.read_text())
        return found
    row = ROWS[name]
    began = time.perf_counter()
    encoder = trained_encoder(row, seed, data, run, out)
    seconds = time.perf_counter() - began
    trained = objective_class(row.objective["name"], ClipObjective).reward_form if row.objective else "transition"
    form: RewardForm = "transition" if trained == "transition" else "potential"
    found = {"row": name, "seed": seed}
    for split in ("val", "test"):
        store = split_store(data, split)
        said = {INSTRUCTIONS[task]: PARAPHRASES[task] for task in PARAPHRASES}
        evaluation = evaluate_encoder(encoder, store, form=form, seed=seed, paraphrases=said)
        found[split] = {key: estimate.value for key, estimate in evaluation.estimates.items()}
        found[split] |= {"form": form, "goal_image_voc": goal_image_voc(encoder, store)}
    run.mkdir(parents=True, exist_ok=True)
    done.write_text(json.dumps(found, indent=1))
    shown = {key: round(found["val"][key], 3) for key in SHOWN if found["val"].get(key) is not None}
    print(f"{name} seed {seed}: {seconds:.0f} s, val {shown}", flush=True)
    return found


SHOWN = ("voc.potential", "voc.transition", "accuracy_whole_video.transition", "accuracy_whole_video.potential")


def trained_encoder(row: Row, seed: int, data: Path, run: Path, out: Path) -> DualEncoder:
    """The row's encoder, trained where it has not been."""
    overrides: dict[str, Any] = {"train.seed": seed, "train.trackers": [], **row.overrides}
    if row.objective is None:
        torch.manual_seed(seed)
        return DualEncoder(_recipe().encoder).eval()
    overrides["objective"] = row.objective
    if row.start is not None:
        start = out / f"{row.start}-seed{seed}"
        measure(row.start, seed, data, out)
        overrides["initialize_from"] = str(start)
    return DualEncoder.from_pretrained(train(RECIPE, data, run, overrides=overrides).model)


def _recipe() -> ClipsRecipe:
    found = load_recipe(RECIPE)
    assert isinstance(found, ClipsRecipe)
    return found


def split_store(data: Path, split: str) -> EpisodeStore:
    """One split's training store."""
    size = _recipe().data.size
    store, _ = prepared_clips(data, DataConfig(size=size, train_split=split, val_split=None))
    return store


def goal_image_voc(encoder: DualEncoder, store: EpisodeStore) -> float:
    """VOC of -||phi(o_t) - phi(goal)||, the goal being the last frame of the next episode of the same task.

    This is defined without language, so VIP and TCN have it too.
    """
    embedded = embed_store(encoder, store)
    last = embedded.last()
    values = []
    for number, video in enumerate(embedded.videos):
        same = [other for other in np.flatnonzero(embedded.own == embedded.own[number]) if other != number]
        if same:
            goal = last[min(same, key=lambda other: (other - number) % len(last))]
            values.append(value_order_correlation(-np.linalg.norm(video - goal, axis=1)))
    return float(np.mean(values))


def write_table(out: Path, result: Path, data: Path) -> None:
    """Mean over seeds with a t interval of every number, for every row that was measured."""
    table: dict[str, Any] = {}
    for name in ROWS:
        runs = [json.loads(p.read_text()) for p in sorted(out.glob(f"{name.replace(' ', '_')}-seed*/measured.json"))]
        if not runs:
            continue
        table[name] = {"seeds": [run["seed"] for run in runs]}
        for split in ("val", "test"):
            keys = [key for key, value in runs[0][split].items() if isinstance(value, float)]
            table[name][split] = {key: interval([run[split][key] for run in runs]) for key in keys}
            table[name][split]["form"] = runs[0][split]["form"]
    settings = _recipe().model_dump(mode="json")
    about = {"command": "python -m studies.metaworld_rewards --data DATA --out RUNS", "recipe": settings}
    about |= {"data": {split: open_dataset(data, split=split).fingerprint for split in ("train", "val", "test")}}
    result.write_text(json.dumps(about | {"rows": table, "provenance": provenance()}, indent=1) + "\n")
    print(f"Wrote {result}")


def interval(values: list[float]) -> dict[str, Any]:
    """Mean, interval and the values themselves."""
    if not np.isfinite(values).all():
        return {"mean": None, "low": None, "high": None, "values": [v if np.isfinite(v) else None for v in values]}
    estimate = seeds_interval(np.array(values))
    return {"mean": estimate.value, "low": estimate.low, "high": estimate.high, "values": values}


if __name__ == "__main__":
    main()
