"""Why Premier-TACO's window loss does not start to learn at small scale: one change at a time, on Meta-World.

    python -m studies.premier_taco_start --data runs/fewshot/data/pretraining

Trains the objective on a few-shot benchmark's pretraining data under settings that differ in one thing each, keeps loss
and accuracy of held-out episodes under each setting's own draws, and scores all of them on the paper's (`common`): the
losses of different draws are no more comparable than their accuracies. Finished settings wait in `--work`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from pathlib import Path
from typing import Any

import torch

from counterpoint.data.cache import cached
from counterpoint.data.formats import open_dataset
from counterpoint.data.sampler import Sampler
from counterpoint.data.store import EpisodeStore
from counterpoint.encoders.observation import ObservationConfig
from counterpoint.files import write_atomically
from counterpoint.provenance import provenance
from counterpoint.training.checkpoint import list_checkpoints, load_checkpoint
from counterpoint.training.learner import OptimizerConfig
from counterpoint.training.recipe import TrainConfig, recipe_of
from counterpoint.training.train import train as run_training
from counterpoint.training.transitions import TransitionsRecipe, build_step_objective
from studies.harness import RESULTS

COMMON_SEED, COMMON_BATCHES = 1_000_003, 32
"""Of the draw that every setting is scored on."""

SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {},
    "centred": {"centre": True},
    "no shift": {"shift": 0},
    "one shift for all": {"centre": True, "shift_together": True},
    "centred, no shift": {"centre": True, "shift": 0},
    "centred, no shift, gradient through targets": {"centre": True, "shift": 0, "stop_gradient": False},
    "centred, no shift, anchor excluded": {"centre": True, "shift": 0, "exclude_anchor": True},
    "centred, no shift, all of the window": {"centre": True, "shift": 0, "every": True},
    "mixed": {"loss": "mixed"},
    "centred, no shift, mixed": {"centre": True, "shift": 0, "loss": "mixed"},
}


def opened(arguments: argparse.Namespace) -> tuple[EpisodeStore, EpisodeStore]:
    """Training and held-out episodes."""
    root = arguments.work / "cache"
    train, val = (
        cached(open_dataset(arguments.data, split=split), size=arguments.size, root=root) for split in ("train", "val")
    )
    return train, val


def run(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One setting: its validation numbers by step, and what it comes to on the draw common to all."""
    changes = dict(SETTINGS[name])
    centre = bool(changes.pop("centre", False))
    tree = TransitionsRecipe(
        objective={"name": "premier_taco"} | changes,
        encoder=ObservationConfig(size=arguments.size, centre=centre),
        optimizer=OptimizerConfig(lr=arguments.lr),
        train=TrainConfig(
            steps=arguments.steps,
            batch_size=arguments.batch,
            seed=arguments.seed,
            eval_every=max(1, arguments.steps // 4),
            eval_batches=8,
            save_every=arguments.steps,
            keep=1,
            trackers=(),
        ),
    )
    config = recipe_of(tree.model_dump(), name)
    assert isinstance(config, TransitionsRecipe)
    train, val = opened(arguments)
    folder = arguments.work / name.replace(" ", "_").replace(",", "")
    run_training(config, train, folder, validation=val)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = ("step", "loss", "window_accuracy", "chance_gap", "categorical_accuracy")
    curve = [{key: line[key] for key in kept} for line in lines if line["split"] == "val"]
    return {"changes": SETTINGS[name], "validation": curve, "common": common_score(folder, config, val)}


@torch.no_grad()
def common_score(folder: Path, config: TransitionsRecipe, store: EpisodeStore) -> dict[str, float]:
    """A trained objective on one fixed draw of held-out transitions: W 5, the anchor possible, one negative, no shift.

    Settings draw other candidates while they train, so that their own accuracies are of other questions.

    Args:
        folder: The run's.
        config: What was trained.
        store: Held-out episodes.
    """
    common = {"name": "premier_taco", "window": 5, "shift": 0}
    like = recipe_of(config.model_dump() | {"objective": common}, "common")
    assert isinstance(like, TransitionsRecipe)
    objective = build_step_objective(like, store)
    _, state = load_checkpoint(list_checkpoints(folder / "checkpoints")[-1])
    objective.load_state_dict(state["learner"]["objective"])
    spec = objective.sampling()
    loader = Sampler(store, spec.bind(store), batch_size=config.train.batch_size, seed=COMMON_SEED)
    metrics = [objective.eval()(batch).metrics for batch in loader.batches(0, COMMON_BATCHES)]
    names = ("window_accuracy", "categorical_accuracy")
    return {name: float(torch.stack([one[name] for one in metrics]).mean()) for name in names}


def _job(job: tuple[str, argparse.Namespace]) -> tuple[str, dict[str, Any]]:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    return job[0], run(*job)


def main() -> None:
    """Run what is missing, and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/premier_taco_start"))
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1, help="settings at a time, a thread each")
    parser.add_argument("--result", type=Path, default=RESULTS / "premier_taco_start.json")
    arguments = parser.parse_args()
    opened(arguments)  # made once, before processes would make it twice
    settings = {key: getattr(arguments, key) for key in ("size", "steps", "batch", "lr", "seed")}
    found = json.loads(arguments.result.read_text())["found"] if arguments.result.exists() else {}
    jobs = [(name, arguments) for name in arguments.settings]
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        for name, result in pool.imap_unordered(_job, jobs):
            found[name] = result
            kept = {
                "command": "python -m studies.premier_taco_start --data runs/fewshot/data/pretraining "
                f"--steps {arguments.steps} --batch {arguments.batch}",
                "settings": settings,
                "found": {known: found[known] for known in SETTINGS if known in found},
                "provenance": provenance(),
            }
            write_atomically(arguments.result, json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
