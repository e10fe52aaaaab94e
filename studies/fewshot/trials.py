"""The trials of the few-shot study: one pretraining, or one policy that is cloned and rolled out."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from counterpoint.config import override, validate
from counterpoint.data.store import EpisodeStore
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.envs.make import make_env
from counterpoint.envs.vector import VectorEnv
from counterpoint.evaluation.rollout import EpisodeResult, rollout
from counterpoint.policies.cloned import ClonedPolicy
from counterpoint.training.cloning import CloningRecipe
from counterpoint.training.recipe import recipe_of
from counterpoint.training.train import train
from counterpoint.training.transitions import TransitionsRecipe, centred, load_encoder
from studies.fewshot.config import FewshotConfig
from studies.fewshot.data import (
    demonstration_seeds,
    demonstrations_of,
    evaluation_seeds,
    open_demonstrations,
    open_pretraining,
    task_instruction,
)
from studies.harness import file_name, last_metrics, read_result


@dataclass(frozen=True)
class PretrainingRun:
    """One pretraining with one seed."""

    pretraining: str
    seed: int

    @property
    def name(self) -> str:
        """Name of the trial."""
        return f"pretrain-{file_name(self.pretraining, self.seed)}"


@dataclass(frozen=True)
class Adaptation:
    """One row on one task with one seed."""

    row: str
    task: str
    seed: int

    @property
    def name(self) -> str:
        """Name of the trial."""
        return f"adapt-{file_name(self.row, self.task, self.seed)}"


def pretraining_config(config: FewshotConfig, run: PretrainingRun) -> TransitionsRecipe:
    """Return the recipe of a pretraining.

    Raises:
        BadInputError: If a setting is unknown.
    """
    own = config.pretrainings[run.pretraining]
    where = f"pretraining {run.pretraining}"
    tree = {
        "kind": "transitions",
        "objective": own.objective,
        "encoder": override(config.encoder.model_dump(mode="json"), own.encoder),
        "optimizer": override(config.optimizer.model_dump(mode="json"), own.optimizer),
        "train": override(config.train.model_dump(mode="json"), own.train | {"seed": run.seed}),
        "data": own.data,
        "initialize_from": own.initialize_from,
    }
    found = recipe_of(tree, where)
    assert isinstance(found, TransitionsRecipe)
    found.train.total_steps(1)
    return found


def encoder_config(config: FewshotConfig, row: str) -> ObservationConfig:
    """Return the settings of a row's encoder.

    Raises:
        BadInputError: If a setting is unknown.
    """
    own = config.row(row)
    changes = own.encoder if own.pretraining is None else config.pretrainings[own.pretraining].encoder
    return validate(ObservationConfig, override(config.encoder.model_dump(mode="json"), changes), f"encoder of {row}")


def clone_config(config: FewshotConfig, trial: Adaptation) -> CloningRecipe:
    """Return the recipe of a policy.

    Raises:
        BadInputError: If a setting is unknown.
    """
    row, every = config.row(trial.row), config.evaluation.every
    tree = override(config.clone, row.clone | {"cloning.freeze": row.frozen})
    loop: dict[str, Any] = {key: tree.pop(key) for key in ("steps", "batch_size", "precision") if key in tree}
    loop |= {"seed": trial.seed, "eval_every": every, "save_every": every or 1000, "keep": 1, "trackers": []}
    optimizer = {"lr": tree.pop("lr", 1e-4)}
    return validate(CloningRecipe, {**tree, "train": loop, "optimizer": optimizer}, f"clone of {trial.row}")


def pretrain(config: FewshotConfig, out: Path, run: PretrainingRun) -> dict[str, Any]:
    """Pretrain one encoder; an interrupted run resumes from its last checkpoint."""
    settings = pretraining_config(config, run)
    folder = out / "pretraining" / run.name
    episodes, validation = open_pretraining(config, out, settings.encoder.size)
    encoder = train(settings, episodes, folder, validation=validation).model
    return {"encoder": str(encoder.relative_to(out)), "metrics": last_metrics(folder)}


def adapt(config: FewshotConfig, out: Path, trial: Adaptation) -> dict[str, Any]:
    """Clone one policy from its demonstrations and roll it out at every evaluation."""
    settings, size = clone_config(config, trial), encoder_config(config, trial.row).size
    data, options, task = config.data, config.evaluation, f"{config.data.suite}/{trial.task}"
    make = partial(
        make_env, task, cameras=data.seen_camera, size=size, render=data.render, repeat=data.repeat, steps=data.limit
    )
    episodes = open_demonstrations(config, out, size, trial.task)
    count = data.demonstrations_for(trial.task)
    own = demonstrations_of(episodes, task_instruction(config, trial.task), trial.seed, count)
    encoder = _encoder(config, out, trial, own)
    seeds = evaluation_seeds(config, task, demonstration_seeds(config, out, trial.task), trial.seed)
    curve: list[dict[str, Any]] = []
    with VectorEnv(make, options.envs, processes=options.processes) as envs:

        def evaluate(step: int, exports: Mapping[str, nn.Module]) -> None:
            policy = exports["policy"]
            assert isinstance(policy, ClonedPolicy)
            results = rollout(policy, envs, seeds, stop_at_success=data.suite != "dmc")  # dm_control has only rewards
            curve.append({"step": step, **_columns(results)})

        # Evaluations before an interruption are lost, so that an interrupted trial begins again.
        folder = out / "adapting" / trial.name
        shutil.rmtree(folder, ignore_errors=True)
        encoder.save_pretrained(folder / "start")
        train(settings, own, folder / "run", start_from=folder / "start", on_eval=evaluate)
        shutil.rmtree(folder)
    return {"evaluation_seeds": seeds, "curve": curve}


def _encoder(config: FewshotConfig, out: Path, trial: Adaptation, own: EpisodeStore) -> ObservationEncoder:
    """Return the row's encoder; an untrained encoder is centred on the demonstrations."""
    row = config.row(trial.row)
    if row.pretraining is not None:
        done = read_result(out, PretrainingRun(row.pretraining, trial.seed).name)
        return ObservationEncoder.from_pretrained(out / done["encoder"])
    if row.initialize_from is not None:
        return load_encoder(row.initialize_from, encoder_config(config, trial.row), f"encoder of {trial.row}")
    torch.manual_seed(trial.seed)
    encoder = ObservationEncoder(encoder_config(config, trial.row))
    return centred(encoder, own, own.cameras[: encoder.config.cameras])


def _columns(results: list[EpisodeResult]) -> dict[str, list[float]]:
    return {
        "success": [int(bool(one.success)) for one in results],
        "return": [round(one.total_reward, 3) for one in results],
        "steps": [one.steps for one in results],
    }
