"""The trials of a study of language-conditioned cloning: each pretrains one encoder or clones one policy."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from counterpoint.encoders.dual import DualEncoder
from counterpoint.envs.make import make_env
from counterpoint.envs.vector import VectorEnv
from counterpoint.evaluation.metrics import cross_predicted
from counterpoint.evaluation.rollout import rollout
from counterpoint.policies.cloned import ClonedPolicy
from counterpoint.training.clips import ClipsRecipe
from counterpoint.training.cloning import CloningRecipe
from counterpoint.training.recipe import load_recipe
from counterpoint.training.train import train
from studies.harness import Tree, file_name, last_metrics, read_result
from studies.lcbc.config import ANOTHER_TASKS, LcbcConfig, spaceless, suite_of
from studies.lcbc.data import (
    env_options,
    evaluation_seeds,
    first_moments,
    instruction,
    open_demonstrations,
    open_videos,
)
from studies.rewards.rewordings import reworded

ENVS = 10


@dataclass(frozen=True)
class Pretraining:
    """An encoder with one seed."""

    encoder: str
    seed: int

    @property
    def name(self) -> str:
        """Name of the trial."""
        return f"pretrain-{file_name(spaceless(self.encoder), self.seed)}"


@dataclass(frozen=True)
class Cloning:
    """A policy on one row's encoder, of one task or several, with one seed."""

    encoder: str
    tasks: tuple[str, ...]
    cameras: tuple[str, ...]
    demonstrations: int
    seed: int

    @property
    def name(self) -> str:
        """Name of the trial."""
        task = self.tasks[0] if len(self.tasks) == 1 else f"{suite_of(self.tasks[0])}-together"
        parts: tuple[str | int, ...] = (spaceless(self.encoder), task, *self.cameras, self.demonstrations, self.seed)
        return f"clone-{file_name(*parts)}"

    @property
    def about(self) -> Tree:
        """Columns of its result."""
        own = {"cameras": "+".join(self.cameras), "demonstrations": self.demonstrations, "seed": self.seed}
        return {"encoder": self.encoder, **own}


def pretraining_recipe(config: LcbcConfig, run: Pretraining) -> ClipsRecipe:
    """Return the recipe of an encoder.

    Raises:
        BadInputError: If a setting is unknown.
    """
    row = config.encoders[run.encoder]
    assert row.recipe is not None
    own = {"train.seed": run.seed, "data.size": config.size, "data.holdout": 0.1}
    found = load_recipe(row.recipe, {**own, **config.overrides, **row.overrides})
    assert isinstance(found, ClipsRecipe)
    return found


def cloning_recipe(config: LcbcConfig, trial: Cloning, checkpoint: str | None = None) -> CloningRecipe:
    """Return the recipe of a policy; dual encoders come from `checkpoint`.

    Raises:
        BadInputError: If a setting is unknown.
    """
    row = config.encoders[trial.encoder]
    own: Tree = {"train.seed": trial.seed, "encoder.size": config.size, "encoder.cameras": len(trial.cameras)}
    own |= {"encoder.checkpoint": checkpoint} if row.dual else {}
    own |= {"data.camera": trial.cameras if len(trial.cameras) > 1 else trial.cameras[0]}
    changes = {**own, **config.clone, **row.clone}
    if changes.get("encoder.kind") == "none":
        changes |= {"encoder.cameras": 0, "data.camera": None}
    found = load_recipe(row.policy or config.recipe, changes)
    assert isinstance(found, CloningRecipe)
    return found


def pretrain(config: LcbcConfig, out: Path, run: Pretraining) -> Tree:
    """Train one dual encoder, or, for an untrained one, draw its random weights; an interrupted run resumes."""
    recipe, folder = pretraining_recipe(config, run), out / "encoders" / run.name
    untrained = config.encoders[run.encoder].untrained
    if untrained:
        torch.manual_seed(run.seed)
        weights = {"pretrained": None} if untrained == "random" else {}
        DualEncoder(recipe.encoder.model_copy(update=weights)).save_pretrained(folder / "model")
        return {"model": str((folder / "model").relative_to(out))}
    done = train(recipe, open_videos(config, out), folder)
    return {"model": str(done.model.relative_to(out)), "metrics": last_metrics(folder)}


