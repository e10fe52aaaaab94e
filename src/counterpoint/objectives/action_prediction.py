"""Prediction of logged actions from embeddings: inverse dynamics and multi-task cloning, baselines of Premier-TACO.

    error = sum m (ahat - a)^2 / sum m

If tasks' action spaces have different sizes, actions are padded with zeros: m is 1 on an action's real dimensions and 0
on the padding. The mean is over all real dimensions of the batch, so that a task with many dimensions weighs more. If
all tasks share one action space, the error is the mean squared error.

    inverse dynamics    ahat = f(phi(o_t), phi(o_{t+k})), k = 1
    cloning             ahat = pi(phi(o_t))

Inverse dynamics is the baseline of section 4 of Premier-TACO ("Inverse Dynamics Model"; batch 1024 and learning rate
1e-4 in Appendix C). The paper does not describe f: here it is a two-layer MLP with a linear output, like its other
heads. With k > 1 the first of the k actions is predicted.

The paper uses cloning to pretrain policies where offline reinforcement learning does not do well (LIBERO: section 4,
"Policy Pretraining"); the encoder is kept, and the policy's layers are dropped. The paper does not say whether the task
is an input of the policy. Here the input is only the observation; the setting `tasks` adds a learned embedding of the
task's number.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from counterpoint.data.spec import Spec
from counterpoint.encoders.observation_networks import drq_weights
from counterpoint.errors import BadInputError, require
from counterpoint.objectives.base import Batch, Features, LossOutput, in_full_precision, shapes
from counterpoint.objectives.steps import StepConfig, StepObjective, check_actions, perceptron


@in_full_precision
def action_error(
    predicted: Float[Tensor, "B *steps A"],
    actions: Float[Tensor, "B *steps A"],
    *,
    mask: Bool[Tensor, "B A"],
    scored: Bool[Tensor, "B ..."] | None = None,
) -> Float[Tensor, ""]:
    """Return the mean squared error over the actions' real (unpadded) dimensions; 0 if there are none.

    Args:
        predicted: Predicted actions, in the units of `actions`.
        actions: The data's actions.
        mask: True at a row's real action dimensions, False at padding.
        scored: True at actions that count; by default all actions count.
    """
    return _mean(_difference(predicted, actions).square(), _counted(actions, mask, scored))


@torch.no_grad()
def absolute_action_error(
    predicted: Float[Tensor, "B A"], actions: Float[Tensor, "B A"], *, mask: Bool[Tensor, "B A"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Return the mean absolute errors of the prediction and of the batch's mean action, over unpadded dimensions.

    Used for metrics. Takes the arguments of `action_error`.
    """
    counted = _counted(actions, mask, None)
    errors = _difference(predicted, actions).abs(), (_mean_action(actions, counted) - actions).abs()
    return _mean(errors[0], counted), _mean(errors[1], counted)


@torch.no_grad()
def constant_action_error(
    actions: Float[Tensor, "B *steps A"], *, mask: Bool[Tensor, "B A"], scored: Bool[Tensor, "B ..."] | None = None
) -> Float[Tensor, ""]:
    """Return `action_error` of the batch's mean action, the best prediction that does not depend on the observation."""
    mean = _mean_action(actions, _counted(actions, mask, scored))
    return action_error(mean.expand_as(actions), actions, mask=mask, scored=scored)


def _mean_action(actions: Tensor, counted: Tensor) -> Float[Tensor, " A"]:
    rows = tuple(range(actions.ndim - 1))
    return actions.where(counted, 0).sum(rows) / counted.sum(rows).clamp_min(1)


def _mean(errors: Tensor, counted: Tensor) -> Tensor:
    return errors.where(counted, 0).sum() / counted.sum().clamp_min(1)


def _difference(predicted: Tensor, actions: Tensor) -> Tensor:
    if predicted.shape != actions.shape:
        expected, hint = f"{tuple(actions.shape)}", "predict every action, padding included"
        raise BadInputError("predicted", shapes(predicted), expected, hint)
    return predicted - actions


