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
        steps: Number of optimiser steps; for online training, environment steps over all environments.
        batch_size: Samples per update, over all processes.
        seed: Random seed for initial weights and every draw.
        log_every: Updates between lines of training numbers (each number is the mean since the last line).
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
    """Whether there is an evaluation at the end even if `eval_every` is 0."""

    def total_steps(self, epoch_size: int) -> int:
        """Return the steps of the run, on data of `epoch_size` samples."""
        require(self.steps is not None, "steps", "none", "a number of steps", "give --train.steps N")
        assert self.steps is not None
        return self.steps


class TrainConfig(LoopConfig):
    """The loop's settings.

    Attributes:
        epochs: Number of passes over the data; if `steps` is given too, the smaller of the two counts.
        workers: Number of processes that prepare batches.
        precision: `no` (float32), `fp16` or `bf16`.
        eval_batches: Number of batches in one validation; every validation has the same batches.
        keep_best: Number of models with the smallest validation errors that are kept in `best/`, in addition to the
            last model. The error is the error of sampled actions for a policy that samples actions, and the loss
            otherwise.
    """

    epochs: int | None = free(None, ge=1)
    workers: int = free(0, ge=0)
    precision: Literal["no", "fp16", "bf16"] = "no"
    eval_batches: int = free(4, ge=1)
    keep_best: int = free(0, ge=0)

    def total_steps(self, epoch_size: int) -> int:
        """Return the optimiser steps of the run: `steps`, or those of `epochs` if they are fewer."""
        if self.epochs is None:
            return super().total_steps(epoch_size)
        steps = -(-self.epochs * epoch_size // self.batch_size)
        return steps if self.steps is None else min(steps, self.steps)