def locate(config: LcbcConfig, out: Path, run: Pretraining) -> Tree:
    """Probe how well object positions in a scene can be predicted from a dual encoder's embedding.

    Returns:
        `places`: R^2 of linear predictions in unseen scenes, from the first image's embedding and proprioception, by
        task. `blind`: the same from only proprioception.
    """
    checkpoint = _checkpoint(config, out, run.encoder, run.seed)
    assert checkpoint is not None
    dual = DualEncoder.from_pretrained(checkpoint).eval()
    found: dict[str, dict[str, float]] = {"places": {}, "blind": {}}
    for task in config.tasks:
        images, state, surroundings = first_moments(config, out, task)
        with torch.no_grad():
            embedded = functional.normalize(dual.encode_image(torch.from_numpy(images)), dim=-1).numpy()
        variance = surroundings.var(0).sum()
        for key, inputs in {"places": np.concatenate([embedded, state], 1), "blind": state}.items():
            wrong = surroundings - cross_predicted(inputs, surroundings, np.arange(len(inputs)))
            found[key][task] = float(1 - (wrong**2).mean(0).sum() / variance)
    return found


def _checkpoint(config: LcbcConfig, out: Path, encoder: str, seed: int) -> str | None:
    """Return the folder or Hub id of a row's dual encoder; `None` for a row without one."""
    row = config.encoders[encoder]
    return str(out / read_result(out, Pretraining(encoder, seed).name)["model"]) if row.recipe else row.checkpoint


def clone(config: LcbcConfig, out: Path, trial: Cloning) -> Tree:
    """Clone a policy and roll it out in all its tasks at every evaluation.

    Returns:
        `scenes`, the seeds of every task's episodes; `curve`, one entry per evaluation with `step` and every task's
        `success`, episode by episode; `words`, the last policy's success by task, kind of wording and wording.
    """
    recipe = cloning_recipe(config, trial, _checkpoint(config, out, trial.encoder, trial.seed))
    folder = out / "policies" / trial.name
    demonstrations = open_demonstrations(config, out, trial.tasks, trial.demonstrations, trial.seed)
    seeds = {task: evaluation_seeds(config, out, task, trial.seed) for task in trial.tasks}
    curve: list[Tree] = []
    words: Tree = {}
    suite, cameras = suite_of(trial.tasks[0]), trial.cameras if recipe.encoder.cameras else ()

    def evaluate(step: int, exports: Mapping[str, nn.Module]) -> None:
        policy = exports["policy"]
        assert isinstance(policy, ClonedPolicy)
        success: dict[str, list[int]] = {}
        for task in trial.tasks:
            make = partial(make_env, task, cameras=cameras, size=config.size, **env_options(suite))
            with VectorEnv(make, min(ENVS, config.episodes)) as envs:
                act = partial(_successes, policy, envs, seeds[task])
                success[task] = act(instruction(task))
                if config.reworded and step == recipe.train.steps and policy.reads_language:
                    told = reworded(instruction(task))
                    told |= {ANOTHER_TASKS: {other: instruction(other) for other in trial.tasks}}
                    words[task] = {
                        kind: {name: act(text) for name, text in ways.items() if text != instruction(task)}
                        for kind, ways in told.items()
                    }
        curve.append({"step": step, "success": success})

    # Evaluations before an interruption are lost, so that an interrupted trial begins again.
    shutil.rmtree(folder, ignore_errors=True)
    train(recipe, demonstrations, folder, on_eval=evaluate)
    error = last_metrics(folder)["train"]["action_error"]
    shutil.rmtree(folder)
    return {"tasks": list(trial.tasks), "scenes": seeds, "curve": curve, "words": words, "action_error": error}


def _successes(policy: ClonedPolicy, envs: VectorEnv, seeds: list[int], told: str) -> list[int]:
    """Return 1 for every episode that a policy solves under the instruction `told`, and 0 for others."""
    policy.instruction = told
    return [int(bool(one.success)) for one in rollout(policy, envs, seeds, stop_at_success=True)]
