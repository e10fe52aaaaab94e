"""The base class of all agents: it declares networks, optimisers and targets, updates them, and acts.

An agent reads a batch of B transitions with some of these keys:

    observation        float32 [B, O], or uint8 [B, H, W, C] for images
    action             float32 [B, A] in [-1, 1], or int64 [B] if actions are discrete
    next_observation   as `observation`
    next_goal          float32 [B, G] (or an image): goal coordinates of the next observation
    goal               the goal that the episode was commanded to reach
    future_goal        goal coordinates of a state k >= 1 steps later in the same episode, with geometric k
    future_offset      int64 [B], the k of `future_goal`
    random_goal        goal coordinates of a state sampled uniformly from the buffer
    reward             float32 [B], the data's reward
    terminated         bool [B], true if the task ended with this transition

OGBench's agents also read:

    value_goal         the goal for values, drawn as the agent's settings say
    value.reached      bool [B], true if that goal is the transition's own state
    actor_goal         the goal for the policy
    subgoal            goal coordinates of the state k steps later in the same episode (HIQL)
    target             the observation k steps later on the way to `actor_goal`, and `target_goal`, its goal coordinates
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.optim import Optimizer

from counterpoint.config import FrozenConfig
from counterpoint.data.draws import sample_seed
from counterpoint.data.episode import Spaces
from counterpoint.data.spec import Spec
from counterpoint.errors import BadInputError, require
from counterpoint.objectives.base import NonFiniteError, frozen_copy, soft_update

Metrics = dict[str, Tensor]
"""Detached scalars on the agent's device; the training loop reads them rarely, since reading waits for the device."""

Network = TypeVar("Network", bound=nn.Module)


class AgentConfig(FrozenConfig):
    """Settings that all agents share; the defaults are TD InfoNCE's (Table 2).

    Attributes:
        hidden: Widths of the hidden layers of every network, at least one.
        discount: Discount factor (gamma).
        bf16: Run matrix products in bfloat16 (parameters and losses stay float32).
        compile: Compile the losses with `torch.compile`, on a GPU with CUDA graphs; a CPU needs a C++ compiler. The
            first updates wait for the compiler.
        cuda_graph: Record the whole update, with its optimisers, as one CUDA graph, and replay it; for a GPU only.
    """

    hidden: tuple[PositiveInt, ...] = Field(default=(512, 512, 512, 512), min_length=1)
    discount: float = Field(default=0.99, gt=0, lt=1)
    bf16: bool = False
    compile: bool = False
    cuda_graph: bool = False


class Processes(Protocol):
    """Other processes that train the same agent, all on the same batches."""

    def sharing(self, modules: Iterable[nn.Module]) -> AbstractContextManager[None]:
        """Let networks with `rows` compute only this process's share of rows, and fetch the rest from the others."""

    def average(self, parameters: Iterable[Tensor]) -> None:
        """Replace gradients by their means over all processes."""


class FiniteCheck:
    """A check of losses for NaN and infinity: at every update on a CPU, every 100 updates on a GPU to avoid waiting.

    Args:
        agent: The agent's name, for error messages.
    """

    every: ClassVar[int] = 100

    def __init__(self, agent: str) -> None:
        self.agent = agent
        self.losses: Mapping[str, Tensor] = {}
        self.total = torch.zeros(())

    def add(self, losses: Mapping[str, Tensor], step: int) -> None:
        """Add the losses of update `step`, and check them if a check is due.

        Raises:
            NonFiniteError: If a loss is not finite.
        """
        self.losses = losses
        self.total = self.total + torch.stack(list(losses.values())).sum()  # NaN and infinity stay in a sum
        if self.total.device.type == "cpu" or step % self.every == 0:
            self.check()

    def check(self) -> None:
        """Raise `NonFiniteError` with the newest losses if a loss since the last check was not finite."""
        total, self.total = self.total, torch.zeros(())
        if not bool(total.isfinite()):
            values = ", ".join(f"{name} = {value.item():g}" for name, value in self.losses.items())
            raise NonFiniteError(f"a loss of {self.agent} is not finite: {values}")


