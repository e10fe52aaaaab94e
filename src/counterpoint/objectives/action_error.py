"""Errors of predicted actions where tasks have action spaces of different sizes.

    error = sum m (ahat - a)^2 / sum m

m is 1 on an action's own dimensions and 0 on the zeros that pad it. The mean is over all own dimensions of the batch,
so that a task with many dimensions weighs more; with one action space it is the mean squared error.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from counterpoint.errors import BadInputError
from counterpoint.objectives.infonce import in_full_precision

__all__ = ["absolute_action_error", "action_error", "constant_action_error"]


@in_full_precision
def action_error(
    predicted: Float[Tensor, "B *steps A"],
    actions: Float[Tensor, "B *steps A"],
    *,
    mask: Bool[Tensor, "B A"],
    scored: Bool[Tensor, "B ..."] | None = None,
) -> Float[Tensor, ""]:
    """Mean squared error over own dimensions; 0 when there is none.

    Args:
        predicted: Actions, in the units of `actions`.
        actions: What was done.
        mask: Which dimensions are a row's own.
        scored: Which actions count; all by default.

    Raises:
        BadInputError: When the shapes do not pair up.
    """
    return _mean(_difference(predicted, actions).square(), _counted(actions, mask, scored))


@torch.no_grad()
def absolute_action_error(
    predicted: Float[Tensor, "B A"], actions: Float[Tensor, "B A"], *, mask: Bool[Tensor, "B A"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Mean absolute error over own dimensions, and that of the batch's mean action; for metrics.

    Args:
        predicted: Actions, in the units of `actions`.
        actions: What was done.
        mask: Which dimensions are a row's own.

    Raises:
        BadInputError: When the shapes do not pair up.
    """
    counted = _counted(actions, mask, None)
    mean = actions.where(counted, 0).sum(0) / counted.sum(0).clamp_min(1)
    errors = _difference(predicted, actions).abs(), (mean - actions).abs()
    return _mean(errors[0], counted), _mean(errors[1], counted)


@torch.no_grad()
def constant_action_error(
    actions: Float[Tensor, "B *steps A"], *, mask: Bool[Tensor, "B A"], scored: Bool[Tensor, "B ..."] | None = None
) -> Float[Tensor, ""]:
    """`action_error` of the batch's mean action: what a prediction that ignores its input can reach.

    Args:
        actions: What was done.
        mask: Which dimensions are a row's own.
        scored: Which actions count; all by default.

    Raises:
        BadInputError: When the shapes do not pair up.
    """
    counted = _counted(actions, mask, scored)
    rows = tuple(range(actions.ndim - 1))
    mean = actions.where(counted, 0).sum(rows) / counted.sum(rows).clamp_min(1)
    return action_error(mean.expand_as(actions), actions, mask=mask, scored=scored)


def _mean(errors: Tensor, counted: Tensor) -> Tensor:
    return errors.where(counted, 0).sum() / counted.sum().clamp_min(1)


def _difference(predicted: Tensor, actions: Tensor) -> Tensor:
    if predicted.shape != actions.shape:
        raise BadInputError(
            "predicted",
            f"shape {tuple(predicted.shape)}",
            f"{tuple(actions.shape)}, as `actions` has it",
            "predict every action of the batch, padding included",
        )
    return predicted - actions


def _counted(actions: Tensor, mask: Tensor, scored: Tensor | None) -> Tensor:
    """Which entries of `actions` are compared: booleans of its shape."""
    B, *steps, A = actions.shape
    if mask.shape != (B, A) or (scored is not None and scored.shape != (B, *steps)):
        raise BadInputError(
            "mask, scored",
            f"shapes {tuple(mask.shape)}, {None if scored is None else tuple(scored.shape)}",
            f"{(B, A)} and {(B, *steps)}",
            "pass `action_mask` of the batch the actions are of",
        )
    own = mask.bool().reshape(B, *(1 for _ in steps), A).expand_as(actions)
    return own if scored is None else own & scored[..., None]