def _counted(actions: Tensor, mask: Tensor, scored: Tensor | None) -> Tensor:
    """Return True at the entries of `actions` that are compared."""
    B, *steps, A = actions.shape
    scored = mask.new_ones(B, *steps) if scored is None else scored
    if mask.shape != (B, A) or scored.shape != (B, *steps):
        expected, hint = f"{(B, A)} and {(B, *steps)}", "pass `action_mask` of the actions' batch"
        raise BadInputError("mask, scored", shapes(mask, scored), expected, hint)
    return mask.bool().reshape(B, *(1 for _ in steps), A) & scored[..., None]


class ActionPrediction(StepObjective):
    """Base class of objectives whose loss is the error of predicted actions against the first action of each sample.

    The predicted actions are `predicted` [B, A] in `Features`.
    """

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """Return `action_error`; the metrics also show the error of always predicting the batch's mean action."""
        actions, mask = batch["actions"][:, 0], batch["action_mask"]
        loss = action_error(features.rows["predicted"], actions, mask=mask)
        return LossOutput(
            loss, {"action_error": loss, "action_error_constant": constant_action_error(actions, mask=mask)}
        )


class InverseDynamicsConfig(StepConfig):
    """Settings of inverse dynamics.

    Attributes:
        horizon: Number of steps between the two observations (k).
        hidden: Width of the hidden layer.
    """

    horizon: PositiveInt = 1
    hidden: PositiveInt = 1024


class InverseDynamics(ActionPrediction):
    """Inverse dynamics on transitions; arguments are those of `StepObjective`."""

    config_type = InverseDynamicsConfig
    config: InverseDynamicsConfig

    def build(self, D: int) -> None:
        """Create the networks needed in addition to the encoder."""
        self.inverse = perceptron(2 * D, self.config.hidden, self.action_dim).apply(drq_weights)

    def sampling(self) -> Spec:
        """Return the sampling spec: two observations and the first action between them."""
        return self.steps((0, self.config.horizon), 1)

    def encode(self, batch: Batch) -> Features:
        """Return predicted actions: `predicted` [B, A]."""
        check_actions(batch["actions"], 1, self.action_dim)
        both = self.embed(self.views(batch), batch).flatten(1)  # [B, 2 D], the earlier first
        return Features({"predicted": self.inverse(both)})


class MultitaskCloningConfig(StepConfig):
    """Settings of multi-task cloning. The paper's other policy pretraining (TD3 + BC) uses batches of 1024.

    Attributes:
        hidden: Width of the policy's hidden layer.
        tasks: Number of tasks with a learned embedding; 0 for no embedding.
        task_dim: Size of that embedding.
    """

    hidden: PositiveInt = 1024
    tasks: NonNegativeInt = 0
    task_dim: PositiveInt = 32


class MultitaskCloning(ActionPrediction):
    """Multi-task behaviour cloning on transitions; arguments are those of `StepObjective`."""

    config_type = MultitaskCloningConfig
    config: MultitaskCloningConfig

    def build(self, D: int) -> None:
        """Create the networks needed in addition to the encoder."""
        tasks, width = self.config.tasks, self.config.task_dim
        self.task = nn.Embedding(tasks, width) if tasks else None
        policy = perceptron(D + (width if tasks else 0), self.config.hidden, self.action_dim)
        self.policy = policy.apply(drq_weights)

    def sampling(self) -> Spec:
        """Return the sampling spec: an observation and its action."""
        return self.steps((0,), 1)

    def encode(self, batch: Batch) -> Features:
        """Return predicted actions: `predicted` [B, A]."""
        check_actions(batch["actions"], 1, self.action_dim)
        state = self.embed(self.views(batch), batch)[:, 0]
        if self.task is not None:
            most, tasks = int(batch["task"].max()), self.config.tasks
            found, hint = f"{tasks}, and a batch with task {most}", "set it to the data's number of tasks, or to 0"
            require(most < tasks, "objective.tasks", found, "a number above every task's, from 0", hint)
            state = torch.cat([state, self.task(batch["task"])], 1)
        return Features({"predicted": self.policy(state)})
