"""Recipes of kind `clips`: a dual encoder learns from instructed clips."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from pydantic import BaseModel, Field
from safetensors.torch import save_file

from counterpoint.config import FrozenConfig, free
from counterpoint.data.cache import cached
from counterpoint.data.formats import open_dataset, split_names, validation_split
from counterpoint.data.store import EpisodeStore, SubsetStore, camera_names
from counterpoint.encoders.dual import DualEncoder, EncoderConfig
from counterpoint.errors import require
from counterpoint.objectives import ClipObjective, objective_class
from counterpoint.objectives.base import Objective
from counterpoint.training.fit import Source
from counterpoint.training.learner import OptimizerConfig, learner_and_batches
from counterpoint.training.recipe import Recipe, TrainConfig, objective_section
from counterpoint.training.run import Run
from counterpoint.training.train import Given, Job, Plan, data_facts


class DataConfig(FrozenConfig):
    """The episodes, their camera and frame size.

    Attributes:
        size: Height and width of the training store's frames, in pixels.
        camera: Name of the camera; the data's first by default.
        train_split: Split to train on; none takes everything.
        val_split: Split to validate on, where the data have it; `val` means `valid` where the data call it so.
        min_length: Shorter episodes are left out.
        cache: Folder of training stores; by default the user's cache folder.
    """

    size: int = Field(64, ge=16)
    camera: str | None = None
    train_split: str | None = "train"
    val_split: str | None = "val"
    min_length: int = Field(2, ge=1)
    cache: str | None = free(None)


class ClipsRecipe(Recipe):
    """A dual encoder that learns from instructed clips.

    Attributes:
        kind: The kind of recipe.
        objective: The objective and its settings.
        encoder: The encoder's architecture.
        data: Which episodes.
        optimizer: The optimiser and its schedule.
        train: The loop.
        initialize_from: A folder or Hub id of an encoder to start from, such as a converted checkpoint.
    """

    kind: Literal["clips"] = "clips"
    objective: Any
    encoder: EncoderConfig = EncoderConfig()
    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    train: TrainConfig = TrainConfig()
    initialize_from: str | None = None

    @property
    def loop(self) -> TrainConfig:
        """The settings of the loop."""
        return self.train

    @classmethod
    def sections(cls, tree: Any, where: str) -> dict[str, type[BaseModel]]:
        """Return the class of the objective's section."""
        return {"objective": objective_section(tree, where, ClipObjective)}

    def plan(self, given: Given, accelerator: Accelerator) -> Plan:
        """Open the data set and build the encoder."""
        data = given.one()
        self.train.total_steps(1)
        source, held_out = open_clips(data, self.data, given.validation)
        camera_names(self.data.camera, source.cameras)
        set_seed(self.train.seed)
        objective = build_objective(self)

        def build(run: Run) -> Job:
            with accelerator.main_process_first():
                train = source if given.is_open else _prepared(source, self.data)
                validation = held_out if given.is_open else held_out and _prepared(held_out, self.data)
            bound = objective.sampling().bind(train, self.data.camera)
            learner, sampler, scored = learner_and_batches(
                objective, bound, train, validation, optimizer=self.optimizer, loop=self.train, accelerator=accelerator
            )

            def save(folder: Path) -> None:
                for name, module in learner.exports().items():
                    if isinstance(module, DualEncoder):
                        module.save_pretrained(folder, model_card_kwargs=self._card(train, learner.total_steps))
                    else:
                        _save_module(module, folder, name)

            return Job(learner, Source(sampler), save, scored)

        return Plan({"fingerprint": source.fingerprint}, build, data_facts(self.data, given))

    def _card(self, store: EpisodeStore, steps: int) -> dict[str, str]:
        """Return the model card's sections."""
        name, instructions = self.objective.name, len({info.instruction for info in store.episodes})
        return {
            "title": f"{name} dual encoder",
            "start": self.initialize_from or self.encoder.pretrained or "random weights",
            "method": f"Objective `{name}`, {steps} steps of {self.train.batch_size} clips, seed {self.train.seed}.",
            "data": f"{len(store.episodes)} episodes under {instructions} instructions, "
            f"content `{store.fingerprint[:16]}`.",
        }


def build_objective(recipe: ClipsRecipe) -> Objective:
    """Return the encoder and the objective around it, with fresh or given weights."""
    start = recipe.initialize_from
    encoder = DualEncoder.from_pretrained(start) if start else DualEncoder(recipe.encoder)
    kind: Any = objective_class(recipe.objective.name, ClipObjective)
    objective: Objective = kind(encoder, recipe.objective)
    return objective


def open_clips(
    data: str | Path | EpisodeStore, config: DataConfig, validation: EpisodeStore | None = None
) -> tuple[EpisodeStore, EpisodeStore | None]:
    """Return the training episodes and, where there are any, those to validate on; nothing is decoded yet."""
    if isinstance(data, EpisodeStore):
        return _long_enough(data, config, "data"), validation
    path = Path(data)
    split = validation_split(path, config.val_split)
    train = open_dataset(path, split=config.train_split if split_names(path) else None)
    held_out = None if split is None else _long_enough(open_dataset(path, split=split), config, path)
    return _long_enough(train, config, path), held_out


def prepared_clips(data: str | Path, config: DataConfig) -> tuple[EpisodeStore, EpisodeStore | None]:
    """Return the training episodes and those to validate on, decoded at training size."""
    train, held_out = open_clips(data, config)
    return _prepared(train, config), held_out and _prepared(held_out, config)


def _long_enough(store: EpisodeStore, config: DataConfig, where: str | Path) -> EpisodeStore:
    kept = [e for e, info in enumerate(store.episodes) if info.length >= config.min_length]
    found = f"no episode of {config.min_length} frames or more"
    require(kept, where, found, "at least one", "lower data.min_length")
    return store if len(kept) == len(store.episodes) else SubsetStore(store, kept)


def _prepared(store: EpisodeStore, config: DataConfig) -> EpisodeStore:
    """Return the store with its frames decoded at training size."""
    cameras = (config.camera,) if config.camera else store.cameras[:1]
    return cached(store, size=config.size, root=Path(config.cache) if config.cache else None, cameras=cameras)


def _save_module(module: torch.nn.Module, folder: Path, name: str) -> None:
    save_file({key: value.contiguous() for key, value in module.state_dict().items()}, folder / f"{name}.safetensors")
