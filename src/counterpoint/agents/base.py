"""A watch for losses that blow up, which does not make every update wait for a GPU.

`Agent`: a `Learner` that also acts. Online loop, offline loop, evaluation and checkpoints know only this face.

An agent reads a batch of B transitions with these keys (`counterpoint.data.draws.GoalSpec` says which it wants):

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

What several agents share: precision, steps, target networks, batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.optim import Optimizer

from counterpoint.config import FrozenConfig
from counterpoint.data.draws import GoalSpec, Spaces
from counterpoint.errors import BadInputError
from counterpoint.objectives.base import NonFiniteError

__all__ = [
    "Agent",
    "AgentConfig",
    "Metrics",
    "Spaces",
    "Watch",
    "continuous_only",
    "descend",
    "follow",
    "kept",
    "on_device",
    "prepared",
    "seeded",
]


class Watch:
    """Raises when a loss is not finite: at once on a CPU; on a GPU, where a look must wait, now and then.

    Args:
        every: Updates between two looks at a GPU.
    """

    def __init__(self, every: int = 100) -> None:
        self.every, self._seen, self._sum = every, 0, torch.zeros(())
        self._latest: dict[str, Tensor] = {}

    def __call__(self, losses: Mapping[str, Tensor]) -> None:
        """Note the losses of one update, and look when it is time.

        Raises:
            NonFiniteError: Naming each loss and its value.
        """
        self._latest = {name: loss.detach() for name, loss in losses.items()}
        on_cpu = next(iter(self._latest.values())).device.type == "cpu"
        # A sum stays NaN or infinite once it is.
        self._sum = sum(self._latest.values(), torch.zeros(())) + (0 if on_cpu else self._sum)
        self._seen += 1
        if on_cpu or self._seen % self.every == 0:
            self.look()

    def look(self) -> None:
        """Wait for the losses noted so far.

        Raises:
            NonFiniteError: When one of them was not finite; naming the latest ones and their values.
        """
        if not bool(torch.isfinite(self._sum)):
            self._sum = torch.zeros(())
            told = ", ".join(f"{name} = {value.item():g}" for name, value in self._latest.items())
            raise NonFiniteError(f"a loss is not finite: {told}")


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
    def choose(self, observation: Tensor, goal: Tensor, rows: Sequence[int], explore: bool) -> Tensor:
        """Return the actions of n rows, [n, A] or [n]; the tensors are on the agent's device, without gradients."""

    @torch.no_grad()
    def act(
        self, observation: Mapping[str, NDArray[Any]], *, rows: Sequence[int], explore: bool = False
    ) -> NDArray[Any]:
        """Return the actions of n rows: float32 [n, A], or int64 [n] where actions are discrete; see `Policy`.

        Args:
            observation: "observation" [n, *O] and "desired_goal" [n, *G].
            rows: Rows that the observations come from.
            explore: Sample from the policy, as when collecting data; otherwise take its mode.
        """
        seen, goal = self.tensors(observation["observation"], observation["desired_goal"])
        action = self.choose(seen, goal, rows, explore).cpu().numpy()
        return action if self.spaces.discrete else action.astype(np.float32)

    def reset(self, rows: Sequence[int], seeds: Sequence[int] | None = None) -> None:  # noqa: B027
        """Begin episodes in these rows; agents with a memory forget here."""

    def looks(self, rows: Sequence[int]) -> list[bool]:
        """Return that every observation is read."""
        return [True] * len(rows)

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
                f"an agent {state.get('agent')!r}",
                f"{self.name!r}",
                "train into another folder, or name the agent that the checkpoint is of",
            )
        try:
            for name, module in self.modules.items():
                module.load_state_dict(state["modules"][name])
            for name, optimizer in self.optimizers.items():
                optimizer.load_state_dict(state["optimizers"][name])
        except (KeyError, RuntimeError, ValueError) as error:
            raise BadInputError(
                "checkpoint",
                f"networks that do not fit ({str(error).splitlines()[-1].strip()})",
                f"{self.name} for observations {self.spaces.observation} and goals {self.spaces.goal}",
                "use the environment and the widths of the run that wrote it",
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
        """Return observations and goals on the agent's device, floats as float32 and pictures as they are.

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
                    f"shape {value.shape[1:]}",
                    f"{shape}, which this agent was made for",
                    "use the environment and the goal mapping the agent was trained with",
                )
            if value.dtype != np.uint8 and not np.isfinite(value).all():
                raise BadInputError(
                    name, "NaN or infinity", "finite numbers", "look at the environment; a simulation may have blown up"
                )
        return self._tensor(observation), self._tensor(goal)

    def _tensor(self, value: NDArray[Any]) -> Tensor:
        dtype = torch.uint8 if value.dtype == np.uint8 else torch.float32
        return torch.as_tensor(value, dtype=dtype, device=self.device)


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
    groups = {name: [p for group in optimizers[name].param_groups for p in group["params"]] for name in losses}
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
            f"{spaces.action} discrete actions",
            "continuous actions in [-1, 1]",
            "choose an agent for discrete actions, such as gcbc or td_infonce",
        )
