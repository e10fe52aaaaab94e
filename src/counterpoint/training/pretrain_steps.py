"""Pretraining an observation encoder on logged control data of many tasks: transitions in, an encoder folder out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from counterpoint.config import FrozenConfig, override, read_recipe, validate
from counterpoint.data.cache import cached
from counterpoint.data.formats import open_dataset, split_names
from counterpoint.data.multitask import MultiTaskStore
from counterpoint.data.nstep import NStepSpec
from counterpoint.data.nstep_loader import NStepLoader
from counterpoint.data.store import EpisodeStore
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.errors import BadInputError
from counterpoint.objectives import STEP_OBJECTIVES, objective_config
from counterpoint.objectives.step import StepObjective
from counterpoint.provenance import provenance
from counterpoint.training.checkpoint import write_atomically
from counterpoint.training.learner import ObjectiveLearner, OptimizerConfig
from counterpoint.training.run_folder import FREE, claim_run
from counterpoint.training.trainer import TrainConfig, train

__all__ = ["StepDataConfig", "StepPretrainConfig", "load_step_config", "pretrain_recipe", "pretrain_steps"]

CENTRE_FRAMES = 2048
"""Frames the mean image is taken over, evenly spaced through the training episodes."""


class StepDataConfig(FrozenConfig):
    """Which episodes, and how they are drawn. Frames come at the encoder's size.

    Attributes:
        camera: Which camera; the data's first by default.
        train_split: Split to train on, where the data has splits; `None` takes everything.
        val_split: Split to validate on, where the data has it; `None` for no validation.
        balance: `steps` draws every step alike, so that a task weighs as much as it has data; `tasks` draws a task
            first.
        cache: Folder of training stores; by default the user's cache folder.
    """

    camera: str | None = None
    train_split: str | None = "train"
    val_split: str | None = "val"
    balance: Literal["steps", "tasks"] = "steps"
    cache: str | None = None


class StepPretrainConfig(FrozenConfig):
    """Everything a recipe of transitions says."""

    objective: dict[str, Any]
    encoder: ObservationConfig = ObservationConfig()
    data: StepDataConfig = StepDataConfig()
    optimizer: OptimizerConfig = OptimizerConfig(lr=1e-4)
    train: TrainConfig = TrainConfig()
    initialize_from: str | None = None
    """A folder or Hub id of an observation encoder to start from: fine-tuning with the objective (Figure 8)."""


def load_step_config(recipe: str, overrides: Mapping[str, Any]) -> StepPretrainConfig:
    """A recipe with overrides, every key checked.

    Raises:
        BadInputError: Naming the key that is unknown or ill-typed.
    """
    config = validate(StepPretrainConfig, override(read_recipe(recipe), overrides), f"recipe {recipe}")
    objective_config(config.objective, f"recipe {recipe}", STEP_OBJECTIVES)
    return config


def pretrain_recipe(recipe: str, data: Sequence[Path], out: Path, overrides: Mapping[str, Any]) -> Path:
    """Train a recipe on data sets; running it again continues where it stopped.

    Args:
        recipe: A recipe's name or the path of a TOML file.
        data: One or more data sets; each is a domain with its own action space.
        out: The run's folder.
        overrides: Dotted keys and their values.

    Returns:
        The folder of the encoder, `out/pretrained`.

    Raises:
        BadInputError: When the configuration, the data or the run's folder cannot be used.
    """
    config = load_step_config(recipe, overrides)
    stores = [_open(path, config.data.train_split, config) for path in data]
    kept_back = [
        (path, _open(path, config.data.val_split, config))
        for path in data
        if config.data.val_split is not None and config.data.val_split in split_names(path)
    ]
    names = [path.name for path in data]
    validation = _together([store for _, store in kept_back], [path.name for path, _ in kept_back])
    together = _together(stores, names)
    assert together is not None
    return pretrain_steps(
        config, together, out, validation, about={"recipe": recipe, "data": [*map(str, data)]}
    )


def pretrain_steps(
    config: StepPretrainConfig,
    store: EpisodeStore,
    out: Path,
    validation: EpisodeStore | None = None,
    *,
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Train an encoder on episodes that stand open; the same call again continues an interrupted run.

    Args:
        config: What to train, and how.
        store: Training episodes, frames at the encoder's size.
        out: The run's folder.
        validation: Episodes to score now and then.
        about: What else `config.json` shall tell of the run.

    Returns:
        The folder of the encoder, `out/pretrained`.

    Raises:
        BadInputError: When the configuration, the data or the run's folder cannot be used.
    """
    accelerator = Accelerator(mixed_precision=config.train.precision)
    settings = config.model_dump(mode="json")
    claim_run(out, settings, {"train": FREE})
    set_seed(config.train.seed)
    objective = build_step_objective(config, store)
    spec = objective.sampling()
    assert isinstance(spec, NStepSpec)
    common = {
        "batch_size": config.train.batch_size,
        "seed": config.train.seed,
        "camera": config.data.camera,
        "rank": accelerator.process_index,
        "world_size": accelerator.num_processes,
        "balance": config.data.balance,
        "action_dim": action_dim(store),
    }
    loader = NStepLoader(store, spec, workers=config.train.workers, **common)
    scored = NStepLoader(validation, spec, **common) if validation is not None else None
    learner = ObjectiveLearner(
        objective,
        config.optimizer,
        total_steps=config.train.total_steps(loader.epoch_size),
        accelerator=accelerator,
    )
    if accelerator.is_main_process:
        record = settings | dict(about or {}) | {"fingerprint": store.fingerprint, "provenance": provenance()}
        write_atomically(out / "config.json", json.dumps(record, indent=1))
    train(learner, loader, scored, config.train, run=out, accelerator=accelerator, settings=settings)
    if accelerator.is_main_process:
        encoder = learner.exports()["encoder"]
        assert isinstance(encoder, ObservationEncoder)
        encoder.save_pretrained(out / "pretrained")
    accelerator.wait_for_everyone()
    return out / "pretrained"


