r"""The start of Premier-TACO's window loss at small scale: the encoder's initial weights, shift and centring.

    counterpoint collect metaworld --tasks pick-place push assembly --episodes 40 --val-episodes 4 --noise 0.3 \
        --size 96 --stride 2 --max-steps 200 --after-success 200 --out runs/start-data
    python -m studies.premier_taco_start --data=runs/start-data --out runs/premier_taco_start

The study trains the objective under every setting and seed. It records loss and accuracy on held-out episodes, sampled
as the setting samples in training. These are not comparable between settings, so all settings are also scored on one
sample, drawn as in the paper but without shift (`common`).
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import PositiveInt
from torch import nn

from counterpoint.config import FrozenConfig
from counterpoint.data.cache import cached
from counterpoint.data.sampler import Sampler
from counterpoint.data.store import EpisodeStore
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.formats import open_dataset
from counterpoint.training.learner import OptimizerConfig
from counterpoint.training.recipe import recipe_of
from counterpoint.training.run import list_checkpoints, load_checkpoint
from counterpoint.training.settings import TrainConfig
from counterpoint.training.train import train as run_training
from counterpoint.training.transitions import TransitionsRecipe, build_step_objective, centred
from studies.harness import Study, Tree, Trial, file_name, main

COMMON_SEED, COMMON_BATCHES = 1_000_003, 32
"""Seed and number of batches of the sample on which every setting is scored."""
KEPT = ("step", "loss", "window_accuracy", "chance_gap", "categorical_accuracy")


class PremierTacoStartConfig(FrozenConfig):
    """Settings that are compared.

    Attributes:
        data: The data set, with the splits `train` and `val`.
        settings: Changes to the objective by name. Two keys belong to the encoder: `centre`, and `weights`, which is
            "torch" for torch's initial weights instead of DrQ-v2's.
        size: Height and width of images in pixels.
        width: Number of channels of the convolutions.
        steps: Number of gradient steps.
        batch: Batch size, B.
        lr: Adam's learning rate.
        seeds: Number of seeds.
        processes: Number of settings that run in parallel.
    """

    data: str
    settings: dict[str, dict[str, Any]]
    size: PositiveInt = 48
    width: PositiveInt = 16
    steps: PositiveInt = 300
    batch: PositiveInt = 64
    lr: float = 3e-4
    seeds: PositiveInt = 2
    processes: PositiveInt = 1


def premier_taco_start_study(config: PremierTacoStartConfig, out: Path) -> Tree:
    """Train under every setting and write `premier_taco_start.json` and `results.parquet`."""
    study = Study("start of Premier-TACO", out, config)
    _episodes(config, out)  # decoded once, before processes would do it twice
    trials = [
        Trial(
            file_name(name.replace(",", ""), seed),
            partial(measure, config, out, name, seed),
            config.steps,
            {"setting": name, "seed": seed},
        )
        for seed in range(config.seeds)
        for name in config.settings
    ]
    study.run(trials, config.processes)
    return study.finish("premier_taco_start", {"found": study.rows()})


def _episodes(config: PremierTacoStartConfig, out: Path) -> tuple[EpisodeStore, EpisodeStore]:
    train, val = (
        cached(open_dataset(config.data, split=split), size=config.size, root=out / "cache")
        for split in ("train", "val")
    )
    return train, val


def measure(config: PremierTacoStartConfig, out: Path, name: str, seed: int) -> Tree:
    """Return a setting's validation numbers by step, and its accuracies on the common sample."""
    changes = dict(config.settings[name])
    encoder = ObservationConfig(size=config.size, width=config.width, centre=bool(changes.pop("centre", False)))
    train, val = _episodes(config, out)
    folder = out / "runs" / file_name(name.replace(",", ""), seed)
    start = initial_encoder(encoder, changes.pop("weights", "drq"), seed)
    centred(start, train).save_pretrained(folder.with_name(f"{folder.name}-start"))
    loop = TrainConfig(
        steps=config.steps,
        batch_size=config.batch,
        seed=seed,
        eval_every=max(1, config.steps // 4),
        eval_batches=8,
        save_every=config.steps,
        keep=1,
        trackers=(),
    )
    recipe = TransitionsRecipe(
        objective={"name": "premier_taco"} | changes,
        encoder=encoder,
        optimizer=OptimizerConfig(lr=config.lr),
        train=loop,
        initialize_from=str(folder.with_name(f"{folder.name}-start")),
    )
    run_training(recipe_of(recipe.model_dump(), name), train, folder, validation=val)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    curve = [{key: line[key] for key in KEPT} for line in lines if line["split"] == "val"]
    return {"changes": config.settings[name], "validation": curve, "common": common_score(folder, recipe, val)}


def initial_encoder(config: ObservationConfig, weights: str, seed: int) -> ObservationEncoder:
    """Return an untrained encoder with DrQ-v2's initial weights (`drq`), or those of torch's layers (`torch`)."""
    torch.manual_seed(seed)
    encoder = ObservationEncoder(config)
    if weights == "torch":
        for module in encoder.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.reset_parameters()
    return encoder


@torch.no_grad()
def common_score(folder: Path, recipe: TransitionsRecipe, store: EpisodeStore) -> dict[str, float]:
    """Score a trained objective on one fixed sample: window 5, one negative that may be the anchor, no shift.

    Settings sample different candidates in training, so their own accuracies are not comparable.

    Args:
        folder: The run's folder.
        recipe: The run's recipe.
        store: Held-out episodes.
    """
    common = {"name": "premier_taco", "window": 5, "shift": 0}
    like = recipe_of(recipe.model_dump() | {"objective": common}, "common")
    assert isinstance(like, TransitionsRecipe)
    objective = build_step_objective(like, store)
    _, state = load_checkpoint(list_checkpoints(folder / "checkpoints")[-1])
    objective.load_state_dict(state["learner"]["objective"])
    spec = objective.sampling()
    loader = Sampler(store, spec.bind(store), batch_size=recipe.train.batch_size, seed=COMMON_SEED)
    metrics = [objective.eval()(batch).metrics for batch in loader.batches(0, COMMON_BATCHES)]
    names = ("window_accuracy", "categorical_accuracy")
    return {name: float(torch.stack([one[name] for one in metrics]).mean()) for name in names}


if __name__ == "__main__":
    main("premier_taco_start")
