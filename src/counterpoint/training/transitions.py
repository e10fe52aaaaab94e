"""Recipes of kind `transitions`: an observation encoder learns from logged control data of many tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from accelerate.utils import set_seed

from counterpoint.data.cache import prepared
from counterpoint.data.spec import BoundSpec
from counterpoint.data.statistics import action_statistics
from counterpoint.data.store import Cameras, EpisodeStore, camera_images, camera_names, uneven_frames
from counterpoint.data.store_views import MultiTaskStore, join_domains, task_table
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.errors import BadInputError, require
from counterpoint.objectives import StepObjective, objective_class
from counterpoint.training.learner import OptimizerConfig
from counterpoint.training.offline import Opened, PretrainingRecipe, SplitsConfig
from counterpoint.training.plan import Given

CENTRE_FRAMES = 2048
"""Number of training frames, evenly spaced, on which the mean and the deviation for `centre` are measured."""


class StepDataConfig(SplitsConfig):
    """The episodes and how they are sampled. Frames are resized to the encoder's size.

    Attributes:
        camera: Name of the camera or, for an encoder of several cameras, their names in the encoder's order; by default
            the data's first cameras.
        balance: `steps` samples all steps with equal probability, so that a task with more data weighs more; `tasks`
            samples a task first, each with equal probability.
    """

    camera: str | tuple[str, ...] | None = None
    balance: Literal["steps", "tasks"] = "steps"


class TransitionsRecipe(PretrainingRecipe):
    """An observation encoder that learns from transitions of one or more domains.

    Attributes:
        encoder: The encoder's architecture.
        data: The episodes.
    """

    kind: Literal["transitions"] = "transitions"
    encoder: ObservationConfig = ObservationConfig()
    data: StepDataConfig = StepDataConfig()
    optimizer: OptimizerConfig = OptimizerConfig(lr=1e-4)
    base: ClassVar = StepObjective

    def open(self, given: Given) -> Opened:
        """Open the data sets and build the encoder."""
        source, held_out = self._stores(given)
        if objective_class(self.objective.name, StepObjective).actions:
            action_dim(source)
        set_seed(self.train.seed)
        encoder = fresh_encoder(self.encoder, self.initialize_from)

        def build(store: EpisodeStore) -> tuple[StepObjective, EpisodeStore, BoundSpec]:
            objective = build_step_objective(self, store, encoder.to(given.device))
            cameras = camera_names(self.data.camera, store, self.encoder.cameras)
            return objective, store, objective.sampling().with_index(balance=self.data.balance).bind(store, cameras)

        return Opened(source, held_out, self._prepared, build, facts=_facts)

    def _stores(self, given: Given) -> tuple[EpisodeStore, EpisodeStore | None]:
        """Return the training and validation episodes; each data set is a domain with its own action space."""
        names, stores = _names(given.data), []
        kept_back: dict[str, EpisodeStore] = {}
        for name, data in zip(names, given.data, strict=True):
            train, split = (data, None) if isinstance(data, EpisodeStore) else self.data.open(data)
            stores.append(train)
            if split is not None:
                kept_back[name] = split
        for store in stores:
            camera_names(self.data.camera, store, self.encoder.cameras)
        validation = given.validation
        if kept_back:
            # Domains keep their names from training, which number the tasks, even if only one has a validation split.
            own = [*kept_back.values()]
            validation = MultiTaskStore(own, [*kept_back]) if len(stores) > 1 else own[0]
        return join_domains(stores, names), validation

    def _prepared(self, store: EpisodeStore) -> EpisodeStore:
        """Return the store with its frames at the encoder's size."""
        if isinstance(store, MultiTaskStore):
            return MultiTaskStore([self._prepared(part) for part in store.stores], store.names)
        cameras = camera_names(self.data.camera, store, self.encoder.cameras)
        options: Any = {"size": self.encoder.size, "decode": self.data.decode, "root": self.data.cache}
        return prepared(store, cameras=cameras, **options)


def build_step_objective(
    recipe: TransitionsRecipe, store: EpisodeStore, encoder: ObservationEncoder | None = None
) -> StepObjective:
    """Return the objective with its encoder, which is centred on the data if its `centre` is set."""
    encoder = encoder or fresh_encoder(recipe.encoder, recipe.initialize_from)
    if not recipe.initialize_from:  # before the objective copies it as a slowly moving target
        centred(encoder, store, recipe.data.camera)
    kind = objective_class(recipe.objective.name, StepObjective)
    return kind(encoder, action_dim(store) if kind.actions else 0, recipe.objective)


def fresh_encoder(config: ObservationConfig, source: str | None = None) -> ObservationEncoder:
    """Return an encoder with random weights, or the one saved at `source`."""
    return load_encoder(source, config, "encoder") if source else ObservationEncoder(config)


def centred(encoder: ObservationEncoder, store: EpisodeStore, camera: Cameras = None) -> ObservationEncoder:
    """Centre the encoder on the store's frames if its `centre` is set, and return it."""
    if encoder.config.centre:
        cameras = camera_names(camera, store, encoder.config.cameras)
        encoder.centre_on(evenly_spaced_frames(store, CENTRE_FRAMES, cameras))
    return encoder


def load_encoder(source: str, expected: ObservationConfig, where: str) -> ObservationEncoder:
    """Load an encoder whose configuration must be the expected one.

    Args:
        source: A folder or a Hub id.
        expected: The configuration; `checkpoint` is not compared, and neither is `embed_dim` if it is `None`.
        where: Name of the section that configures the encoder, for error messages.

    Raises:
        BadInputError: When the configurations differ.
    """
    encoder = ObservationEncoder.from_pretrained(source)
    open_fields = {"checkpoint"} | ({"embed_dim"} if expected.embed_dim is None else set())
    asked, held = (one.model_dump(exclude=open_fields) for one in (expected, encoder.config))
    different = [key for key, value in asked.items() if held[key] != value]
    found, wanted = (", ".join(f"{key} = {one[key]!r}" for key in different) for one in (asked, held))
    require(not different, where, found, f"{wanted}, as in {source}", "configure the encoder as the one that is loaded")
    return encoder


def action_dim(store: EpisodeStore) -> int:
    """Return the number of action dimensions (A), which is the largest of all domains.

    Raises:
        BadInputError: When the first episode has no actions.
    """
    actions = store.actions(0)
    if actions is None:
        raise BadInputError("episode 0", "no actions", "logged actions", "use data of control, not videos alone")
    return int(actions.shape[1])


def evenly_spaced_frames(store: EpisodeStore, count: int, camera: Cameras = None) -> torch.Tensor:
    """Return about `count` evenly spaced frames of all episodes, uint8 [N, H, W, 3]; [N, C, H, W, 3] for C cameras."""
    cameras = camera_names(camera, store)
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


def _facts(store: EpisodeStore, bound: BoundSpec) -> dict[str, Any]:
    """Return the tasks by number, with the statistics of their actions if the objective reads actions."""
    table = task_table(store)
    statistics = action_statistics(store) if "actions" in bound.spec.reads else [None] * len(table)
    return {
        "tasks": [
            {"domain": domain, "instruction": words, "actions": own and own.model_dump()}
            for (domain, words), own in zip(table, statistics, strict=True)
        ]
    }


def _names(data: Sequence[str | Path | EpisodeStore]) -> list[str]:
    """Return the names of the domains: their folders' names, or whole paths if two folders have the same name."""
    paths = [Path(one).resolve() if isinstance(one, str | Path) else Path(f"store-{i}") for i, one in enumerate(data)]
    names = [path.name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]