class RecordedUpdate:
    """An update that is recorded as a CUDA graph, so that the CPU starts it by one launch instead of hundreds.

    The first calls are not recorded: they compile, and create the optimisers' moments. As PyTorch asks, they run on a
    stream of their own.

    Args:
        update: Takes an update, given its inputs on the GPU, and returns its metrics. It must not wait for the GPU, and
            the inputs of all calls must have the same shapes.
    """

    warmup: ClassVar[int] = 3

    def __init__(self, update: Callable[[Mapping[str, Tensor]], Metrics]) -> None:
        self.update, self.calls = update, 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: dict[str, Tensor] = {}
        self.metrics: Metrics = {}

    def __call__(self, inputs: Mapping[str, Tensor]) -> Metrics:
        """Take an update with these inputs, and return its metrics."""
        self.calls += 1
        if self.calls <= self.warmup:
            own, current = torch.cuda.Stream(), torch.cuda.current_stream()  # type: ignore[no-untyped-call]
            own.wait_stream(current)
            with torch.cuda.stream(own):
                metrics = self.update(inputs)
            current.wait_stream(own)
            return metrics
        if self.graph is None:
            self.inputs = {name: value.clone() for name, value in inputs.items()}
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):  # records the update without taking it
                self.metrics = self.update(self.inputs)
        for name, value in inputs.items():
            self.inputs[name].copy_(value)
        self.graph.replay()
        return {name: value.clone() for name, value in self.metrics.items()}


