"""Errors of predicted actions, for tasks whose action spaces have different sizes.

    error = sum m (ahat - a)^2 / sum m

m is 1 on an action's own dimensions and 0 on the zeros that pad it. The mean is over all own dimensions of the batch,
so that a task with many dimensions weighs more; with one action space it is the mean squared error.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from counterpoint.errors import require
from counterpoint.objectives.base import in_full_precision, shapes


@in_full_precision
def action_error(
    predicted: Float[Tensor, "B *steps A"],
    actions: Float[Tensor, "B *steps A"],
    *,
    mask: Bool[Tensor, "B A"],
    scored: Bool[Tensor, "B ..."] | None = None,
) -> Float[Tensor, ""]:
    """Return the mean squared error over own dimensions; 0 when there is none.

    Args:
        predicted: Actions, in the units of `actions`.
        actions: The data's actions.
        mask: True at a row's own dimensions.
        scored: True at actions that count; all by default.
    """
    return _mean(_difference(predicted, actions).square(), _counted(actions, mask, scored))


@torch.no_grad()
def absolute_action_error(
    predicted: Float[Tensor, "B A"], actions: Float[Tensor, "B A"], *, mask: Bool[Tensor, "B A"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Return the mean absolute error over own dimensions, and that of the batch's mean action; for metrics.

    Args:
        predicted: Actions, in the units of `actions`.
        actions: The data's actions.
        mask: True at a row's own dimensions.
    """
    counted = _counted(actions, mask, None)
    mean = actions.where(counted, 0).sum(0) / counted.sum(0).clamp_min(1)
    errors = _difference(predicted, actions).abs(), (mean - actions).abs()
    return _mean(errors[0], counted), _mean(errors[1], counted)


@torch.no_grad()
def constant_action_error(
    actions: Float[Tensor, "B *steps A"], *, mask: Bool[Tensor, "B A"], scored: Bool[Tensor, "B ..."] | None = None
) -> Float[Tensor, ""]:
    """Return `action_error` of the batch's mean action: the best of a prediction that ignores its input.

    Args:
        actions: The data's actions.
        mask: True at a row's own dimensions.
        scored: True at actions that count; all by default.
    """
    counted = _counted(actions, mask, scored)
    rows = tuple(range(actions.ndim - 1))
    mean = actions.where(counted, 0).sum(rows) / counted.sum(rows).clamp_min(1)
    return action_error(mean.expand_as(actions), actions, mask=mask, scored=scored)


def _mean(errors: Tensor, counted: Tensor) -> Tensor:
    return errors.where(counted, 0).sum() / counted.sum().clamp_min(1)


def _difference(predicted: Tensor, actions: Tensor) -> Tensor:
    ok = predicted.shape == actions.shape
    require(ok, "predicted", shapes(predicted), f"{tuple(actions.shape)}", "predict every action, padding included")
    return predicted - actions


def _counted(actions: Tensor, mask: Tensor, scored: Tensor | None) -> Tensor:
    """Return True at the entries of `actions` that are compared."""
    B, *steps, A = actions.shape
    scored = mask.new_ones(B, *steps) if scored is None else scored
    ok = mask.shape == (B, A) and scored.shape == (B, *steps)
    expected = f"{(B, A)} and {(B, *steps)}"
    require(ok, "mask, scored", shapes(mask, scored), expected, "pass `action_mask` of the actions' batch")
    own = mask.bool().reshape(B, *(1 for _ in steps), A)
    return own & scored[..., None]
