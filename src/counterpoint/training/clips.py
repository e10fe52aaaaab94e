"""Recipes of kind `clips`: a dual encoder learns from instructed clips."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from accelerate.utils import set_seed
from pydantic import Field
from torch import nn

from counterpoint.data.cache import cached
from counterpoint.data.spec import BoundSpec
from counterpoint.data.store import EpisodeStore, SubsetStore, camera_names
from counterpoint.encoders.dual import DualEncoder, EncoderConfig
from counterpoint.errors import require
from counterpoint.objectives import ClipObjective, objective_class
from counterpoint.objectives.base import Objective
from counterpoint.rewards.calibration import calibrate
from counterpoint.rewards.model import RewardModel
from counterpoint.training.offline import Opened, PretrainingRecipe, SplitsConfig
from counterpoint.training.train import Given


class DataConfig(SplitsConfig):
    """The episodes, their camera and frame size.

    Attributes:
        size: Height and width of the training store's frames, in pixels.
        camera: Name of the camera; the data's first by default.
        min_length: Shorter episodes are left out.
    """

    size: int = Field(64, ge=16)
    camera: str | None = None
    min_length: int = Field(2, ge=1)


class ClipsRecipe(PretrainingRecipe):
    """A dual encoder that learns from instructed clips.

    Attributes:
        encoder: The encoder's architecture.
        data: The episodes.
    """

    kind: Literal["clips"] = "clips"
    encoder: EncoderConfig = EncoderConfig()
    data: DataConfig = DataConfig()
    base: ClassVar = ClipObjective

    def open(self, given: Given) -> Opened:
        """Open the data set and build the encoder."""
        train, held_out = open_clips(given.one(), self.data, given.validation)
        camera_names(self.data.camera, train.cameras)
        set_seed(self.train.seed)
        objective = build_objective(self)

        def build(store: EpisodeStore) -> tuple[Objective, EpisodeStore, BoundSpec]:
            return objective, store, objective.sampling().bind(store, self.data.camera)

        return Opened(train, held_out, lambda store: _prepared(store, self.data), build)

    def finish(self, modules: Mapping[str, nn.Module], train: EpisodeStore, validation: EpisodeStore | None) -> None:
        """Calibrate the reward, so that the saved encoder gives progress."""
        encoder = modules["encoder"]
        if isinstance(encoder, DualEncoder):  # and not an encoder of the user's own
            model = RewardModel(encoder, language_reward=modules.get("language_reward"))
            found = calibrate(model, train, validation, camera=self.data.camera, seed=self.train.seed)
            encoder.config = encoder.config.model_copy(update={"calibration": found})

    def card(self, store: EpisodeStore, steps: int) -> dict[str, str]:
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
    train, held_out = config.open(data)
    return _long_enough(train, config, data), held_out and _long_enough(held_out, config, data)


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
    return cached(store, size=config.size, root=config.cache or None, cameras=cameras)