class Agent(ABC):
    """A goal-conditioned agent: a `Learner` (`update`, `evaluate`, `state`, `load_state`, `exports`) that can `act`.

    A subclass declares its networks in `build` and computes its losses in `losses`. All random numbers of updates and
    actions come from `generator`, so that checkpoints need not store generators.

    Args:
        config: The agent's configuration.
        spaces: Shapes of observations, goals and actions.
        seed: Random seed for initial weights, noise and exploration.
        device: Device of the networks.

    Raises:
        BadInputError: If the agent cannot handle these spaces.
    """

    name: ClassVar[str]
    """The agent's name in `AGENTS` and in checkpoints."""
    needs_reward: ClassVar[bool] = False
    """True for agents that learn from the data's reward; they cannot learn if all rewards are equal."""
    continuous_only: ClassVar[bool] = False
    recordable: ClassVar[bool] = True
    """False if updates differ in more than their inputs, so that a CUDA graph of one cannot stand for all."""
    value_name: ClassVar[str] = ""
    """The meaning of the result of `comparable_value`, for axes; empty for an agent without a value."""
    reads: frozenset[str]
    """The keys of a batch that the losses read."""
    clip_norm: float | None = None
    """Maximum norm of each network's gradient."""
    processes: Processes | None = None
    """Other processes that train the same agent; `None` if there is only one process."""

    def __init__(
        self, config: AgentConfig, spaces: Spaces, *, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        found = f"{spaces.action} discrete actions"
        hint = "choose an agent for discrete actions, such as gcbc or td_infonce"
        refused = self.continuous_only and spaces.discrete
        require(not refused, f"agent {self.name!r}", found, "continuous actions in [-1, 1]", hint)
        self.config, self.spaces, self.device = config, spaces, torch.device(device)
        self.seed, self.acts = seed, 0
        self.modules: dict[str, nn.Module] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self.targets: list[tuple[nn.Module, nn.Module, float]] = []
        self.finite = FiniteCheck(self.name)
        self.recording = config.cuda_graph and self.device.type == "cuda"
        self._recorded: dict[bool, RecordedUpdate] = {}
        self.build(torch.Generator().manual_seed(seed))  # on the CPU, so that weights are the same on every device
        mode = "reduce-overhead" if self.device.type == "cuda" and not self.recording else None
        self._compiled = torch.compile(self._autocast_losses, mode=mode) if config.compile else None

    @abstractmethod
    def build(self, weights: torch.Generator) -> None:
        """Create the agent's networks by `network` and `tracked`; the generator `weights` draws initial weights."""

    def network(self, name: str, module: Network, lr: float) -> Network:
        """Register a network, which Adam trains at rate `lr` on the loss `NAME/loss`."""
        self.modules[name] = module.to(self.device)
        self.optimizers[name] = torch.optim.Adam(module.parameters(), lr=lr, fused=True, capturable=self.recording)
        return module

    def tracked(self, name: str, module: Network, lr: float, tau: float) -> tuple[Network, Network]:
        """Register a network as `network` does, and create its target as `target` does; return both."""
        online = self.network(name, module, lr)
        return online, self.target(name, online, tau)

    def target(self, name: str, online: Network, tau: float) -> Network:
        """Create `target_NAME`, a moving average that each update moves towards `online` by the share `tau`."""
        copied = frozen_copy(online)
        self.modules[f"target_{name}"] = copied
        self.targets.append((copied, online, tau))
        return copied

    @abstractmethod
    def losses(self, batch: Mapping[str, Tensor]) -> Metrics:
        """Compute `loss` (for the log), `NAME/loss` of every network and other metrics, all at the current parameters.

        Args:
            batch: A batch with the keys in `reads` and the keys that `noise` adds.
        """

    @abstractmethod
    def choose(self, observation: Tensor, goal: Tensor, rows: Sequence[int], explore: torch.Generator | None) -> Tensor:
        """Return the actions of n rows, [n, A] or int64 [n], without gradients.

        The arguments are on the agent's device.

        Args:
            observation: Observations [n, *O].
            goal: Goals [n, *G].
            rows: Rows that the observations come from.
            explore: Generator for sampling from the policy; `None` for the policy's mode.
        """

    def value(self, observation: Tensor, goal: Tensor) -> Float[Tensor, " B"] | None:
        """Return the agent's own estimate of how near goals are, [B]; larger is nearer.

        An agent without one, such as a cloned policy, returns `None`.

        Args:
            observation: Observations [B, *O], as `tensors` returns them.
            goal: Goals [B, *G], as `tensors` returns them.
        """
        return None

    def comparable_value(self, observation: Tensor, goal: Tensor, goals: Tensor) -> Float[Tensor, " B"] | None:
        """Return `value` in a form that can be compared between observations, which is `value` itself for most agents.

        InfoNCE leaves a critic free up to a function of observation and action.

        Args:
            observation: Observations [B, *O].
            goal: Goals [B, *G].
            goals: Goals [N, *G] that stand for all goals; InfoNCE's free function is estimated over them.
        """
        return self.value(observation, goal)

    def sampling(self) -> Spec:
        """Return the spec of a batch: its keys and the distribution of its future goals."""
        reads = self.reads - {"future_offset"}  # comes with `future_goal`
        return Spec.transitions(reads, discount=self.config.discount)

    def generator(self, name: str, number: int) -> torch.Generator:
        """Return a generator on the agent's device that depends only on the agent's seed, a name and a number."""
        return torch.Generator(self.device).manual_seed(sample_seed(self.seed, number, name))

    def noise(self, rows: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Sample the random numbers of one update of `rows` transitions; they become further keys of the batch."""
        return {}

    def learned_from(self, inputs: Mapping[str, Tensor]) -> None:  # noqa: B027
        """Count the inputs of an update that was taken, with the keys that `noise` added; most agents count nothing."""

    def critic_alone(self, step: int) -> bool:
        """Return True if only the critic changes in update number `step`."""
        return False

    def update(self, batch: Mapping[str, Tensor], step: int) -> Metrics:
        """Take update number `step` (0-based): one step of every optimiser, with gradients at the same parameters.

        Returns:
            The metric `loss`, and metrics of each network, such as `critic/...` and `actor/...`.

        Raises:
            NonFiniteError: If a loss is not finite. On a CPU it is raised at once, before parameters change. On other
                devices it is raised within 100 updates, and whenever the agent is saved.
        """
        inputs, alone = self._inputs(batch, self.generator("update", step)), self.critic_alone(step)
        check = partial(self._check_losses, step)
        if not self.recording:
            return self._learn(alone, check, inputs)
        if alone not in self._recorded:
            self._recorded[alone] = RecordedUpdate(partial(self._learn, alone, None))
        metrics = self._recorded[alone](inputs)
        check(metrics)
        return metrics

    def _learn(self, alone: bool, check: Callable[[Metrics], None] | None, inputs: Mapping[str, Tensor]) -> Metrics:
        losses = (self._compiled or self._autocast_losses)(inputs)
        metrics = {name: value.detach().clone() for name, value in losses.items()}
        if check is not None:  # it may read the losses, which a recording must not wait for
            check(metrics)
        chosen = {name: losses[f"{name}/loss"] for name in (["critic"] if alone else self.optimizers)}
        average = self.processes.average if self.processes else None
        descend(chosen, self.optimizers, clip_norm=self.clip_norm, average=average)
        self.learned_from(inputs)
        if alone:
            return metrics
        for copied, online, tau in self.targets:
            soft_update(copied, online, tau)
        return metrics

    def _check_losses(self, step: int, metrics: Metrics) -> None:
        self.finite.add({name: metrics[f"{name}/loss"] for name in self.optimizers}, step)

    @torch.no_grad()
    def evaluate(self, batch: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the metrics on a batch without training on it."""
        metrics = self._autocast_losses(self._inputs(batch, self.generator("evaluate", 0)))
        return {name: float(value) for name, value in metrics.items()}

    @torch.no_grad()
    def act(
        self, observation: Mapping[str, NDArray[Any]], *, rows: Sequence[int], explore: bool = False
    ) -> NDArray[Any]:
        """Return the actions of n rows: float32 [n, A], or int64 [n] if actions are discrete; see `Policy`.

        Args:
            observation: A mapping with "observation" [n, *O] and "desired_goal" [n, *G].
            rows: Rows that the observations come from.
            explore: Sample from the policy, as for collecting data; otherwise return its mode.

        Raises:
            BadInputError: See `tensors`.
        """
        inputs = self.tensors(observation["observation"], observation["desired_goal"])
        self.acts += explore
        action = self.choose(*inputs, rows, self.generator("act", self.acts) if explore else None).cpu().numpy()
        return action if self.spaces.discrete else action.astype(np.float32)

    def tensors(self, observation: NDArray[Any], goal: NDArray[Any]) -> tuple[Tensor, Tensor]:
        """Return observations and goals on the agent's device, numbers as float32 and images unchanged.

        Raises:
            BadInputError: If a number is not finite or a shape differs from the shape in `spaces`.
        """

        def tensor(name: str, value: NDArray[Any], shape: tuple[int, ...]) -> Tensor:
            hint = "use the environment and the goals of training"
            require(value.shape[1:] == shape, name, f"shape {value.shape[1:]}", f"{shape}, as in training", hint)
            finite = value.dtype == np.uint8 or np.isfinite(value).all()
            require(finite, name, "NaN or infinity", "finite numbers", "look for a simulation that blew up")
            dtype = torch.uint8 if value.dtype == np.uint8 else torch.float32
            return torch.as_tensor(value, dtype=dtype, device=self.device)

        observations = tensor("observation", observation, self.spaces.observation)
        return observations, tensor("goal", goal, self.spaces.goal)

    def reset(self, rows: Sequence[int], seeds: Sequence[int] | None = None) -> None:  # noqa: B027
        """Begin new episodes in these rows; agents with a memory clear it."""

    def looks(self, rows: Sequence[int]) -> list[bool]:
        """Return, for each row (environment), whether `act` reads its next images: always True for agents."""
        return [True] * len(rows)

    def state(self) -> dict[str, Any]:
        """Return the state that the next update and the next action depend on.

        Raises:
            NonFiniteError: If a loss or a parameter is not finite, so that checkpoints are always finite.
        """
        self._check_finite()
        return {
            "agent": self.name,
            "modules": {name: dict(module.state_dict()) for name, module in self.modules.items()},
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "seed": self.seed,
            "acts": self.acts,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state` returned.

        Raises:
            BadInputError: If the state belongs to another agent or its arrays have other sizes.
        """
        found, hint = state.get("agent"), "train into another folder, or name the agent of the checkpoint"
        require(found == self.name, "checkpoint", f"an agent {found!r}", f"{self.name!r}", hint)
        try:
            for name, module in self.modules.items():
                module.load_state_dict(state["modules"][name])
            for name, optimizer in self.optimizers.items():
                optimizer.load_state_dict(state["optimizers"][name])
                for group in optimizer.param_groups:  # the state may come from a CPU
                    group["capturable"] = self.recording
        except (KeyError, RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[-1].strip()
            expected = f"{self.name} for observations {self.spaces.observation} and goals {self.spaces.goal}"
            hint = "use the environment and the widths of the run that wrote it"
            raise BadInputError("checkpoint", f"networks that do not fit ({reason})", expected, hint) from None
        self.seed, self.acts = state["seed"], state["acts"]
        self._recorded.clear()  # the optimisers have new tensors

    def exports(self) -> dict[str, nn.Module]:
        """Return the modules that a user keeps, by name.

        Raises:
            NonFiniteError: See `state`.
        """
        self._check_finite()
        return dict(self.modules)

    def _inputs(self, batch: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        moved = {key: batch[key].to(self.device, non_blocking=True) for key in sorted(self.reads)}
        return moved | self.noise(len(next(iter(moved.values()))), generator)

    def _autocast_losses(self, batch: Mapping[str, Tensor]) -> Metrics:
        sharing = self.processes.sharing(self.modules.values()) if self.processes else nullcontext()
        # The cache is off: in torch 2.10 a weight that was first read without gradients gets no gradients afterwards.
        cast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.bf16, cache_enabled=False)
        with cast, sharing:
            return self.losses(batch)

    def _check_finite(self) -> None:
        self.finite.check()
        for name, module in self.modules.items():
            values = [value.isfinite().all() for value in module.state_dict().values() if value.is_floating_point()]
            if values and not bool(torch.stack(values).all()):
                raise NonFiniteError(f"parameters of the {name} of {self.name} are not finite")


def descend(
    losses: Mapping[str, Tensor],
    optimizers: Mapping[str, Optimizer],
    *,
    clip_norm: float | None = None,
    average: Callable[[Iterable[Tensor]], None] | None = None,
) -> None:
    """Take one step of each named optimiser, after one backward pass through the sum of the losses.

    Gradients of each loss must reach only the parameters of its optimiser (see the networks' argument `frozen`).

    Args:
        losses: Scalars, by the name of their optimiser.
        optimizers: Optimisers by name; those without a loss do not step.
        clip_norm: Maximum norm of the gradients of each optimiser.
        average: A function that replaces gradients by their means over several processes.
    """
    groups = {name: [p for group in optimizers[name].param_groups for p in group["params"]] for name in losses}
    for name in losses:
        optimizers[name].zero_grad()
    # `backward`, not `grad`: it gives gradients the strides of their parameters, which fused optimisers rely on.
    torch.autograd.backward(
        [torch.stack(list(losses.values())).sum()], inputs=[p for group in groups.values() for p in group]
    )
    if average is not None:
        average(p for group in groups.values() for p in group)
    for name, group in groups.items():
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(group, clip_norm)
        optimizers[name].step()


class RewardAgent(Agent):
    """Base class of agents for continuous actions that learn from the data's reward and do not relabel goals."""

    needs_reward = True
    continuous_only = True
    reads = frozenset({"observation", "action", "next_observation", "goal", "reward", "terminated"})
