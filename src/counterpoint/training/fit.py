"""The one optimisation loop: batches in, updates, now and then a line of numbers, a validation, a checkpoint."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from accelerate import Accelerator
from pydantic import Field

from counterpoint.config import FrozenConfig
from counterpoint.errors import BadInputError
from counterpoint.objectives.base import Learner, NonFiniteError
from counterpoint.progress import ProgressBar
from counterpoint.training.checkpoint import last_good, newest_valid, save_checkpoint
from counterpoint.training.log import MetricsLog

__all__ = ["BatchSource", "TrainConfig", "train"]


class BatchSource(Protocol):
    """A source of batches, such as `Sampler`."""

    @property
    def epoch_size(self) -> int:
        """Samples of one pass."""

    def batches(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """Batches number `start` to `stop - 1`, each a function of its number."""


class TrainConfig(FrozenConfig):
    """The loop's settings.

    Attributes:
        steps: Optimiser steps; give this or `epochs`.
        epochs: Passes over the data; give this or `steps`.
        batch_size: Samples a step over all processes.
        seed: Of initial weights and of every draw.
        workers: Processes that prepare batches.
        precision: `no` is float32.
        log_every: Steps between lines of training numbers (each the mean since the last).
        eval_every: Steps between validations; 0 validates never.
        eval_batches: Batches of one validation, the same ones each time.
        save_every: Steps between checkpoints.
        keep: How many checkpoints stay.
        trackers: `tensorboard`, `wandb`, both or none.
    """

    steps: int | None = Field(None, ge=1)
    epochs: int | None = Field(None, ge=1)
    batch_size: int = Field(32, ge=1)
    seed: int = Field(0, ge=0)
    workers: int = Field(0, ge=0)
    precision: str = Field("no", pattern="^(no|fp16|bf16)$")
    log_every: int = Field(50, ge=1)
    eval_every: int = Field(250, ge=0)
    eval_batches: int = Field(4, ge=1)
    save_every: int = Field(500, ge=1)
    keep: int = Field(2, ge=1)
    trackers: tuple[str, ...] = ("tensorboard",)

    def total_steps(self, epoch_size: int) -> int:
        """Optimiser steps of the run.

        Raises:
            BadInputError: Unless exactly one of `steps` and `epochs` is given.
        """
        if (self.steps is None) == (self.epochs is None):
            raise BadInputError(
                "train",
                f"steps = {self.steps}, epochs = {self.epochs}",
                "one of the two",
                "give --train.steps=N and --train.epochs=null, or the reverse",
            )
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return -(-self.epochs * epoch_size // self.batch_size)


def train(
    learner: Learner,
    loader: BatchSource,
    validation: BatchSource | None,
    config: TrainConfig,
    *,
    run: Path,
    accelerator: Accelerator,
    settings: dict[str, object],
    evaluation: Callable[[int], dict[str, float]] | None = None,
) -> int:
    """Train to the end, from the newest whole checkpoint of `run` where there is one.

    Args:
        learner: What trains.
        loader: Training batches.
        validation: Validation batches, or `None`.
        config: The loop's settings.
        run: The run's folder.
        accelerator: Tells which process writes.
        settings: The resolved configuration, for trackers.
        evaluation: Told the steps done, as often as there is a validation; what it returns is logged as `eval`.

    Returns:
        The step the run was resumed from; 0 for a fresh one.

    Raises:
        BadInputError: When the loss stops being finite (the last good checkpoint stays), or all are damaged.
    """
    checkpoints = run / "checkpoints"
    total = config.total_steps(loader.epoch_size)
    start = 0
    found = newest_valid(checkpoints)
    if found is not None:
        path, start, state, troubles = found
        for trouble in troubles:
            accelerator.print(f"Skipped a damaged checkpoint. {trouble}")
        learner.load_state(state)
        accelerator.print(f"Resumed from {path}, step {start} of {total}")
    main = accelerator.is_main_process
    log = MetricsLog(run, config.trackers, settings, start) if main else None
    recent: dict[str, list[Any]] = defaultdict(list)
    note = ""
    try:
        with ProgressBar("Training", total, "steps", done=start) as progress:
            for step, batch in enumerate(loader.batches(start, total), start):
                try:
                    metrics = learner.update(batch, step)
                except NonFiniteError as error:
                    raise _diverged(error, step, checkpoints) from None
                for name, value in metrics.items():
                    recent[name].append(value)
                done = step + 1
                if log is not None and (done % config.log_every == 0 or done == total):
                    # Metrics that are still on a device are read here, now and then, and not at every step.
                    means = {name: statistics.fmean(map(float, values)) for name, values in recent.items()}
                    log.write(done, "train", means)
                    note = f"loss {means['loss']:.3f}"
                    recent.clear()
                if config.eval_every and (done % config.eval_every == 0 or done == total):
                    scores = _validate(learner, validation, config) if validation is not None else {}
                    found_out = evaluation(done) if evaluation is not None and main else {}
                    for split, numbers in (("val", scores), ("eval", found_out)):
                        if log is not None and numbers:
                            log.write(done, split, numbers)
                if main and (done % config.save_every == 0 or done == total):
                    try:
                        state = learner.state()
                    except NonFiniteError as error:  # told late where an update does not wait for its loss
                        raise _diverged(error, step, checkpoints) from None
                    save_checkpoint(checkpoints, done, state, keep=config.keep)
                progress.advance(note=note)
    finally:
        if log is not None:
            log.close()
    return start


def _validate(learner: Learner, loader: BatchSource, config: TrainConfig) -> dict[str, float]:
    scores: dict[str, list[float]] = defaultdict(list)
    for batch in loader.batches(0, config.eval_batches):
        for name, value in learner.evaluate(batch).items():
            scores[name].append(value)
    return {name: statistics.fmean(values) for name, values in scores.items()}


def _diverged(error: NonFiniteError, step: int, checkpoints: Path) -> BadInputError:
    return BadInputError(
        f"training step {step + 1}",
        str(error),
        "a finite loss and finite gradients",
        f"lower the learning rate, clip gradients, or look at the data; {last_good(checkpoints)}",
    )
