"""`counterpoint pretrain`: a recipe, a data set and a folder become an encoder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import set_seed
from pydantic import Field

from counterpoint.config import FrozenConfig, override, read_recipe, validate
from counterpoint.data.cache import cached
from counterpoint.data.formats import open_dataset, split_names
from counterpoint.data.prepared import validation_split
from counterpoint.data.sampler import Sampler
from counterpoint.data.store import EpisodeStore, SubsetStore
from counterpoint.encoders.base import DualEncoder, EncoderConfig
from counterpoint.errors import BadInputError
from counterpoint.files import write_atomically
from counterpoint.objectives import ClipObjective, StepObjective, objective_config
from counterpoint.objectives.base import Objective
from counterpoint.provenance import provenance
from counterpoint.training.distributed import accelerator_of
from counterpoint.training.fit import TrainConfig, train
from counterpoint.training.learner import ObjectiveLearner, OptimizerConfig
from counterpoint.training.pretrain_steps import pretrain_recipe
from counterpoint.training.run import FREE, claim_run

__all__ = ["DataConfig", "PretrainConfig", "build_objective", "load_config", "open_training_data", "pretrain"]


class DataConfig(FrozenConfig):
    """Which episodes, and how they are seen.

    Attributes:
        size: Height and width of the training store's frames, in pixels.
        camera: Which camera; the data's first by default.
        train_split: Split to train on; `None` takes everything.
        val_split: Split to validate on, where the data has it; `val` means `valid` where the data call it so. `None`
            for no validation.
        min_length: Shorter episodes are left out.
        cache: Folder of training stores; by default the user's cache folder.
    """

    size: int = Field(64, ge=16)
    camera: str | None = None
    train_split: str | None = "train"
    val_split: str | None = "val"
    min_length: int = Field(2, ge=1)
    cache: str | None = None


class PretrainConfig(FrozenConfig):
    """Everything a recipe says."""

    objective: dict[str, Any]
    encoder: EncoderConfig = EncoderConfig()
    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    train: TrainConfig = TrainConfig()
    initialize_from: str | None = None
    """A folder or Hub id of an encoder to start from, such as a converted checkpoint."""


def load_config(recipe: str, overrides: Mapping[str, Any]) -> PretrainConfig:
    """A recipe with overrides, every key checked.

    Raises:
        BadInputError: Naming the key that is unknown or ill-typed.
    """
    config = validate(PretrainConfig, override(read_recipe(recipe), overrides), f"recipe {recipe}")
    objective_config(config.objective, f"recipe {recipe}", ClipObjective)
    return config


def build_objective(config: PretrainConfig) -> Objective:
    """The encoder and the objective around it, with fresh or given weights."""
    encoder = (
        DualEncoder.from_pretrained(config.initialize_from) if config.initialize_from else DualEncoder(config.encoder)
    )
    kind, settings = objective_config(config.objective, "objective", ClipObjective)
    objective: Objective = kind(encoder, settings)
    return objective


def open_training_data(path: Path, config: DataConfig) -> tuple[EpisodeStore, EpisodeStore | None]:
    """The training store and, where the data has that split, the validation store, decoded at training size."""
    train = _open(path, config.train_split if split_names(path) else None, config)
    split = validation_split(path, config.val_split)
    return train, _open(path, split, config) if split is not None else None


def pretrain(recipe: str, data: Path | Sequence[Path], out: Path, overrides: Mapping[str, Any]) -> Path:
    """Train a recipe on a data set; running it again continues where it stopped.

    Args:
        recipe: A recipe's name or the path of a TOML file. Its objective decides what is trained: a dual encoder on
            instructed clips, or an observation encoder on transitions (`pretrain_steps`).
        data: Anything `open_dataset` recognises; objectives on transitions take several.
        out: The run's folder.
        overrides: Dotted keys and their values.

    Returns:
        The folder of the exported encoder, `out/model`.

    Raises:
        BadInputError: When the configuration, the data or the run's folder cannot be used.
    """
    paths = [data] if isinstance(data, Path) else list(data)
    section = override(read_recipe(recipe), overrides).get("objective", {})
    section = section if isinstance(section, dict) else {}
    kind, _ = objective_config(section, f"recipe {recipe}", Objective)
    if issubclass(kind, StepObjective):
        return pretrain_recipe(recipe, paths, out, overrides)
    if len(paths) != 1:
        raise BadInputError(
            "data",
            f"{len(paths)} data sets",
            "one: this objective is on instructed clips",
            "join them into one data set, or choose an objective on transitions",
        )
    (data,) = paths
    config = load_config(recipe, overrides)
    accelerator = accelerator_of(config.train.precision)
    settings = config.model_dump(mode="json")
    claim_run(out, settings, {"train": FREE})
    set_seed(config.train.seed)
    with accelerator.main_process_first():
        train_store, val_store = open_training_data(data, config.data)
    objective = build_objective(config)
    common = {
        "batch_size": config.train.batch_size,
        "seed": config.train.seed,
        "rank": accelerator.process_index,
        "world_size": accelerator.num_processes,
    }
    bound = objective.sampling().bind(train_store, config.data.camera)
    loader = Sampler(train_store, bound, workers=config.train.workers, **common)
    validation = Sampler(val_store, bound, **common) if val_store is not None else None
    learner = ObjectiveLearner(
        objective, config.optimizer, total_steps=config.train.total_steps(loader.epoch_size), accelerator=accelerator
    )
    if accelerator.is_main_process:
        record = settings | {
            "recipe": recipe,
            "data": settings["data"] | {"path": str(data.resolve()), "fingerprint": train_store.fingerprint},
            "provenance": provenance(),
        }
        write_atomically(out / "config.json", json.dumps(record, indent=1))
    train(learner, loader, validation, config.train, run=out, accelerator=accelerator, settings=settings)
    if accelerator.is_main_process:
        for name, module in learner.exports().items():
            if isinstance(module, DualEncoder):
                module.save_pretrained(out / "model", model_card_kwargs=_card(recipe, config, train_store, loader))
            else:
                _save_module(module, out / "model", name)
    accelerator.wait_for_everyone()
    return out / "model"


def _open(path: Path, split: str | None, config: DataConfig) -> EpisodeStore:
    source = open_dataset(path, split=split)
    cameras = (config.camera,) if config.camera else source.cameras[:1]
    root = Path(config.cache) if config.cache else None
    store: EpisodeStore = cached(source, size=config.size, root=root, cameras=cameras)
    long_enough = [e for e, info in enumerate(store.episodes) if info.length >= config.min_length]
    if not long_enough:
        raise BadInputError(
            path, f"no episode of {config.min_length} frames or more", "at least one", "lower data.min_length"
        )
    return store if len(long_enough) == len(store.episodes) else SubsetStore(store, long_enough)


def _card(recipe: str, config: PretrainConfig, store: EpisodeStore, loader: Sampler) -> dict[str, str]:
    """What the model card says of this run."""
    steps = config.train.total_steps(loader.epoch_size)
    instructions = len({info.instruction for info in store.episodes})
    return {
        "title": f"{config.objective['name']} dual encoder",
        "start": config.initialize_from or config.encoder.pretrained or "random weights",
        "method": f"Recipe `{recipe}`: objective `{config.objective['name']}`, {steps} steps of "
        f"{config.train.batch_size} clips, seed {config.train.seed}.",
        "data": f"{len(store.episodes)} episodes under {instructions} instructions, "
        f"content `{store.fingerprint[:16]}`.",
    }


def _save_module(module: torch.nn.Module, folder: Path, name: str) -> None:
    from safetensors.torch import save_file

    save_file({key: value.contiguous() for key, value in module.state_dict().items()}, folder / f"{name}.safetensors")
