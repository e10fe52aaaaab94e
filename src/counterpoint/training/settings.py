"""The settings of training loops."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from counterpoint.config import FrozenConfig, free
from counterpoint.errors import require
from counterpoint.parameter_types import Listed


class LoopConfig(FrozenConfig):
    """The settings that every training loop has.

    Attributes:
        steps: Number of optimiser steps; in online training, the number of environment steps over all environments.
        batch_size: Samples per update, over all processes.
        seed: Random seed for initial weights and all random draws.
        log_every: Number of updates between two lines of the training log; each line gives means over these updates.
        eval_every: Number of steps between evaluations; 0 for no evaluation.
        save_every: Number of steps between checkpoints.
        keep: Number of checkpoints that are kept.
        trackers: `tensorboard`, `wandb` or both (extra `track`); by default none.
    """

    steps: int | None = free(None, ge=1)
    batch_size: int = Field(32, ge=1)
    seed: int = Field(0, ge=0)
    log_every: int = free(50, ge=1)
    eval_every: int = free(250, ge=0)
    save_every: int = free(500, ge=1)
    keep: int = free(2, ge=1)
    trackers: Listed[tuple[str, ...]] = free(())

    last_evaluation: ClassVar[bool] = False
    """True if the run ends with an evaluation even if `eval_every` is 0."""

    def total_steps(self, epoch_size: int) -> int:
        """Return the number of steps of the run, for data of `epoch_size` samples."""
        require(self.steps is not None, "steps", "none", "a number of steps", "give --train.steps N")
        assert self.steps is not None
        return self.steps


class TrainConfig(LoopConfig):
    """The settings of the loop that trains on data sets.

    Attributes:
        epochs: Number of passes over the data; if `steps` is given too, the run ends at whichever is reached first.
        workers: Number of processes that prepare batches.
        precision: `no` (float32), `fp16` or `bf16`.
        eval_batches: Number of batches in one validation; every validation uses the same batches.
        keep_best: Number of models that are kept in `best/` in addition to the last model: the models with the smallest
            validation errors. For a policy that samples actions, this is the error of its samples; otherwise it is the
            loss.
    """

    epochs: int | None = free(None, ge=1)
    workers: int = free(0, ge=0)
    precision: Literal["no", "fp16", "bf16"] = "no"
    eval_batches: int = free(4, ge=1)
    keep_best: int = free(0, ge=0)

    def total_steps(self, epoch_size: int) -> int:
        """Return the number of optimiser steps of the run: `steps`, or the steps in `epochs` if these are fewer."""
        if self.epochs is None:
            return super().total_steps(epoch_size)
        steps = -(-self.epochs * epoch_size // self.batch_size)
        return steps if self.steps is None else min(steps, self.steps)
