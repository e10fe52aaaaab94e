"""The base of recipes that train an objective on data sets: opens the data and turns them into a training job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from accelerate import Accelerator
from pydantic import BaseModel
from torch import nn

from counterpoint.config import FrozenConfig, free
from counterpoint.data.cache import Decode
from counterpoint.data.sampler import Sampler
from counterpoint.data.spec import BoundSpec
from counterpoint.data.store import EpisodeStore
from counterpoint.encoders.card import Card
from counterpoint.encoders.hub import SavedModel
from counterpoint.errors import require
from counterpoint.formats import open_dataset, split_names, validation_split
from counterpoint.formats.remote import absolute
from counterpoint.objectives.base import WEIGHT, Objective
from counterpoint.training.distributed import meet
from counterpoint.training.learner import ObjectiveLearner, OptimizerConfig
from counterpoint.training.loop import Source
from counterpoint.training.memory import MemoryConfig
from counterpoint.training.plan import Given, Job, Plan, Recipe, objective_section
from counterpoint.training.run import Run
from counterpoint.training.settings import TrainConfig


class SplitsConfig(FrozenConfig):
    """The choice of episodes to train and to validate on.

    Attributes:
        train_split: Split to train on, if the data have splits; `None` takes all episodes.
        val_split: Split to validate on, if the data have it; `val` also means `valid` in data that use this name.
        decode: `once` decodes all frames into a training store on disk; `always` decodes the frames of each batch when
            it is read. `always` is meant for data larger than the disk, or for objectives that read few frames per
            clip.
        cache: Folder for training stores; by default the user's cache folder.
        dialect: The dialect of HDF5 files, if the files do not identify it: see `counterpoint data info`.
        instruction_key: Key of the instructions to use, if the data record several per episode (`counterpoint data
            info` lists the keys), or `sample` to draw one of them for each sample of a batch; by default the first
            instruction that is not empty.
    """

    train_split: str | None = "train"
    val_split: str | None = "val"
    decode: Decode = free("once")
    cache: str | None = free(None)
    dialect: str | None = None
    instruction_key: str | None = None

    def open(self, path: str | Path) -> tuple[EpisodeStore, EpisodeStore | None]:
        """Return a data set's training episodes and, if it has any, its validation episodes."""
        split = validation_split(path, self.val_split)
        reading: dict[str, Any] = {"dialect": self.dialect, "instruction_key": self.instruction_key}
        train = open_dataset(path, split=self.train_split if split_names(path) else None, **reading)
        return train, None if split is None else open_dataset(path, split=split, **reading)


@dataclass(frozen=True)
class Opened:
    """Data that have been checked, and functions that turn them into a training run.

    Attributes:
        train: Training episodes.
        validation: Episodes to validate on.
        prepare: Takes a store and returns it with frames of training size.
        build: Takes the prepared training episodes and returns the objective, the store to draw batches from, and the
            spec of the batches.
        identity: Values that must stay the same to continue a run, in addition to the training episodes' fingerprint.
        facts: Takes the store and the spec of the batches and returns entries for `config.json`.
        embeds: True if `prepare` computes features. `prepare` is then called even if the user passed open stores
            instead of paths.
        rescored: True to score training episodes too whenever validation episodes are scored.
        words: Returns text about the data to print before training.
    """

    train: EpisodeStore
    validation: EpisodeStore | None
    prepare: Callable[[EpisodeStore], EpisodeStore]
    build: Callable[[EpisodeStore], tuple[Objective, EpisodeStore, BoundSpec]]
    identity: Mapping[str, Any] = field(default_factory=dict)
    facts: Callable[[EpisodeStore, BoundSpec], Mapping[str, Any]] = lambda store, bound: {}
    embeds: bool = False
    rescored: bool = False
    words: Callable[[], str] = str


