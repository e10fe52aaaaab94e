"""The parts of a comparison with ICon: one policy trained, rolled out now and then, and looked into at its end.

Each part writes one file when it is finished, whole or not at all; what has its file is not run again. A training that
was interrupted goes on from its last checkpoint.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from counterpoint.bench.fewshot_config import file_name
from counterpoint.bench.icon_config import ComparisonConfig, nested
from counterpoint.bench.icon_data import demonstration_seeds, evaluation_seeds, open_episodes, task_maker
from counterpoint.bench.icon_measures import Views, look_inside, views_of
from counterpoint.bench.parts import aloud, logged, read_result, spent
from counterpoint.bench.pool import Tick
from counterpoint.config import validate
from counterpoint.data.store import EpisodeStore
from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.errors import BadInputError
from counterpoint.evaluation.control_rollouts import ControlRollouts, EpisodeResult
from counterpoint.policies.diffusion_policy import DiffusionPolicy
from counterpoint.policies.imitate import ImitationConfig, imitate
from counterpoint.training.checkpoint import write_atomically

__all__ = [
    "UNTRAINED",
    "Cell",
    "Start",
    "imitation_config",
    "measure_pace",
    "read_cell",
    "read_pace",
    "train_cell",
]

Start = Literal["scratch", "alone", "transferred"]
TRAINED, UNTRAINED = "trained", "untrained"
"""What was looked into: the encoder after training, and of the reference also before."""
WARM, TIMED = 10, 30
"""Gradient steps before and under the clock when the pace is measured."""


@dataclass(frozen=True)
class Cell:
    """One method on one task with one seed.

    Attributes:
        start: From random weights on the demonstrations of a task (`scratch`) or on the few of another robot
            (`alone`), or from the policy of the first robot (`transferred`).
    """

    method: str
    task: str
    seed: int
    start: Start = "scratch"

    keys: ClassVar = frozenset(
        {"curve", "evaluation_seeds", "inside", "steps", "seconds", "processor_seconds"}
    )
    """Of its result."""

    @property
    def name(self) -> str:
        """Of its files."""
        return file_name(
            self.method, self.task, *(() if self.start == "scratch" else (self.start,)), self.seed
        )

    @property
    def column(self) -> str:
        """Of the table."""
        return self.task if self.start == "scratch" else f"{self.task} ({self.start})"

    def path(self, out: Path) -> Path:
        """Where its result lies."""
        return out / "cells" / f"{self.name}.json"

    def run(self, out: Path) -> Path:
        """Where it is trained."""
        return out / "runs" / self.name


def imitation_config(config: ComparisonConfig, cell: Cell) -> ImitationConfig:
    """What `imitate` is given, but for the number of steps where `minutes` decide it.

    Raises:
        BadInputError: When a setting is unknown.
    """
    defaults = ImitationConfig().model_dump(mode="json", exclude={"diffusion"})
    defaults["train"]["epochs"] = None  # the benchmark says how long, in epochs or in steps
    tree = nested(config.training, defaults)
    tree = nested(config.method(cell.method).training, tree)
    if cell.start != "scratch" and config.transfer is not None:
        tree = nested(config.transfer.training, tree)
    tree = nested({"frame": config.data.frame, "train.seed": cell.seed, "train.trackers": ()}, tree)
    found = validate(ImitationConfig, tree, f"training of {cell.method}")
    if config.minutes is None:
        found.train.total_steps(1)
    if found.encoder.cameras != len(config.data.cameras):
        raise BadInputError(
            f"training of {cell.method}",
            found=f"encoder.cameras = {found.encoder.cameras}",
            expected=f"{len(config.data.cameras)}, as many as data.cameras",
            mend="correct one of the two",
        )
    return found


def train_cell(config: ComparisonConfig, out: Path, cell: Cell, source: Cell | None, tick: Tick) -> None:
    """Train one policy, roll its checkpoints out, look into the last one.

    Args:
        config: The comparison.
        out: Its folder.
        cell: Which.
        source: The finished cell whose policy this one starts from.
        tick: Told the gradient steps done.
    """
    started, tick = (time.perf_counter(), time.process_time()), aloud(tick)
    with logged(out, cell.name):
        train, held_out = open_episodes(config, out, cell.task)
        settings = _paced(config, out, cell, train)
        seeds = evaluation_seeds(config, cell.task, demonstration_seeds(config, out, cell.task))
        start = None if source is None else DiffusionPolicy.from_pretrained(source.run(out) / "policy")
        curve = _Curve(cell.run(out), tick)
        options, total = config.evaluation, settings.train.steps
        make = task_maker(config, cell.task)
        with ControlRollouts(make, options.envs, processes=options.processes) as simulations:

            def evaluate(done: int, policy: DiffusionPolicy) -> None:
                met = seeds if done == total else seeds[: options.between]
                curve.add(done, simulations.run(_acting(policy, options.ensemble), met, stop_at_success=True))

            policy = imitate(
                settings,
                train,
                run=cell.run(out),
                camera=config.data.cameras,
                start_from=start,
                on_checkpoint=evaluate,
            )
        views = open_views(config, train, held_out, settings.encoder.size)
        inside = {TRAINED: _inside(config, cell, policy.encoder, views)}
        if cell.method == config.reference and cell.start == "scratch":
            torch.manual_seed(cell.seed)  # the encoder that this training began with
            inside[UNTRAINED] = _inside(config, cell, ObservationEncoder(settings.encoder), views)
    result = {
        "evaluation_seeds": seeds,
        "curve": curve.points,
        "inside": inside,
        "steps": total,
        "parameters": sum(value.numel() for value in policy.parameters()),
        **spent(*started),
    }
    write_atomically(cell.path(out), json.dumps(result))
    shutil.rmtree(cell.run(out) / "checkpoints", ignore_errors=True)  # the policy stays


def read_cell(cell: Cell, out: Path) -> dict[str, Any]:
    """What a finished cell came to.

    Raises:
        BadInputError: When its file is damaged.
    """
    return read_result(cell.path(out), cell.keys)


def measure_pace(config: ComparisonConfig, out: Path, methods: list[Cell]) -> None:
    """Time each method's gradient steps, and write down how many of the slowest fit into `config.minutes`."""
    if config.minutes is None or _pace_path(out).exists():
        return
    seconds = {}
    for cell in methods:
        with logged(out, f"pace-{cell.method}"):
            train, _ = open_episodes(config, out, cell.task)
            settings = imitation_config(config, cell)
            own = {
                "steps": WARM + TIMED,
                "epochs": None,
                "eval_every": WARM,
                "save_every": 10**9,
                "log_every": WARM,
            }
            settings = settings.model_copy(update={"train": settings.train.model_copy(update=own)})
            clock: list[float] = []
            run = out / "runs" / f"pace-{file_name(cell.method)}"
            shutil.rmtree(run, ignore_errors=True)
            imitate(settings, train, run=run, camera=config.data.cameras, on_checkpoint=_clock(clock))
            shutil.rmtree(run)
        seconds[cell.method] = (clock[-1] - clock[0]) / TIMED
    steps = max(1, int(60 * config.minutes / max(seconds.values())))
    write_atomically(_pace_path(out), json.dumps({"steps": steps, "seconds_a_step": seconds}))


