"""Accelerators of their own precision, one after the other in one process.

Rows of all ranks as one batch, so that every rank's samples are negatives of every other's.

Each rank gathers embeddings, evaluates the loss over the whole global batch, and sends the gradient of each
row back to the rank that encoded it. With W ranks, a row's gradient arrives W times, once from each rank's
copy of the same loss, and DistributedDataParallel then divides the sum of parameter gradients by W:
parameters on either side of the gather receive exactly the gradient that one process with the whole batch
would compute. No factor is needed.

Only embeddings travel, never images, and every rank must hold the same number of rows.
"""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, distributed
from torch.autograd.function import FunctionCtx, once_differentiable

from counterpoint.objectives.base import Batch, Features

__all__ = ["accelerator_of", "gather", "gather_batch", "gather_features", "is_distributed", "rank", "world_size"]


def accelerator_of(precision: str) -> Accelerator:
    """An accelerator that computes in the precision asked for, whatever was trained before in this process.

    accelerate keeps one precision a process: a second accelerator without one takes over the first one's, and one with
    another is refused. That part of its state is forgotten here. Devices and the process group, kept elsewhere, stay,
    so that all processes of a distributed run may call this alike. Accelerators made before are not to be used again.

    Args:
        precision: `no` (float32), `fp16` or `bf16`.
    """
    if AcceleratorState._shared_state and AcceleratorState().mixed_precision != precision:
        AcceleratorState._reset_state()
    return Accelerator(mixed_precision=precision)


def is_distributed() -> bool:
    """Whether a process group stands."""
    return distributed.is_available() and distributed.is_initialized()


def rank() -> int:
    """This process's number among `world_size()`; 0 without a process group."""
    return distributed.get_rank() if is_distributed() else 0


def world_size() -> int:
    """How many processes train together; 1 without a process group."""
    return distributed.get_world_size() if is_distributed() else 1


def gather(features: Features, batch: Batch) -> tuple[Features, Batch]:
    """Return features and batch of all ranks: what `Objective.forward` takes as `gather`."""
    return gather_features(features), gather_batch(batch)


def gather_features(features: Features) -> Features:
    """The rows of all ranks, in rank order, with gradients flowing back to where each row was made.

    Args:
        features: `rows` of this rank, [B, ...] each. `shared` tensors stay as they are.

    Returns:
        `rows` of [W B, ...] each, row by row what one process would have encoded from the global batch.
    """
    if world_size() == 1:
        return features
    return Features({name: _gather(row) for name, row in features.rows.items()}, features.shared)


def gather_batch(batch: Batch) -> dict[str, Any]:
    """What losses read of the batch, of all ranks, in rank order.

    Tensors of integers, booleans and floats are gathered. Images (uint8, or floats [..., H, W, 3]) and lists
    of strings are left out, since encoders have read them by then: `instruction_id` stands for the
    instruction, and what a loss needs to know of the text beyond that is put into `Features.rows`.
    """
    kept = {name: value for name, value in batch.items() if isinstance(value, Tensor) and not _is_image(value)}
    return {name: _gather(value) for name, value in kept.items()} if world_size() > 1 else kept


def _is_image(value: Tensor) -> bool:
    return value.dtype == torch.uint8 or (value.is_floating_point() and value.ndim >= 4 and value.shape[-1] == 3)


def _gather(rows: Tensor) -> Tensor:
    gathered: Tensor = _GatherRows.apply(rows)
    return gathered


class _GatherRows(torch.autograd.Function):
    """[B, ...] of each rank to [W B, ...]; backwards, each row's gradient summed over ranks, at its rank."""

    @staticmethod
    def forward(ctx: FunctionCtx, rows: Tensor) -> Tensor:
        # Not every backend carries booleans; all carry bytes.
        sent = rows.to(torch.uint8) if rows.dtype == torch.bool else rows.contiguous()
        parts = [torch.empty_like(sent) for _ in range(world_size())]
        distributed.all_gather(parts, sent)
        return torch.cat(parts).to(rows.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad: Tensor) -> Tensor:
        total = grad.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total)
        return total.chunk(world_size())[rank()]
