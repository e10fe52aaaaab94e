"""Join the rows of all ranks into one batch, so that every rank's samples are negatives of every other rank's samples.

Each rank gathers embeddings, evaluates the loss over the whole global batch, and sends the gradient of each row back to
the rank that encoded it. With W ranks, a row's gradient arrives W times, once from each rank's copy of the same loss,
and DistributedDataParallel divides the sum of parameter gradients by W. So parameters before and after the gather
receive the gradient that one process with the whole batch would compute. Only embeddings are sent, never images, and
every rank must hold the same number of rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar, cast

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, distributed, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from counterpoint.errors import BadInputError, usable_device
from counterpoint.objectives.base import Batch, Features

Item = TypeVar("Item")

PAUSE = 0.2
"""Seconds between two checks of whether the other processes have arrived."""


def accelerator_of(precision: str = "no", device: str | None = None) -> Accelerator:
    """Return an accelerator of this precision, independent of earlier trainings in this process.

    accelerate keeps one precision and device per process; this function resets that part of its state. The process
    group stays, so that all processes of a distributed run may call this function. Do not use accelerators that were
    made before the call.

    Args:
        precision: `no` (float32), `fp16` or `bf16`.
        device: `cpu`, `cuda` or `cuda:N`; by default a GPU if there is one.

    Raises:
        BadInputError: When the device does not exist.
    """
    kind = ""
    if device is not None:
        kind, _, number = usable_device(device).partition(":")
        if kind == "cuda" and number:
            torch.cuda.set_device(int(number))
    if AcceleratorState._shared_state and not is_distributed():
        AcceleratorState._reset_state(reset_partial_state=True)
    elif AcceleratorState._shared_state and AcceleratorState().mixed_precision != precision:
        AcceleratorState._reset_state()
    return Accelerator(mixed_precision=precision, cpu=kind == "cpu")


def is_distributed() -> bool:
    """Return whether there is a process group."""
    return distributed.is_available() and distributed.is_initialized()


def rank() -> int:
    """Return this process's number, from 0 to `world_size() - 1`; 0 without a process group."""
    return distributed.get_rank() if is_distributed() else 0


def world_size() -> int:
    """Return the number of processes that train together; 1 without a process group."""
    return distributed.get_world_size() if is_distributed() else 1


def any_rank(flag: bool) -> bool:
    """Return whether the flag is set in any process, so that all processes act the same."""
    if world_size() == 1:
        return flag
    flags = torch.tensor(int(flag), device="cuda" if distributed.get_backend() == "nccl" else "cpu")
    distributed.all_reduce(flags, distributed.ReduceOp.MAX)
    return bool(flags)


