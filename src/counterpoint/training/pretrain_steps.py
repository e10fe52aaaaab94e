"""Pretraining an observation encoder on logged control data of many tasks: transitions in, an encoder folder out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from accelerate.utils import set_seed

from counterpoint.config import FrozenConfig, override, read_recipe, validate
from counterpoint.data.prepared import open_prepared, together, validation_split
from counterpoint.data.sampler import Sampler
from counterpoint.data.spec import Spec
from counterpoint.data.statistics import action_statistics
from counterpoint.data.store import (
    Cameras,
    EpisodeStore,
    MultiTaskStore,
    camera_images,
    camera_names,
    task_table,
    uneven_frames,
)
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.errors import BadInputError
from counterpoint.files import write_atomically
from counterpoint.objectives import objective_config
from counterpoint.objectives.base import StepObjective
from counterpoint.provenance import provenance
from counterpoint.training.distributed import accelerator_of
from counterpoint.training.fit import TrainConfig, train
from counterpoint.training.learner import ObjectiveLearner, OptimizerConfig
from counterpoint.training.run import FREE, claim_run

__all__ = ["StepDataConfig", "StepPretrainConfig", "load_step_config", "pretrain_recipe", "pretrain_steps"]

CENTRE_FRAMES = 2048
"""Frames the mean image is taken over, evenly spaced through the training episodes."""


class StepDataConfig(FrozenConfig):
    """Which episodes, and how they are drawn. Frames come at the encoder's size.

    Attributes:
        camera: Which camera, or as many as the encoder has, in its order; the data's first by default.
        train_split: Split to train on, where the data has splits; `None` takes everything.
        val_split: Split to validate on, where the data has it; `val` means `valid` where the data call it so. `None`
            for no validation.
        balance: `steps` draws every step alike, so that a task weighs as much as it has data; `tasks` draws a task
            first.
        cache: Folder of training stores; by default the user's cache folder.
    """

    camera: str | tuple[str, ...] | None = None
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
    objective_config(config.objective, f"recipe {recipe}", StepObjective)
    return config


def pretrain_recipe(recipe: str, data: Sequence[Path], out: Path, overrides: Mapping[str, Any]) -> Path:
    """Train a recipe on data sets; running it again continues where it stopped.

    Args:
        recipe: A recipe's name or the path of a TOML file.
        data: One or more data sets; each is a domain with its own action space.
        out: The run's folder.
        overrides: Dotted keys and their values.

    Returns:
        The folder of the encoder, `out/model`.

    Raises:
        BadInputError: When the configuration, the data or the run's folder cannot be used.
    """
    config = load_step_config(recipe, overrides)
    names = _names(data)
    store = together([_open(path, config.data.train_split, config) for path in data], names)
    kept_back = {}
    for name, path in zip(names, data, strict=True):
        split = validation_split(path, config.data.val_split)
        if split is not None:
            kept_back[name] = _open(path, split, config)
    validation: EpisodeStore | None = None
    if kept_back:
        # Under the names of training, by which tasks are known, even where one data set alone is left.
        own = [*kept_back.values()]
        validation = MultiTaskStore(own, [*kept_back]) if len(data) > 1 else own[0]
    about = {"recipe": recipe, "paths": [str(path.resolve()) for path in data]}
    return pretrain_steps(config, store, out, validation, about=about)


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
        The folder of the encoder, `out/model`.

    Raises:
        BadInputError: When the configuration, the data or the run's folder cannot be used.
    """
    accelerator = accelerator_of(config.train.precision)
    settings = config.model_dump(mode="json")
    fingerprint = store.fingerprint
    claim_run(out, settings | {"fingerprint": fingerprint}, {"train": FREE})
    set_seed(config.train.seed)
    objective = build_step_objective(config, store)
    spec = objective.sampling().with_index(balance=config.data.balance)
    cameras = camera_names(config.data.camera, store.cameras, objective.encoder.config.cameras)
    bound = spec.bind(store, cameras)
    common = {
        "batch_size": config.train.batch_size,
        "seed": config.train.seed,
        "rank": accelerator.process_index,
        "world_size": accelerator.num_processes,
    }
    loader = Sampler(store, bound, workers=config.train.workers, **common)
    scored = Sampler(validation, bound, **common) if validation is not None else None
    learner = ObjectiveLearner(
        objective, config.optimizer, total_steps=config.train.total_steps(loader.epoch_size), accelerator=accelerator
    )
    if accelerator.is_main_process:
        found = {"fingerprint": fingerprint, "tasks": _tasks(store, spec), "provenance": provenance()}
        record = dict(about or {}) | settings | found
        write_atomically(out / "config.json", json.dumps(record, indent=1))
    train(learner, loader, scored, config.train, run=out, accelerator=accelerator, settings=settings)
    if accelerator.is_main_process:
        encoder = learner.exports()["encoder"]
        assert isinstance(encoder, ObservationEncoder)
        encoder.save_pretrained(out / "model")
    accelerator.wait_for_everyone()
    return out / "model"


