"""A trial of the comparison with ICon: train a policy, roll its checkpoints out, and measure its encoder.

An interrupted training resumes from its last checkpoint.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from counterpoint.data.store import EpisodeStore
from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.envs.vector import VectorEnv
from counterpoint.evaluation.rollout import EpisodeResult, rollout
from counterpoint.files import write_atomically
from counterpoint.policies.diffusion_policy import DiffusionPolicy
from counterpoint.training.train import train as run_training
from studies.icon.config import ComparisonConfig
from studies.icon.data import demonstration_seeds, evaluation_seeds, open_episodes, task_maker
from studies.icon.measures import Views, look_inside, views_of
from studies.icon.pace import paced
from studies.icon.trials import TRAINED, UNTRAINED, PolicyTrial


def train_policy(config: ComparisonConfig, out: Path, trial: PolicyTrial, source: PolicyTrial | None) -> dict[str, Any]:
    """Train one policy (from the policy of `source`, if given), roll out its checkpoints, and measure its encoder."""
    train, held_out = open_episodes(config, out, trial.task)
    settings = paced(config, out, trial, train)
    seeds = evaluation_seeds(config, trial.task, demonstration_seeds(config, out, trial.task))
    start = None if source is None else source.run(out)
    curve, options, total = _Curve(trial.run(out)), config.evaluation, settings.train.steps
    with VectorEnv(task_maker(config, trial.task), options.envs, processes=options.processes) as envs:

        def evaluate(done: int, exports: Mapping[str, nn.Module]) -> None:
            policy = exports["policy"]
            assert isinstance(policy, DiffusionPolicy)
            met = seeds if done == total else seeds[: options.between]
            curve.add(done, rollout(policy.acting(ensemble=options.ensemble), envs, met, stop_at_success=True))

        run = run_training(settings, train, trial.run(out), validation=held_out, start_from=start, on_eval=evaluate)
    policy = DiffusionPolicy.from_pretrained(run.folder)
    views = open_views(config, train, held_out, settings.encoder.size)
    inside = {TRAINED: _inside(config, trial, policy.encoder, views)}
    if trial.method == config.reference and trial.start == "scratch":
        torch.manual_seed(trial.seed)  # the encoder that this training began with
        inside[UNTRAINED] = _inside(config, trial, ObservationEncoder(settings.encoder), views)
    shutil.rmtree(trial.run(out) / "checkpoints", ignore_errors=True)  # the policy stays
    return {
        "evaluation_seeds": seeds,
        "curve": curve.points,
        "inside": inside,
        "validation": _validations(trial.run(out)),
        "steps": total,
        "parameters": sum(value.numel() for value in policy.parameters()),
    }


def _validations(run: Path) -> list[dict[str, Any]]:
    """Return the validation's numbers at every checkpoint."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "split"} for line in lines if line["split"] == "val"]


class _Curve:
    """Success at every checkpoint, stored on disk during training."""

    def __init__(self, run: Path) -> None:
        self._path = run / "curve.json"
        self.points: list[dict[str, Any]] = json.loads(self._path.read_text()) if self._path.exists() else []

    def add(self, step: int, results: list[EpisodeResult]) -> None:
        """Add an evaluation; one of the same step before an interruption is replaced."""
        self.points = [point for point in self.points if point["step"] < step]
        self.points.append(
            {
                "step": step,
                "success": [int(bool(one.success)) for one in results],
                "steps": [one.steps for one in results],
                "raised": {str(one.seed): one.error for one in results if one.error is not None},
            }
        )
        write_atomically(self._path, json.dumps(self.points))


def open_views(config: ComparisonConfig, train: EpisodeStore, held_out: EpisodeStore, size: int) -> tuple[Views, Views]:
    """Return the frames on which linear probes are fitted, and the frames on which they are measured."""
    options = config.measures
    a_episode = -(-options.probe_frames // len(train.episodes))
    fit = views_of(train, options.camera, a_episode=a_episode, size=size)
    return fit, views_of(held_out, options.camera, a_episode=options.frames, size=size)


def _inside(
    config: ComparisonConfig, trial: PolicyTrial, encoder: ObservationEncoder, views: tuple[Views, Views]
) -> dict[str, Any]:
    place = config.data.cameras.index(config.measures.camera)
    return look_inside(encoder, place, *views, images=config.measures.images, seed=trial.seed)