def read_pace(out: Path) -> dict[str, Any] | None:
    """`steps`, and the `seconds_a_step` of each method; `None` where no time was limited."""
    path = _pace_path(out)
    return read_result(path, {"steps", "seconds_a_step"}) if path.exists() else None


class _Curve:
    """Success at every checkpoint, kept on disk while the training goes on."""

    def __init__(self, run: Path, tick: Tick) -> None:
        self._path, self._tick, self._ticked = run / "curve.json", tick, 0
        self.points: list[dict[str, Any]] = []
        if self._path.exists():
            self.points = json.loads(self._path.read_text())
            self._advance()

    def add(self, step: int, results: list[EpisodeResult]) -> None:
        """One evaluation; one of the same step before an interruption is replaced."""
        self.points = [point for point in self.points if point["step"] < step]
        self.points.append(
            {
                "step": step,
                "success": [int(one.success) for one in results],
                "steps": [one.steps for one in results],
                "raised": {str(one.seed): one.error for one in results if one.error is not None},
            }
        )
        write_atomically(self._path, json.dumps(self.points))
        self._advance()

    def _advance(self) -> None:
        done = self.points[-1]["step"] if self.points else 0
        self._tick(max(0, done - self._ticked))
        self._ticked = max(done, self._ticked)


def _paced(config: ComparisonConfig, out: Path, cell: Cell, train: EpisodeStore) -> ImitationConfig:
    """The settings with the number of steps, and checkpoints equally far apart."""
    settings = imitation_config(config, cell)
    pace = read_pace(out)
    steps = pace["steps"] if pace is not None else steps_of(settings, train)
    own = {
        "steps": steps,
        "epochs": None,
        "eval_every": -(-steps // config.evaluation.checkpoints),
        "keep": 1,
    }
    return settings.model_copy(update={"train": settings.train.model_copy(update=own)})


def steps_of(settings: ImitationConfig, train: EpisodeStore) -> int:
    """Gradient steps of a training on these demonstrations."""
    past_end = settings.diffusion.executed - 1
    reach = settings.diffusion.horizon - settings.diffusion.obs_steps - past_end
    windows = sum(max(0, info.length - max(0, reach)) for info in train.episodes)
    return settings.train.total_steps(windows)


def open_views(
    config: ComparisonConfig, train: EpisodeStore, held_out: EpisodeStore, size: int
) -> tuple[Views, Views]:
    """Frames that linear probes are fitted on, and those that everything is measured on."""
    options = config.measures
    a_episode = -(-options.probe_frames // len(train.episodes))
    fit = views_of(train, options.camera, a_episode=a_episode, size=size)
    return fit, views_of(held_out, options.camera, a_episode=options.frames, size=size)


def _inside(
    config: ComparisonConfig, cell: Cell, encoder: ObservationEncoder, views: tuple[Views, Views]
) -> dict[str, Any]:
    place = config.data.cameras.index(config.measures.camera)
    return look_inside(encoder, place, *views, pictures=config.measures.pictures, seed=cell.seed)


def _acting(policy: DiffusionPolicy, ensemble: float | None) -> DiffusionPolicy:
    """The policy, averaging its plans where that is asked for; weights are shared."""
    if ensemble is None:
        return policy
    acting = DiffusionPolicy(
        policy.encoder,
        policy.head,
        state_dim=policy.state_dim,
        use_state=policy.use_state,
        frame=policy.frame,
        cameras=policy.cameras,
        ensemble=ensemble,
    )
    acting.state_normalizer = policy.state_normalizer
    return acting


def _clock(readings: list[float]) -> Callable[[int, DiffusionPolicy], None]:
    def read(_: int, policy: DiffusionPolicy) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        readings.append(time.perf_counter())

    return read


def _pace_path(out: Path) -> Path:
    return out / "pace.json"
