"""One CUDA graph for a whole update: hundreds of small kernels launched at the cost of one.

An update of an agent is some hundred kernels of a few microseconds each, and to launch them one by one takes longer
than to run them. Everything an update writes (parameters, moments, gradients) keeps its place in memory, so that the
sequence can be recorded once and replayed on new inputs, which are copied to where the recorded ones were.

What contrastive agents share: twin critic, policy, the order of one update, and acting.

One update takes both gradients at the old parameters, then steps both, then lets the target follow the new critic::

    critic loss (old critic, old policy, old target)  ->  Adam  ->  new critic  ->  target += tau (critic - target)
    actor loss  (old critic, old policy)              ->  Adam  ->  new policy

A subclass says what its critic loss is and how well an action reaches a goal; see `td_infonce.py` first.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from counterpoint.agents.base import Agent, AgentConfig, Metrics, Spaces, follow, kept, on_device
from counterpoint.agents.critics import ContrastiveCritic, Seen, action_vectors
from counterpoint.agents.networks import CategoricalActor, GaussianActor, flat
from counterpoint.data.draws import GoalSpec, Tail
from counterpoint.objectives.base import NonFiniteError
from counterpoint.objectives.td_infonce import cloned_actor_loss

__all__ = ["CapturedUpdate", "ContrastiveAgent", "ContrastiveConfig"]


WARM_UPS = 3


class CapturedUpdate:
    """A function of tensors, run as it is three times (libraries choose their kernels then), recorded, then replayed.

    Args:
        function: Reads its arguments, changes the agent in place and returns scalars by name. It must not read a value
            back to the host, nor draw random numbers.
    """

    def __init__(self, function: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]) -> None:
        self._function = function
        self._runs = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: dict[str, Tensor] = {}
        self._names: list[str] = []
        self._outputs = torch.empty(0)

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run on new inputs of the shapes of the first ones."""
        if self._runs < WARM_UPS:
            self._runs += 1
            return self._beside(inputs)
        if self._graph is None:
            self._record(inputs)
        assert self._graph is not None
        for name, value in inputs.items():
            self._inputs[name].copy_(value, non_blocking=True)
        self._graph.replay()
        return dict(zip(self._names, self._outputs.clone().unbind(), strict=True))

    def _beside(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """On a stream of its own, as the recording will be."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            found = self._function(inputs)
        torch.cuda.current_stream().wait_stream(stream)
        return found

    def _record(self, inputs: Mapping[str, Tensor]) -> None:
        self._inputs = {name: value.clone() for name, value in inputs.items()}
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = self._function(self._inputs)
            self._names = list(found)
            self._outputs = torch.stack(list(found.values()))
        self._graph = graph


CHECK_EVERY = 100
NEXT_NOISE, ACTOR_NOISE = "next_noise", "actor_noise"


class ContrastiveConfig(AgentConfig):
    """Configuration of a contrastive agent; the defaults are TD InfoNCE's Table 2 (a subclass may differ, and says so).

    `bf16` runs the products of the networks in bfloat16; logits, losses and parameters stay float32. `compile` records
    the update as one CUDA graph on a GPU; a CPU has nothing to gain from it and runs as without.

    Attributes:
        representation: d, the length of phi and psi.
        normalise: Whether phi and psi are unit vectors.
        temperature: What their product is divided by.
        actor_lr: Adam's rate for the policy.
        critic_lr: Adam's rate for phi and psi.
        tau: How far the target follows the critic with each update (unused where there is no target).
        actor_goals: Which goals the policy practises: `random` (online), `future` (offline, Table 3), `half` of each.
        behaviour_cloning: lambda of Appendix D.3, the share of behaviour cloning in the actor loss (offline .1).
        tail: What becomes of futures beyond the end of an episode.
    """

    representation: int = Field(default=16, ge=1)
    normalise: bool = True
    temperature: float = Field(default=1.0, gt=0)
    actor_lr: float = Field(default=5e-5, gt=0)
    critic_lr: float = Field(default=3e-4, gt=0)
    tau: float = Field(default=0.005, gt=0, le=1)
    actor_goals: Literal["random", "future", "half"] = "random"
    behaviour_cloning: float = Field(default=0.0, ge=0, le=1)
    tail: Tail = "renormalise"


class ContrastiveAgent(Agent):
    """A policy, a twin critic f = phi . psi and, where the loss bootstraps, the critic's moving average.

    Args:
        config: The agent's configuration.
        spaces: What it sees and does.
        seed: Of initial weights and of every random number.
        device: Where it lives.
    """

    commanded: ClassVar[bool] = False
    """Whether phi reads the goal the policy is commanded to reach."""
    bootstraps: ClassVar[bool] = True
    """Whether the critic loss needs next actions and a target."""
    reads: ClassVar[frozenset[str]]
    """Keys of the batch that the critic loss reads."""

    def __init__(
        self, config: ContrastiveConfig, spaces: Spaces, *, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(config, spaces, seed=seed, device=device)
        self.config = config
        # Weights are drawn on the CPU, so that they are the same on every device.
        weights = torch.Generator().manual_seed(
            int(torch.randint(2**62, (), generator=self.generator, device=self.device))
        )
        self.critic = ContrastiveCritic(
            spaces,
            config.hidden,
            config.representation,
            commanded=self.commanded,
            normalise=config.normalise,
            temperature=config.temperature,
            generator=weights,
        ).to(self.device)
        sight = self.critic.sight
        kind = CategoricalActor if spaces.discrete else GaussianActor
        self.actor: CategoricalActor | GaussianActor = kind(
            sight.observation_width + sight.goal_width, spaces.action, config.hidden, generator=weights
        ).to(self.device)
        self.modules = {"critic": self.critic, "actor": self.actor}
        if self.bootstraps:
            self.target = copy.deepcopy(self.critic).requires_grad_(False)
            self.modules["target"] = self.target
        rates = {"critic": config.critic_lr, "actor": config.actor_lr}
        self.optimizers = {
            name: torch.optim.Adam(
                self.modules[name].parameters(), lr=lr, fused=True, capturable=self.device.type == "cuda"
            )
            for name, lr in rates.items()
        }
        self._finite = torch.ones((), dtype=torch.bool, device=self.device)
        self._recorded = self._recorder()

    @abstractmethod
    def critic_loss(
        self, seen: Seen, batch: Mapping[str, Tensor], noise: Float[Tensor, "B A"]
    ) -> tuple[Float[Tensor, ""], Metrics, dict[str, Float[Tensor, "2 B D"]]]:
        """The critic's loss, its metrics, and psi of whichever keys of the batch it encoded."""

    @abstractmethod
    def reaching(self, phi: Float[Tensor, "2 K*B D"], psi: Float[Tensor, "2 B D"]) -> Float[Tensor, "K B"]:
        """How badly actions reach goals, to be minimised: K candidate actions (the slower axis) for B goals."""

    def least_own_logit(self, phi: Float[Tensor, "2 K*B D"], psi: Float[Tensor, "2 B D"]) -> Float[Tensor, "K B"]:
        """min over twins of each candidate action's logit for the goal of its own row."""
        candidates = phi.shape[1] // psi.shape[1]
        logits = self.critic.matched(phi, psi.repeat(1, candidates, 1))
        return logits.amin(-1).view(candidates, -1)

    def actor_loss(
        self,
        seen: Seen,
        batch: Mapping[str, Tensor],
        known: Mapping[str, Float[Tensor, "2 B D"]],
        noise: Float[Tensor, "M A"],
    ) -> Float[Tensor, ""]:
        """(1 - lambda) E_{a ~ pi}[reaching] + lambda behaviour cloning; gradients reach the policy alone.

        Continuous actions are drawn through `noise`. Discrete ones are summed out exactly,
        sum_a pi(a | s, g) reaching(s, a, g), and cloned by -log pi(a_data | s, g).

        Args:
            seen: The batch as the critic sees it.
            batch: The batch.
            known: psi of keys that the critic loss has encoded already.
            noise: For M = B rows, or 2 B where `actor_goals` is `half`.
        """
        keys = self._actor_keys()
        futures = [
            known[key].detach() if key in known else self.critic.encode_futures(seen[key], frozen=True) for key in keys
        ]
        psi = torch.cat(futures, dim=1).detach()
        observation = torch.cat([seen["observation"]] * len(keys)).detach()
        goal = torch.cat([seen[key] for key in keys]).detach()
        action = torch.cat([batch["action"]] * len(keys))
        inputs = flat(observation, goal)
        share = self.config.behaviour_cloning
        if isinstance(self.actor, GaussianActor):
            drawn = self.actor.sample(inputs, noise)
            reached = self.reaching(self._phi(observation, drawn, goal), psi)[0]
            return cloned_actor_loss(reached, drawn, action, weight=share) if share else reached.mean()
        log_policy: Tensor = self.actor(inputs)
        reached = (log_policy.exp().T * self._reaching_of_each_action(observation, goal, psi)).sum(0)
        cloning = -log_policy.gather(1, action[:, None])[:, 0]
        return ((1 - share) * reached + share * cloning).mean()

    def sampling(self) -> GoalSpec:
        """The keys of both losses."""
        keys = self.reads | {"observation", "action"} | set(self._actor_keys())
        return GoalSpec(keys=frozenset(keys), discount=self.config.discount, tail=self.config.tail)

    def update(self, batch: Mapping[str, Tensor], step: int) -> Metrics:
        """One step of critic, policy and target.

        Raises:
            NonFiniteError: When a loss is not finite: at once on a CPU, with parameters untouched; within 100 updates
                elsewhere, where to look at a number is to wait for it (and whenever the agent is saved).
        """
        moved = on_device(batch, self.sampling().keys, self.device)
        following, acting = self._noise(len(moved["action"]))
        take = self._recorded or self._take_step
        metrics = take({**moved, NEXT_NOISE: following, ACTOR_NOISE: acting})
        if step % CHECK_EVERY == 0:
            self._raise_unless_finite()
        return metrics

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned.

        Raises:
            BadInputError: When the state is another agent's, or of other sizes.
        """
        super().load_state(state)
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["capturable"] = self.device.type == "cuda"
        self._recorded = self._recorder()

    def _recorder(self) -> CapturedUpdate | None:
        """Made anew when a state is loaded: a recording writes where Adam's moments were."""
        wanted = self.config.compile and self.device.type == "cuda"
        return CapturedUpdate(self._take_step) if wanted else None

    def _take_step(self, inputs: Mapping[str, Tensor]) -> Metrics:
        loss, metrics = self._losses(inputs, (inputs[NEXT_NOISE], inputs[ACTOR_NOISE]))
        self._finite &= torch.isfinite(loss.detach())
        if self.device.type == "cpu":
            self._raise_unless_finite()
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        torch.autograd.backward([loss])
        for optimizer in self.optimizers.values():
            optimizer.step()
        if self.bootstraps:
            follow(self.target, self.critic, self.config.tau)
        return metrics

    def evaluate(self, batch: Mapping[str, Tensor]) -> dict[str, float]:
        """The losses on a batch; changes nothing, random state included."""
        moved = on_device(batch, self.sampling().keys, self.device)
        with kept(self.generator), torch.no_grad():
            _, metrics = self._losses(moved, self._noise(len(moved["action"])))
        return {name: float(value) for name, value in metrics.items()}

    def choose(self, observation: Tensor, goal: Tensor, rows: Sequence[int], explore: bool) -> Tensor:
        """See `Agent.choose`."""
        seen, wanted = (self.critic.sight(value) for value in (observation, goal))
        inputs = flat(seen, wanted)
        return self.actor.sample(inputs, self._draw(len(inputs))) if explore else self.actor.mode(inputs)

    def _losses(self, batch: Mapping[str, Tensor], noise: tuple[Tensor, Tensor]) -> tuple[Float[Tensor, ""], Metrics]:
        seen = Seen(batch, self.critic.sight)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.bf16):
            critic, metrics, known = self.critic_loss(seen, batch, noise[0])
            actor = self.actor_loss(seen, batch, known, noise[1])
        # The two share no parameters, so one backward pass through their sum takes each one's own gradient.
        loss = critic + actor
        named = {"loss": loss, "critic/loss": critic, "actor/loss": actor}
        return loss, {name: value.detach() for name, value in (named | metrics).items()}

    def _reaching_of_each_action(
        self, observation: Tensor, goal: Tensor, psi: Float[Tensor, "2 B D"]
    ) -> Float[Tensor, "A B"]:
        count, rows = self.spaces.action, len(observation)
        every = torch.eye(count, device=self.device, dtype=psi.dtype).repeat_interleave(rows, dim=0)
        with torch.no_grad():
            phi = self._phi(observation.repeat(count, 1), every, goal.repeat(count, 1))
            return self.reaching(phi, psi)

    def _phi(self, observation: Tensor, action: Tensor, goal: Tensor) -> Float[Tensor, "2 M D"]:
        parts = (observation, action, goal) if self.commanded else (observation, action)
        return self.critic.encode_actions(*parts, frozen=True)

    def _next_actions(self, seen: Seen, goal: str, noise: Float[Tensor, "B A"]) -> Float[Tensor, "B A"]:
        """a' ~ pi(. | s', g), as the critic reads it."""
        with torch.no_grad():
            drawn = self.actor.sample(flat(seen["next_observation"], seen[goal]), noise)
        return action_vectors(drawn, self.spaces)

    def _actor_keys(self) -> tuple[str, ...]:
        both = ("future_goal", "random_goal")
        return {"future": both[:1], "random": both[1:], "half": both}[self.config.actor_goals]

    def _noise(self, rows: int) -> tuple[Tensor, Tensor]:
        return self._draw(rows), self._draw(rows * len(self._actor_keys()))

    def _draw(self, rows: int) -> Float[Tensor, "M A"]:
        empty = torch.empty(rows, self.spaces.action, device=self.device)
        if self.spaces.discrete:
            return -empty.exponential_(generator=self.generator).log()
        return empty.normal_(generator=self.generator)

    def _look(self) -> None:
        self._raise_unless_finite()
        super()._look()

    def _raise_unless_finite(self) -> None:
        if not bool(self._finite):
            self._finite.fill_(True)
            raise NonFiniteError(f"the loss of {self.name} is not finite")