class OfflineRecipe(Recipe):
    """Base of recipes that train an objective on data sets.

    Attributes:
        optimizer: The optimiser and its schedule.
        train: Settings of the loop.
        memory: Ways to save memory.
    """

    data: BaseModel
    optimizer: OptimizerConfig = OptimizerConfig()
    train: TrainConfig = TrainConfig()
    memory: MemoryConfig = MemoryConfig()

    @property
    def loop(self) -> TrainConfig:
        """The settings of the loop."""
        return self.train

    def open(self, given: Given) -> Opened:
        """Open the data and build the networks, so that any error is raised before training begins."""
        raise NotImplementedError

    def card(self, store: EpisodeStore, steps: int) -> Card:
        """Return the model card's sections on method and data."""
        instructions, content = len({info.instruction for info in store.episodes}), store.fingerprint[:16]
        return {
            "method": f"{self.kind.capitalize()}: {steps} steps of {self.train.batch_size}, seed {self.train.seed}.",
            "data": f"{len(store.episodes)} episodes under {instructions} instructions, content `{content}`.",
        }

    def rollouts(self, learner: ObjectiveLearner, folder: Path) -> Callable[[int], dict[str, float]] | None:
        """Return a function that scores the learner's exports in an environment; `None` by default."""
        return None

    def finish(
        self, modules: Mapping[str, nn.Module], train: EpisodeStore, validation: EpisodeStore | None, run: Run
    ) -> None:
        """Complete the trained modules before they are saved. By default, nothing is done.

        Args:
            modules: The learner's exports, which are its trained modules by name.
            train: Training episodes, at training size.
            validation: Episodes to validate on, if there are any.
            run: The run; its judges are already trained.
        """

    def plan(self, given: Given, accelerator: Accelerator) -> Plan:
        """Open the data; see `Recipe.plan`."""
        self.train.total_steps(1)
        require(given.data, "--data", "none", "a data set", "name one")
        ok = not (self.memory.shard and self.train.keep_best)
        require(ok, "train.keep_best", f"{self.train.keep_best} with memory.shard", "0", "choose one of the two")
        opened = self.open(given)

        def build(run: Run) -> Job:
            # The first process that arrives locks a store and builds it; the others then find it complete.
            train, validation = (
                store if store is None or (given.is_open and not opened.embeds) else opened.prepare(store)
                for store in (opened.train, opened.validation)
            )
            meet("data")
            assert train is not None
            objective, store, bound = opened.build(train)
            if run.main and (words := opened.words()):
                print(words, flush=True)
            batch_size, seed = self.train.batch_size, self.train.seed
            ranks = {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
            sampler = Sampler(store, bound, batch_size=batch_size, seed=seed, workers=self.train.workers, **ranks)
            steps = self.train.total_steps(sampler.epoch_size)
            learner = ObjectiveLearner(
                objective, self.optimizer, total_steps=steps, accelerator=accelerator, seed=seed, memory=self.memory
            )
            # Auxiliary terms and the weights of steps are for training only.
            plain = replace(bound, spec=replace(bound.spec.with_read("masks", None).with_read(WEIGHT, None), beside={}))
            scored, seen = (
                Sampler(one, plain, batch_size=batch_size, seed=seed, **ranks) if one is not None else None
                for one in (validation, store if opened.rescored else None)
            )

            def save(folder: Path) -> None:
                modules = learner.exports()
                if not run.main:
                    return
                self.finish(modules, train, validation, run)
                further = {name: module for name, module in modules.items() if not isinstance(module, SavedModel)}
                for module in modules.values():
                    if isinstance(module, SavedModel):
                        module.save_pretrained(folder, further=further, **self.card(train, learner.total_steps))

            evaluate = self.rollouts(learner, run.folder)
            return Job(learner, Source(sampler), save, scored, seen, evaluate, facts=opened.facts(store, bound))

        paths = [absolute(path) for path in given.data if isinstance(path, str | Path)]
        where = {"path": paths[0]} if len(paths) == 1 else {"paths": paths}
        data = self.data.model_dump(mode="json") | (where if paths else {})
        return Plan({"fingerprint": opened.train.fingerprint, **opened.identity}, build, {"data": data})


class PretrainingRecipe(OfflineRecipe):
    """Base of recipes that pretrain an encoder.

    Attributes:
        objective: The objective and its settings.
        initialize_from: A folder or Hub id of an encoder to start from, or the name of a released model, such as liv,
            or an encoder to fine-tune (Premier-TACO, Figure 8).
        base: Base class of the objectives that the recipe accepts.
    """

    objective: Any
    initialize_from: str | None = None
    base: ClassVar[type[Objective]]

    @classmethod
    def sections(cls, tree: Any, where: str) -> dict[str, type[BaseModel]]:
        """Return the configuration class of the section `objective`."""
        return {"objective": objective_section(tree, where, cls.base)}

    def card(self, store: EpisodeStore, steps: int) -> Card:
        """Return the model card's title, starting point and sections."""
        found, name = super().card(store, steps), self.objective.name
        found |= {"title": f"{name} encoder", "method": f"Objective `{name}`. {found['method']}"}
        return found | {"start": self.initialize_from} if self.initialize_from else found