def meet(what: str) -> None:
    """Wait until every process has reached this call, however long one of them takes.

    Processes poll a counter in the process group's key-value store, since a collective operation would run into the
    process group's time-out.

    Args:
        what: Name of the meeting point.
    """
    if world_size() == 1:
        return
    store = distributed.distributed_c10d._get_default_store()
    number = store.add(f"counterpoint/{what}", 1)
    everyone = -(-number // world_size()) * world_size()  # the count at which this meeting is complete
    while store.add(f"counterpoint/{what}", 0) < everyone:
        time.sleep(PAUSE)
    # Without torchrun, the first process holds the store: it must not end before the others have read it.
    seen = store.add(f"counterpoint/{what}/seen", 1)
    while rank() == 0 and seen < everyone:
        time.sleep(PAUSE)
        seen = store.add(f"counterpoint/{what}/seen", 0)


def leave() -> None:
    """Leave the process group, if there is one; NCCL warns if a process ends inside a group."""
    if is_distributed():
        distributed.destroy_process_group()


def relayed(items: Iterator[Item] | None) -> Iterator[Item]:
    """Yield the items of the main process's iterator, in every process.

    Args:
        items: The iterator, whose items can be pickled; `None` in all but the main process.

    Raises:
        BadInputError: In every process, when the iterator raises it.
    """
    while True:
        sent: list[Any] = [None]
        if items is not None:
            try:
                sent = [(next(items), None)]
            except StopIteration:
                pass
            except BadInputError as error:
                sent = [(None, error)]
        distributed.broadcast_object_list(sent)
        if sent[0] is None:
            return
        item, failed = sent[0]
        if failed is not None:
            raise failed
        yield item


def average_gradients(parameters: Iterable[Tensor]) -> None:
    """Replace gradients by their means over all processes; for use without `DistributedDataParallel`."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if world_size() == 1 or not gradients:
        return
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    distributed.all_reduce(flat)
    flat /= world_size()
    for gradient, mean in zip(gradients, torch.split(flat, [one.numel() for one in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))


class RowSharing:
    """Divides the rows of each batch among the processes that train one agent; implements `agents.base.Processes`.

    Losses see the outputs of all rows, in every process. A gathered row's gradient arrives once from each of the W
    processes, and the mean of parameter gradients over processes divides by W. The result is therefore the same as with
    one process, whatever the losses do with the rows and whichever networks divide them. If W does not divide the
    number of rows of a call, every process computes all rows.
    """

    @contextmanager
    def sharing(self, modules: Iterable[nn.Module]) -> Iterator[None]:
        """Within the context, each process computes only its share of rows in networks with an attribute `rows`."""
        found = {part for module in modules for part in module.modules() if hasattr(part, "rows")}
        for part in found:
            vars(part)["forward"] = partial(_forward, part.forward, cast(int, part.rows))
        try:
            yield
        finally:
            for part in found:
                del vars(part)["forward"]

    def average(self, parameters: Iterable[Tensor]) -> None:
        """Replace gradients by their means over all processes."""
        average_gradients(parameters)


def _forward(plain: Callable[..., Tensor], rows: int, inputs: Tensor, **options: Any) -> Tensor:
    if inputs.shape[rows] % world_size():
        return plain(inputs, **options)
    own = inputs.chunk(world_size(), rows)[rank()]
    return _gather(plain(own, **options).movedim(rows, 0)).movedim(0, rows)


def gather(features: Features, batch: Batch) -> tuple[Features, Batch]:
    """Return the features and the batch of all ranks, joined."""
    return gather_features(features), gather_batch(batch)


def gather_features(features: Features) -> Features:
    """Return the rows of all ranks, in rank order; gradients flow back to the rank that made each row.

    Args:
        features: The features of this rank, with `rows` [B, ...]; tensors in `shared` are returned unchanged.

    Returns:
        Features with `rows` [W B, ...]; each row is the one that a single process would have encoded from the global
        batch.
    """
    if world_size() == 1:
        return features
    return Features({name: _gather(row) for name, row in features.rows.items()}, features.shared)


def gather_batch(batch: Batch) -> dict[str, Any]:
    """Return the parts of the batch that losses read, from all ranks in rank order.

    Tensors of integers, booleans and floats are gathered. Images (uint8, or floats [..., H, W, 3]) and lists of strings
    are left out, since the encoders have already read them. Losses identify instructions by `instruction_id`; anything
    else that a loss needs from the text is in `Features.rows`.
    """
    kept = {name: value for name, value in batch.items() if isinstance(value, Tensor) and not _is_image(value)}
    return {name: _gather(value) for name, value in kept.items()} if world_size() > 1 else kept


def _is_image(value: Tensor) -> bool:
    return value.dtype == torch.uint8 or (value.is_floating_point() and value.ndim >= 4 and value.shape[-1] == 3)


def _gather(rows: Tensor) -> Tensor:
    gathered: Tensor = _GatherRows.apply(rows)
    return gathered


class _GatherRows(torch.autograd.Function):
    """Map [B, ...] of each rank to [W B, ...]; the gradient of a row, summed over ranks, returns to the row's rank."""

    @staticmethod
    def forward(ctx: FunctionCtx, rows: Tensor) -> Tensor:
        # Not every backend can send booleans; all can send bytes.
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
