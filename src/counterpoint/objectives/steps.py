"""The base of objectives on transitions, and what they share: action checks, small networks, target networks."""

from __future__ import annotations

import copy
from typing import ClassVar, TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn

from counterpoint.config import FrozenConfig
from counterpoint.data.augment import cropped_views, shifted_views
from counterpoint.data.spec import Spec
from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.errors import require
from counterpoint.objectives.base import Batch, Objective


class StepConfig(FrozenConfig):
    """Settings of every objective on transitions.

    Attributes:
        shift: Random shift of every observation, in pixels either way (DrQ-v2's is 4); 0 for none.
    """

    shift: int = Field(default=4, ge=0)


class StepObjective(Objective):
    """Base of objectives on transitions: an observation encoder, and batches of steps with their actions.

    Batches hold `frames` uint8 [B, V, S, H, W, 3], `shift` int64 [B, V, 2], `actions` float32 [B, K, A] with zeros
    beyond a task's own dimensions, `action_mask` bool [B, A], `near_valid` bool [B, N], `task` int64 [B], and `rewards`
    float32 [B, K] where the spec has them.

    Args:
        encoder: Observations into D dimensions; kept after training.
        spec: The content of a sample.

    Attributes:
        actions: Whether it uses actions and takes their number A; one that does not also learns from videos alone.
    """

    actions: ClassVar[bool] = True

    def __init__(self, encoder: ObservationEncoder, spec: Spec) -> None:
        super().__init__()
        self.encoder = encoder
        self._spec = spec

    def sampling(self) -> Spec:
        """Return the spec given at construction."""
        return self._spec

    def crop_to(self, size: int) -> None:
        """Take random windows of this side from larger images; 0 takes images as they are."""
        self._spec = self._spec.with_crop(size)

    def views(self, batch: Batch) -> Tensor:
        """Return the batch's observations, cropped and randomly shifted by the spec: uint8 [B, V, S, H, W, 3]."""
        windows = cropped_views(batch["frames"], batch.get("crop"), size=self._spec.crop)
        return shifted_views(windows, batch.get("shift"), pad=self._spec.shift)

    def embed(self, views: Tensor, batch: Batch) -> Tensor:
        """Encode observations [B, v, S, H, W, 3] of the batch in one pass: [B, v, D]."""
        return embed_views(self.encoder, views, batch)

    def exports(self) -> dict[str, nn.Module]:
        """Return the encoder."""
        return {"encoder": self.encoder}


def embed_views(encoder: ObservationEncoder, views: Tensor, batch: Batch) -> Tensor:
    """Encode observations [B, v, S, H, W, 3] in one pass, with instructions if the encoder takes them: [B, v, D]."""
    instructions = batch["instruction"] if encoder.takes_instruction else None
    embedded: Tensor = encoder(views.flatten(0, 1), instructions).unflatten(0, views.shape[:2])
    return embedded


def check_actions(actions: Tensor, steps: int, action_dim: int) -> None:
    """Refuse action sequences of another shape than [B, `steps`, `action_dim`]."""
    ok = actions.ndim == 3 and actions.shape[1:] == (steps, action_dim)
    hint = "give the objective the data's number of action dimensions, the widest task's where they differ"
    require(ok, "actions", f"shape {tuple(actions.shape)}", f"[B, {steps}, {action_dim}]", hint)


def two_layer(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Make a perceptron with one hidden layer."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


Module = TypeVar("Module", bound=nn.Module)


def frozen_copy(module: Module) -> Module:
    """Copy a module as a target network: it is in the state dict, without gradients, and belongs to no optimiser."""
    return copy.deepcopy(module).requires_grad_(False)


@torch.no_grad()
def soft_update(target: nn.Module, online: nn.Module, rate: float) -> None:
    """Set target to (1 - rate) target + rate online; buffers (running statistics) are copied."""
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), rate)
    for old, new in zip(target.buffers(), online.buffers(), strict=True):
        old.copy_(new)
