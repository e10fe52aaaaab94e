"""What several agents share: precision, steps, target networks, batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from counterpoint.agents.base import AgentConfig, Spaces
from counterpoint.errors import BadInputError

__all__ = ["continuous_only", "descend", "follow", "kept", "on_device", "prepared", "seeded"]

Out = TypeVar("Out")


def prepared(function: Callable[..., Out], config: AgentConfig, device: torch.device) -> Callable[..., Out]:
    """`function` with its matrix products in bfloat16 and compiled, where the configuration says so.

    On a CPU nothing is compiled: there the networks' passes are written out already (`perceptron.py`).
    """

    def run(*arguments: object) -> Out:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=config.bf16):
            return function(*arguments)

    return torch.compile(run) if config.compile and device.type != "cpu" else run


def descend(
    losses: Mapping[str, Tensor], optimizers: Mapping[str, Optimizer], *, clip_norm: float | None = None
) -> None:
    """One step of each named optimiser, after one backward pass through the sum of the losses.

    Each loss must reach the parameters of its own optimiser alone (see `frozen` of the networks).

    Args:
        losses: Scalars, by the name of their optimiser.
        optimizers: Those named, and perhaps others, which rest.
        clip_norm: Greatest norm of an optimiser's gradients; `None` leaves them alone.
    """
    groups = {
        name: [p for group in optimizers[name].param_groups for p in group["params"]] for name in losses
    }
    parameters = [parameter for group in groups.values() for parameter in group]
    gradients = torch.autograd.grad(torch.stack(list(losses.values())).sum(), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    for name, group in groups.items():
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(group, clip_norm)
        optimizers[name].step()


@torch.no_grad()
def follow(target: nn.Module, online: nn.Module, rate: float) -> None:
    """Move a target network: target <- (1 - rate) target + rate online."""
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), rate)


def on_device(batch: Mapping[str, Tensor], keys: Iterable[str], device: torch.device) -> dict[str, Tensor]:
    """The named entries of a batch, on the agent's device."""
    return {key: batch[key].to(device, non_blocking=True) for key in keys}


@contextmanager
def kept(generator: torch.Generator) -> Iterator[torch.Generator]:
    """Random numbers may be drawn inside; afterwards the generator is as it was."""
    state = generator.get_state()
    try:
        yield generator
    finally:
        generator.set_state(state)


@contextmanager
def seeded(generator: torch.Generator, device: torch.device) -> Iterator[None]:
    """PyTorch's global random numbers, on which dropout and layers draw, follow `generator` inside and rest outside."""
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def continuous_only(agent: str, spaces: Spaces) -> None:
    """Refuse discrete actions.

    Raises:
        BadInputError: When `spaces` has them.
    """
    if spaces.discrete:
        raise BadInputError(
            f"agent {agent!r}",
            found=f"{spaces.action} discrete actions",
            expected="continuous actions in [-1, 1]",
            mend="choose an agent for discrete actions, such as gcbc or td_infonce",
        )
