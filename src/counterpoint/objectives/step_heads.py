"""What objectives on transitions share: the heads of TACO and Premier-TACO, and slowly moving copies of encoders."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Literal, TypeVar

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn

from counterpoint.data.nstep import NStepSpec
from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.errors import BadInputError
from counterpoint.objectives.base import Batch
from counterpoint.objectives.step import StepConfig, StepObjective

__all__ = [
    "ActionEncoder",
    "FutureConfig",
    "FutureHeads",
    "FutureObjective",
    "check_actions",
    "follow",
    "frozen_copy",
    "two_layer",
]


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
            found=f"shape {tuple(actions.shape)}",
            expected=f"[B, {steps}, {action_dim}]",
            mend="give the objective the data's number of action dimensions, the widest task's where they differ",
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

    def __init__(
        self, encoder: ObservationEncoder, action_dim: int, config: FutureConfig, spec: NStepSpec
    ) -> None:
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
