"""Trainings of tests: those of a recipe's file, and of policies from an encoder and open demonstrations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from counterpoint.data.store import EpisodeStore
from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.policies.cloned import ClonedPolicy
from counterpoint.policies.diffusion_policy import DiffusionPolicy
from counterpoint.training.cloning import CloningRecipe
from counterpoint.training.imitation import ImitationRecipe
from counterpoint.training.plan import Recipe
from counterpoint.training.settings import TrainConfig
from counterpoint.training.train import train

__all__ = ["clone", "cloning", "imitate", "pretrain"]

Watch = Callable[[int, Any], None]


def pretrain(recipe: str | Recipe, data: Any, out: Path, overrides: Mapping[str, Any] | None = None) -> Path:
    """Train a recipe and return the folder of its model."""
    return train(recipe, data, out, overrides=overrides).model


def cloning(steps: int, *, lr: float = 2e-3, seed: int = 0, batch_size: int = 16, **settings: Any) -> CloningRecipe:
    loop = TrainConfig(steps=steps, batch_size=batch_size, seed=seed, eval_every=0, save_every=1000, trackers=())
    return CloningRecipe.model_validate(
        {"cloning": settings, "train": loop, "optimizer": {"lr": lr}, "encoder": {"stack": 2}}
    )


def clone(
    encoder: ObservationEncoder,
    store: EpisodeStore,
    recipe: CloningRecipe,
    out: Path,
    *,
    every: int = 0,
    on_evaluate: Watch | None = None,
    camera: Any = None,
) -> ClonedPolicy:
    """Clone a policy that starts from this encoder; checkpoints are as far apart as evaluations."""
    start = out.with_name(f"{out.name}-start")
    encoder.save_pretrained(start)
    loop = recipe.train.model_copy(update={"eval_every": every, "save_every": every or 1000, "keep": 1})
    chosen = recipe.data.model_copy(update={"camera": camera})
    own = recipe.model_copy(update={"train": loop, "data": chosen})
    run = train(own, store, out, start_from=start, on_eval=_watching(on_evaluate))
    return ClonedPolicy.from_pretrained(run.folder)


def imitate(
    recipe: ImitationRecipe,
    store: EpisodeStore,
    out: Path,
    *,
    camera: Any = None,
    validation: EpisodeStore | None = None,
    start_from: Path | None = None,
    on_evaluate: Watch | None = None,
) -> DiffusionPolicy:
    own = recipe.model_copy(update={"data": recipe.data.model_copy(update={"camera": camera})})
    run = train(own, store, out, validation=validation, start_from=start_from, on_eval=_watching(on_evaluate))
    return DiffusionPolicy.from_pretrained(run.folder)


def _watching(watch: Watch | None) -> Callable[[int, Mapping[str, nn.Module]], None] | None:
    if watch is None:
        return None
    return lambda done, exports: watch(done, exports["policy"])
