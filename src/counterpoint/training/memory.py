"""Train networks that do not fit into the memory of a device: recompute activations, shard parameters over processes.

An objective's blocks are the outermost members of lists and chains (`nn.ModuleList`, `nn.Sequential`) in its encoder,
such as the blocks of a transformer or the stages of a residual network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from counterpoint.config import FrozenConfig, free
from counterpoint.errors import require
from counterpoint.training.distributed import world_size

CAN_SHARD = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12)
"""True if sharded gradients equal those of one process; with torch 2.10 and 2.11 over gloo, they did not."""


class MemoryConfig(FrozenConfig):
    """Ways to save memory.

    Gradients equal those of the whole batch, with three exceptions: rounding, dropout's random numbers, and batch
    normalisation, which uses the statistics of a chunk.

    Attributes:
        chunk: Number of samples that the encoders of a process read at a time (gradient caching: Gao et al., RepL4NLP
            2021, section 3), for objectives whose rows serve as negatives for each other. Activations take the memory
            of a chunk instead of a batch; the forward pass of the encoders runs twice.
        recompute: True to keep only the inputs of blocks, and to run blocks a second time in the backward pass.
        shard: True to divide parameters, gradients and the optimiser's state over all processes (FSDP2).
    """

    chunk: int | None = free(None, ge=1)
    recompute: bool = free(False)
    shard: bool = free(False)


def blocks(objective: nn.Module) -> list[nn.Module]:
    """Return the blocks of the objective's encoder, or of the objective itself if it has no encoder."""
    return _blocks(getattr(objective, "encoder", objective))


def _blocks(network: nn.Module) -> list[nn.Module]:
    found: list[nn.Module] = []
    for child in network.children():
        if isinstance(child, nn.ModuleList | nn.Sequential):
            found += [
                part for part in child if any(True for _ in part.children()) and any(True for _ in part.parameters())
            ]
        else:
            found += _blocks(child)
    return found


def recompute(objective: nn.Module) -> None:
    """Let the backward pass recompute the activations of blocks, instead of keeping them in memory.

    Running statistics are still updated only once per step.
    """
    for block in blocks(objective):
        contexts: Callable[[], tuple[AbstractContextManager[None], ...]] = partial(_first_and_again, block)
        plain = block.forward
        block.forward = partial(checkpoint, plain, use_reentrant=False, context_fn=contexts)


def _first_and_again(block: nn.Module) -> tuple[AbstractContextManager[None], ...]:
    return nullcontext(), buffers_kept(block)


@contextmanager
def buffers_kept(network: nn.Module) -> Iterator[None]:
    """Restore the network's buffers, such as running statistics, when the block ends."""
    before = [buffer.clone() for buffer in network.buffers()]
    try:
        yield
    finally:
        for buffer, value in zip(network.buffers(), before, strict=True):
            buffer.copy_(value)


def shard(objective: nn.Module, device: str) -> None:
    """Shard the parameters of each block over all processes, and then all other parameters together.

    Raises:
        BadInputError: Without a process group, or with a torch version whose sharded gradients differ from those of one
            process.
    """
    hint = "start it with torchrun, or leave memory.shard out"
    require(world_size() > 1, "memory.shard", "one process", "several", hint)
    found, expected = f"torch {torch.__version__}", "torch 2.12 or newer, whose gradients are those of one process"
    require(CAN_SHARD, "memory.shard", found, expected, "update torch, or leave memory.shard out")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard  # imported here because it takes half a second

    mesh = init_device_mesh(device, (world_size(),))
    for parameter in objective.parameters():  # FSDP2 does not accept weights in channels-last order
        parameter.data = parameter.data.contiguous()
    for block in blocks(objective):
        fully_shard(block, mesh=mesh)
    fully_shard(objective, mesh=mesh)


def whole(tree: Any) -> Any:
    """Return a state with complete tensors in place of sharded ones; all processes must call this function."""
    if world_size() == 1:  # nothing is sharded
        return tree
    from torch.distributed.tensor import DTensor

    if isinstance(tree, DTensor):
        return tree.full_tensor()
    if isinstance(tree, dict):
        return {key: whole(value) for key, value in tree.items()}
    return [whole(value) for value in tree] if isinstance(tree, list) else tree


def spread(values: dict[str, Tensor], like: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors sharded like those of the same name in `like`; all processes must call this with equal values."""
    if world_size() == 1:
        return values
    from torch.distributed.tensor import DTensor, distribute_tensor

    return {
        name: distribute_tensor(value, own.device_mesh, own.placements)
        if isinstance(own := like.get(name), DTensor)
        else value
        for name, value in values.items()
    }