def build_step_objective(config: StepPretrainConfig, store: EpisodeStore) -> StepObjective:
    """The encoder, centred on the data where it asks for that, and the objective around it."""
    if config.initialize_from:
        encoder = ObservationEncoder.from_pretrained(config.initialize_from)
    else:
        encoder = ObservationEncoder(config.encoder)
        if config.encoder.centre:  # before the objective copies it as a slowly moving target
            encoder.centre_on(evenly_spaced_frames(store, CENTRE_FRAMES, config.data.camera))
    name, settings = objective_config(config.objective, "objective", STEP_OBJECTIVES)
    objective: StepObjective = STEP_OBJECTIVES[name].objective(encoder, action_dim(store), settings)
    return objective


def action_dim(store: EpisodeStore) -> int:
    """A: the dimensions of the actions, the largest of all domains.

    Raises:
        BadInputError: When the first episode has no actions.
    """
    actions = store.actions(0)
    if actions is None:
        raise BadInputError(
            "episode 0",
            found="no actions",
            expected="logged actions",
            mend="use data of control, not videos alone",
        )
    return int(actions.shape[1])


def evenly_spaced_frames(store: EpisodeStore, count: int, camera: str | None = None) -> torch.Tensor:
    """About `count` frames spread evenly over all episodes: uint8 [N, H, W, 3]."""
    total = sum(info.length for info in store.episodes)
    every = max(1, total // count)
    frames, offset = [], 0
    for episode, info in enumerate(store.episodes):
        steps = np.arange(offset, info.length, every)
        offset = int(offset + len(steps) * every - info.length)
        if len(steps):
            frames.append(store.frames(episode, steps, camera))
    return torch.from_numpy(np.concatenate(frames))


def _open(path: Path, split: str | None, config: StepPretrainConfig) -> EpisodeStore:
    source = open_dataset(path, split=split if split_names(path) else None)
    cameras = (config.data.camera,) if config.data.camera else source.cameras[:1]
    root = Path(config.data.cache) if config.data.cache else None
    return cached(source, size=config.encoder.size, root=root, cameras=cameras)


def _together(stores: Sequence[EpisodeStore], names: Sequence[str]) -> EpisodeStore | None:
    if len(stores) > 1:
        return MultiTaskStore(stores, names)
    return stores[0] if stores else None
