"""The number of gradient steps of every policy in a comparison with ICon, from epochs or from a time limit."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from counterpoint.data.store import EpisodeStore
from counterpoint.files import write_atomically
from counterpoint.training.imitation import ImitationRecipe
from counterpoint.training.train import train as run_training
from studies.harness import file_name
from studies.icon.config import ComparisonConfig
from studies.icon.data import open_episodes
from studies.icon.trials import PolicyTrial, imitation_config

WARM, TIMED = 10, 30
"""Number of gradient steps for warm-up, and of timed gradient steps."""


def measure_pace(config: ComparisonConfig, out: Path, methods: list[PolicyTrial]) -> None:
    """Time each method's gradient steps, and write how many steps of the slowest method fit into `config.minutes`."""
    if config.minutes is None or _pace_path(out).exists():
        return
    seconds = {}
    for trial in methods:
        train, _ = open_episodes(config, out, trial.task)
        settings = imitation_config(config, trial)
        own = {"steps": WARM + TIMED, "epochs": None, "eval_every": WARM, "save_every": 10**9, "log_every": WARM}
        settings = settings.model_copy(update={"train": settings.train.model_copy(update=own)})
        clock: list[float] = []
        run = out / "runs" / f"pace-{file_name(trial.method)}"
        shutil.rmtree(run, ignore_errors=True)
        run_training(settings, train, run, on_eval=_clock(clock))
        shutil.rmtree(run)
        seconds[trial.method] = (clock[-1] - clock[0]) / TIMED
    steps = max(1, int(60 * config.minutes / max(seconds.values())))
    write_atomically(_pace_path(out), json.dumps({"steps": steps, "seconds_a_step": seconds}))


def read_pace(out: Path) -> dict[str, Any] | None:
    """Return `steps`, and the `seconds_a_step` of each method; `None` if there was no time limit."""
    path = _pace_path(out)
    return json.loads(path.read_text()) if path.exists() else None


def paced(config: ComparisonConfig, out: Path, trial: PolicyTrial, train: EpisodeStore) -> ImitationRecipe:
    """Return the recipe with the number of steps and evenly spaced checkpoints."""
    settings = imitation_config(config, trial)
    pace = read_pace(out)
    steps = pace["steps"] if pace is not None else steps_of(settings, train)
    own = {"steps": steps, "epochs": None, "eval_every": -(-steps // config.evaluation.checkpoints), "keep": 1}
    return settings.model_copy(update={"train": settings.train.model_copy(update=own)})


def steps_of(settings: ImitationRecipe, train: EpisodeStore) -> int:
    """Return the gradient steps of a training on these demonstrations."""
    past_end = settings.diffusion.executed - 1
    reach = settings.diffusion.horizon - settings.diffusion.obs_steps - past_end
    windows = sum(max(0, info.length - max(0, reach)) for info in train.episodes)
    return settings.train.total_steps(windows)


def _clock(readings: list[float]) -> Callable[[int, object], None]:
    def read(_: int, exports: object) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        readings.append(time.perf_counter())

    return read


def _pace_path(out: Path) -> Path:
    return out / "pace.json"
