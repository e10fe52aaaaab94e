"""`Agent`: a `Learner` that also acts. Online loop, offline loop, evaluation and checkpoints know only this face.

An agent reads a batch of B transitions with these keys (`counterpoint.data.goals.GoalSpec` says which it wants):

    observation        float32 [B, O], or uint8 [B, H, W, C] for pictures
    action             float32 [B, A] in [-1, 1], or int64 [B] where actions are discrete
    next_observation   as `observation`
    next_goal          float32 [B, G] (or a picture): goal coordinates of the next observation
    goal               the goal that the episode was commanded to reach
    future_goal        goal coordinates of a state of the same episode, k >= 1 steps on, k geometric
    future_offset      int64 [B], that k
    random_goal        goal coordinates of a state drawn uniformly from the buffer
    reward             float32 [B], the data's own
    terminated         bool [B], whether the task ended with this transition
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.optim import Optimizer

from counterpoint.agents.watch import Watch
from counterpoint.config import FrozenConfig
from counterpoint.data.goals import GoalSpec, Spaces
from counterpoint.errors import BadInputError
from counterpoint.training.learner import NonFiniteError

__all__ = ["Agent", "AgentConfig", "Metrics", "Spaces"]

Metrics = dict[str, Tensor]
"""Detached scalars, left on their device: reading one waits for the device, so the loop reads them now and then."""


class AgentConfig(FrozenConfig):
    """What every agent's configuration holds; the defaults are the paper's (Table 2).

    Attributes:
        hidden: Widths of the hidden layers of every network, at least one.
        discount: gamma.
        bf16: Whether matrix products run in bfloat16 (parameters and losses stay float32).
        compile: Whether the update step is compiled off the CPU: one CUDA graph for the contrastive agents,
            `torch.compile` for the baselines.
    """

    hidden: tuple[PositiveInt, ...] = Field(default=(512, 512, 512, 512), min_length=1)
    discount: float = Field(default=0.99, gt=0, lt=1)
    bf16: bool = False
    compile: bool = False


class Agent(ABC):
    """A goal-conditioned agent: `Learner` (`update`, `evaluate`, `state`, `load_state`, `exports`) plus `act`.

    A subclass fills `modules` and `optimizers` in its `__init__` and draws every random number from `generator`, so
    that `state` is all that the next update depends on.

    Args:
        config: The agent's configuration.
        spaces: What it sees and does.
        seed: Of initial weights and of every random number.
        device: Where it lives.
    """

    name: ClassVar[str]
    """The name under which `AGENTS` and checkpoints know it."""
    needs_reward: ClassVar[bool] = False
    """Whether it learns from the data's reward, and so nothing where all rewards are equal."""

    def __init__(
        self, config: AgentConfig, spaces: Spaces, *, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        self.settings, self.spaces, self.device = config, spaces, torch.device(device)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.modules: dict[str, nn.Module] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self._watch = Watch()

    @abstractmethod
    def sampling(self) -> GoalSpec:
        """Which keys a batch must hold, and how futures are drawn."""

    @abstractmethod
    def update(self, batch: Mapping[str, Tensor], step: int) -> Metrics:
        """Take update number `step` (0-based). Metrics hold `loss` and, per network, `critic/...`, `actor/...`.

        Raises:
            NonFiniteError: When a loss is not finite (may be told only at a later step on a GPU).
        """

    @abstractmethod
    def evaluate(self, batch: Mapping[str, Tensor]) -> dict[str, float]:
        """The losses on a batch; changes nothing, random state included."""

    @abstractmethod
    def act(self, observation: NDArray[Any], goal: NDArray[Any], *, explore: bool) -> NDArray[Any]:
        """Actions for N situations: observation [N, *O] and goal [N, *G] to float32 [N, A] or int64 [N].

        Args:
            observation: What is seen.
            goal: What to reach.
            explore: Draw from the policy, as when collecting data; otherwise its mode, as when evaluated.
        """

    def begin_episodes(self, count: int) -> None:  # noqa: B027 (most agents have no memory)
        """`count` new episodes begin side by side; agents with a memory forget here."""

    def state(self) -> dict[str, Any]:
        """Everything the next update and the next action depend on.

        Raises:
            NonFiniteError: When a loss was, or a parameter is, not finite: on a GPU, where updates do not wait for
                their losses, this keeps such parameters out of every checkpoint.
        """
        self._look()
        return {
            "agent": self.name,
            "modules": {name: dict(module.state_dict()) for name, module in self.modules.items()},
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "generator": self.generator.get_state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned.

        Raises:
            BadInputError: When the state is another agent's, or of other sizes.
        """
        if state.get("agent") != self.name:
            raise BadInputError(
                "checkpoint",
                found=f"an agent {state.get('agent')!r}",
                expected=f"{self.name!r}",
                mend="train into another folder, or name the agent that the checkpoint is of",
            )
        try:
            for name, module in self.modules.items():
                module.load_state_dict(state["modules"][name])
            for name, optimizer in self.optimizers.items():
                optimizer.load_state_dict(state["optimizers"][name])
        except (KeyError, RuntimeError, ValueError) as error:
            raise BadInputError(
                "checkpoint",
                found=f"networks that do not fit ({str(error).splitlines()[-1].strip()})",
                expected=f"{self.name} for observations {self.spaces.observation} and goals {self.spaces.goal}",
                mend="use the environment and the widths of the run that wrote it",
            ) from None
        self.generator.set_state(state["generator"].cpu())

    def exports(self) -> dict[str, nn.Module]:
        """The modules a user keeps, by name.

        Raises:
            NonFiniteError: As `state`.
        """
        self._look()
        return dict(self.modules)

    def _look(self) -> None:
        """Wait for the device, and raise `NonFiniteError` when losses or parameters are not finite."""
        self._watch.look()
        for name, module in self.modules.items():
            values = [value for value in module.state_dict().values() if value.is_floating_point()]
            if values and not bool(torch.stack([value.isfinite().all() for value in values]).all()):
                raise NonFiniteError(f"parameters of the {name} of {self.name} are not finite")

    def tensors(self, observation: NDArray[Any], goal: NDArray[Any]) -> tuple[Tensor, Tensor]:
        """What `act` was given, on the agent's device, floats as float32 and pictures as they are.

        Raises:
            BadInputError: When a number is not finite or a shape is not the one of `spaces`.
        """
        for name, value, shape in (
            ("observation", observation, self.spaces.observation),
            ("goal", goal, self.spaces.goal),
        ):
            if value.shape[1:] != shape:
                raise BadInputError(
                    name,
                    found=f"shape {value.shape[1:]}",
                    expected=f"{shape}, which this agent was made for",
                    mend="use the environment and the goal mapping the agent was trained with",
                )
            if value.dtype != np.uint8 and not np.isfinite(value).all():
                raise BadInputError(
                    name,
                    found="NaN or infinity",
                    expected="finite numbers",
                    mend="look at the environment; a simulation may have blown up",
                )
        return self._tensor(observation), self._tensor(goal)

    def _tensor(self, value: NDArray[Any]) -> Tensor:
        dtype = torch.uint8 if value.dtype == np.uint8 else torch.float32
        return torch.as_tensor(value, dtype=dtype, device=self.device)