def build_step_objective(config: StepPretrainConfig, store: EpisodeStore) -> StepObjective:
    """The encoder, centred on the data where it asks for that, and the objective around it."""
    if config.initialize_from:
        encoder = load_encoder(config.initialize_from, config.encoder, "encoder")
    else:
        encoder = ObservationEncoder(config.encoder)
        if config.encoder.centre:  # before the objective copies it as a slowly moving target
            cameras = camera_names(config.data.camera, store.cameras, encoder.config.cameras)
            encoder.centre_on(evenly_spaced_frames(store, CENTRE_FRAMES, cameras))
    kind, settings = objective_config(config.objective, "objective", StepObjective)
    dims = (action_dim(store),) if kind.actions else ()
    objective: StepObjective = kind(encoder, *dims, settings)
    return objective


def load_encoder(source: str, expected: ObservationConfig, where: str) -> ObservationEncoder:
    """A saved encoder, if it is what the configuration says: data are opened, and runs told apart, by that.

    Args:
        source: A folder or a Hub id.
        expected: The configuration; a width left open and a checkpoint to start from are not compared.
        where: What is configured, for messages.

    Raises:
        BadInputError: When they differ.
    """
    encoder = ObservationEncoder.from_pretrained(source)
    open_fields = {"checkpoint"} | ({"embed_dim"} if expected.embed_dim is None else set())
    asked, held = (one.model_dump(exclude=open_fields) for one in (expected, encoder.config))
    different = [key for key, value in asked.items() if held[key] != value]
    if different:
        raise BadInputError(
            where,
            ", ".join(f"{key} = {asked[key]!r}" for key in different),
            ", ".join(f"{key} = {held[key]!r}" for key in different) + f", as in {source}",
            "configure the encoder as the one that is loaded",
        )
    return encoder


def action_dim(store: EpisodeStore) -> int:
    """A: the dimensions of the actions, the largest of all domains.

    Raises:
        BadInputError: When the first episode has no actions.
    """
    actions = store.actions(0)
    if actions is None:
        raise BadInputError("episode 0", "no actions", "logged actions", "use data of control, not videos alone")
    return int(actions.shape[1])


def evenly_spaced_frames(store: EpisodeStore, count: int, camera: Cameras = None) -> torch.Tensor:
    """About `count` frames spread evenly over all episodes: uint8 [N, H, W, 3], of C cameras [N, C, H, W, 3]."""
    cameras = camera_names(camera, store.cameras)
    total = sum(info.length for info in store.episodes)
    every = max(1, total // count)
    frames, offset = [], 0
    for episode, info in enumerate(store.episodes):
        steps = np.arange(offset, info.length, every)
        offset = int(offset + len(steps) * every - info.length)
        if len(steps):
            frames.append(camera_images(store, episode, steps, cameras))
            if frames[-1].shape[1:] != frames[0].shape[1:]:
                raise uneven_frames(f"episode {episode}", frames[-1].shape[2:4], frames[0].shape[2:4])
    joined = torch.from_numpy(np.concatenate(frames))
    return joined if len(cameras) > 1 else joined[:, 0]


def _open(path: Path, split: str | None, config: StepPretrainConfig) -> EpisodeStore:
    root = Path(config.data.cache) if config.data.cache else None
    return open_prepared(
        path, split, size=config.encoder.size, camera=config.data.camera, cameras=config.encoder.cameras, root=root
    )


def _tasks(store: EpisodeStore, spec: Spec) -> list[dict[str, Any]]:
    """The tasks by number: what they are, and what their actions are like where the objective looks at them."""
    table = task_table(store)
    statistics = action_statistics(store) if "actions" in spec.reads else [None] * len(table)
    return [
        {"domain": domain, "instruction": words, "actions": own and own.model_dump()}
        for (domain, words), own in zip(table, statistics, strict=True)
    ]


def _names(data: Sequence[Path]) -> list[str]:
    """What the domains are called: by their folders, in full where two have the same name."""
    names = [path.resolve().name for path in data]
    return names if len(set(names)) == len(names) else [str(path.resolve()) for path in data]
