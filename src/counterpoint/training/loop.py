"""The settings of training loops."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from counterpoint.config import FrozenConfig, free
from counterpoint.errors import require
from counterpoint.flags import Listed


class LoopConfig(FrozenConfig):
    """The settings that every training loop has.

    Attributes:
        steps: Optimiser steps; for online training, environment steps over all environments.
        batch_size: Samples an update, over all processes.
        seed: Random seed for initial weights and every draw.
        log_every: Updates between lines of training numbers (each the mean since the last).
        eval_every: Steps between evaluations; 0 for no evaluation.
        save_every: Steps between checkpoints.
        keep: Number of checkpoints that are kept.
        trackers: `tensorboard`, `wandb`, both or none.
    """

    steps: int | None = free(None, ge=1)
    batch_size: int = Field(32, ge=1)
    seed: int = Field(0, ge=0)
    log_every: int = free(50, ge=1)
    eval_every: int = free(250, ge=0)
    save_every: int = free(500, ge=1)
    keep: int = free(2, ge=1)
    trackers: Listed[tuple[str, ...]] = free(("tensorboard",))

    last_evaluation: ClassVar[bool] = False
    """Whether the end is evaluated even where `eval_every` is 0."""

    def total_steps(self, epoch_size: int) -> int:
        """Return the steps of the run, on data of `epoch_size` samples."""
        require(self.steps is not None, "steps", "none", "a number of steps", "give --train.steps N")
        assert self.steps is not None
        return self.steps


class TrainConfig(LoopConfig):
    """The loop's settings.

    Attributes:
        epochs: Passes over the data; if `steps` is given too, the smaller of the two counts.
        workers: Processes that prepare batches.
        precision: `no` (float32), `fp16` or `bf16`.
        eval_batches: Batches of one validation; every validation has the same batches.
        keep_best: Number of models of least validation error that are kept in `best/` beside the last. The error is the
            error of sampled actions for a policy that samples actions, and the loss otherwise.
    """

    epochs: int | None = free(None, ge=1)
    workers: int = free(0, ge=0)
    precision: Literal["no", "fp16", "bf16"] = "no"
    eval_batches: int = free(4, ge=1)
    keep_best: int = free(0, ge=0)

    def total_steps(self, epoch_size: int) -> int:
        """Return the optimiser steps of the run: `steps`, or those of `epochs` where these are fewer."""
        if self.epochs is None:
            return super().total_steps(epoch_size)
        steps = -(-self.epochs * epoch_size // self.batch_size)
        return steps if self.steps is None else min(steps, self.steps)
