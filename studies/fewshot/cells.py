"""The parts of a few-shot benchmark: one pretraining run, or one policy cloned and rolled out.

Each part writes one file when it is finished, whole or not at all; what has its file is not run again.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from counterpoint.config import override, validate
from counterpoint.data.store import EpisodeStore
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.envs.make import make_task
from counterpoint.evaluation.rollout import ControlRollouts, EpisodeResult
from counterpoint.files import write_atomically
from counterpoint.objectives import STEP_OBJECTIVES, objective_config
from counterpoint.policies.base import FramePolicy
from counterpoint.training.clone import CloneConfig, clone
from counterpoint.training.pretrain_steps import (
    CENTRE_FRAMES,
    StepPretrainConfig,
    evenly_spaced_frames,
    load_encoder,
    pretrain_steps,
)
from studies.fewshot.config import FewshotConfig, file_name
from studies.fewshot.data import (
    demonstration_seeds,
    demonstrations_of,
    evaluation_seeds,
    open_demonstrations,
    open_pretraining,
    task_instruction,
)
from studies.parts import aloud, logged, read_result, spent
from studies.pool import Tick

__all__ = [
    "Adaptation",
    "PretrainingRun",
    "adapt",
    "clone_config",
    "encoder_config",
    "pretrain",
    "pretraining_config",
    "read_part",
]


@dataclass(frozen=True)
class PretrainingRun:
    """One pretraining with one seed."""

    pretraining: str
    seed: int

    keys: ClassVar = frozenset({"encoder", "metrics", "seconds", "processor_seconds"})
    """Of its result."""

    @property
    def name(self) -> str:
        """Of its files."""
        return file_name(self.pretraining, self.seed)

    def path(self, out: Path) -> Path:
        """Where its result lies."""
        return out / "cells" / f"pretrain-{self.name}.json"


@dataclass(frozen=True)
class Adaptation:
    """One row on one task with one seed."""

    row: str
    task: str
    seed: int

    keys: ClassVar = frozenset({"evaluation_seeds", "curve", "seconds", "processor_seconds"})
    """Of its result."""

    @property
    def name(self) -> str:
        """Of its files."""
        return file_name(self.row, self.task, self.seed)

    def path(self, out: Path) -> Path:
        """Where its result lies."""
        return out / "cells" / f"adapt-{self.name}.json"


def pretraining_config(config: FewshotConfig, run: PretrainingRun) -> StepPretrainConfig:
    """What `pretrain_steps` is given.

    Raises:
        BadInputError: When a setting is unknown.
    """
    own = config.pretrainings[run.pretraining]
    where = f"pretraining {run.pretraining}"
    tree = {
        "objective": own.objective,
        "encoder": override(config.encoder.model_dump(mode="json"), own.encoder),
        "optimizer": override(config.optimizer.model_dump(mode="json"), own.optimizer),
        "train": override(config.train.model_dump(mode="json"), own.train | {"seed": run.seed}),
        "data": own.data,
        "initialize_from": own.initialize_from,
    }
    found = validate(StepPretrainConfig, tree, where)
    objective_config(found.objective, where, STEP_OBJECTIVES)
    found.train.total_steps(1)
    return found


def encoder_config(config: FewshotConfig, row: str) -> ObservationConfig:
    """The encoder of a row.

    Raises:
        BadInputError: When a setting is unknown.
    """
    own = config.row(row)
    changes = own.encoder if own.pretraining is None else config.pretrainings[own.pretraining].encoder
    return validate(ObservationConfig, override(config.encoder.model_dump(mode="json"), changes), f"encoder of {row}")


def clone_config(config: FewshotConfig, cell: Adaptation) -> CloneConfig:
    """What `clone` is given.

    Raises:
        BadInputError: When a setting is unknown.
    """
    row = config.row(cell.row)
    tree = override(config.clone, row.clone | {"cloning.freeze": row.frozen, "seed": cell.seed})
    return validate(CloneConfig, tree, f"clone of {cell.row}")


def pretrain(config: FewshotConfig, out: Path, run: PretrainingRun, tick: Tick) -> None:
    """Pretrain one encoder; an interrupted run goes on from its last checkpoint."""
    started = time.perf_counter(), time.process_time()
    settings = pretraining_config(config, run)
    folder = out / "pretraining" / run.name
    with logged(out, f"pretrain-{run.name}"):
        train, validation = open_pretraining(config, out, settings.encoder.size)
        encoder = pretrain_steps(settings, train, folder, validation)
    result = {
        "encoder": str(encoder.relative_to(out)),
        "metrics": _last_metrics(folder / "metrics.jsonl"),
        **spent(*started),
    }
    write_atomically(run.path(out), json.dumps(result))
    tick(settings.train.steps or 0)


def adapt(config: FewshotConfig, out: Path, cell: Adaptation, tick: Tick) -> None:
    """Clone one policy from its demonstrations, rolling it out every now and then."""
    started, tick = (time.perf_counter(), time.process_time()), aloud(tick)
    settings, size = clone_config(config, cell), encoder_config(config, cell.row).size
    task = f"{config.data.suite}/{cell.task}"
    data = config.data
    make = partial(
        make_task, task, camera=data.seen_camera, size=size, render=data.render, repeat=data.repeat, steps=data.limit
    )
    with logged(out, f"adapt-{cell.name}"):
        instruction = task_instruction(config, cell.task)
        everything = open_demonstrations(config, out, size, cell.task)
        own = demonstrations_of(everything, instruction, cell.seed, config.data.demonstrations_for(cell.task))
        encoder = _encoder(config, out, cell, own)
        seeds = evaluation_seeds(config, task, demonstration_seeds(config, out, cell.task), cell.seed)
        curve: list[dict[str, Any]] = []
        ticked = 0
        options = config.evaluation
        with ControlRollouts(make, options.envs, processes=options.processes) as rollouts:

            def evaluate(step: int, policy: FramePolicy) -> None:
                nonlocal ticked
                results = rollouts.run(policy, seeds, stop_at_success=_has_success(config))
                curve.append({"step": step, **_columns(results)})
                tick(step - ticked)
                ticked = step

            clone(encoder, own, settings, on_evaluate=evaluate, evaluate_every=options.every)
    result = {"evaluation_seeds": seeds, "curve": curve, **spent(*started)}
    write_atomically(cell.path(out), json.dumps(result))


def _has_success(config: FewshotConfig) -> bool:
    """dm_control has rewards alone, and every step of an episode counts."""
    return config.data.suite != "dmc"


def _encoder(config: FewshotConfig, out: Path, cell: Adaptation, own: EpisodeStore) -> ObservationEncoder:
    """The row's encoder; one that was never trained is centred on the demonstrations, the only frames it is given."""
    row = config.row(cell.row)
    if row.pretraining is not None:
        done = read_part(PretrainingRun(row.pretraining, cell.seed), out)
        return ObservationEncoder.from_pretrained(out / done["encoder"])
    if row.initialize_from is not None:
        return load_encoder(row.initialize_from, encoder_config(config, cell.row), f"encoder of {cell.row}")
    torch.manual_seed(cell.seed)
    encoder = ObservationEncoder(encoder_config(config, cell.row))
    if encoder.config.centre:
        cameras = own.cameras[: encoder.config.cameras]
        encoder.centre_on(evenly_spaced_frames(own, CENTRE_FRAMES, cameras))
    return encoder


def read_part(part: PretrainingRun | Adaptation, out: Path) -> dict[str, Any]:
    """What a finished part came to.

    Raises:
        BadInputError: When its file is damaged.
    """
    return read_result(part.path(out), part.keys)


def _columns(results: list[EpisodeResult]) -> dict[str, list[float]]:
    return {
        "success": [int(one.success) for one in results],
        "return": [round(one.total_reward, 3) for one in results],
        "steps": [one.steps for one in results],
    }


def _last_metrics(path: Path) -> dict[str, dict[str, float]]:
    """Split -> its last line of numbers."""
    last: dict[str, dict[str, float]] = {}
    for line in path.read_text().splitlines():
        numbers = json.loads(line)
        last[numbers.pop("split")] = numbers
    return last
