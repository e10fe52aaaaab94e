"""Accelerators of their own precision, one after the other in one process."""

from __future__ import annotations

from accelerate import Accelerator
from accelerate.state import AcceleratorState

__all__ = ["accelerator_of"]


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
