"""Multi-task behaviour cloning: one policy for all tasks, whose encoder is kept.

    loss = || pi(phi(o_t)) - a_t ||^2, mean over own action dimensions

Premier-TACO's policy pretraining where offline reinforcement learning does not do well (LIBERO: section 4, "Policy
Pretraining"); the policy's layers are dropped afterwards. The paper does not say whether the policy knows its task:
here its input is the observation alone, and `tasks` adds a learned embedding of the task's number.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from counterpoint.data.spec import Spec
from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.errors import require
from counterpoint.objectives.action_error import action_error, constant_action_error
from counterpoint.objectives.base import Batch, Features, LossOutput
from counterpoint.objectives.steps import StepConfig, StepObjective, check_actions, two_layer


class MultitaskCloningConfig(StepConfig):
    """Settings of multi-task cloning. The paper's other pretraining of policies has batches of 1024.

    Attributes:
        hidden: Width of the policy's hidden layer.
        tasks: Number of tasks with a learned embedding; 0 for no embedding.
        task_dim: Size of that embedding.
    """

    hidden: int = Field(default=1024, ge=1)
    tasks: int = Field(default=0, ge=0)
    task_dim: int = Field(default=32, ge=1)


class MultitaskCloning(StepObjective):
    """Multi-task behaviour cloning on transitions.

    Args:
        encoder: Observations into D dimensions.
        action_dim: A, of the largest action space.
        config: Its settings.
    """

    config_type = MultitaskCloningConfig

    def __init__(
        self, encoder: ObservationEncoder, action_dim: int, config: MultitaskCloningConfig | None = None
    ) -> None:
        config = config or MultitaskCloningConfig()
        super().__init__(encoder, Spec.steps((0,), 1, stack=encoder.config.stack, shift=config.shift))
        self.config, self.action_dim = config, action_dim
        task_dim = config.task_dim if config.tasks else 0
        self.task = nn.Embedding(config.tasks, config.task_dim) if config.tasks else None
        self.policy = two_layer(encoder.embed_dim + task_dim, config.hidden, action_dim)

    def encode(self, batch: Batch) -> Features:
        """Return predicted actions: `predicted` [B, A]."""
        check_actions(batch["actions"], 1, self.action_dim)
        state = self.embed(self.views(batch), batch)[:, 0]
        if self.task is not None:
            state = torch.cat([state, self.task(self._checked(batch["task"]))], 1)
        return Features(rows={"predicted": self.policy(state)})

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """Return `action_error`; metrics give it beside that of the batch's mean action."""
        actions, mask = batch["actions"][:, 0], batch["action_mask"]
        loss = action_error(features.rows["predicted"], actions, mask=mask)
        constant = constant_action_error(actions, mask=mask)
        return LossOutput(loss, {"action_error": loss, "action_error_constant": constant})

    def _checked(self, task: Tensor) -> Tensor:
        most = int(task.max())
        found = f"{self.config.tasks}, and a batch with task {most}"
        hint = "set it to the number of tasks in the data, or to 0"
        require(most < self.config.tasks, "objective.tasks", found, "a number above every task's, from 0", hint)
        return task
