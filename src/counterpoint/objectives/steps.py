"""Base of objectives on transitions: an observation encoder, and batches of steps with their actions.

What objectives on transitions share: the heads of TACO and Premier-TACO, and slowly moving copies of encoders.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import replace
from typing import Literal, TypeVar

import torch
from jaxtyping import Float
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from counterpoint.config import FrozenConfig
from counterpoint.data.augment import cropped_views, shifted_views
from counterpoint.data.spec import NStepSpec
from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.errors import BadInputError
from counterpoint.objectives.base import Batch, Objective

__all__ = [
    "ActionEncoder",
    "FutureConfig",
    "FutureHeads",
    "FutureObjective",
    "StepConfig",
    "StepObjective",
    "check_actions",
    "embed_views",
    "follow",
    "frozen_copy",
    "two_layer",
]


class StepConfig(FrozenConfig):
    """Settings of every objective on transitions.

    Attributes:
        shift: Random shift of every observation, in pixels either way (DrQ-v2's is 4); 0 for none.
    """

    shift: int = Field(default=4, ge=0)


class StepObjective(Objective):
    """Base of objectives on transitions.

    Batches hold (`NStepLoader` has all of it) `frames` uint8 [B, V, S, H, W, 3], `shift` int64 [B, V, 2],
    `actions` float32 [B, K, A] with zeros beyond a task's own dimensions, `action_mask` bool [B, A],
    `near_valid` bool [B, N], `task` int64 [B], and `rewards` float32 [B, K] where the spec asks for them.

    Args:
        encoder: Observations into D dimensions; what is kept when training is over.
        spec: What a sample holds.
    """

    def __init__(self, encoder: ObservationEncoder, spec: NStepSpec) -> None:
        super().__init__()
        self.encoder = encoder
        self._spec = spec

    def sampling(self) -> NStepSpec:
        """The spec it was made with."""
        return self._spec

    def crop_to(self, size: int) -> None:
        """Take random windows of this side from larger pictures; 0 takes pictures as they are."""
        self._spec = replace(self._spec, crop=size)

    def views(self, batch: Batch) -> Tensor:
        """The batch's observations, cropped and randomly shifted where the spec says so: uint8 [B, V, S, H, W, 3]."""
        windows = cropped_views(batch["frames"], batch.get("crop"), size=self._spec.crop)
        return shifted_views(windows, batch.get("shift"), pad=self._spec.shift)

    def embed(self, views: Tensor, batch: Batch) -> Tensor:
        """Encode observations [B, v, S, H, W, 3] of the batch, all of them in one pass: [B, v, D]."""
        return embed_views(self.encoder, views, batch)

    def exports(self) -> dict[str, nn.Module]:
        """The encoder."""
        return {"encoder": self.encoder}


def embed_views(encoder: ObservationEncoder, views: Tensor, batch: Batch) -> Tensor:
    """Observations [B, v, S, H, W, 3] in one pass, told the batch's instructions where the encoder takes them.

    Returns:
        [B, v, D].
    """
    told = batch["instruction"] if encoder.takes_instruction else None
    embedded: Tensor = encoder(views.flatten(0, 1), told).unflatten(0, views.shape[:2])
    return embedded


Module = TypeVar("Module", bound=nn.Module)


def two_layer(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Linear, ReLU, linear."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def check_actions(actions: Tensor, steps: int, action_dim: int) -> None:
    """Refuse action sequences of another shape than the heads were made for.

    Raises:
        BadInputError: For other shapes than [B, `steps`, `action_dim`].
    """
    if actions.ndim != 3 or actions.shape[1:] != (steps, action_dim):
        raise BadInputError(
            "actions",
            f"shape {tuple(actions.shape)}",
            f"[B, {steps}, {action_dim}]",
            "give the objective the data's number of action dimensions, the widest task's where they differ",
        )


class ActionEncoder(nn.Module):
    """psi: each action by itself through a two-layer perceptron that keeps its size (Premier-TACO, Appendix C).

    Args:
        action_dim: A.
        hidden: Width; 64 in the paper.
    """

    def __init__(self, action_dim: int, hidden: int = 64) -> None:
        super().__init__()
        self.layers = two_layer(action_dim, hidden, action_dim)

    def forward(self, actions: Float[Tensor, "B K A"]) -> Float[Tensor, "B K A"]:
        """Embed every action."""
        embedded: Tensor = self.layers(actions)
        return embedded


class FutureHeads(nn.Module):
    """psi, G and H: what predicts the future's embedding from a state and actions, and what it is compared with.

    `paper` is Appendix C of Premier-TACO: per-action psi of A -> 64 -> A, G of D + K A -> 1024 -> D, H of
    D -> 1024 -> D. `released` is the authors' code: psi is linear, layer normalisation and tanh on the K A numbers of
    the whole sequence; H is the same on D; G sees H(z) where the paper has z.

    Args:
        kind: Whose.
        embed_dim: D.
        action_dim: A.
        steps: K.
        hidden: Width of G, and of the paper's H.
        action_hidden: Width of the paper's psi.
    """

    def __init__(
        self,
        kind: Literal["paper", "released"],
        embed_dim: int,
        action_dim: int,
        steps: int,
        *,
        hidden: int = 1024,
        action_hidden: int = 64,
    ) -> None:
        super().__init__()
        self.kind, self.steps, self.action_dim = kind, steps, action_dim
        flat = steps * action_dim
        self.psi: nn.Module
        if kind == "paper":
            self.psi = nn.Sequential(ActionEncoder(action_dim, action_hidden), nn.Flatten())
            self.H = two_layer(embed_dim, hidden, embed_dim)
        else:
            self.psi = nn.Sequential(nn.Flatten(), nn.Linear(flat, flat), nn.LayerNorm(flat), nn.Tanh())
            self.H = nn.Sequential(nn.Linear(embed_dim, embed_dim), nn.LayerNorm(embed_dim), nn.Tanh())
        self.G = two_layer(embed_dim + flat, hidden, embed_dim)

    def join(self, z: Float[Tensor, "B D"], actions: Float[Tensor, "B K A"]) -> Float[Tensor, "B D+K*A"]:
        """A state and the actions from there on as one vector: what G reads."""
        check_actions(actions, self.steps, self.action_dim)
        state = self.H(z) if self.kind == "released" else z
        return torch.cat([state, self.psi(actions)], 1)

    def project(self, z: Float[Tensor, "*batch D"], *, stop: bool) -> Float[Tensor, "*batch D"]:
        """h = H(z) of future states; with `stop`, no gradient passes to the encoder.

        The paper's H sees future states alone and so has to learn from them; the authors' also sees the anchors, and
        learns from those only.
        """
        if not stop:
            projected: Tensor = self.H(z)
            return projected
        with torch.no_grad() if self.kind == "released" else nullcontext():
            projected = self.H(z.detach())
        return projected


class FutureConfig(StepConfig):
    """Settings that TACO and Premier-TACO share.

    Attributes:
        steps: K.
        heads: `paper` or `released`, see `FutureHeads`.
        hidden: Width of G, and of the paper's H.
        action_hidden: Width of the paper's action encoder.
        shift_together: Shift all observations of a sample alike. With shifts of their own (the authors' code), two
            states of a window differ by up to 2 `shift` pixels before anything has moved: at small sizes that drowns
            what the window's negatives are told apart by.
        stop_gradient: Future states, positive and negative, send no gradient to the encoder (the authors' code);
            otherwise they do (the papers' equations).
    """

    steps: PositiveInt = 3
    shift_together: bool = False
    heads: Literal["paper", "released"] = "paper"
    hidden: PositiveInt = 1024
    action_hidden: PositiveInt = 64
    stop_gradient: bool = True


class FutureObjective(StepObjective):
    """Base of TACO and Premier-TACO: a state and K actions against states that lie about K steps ahead.

    Args:
        encoder: Observations into D dimensions.
        action_dim: A, of the batches.
        config: Settings.
        spec: What a sample holds: the anchor first.
    """

    def __init__(self, encoder: ObservationEncoder, action_dim: int, config: FutureConfig, spec: NStepSpec) -> None:
        super().__init__(encoder, spec)
        self.stop_gradient = config.stop_gradient
        self.heads = FutureHeads(
            config.heads,
            encoder.embed_dim,
            action_dim,
            config.steps,
            hidden=config.hidden,
            action_hidden=config.action_hidden,
        )

    def anchor_and_rest(self, batch: Batch) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B V-1 D"]]:
        """z of the first view and h of all others, in one pass of the encoder each, or in one together.

        With `stop_gradient` nothing of the others' pass is kept for the way back.
        """
        views = self.views(batch)
        if self.stop_gradient:
            anchor = self.embed(views[:, :1], batch)[:, 0]
            with torch.no_grad():
                rest = self.embed(views[:, 1:], batch)
        else:
            embedded = self.embed(views, batch)
            anchor, rest = embedded[:, 0], embedded[:, 1:]
        return anchor, self.heads.project(rest, stop=self.stop_gradient)


def frozen_copy(module: Module) -> Module:
    """A copy to follow `module`: it stands in the state dict, takes no gradient, and belongs to no optimiser."""
    return copy.deepcopy(module).requires_grad_(False)


@torch.no_grad()
def follow(target: nn.Module, online: nn.Module, rate: float) -> None:
    """target <- (1 - rate) target + rate online, of parameters; buffers (running statistics) are taken over."""
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), rate)
    for old, new in zip(target.buffers(), online.buffers(), strict=True):
        old.copy_(new)
