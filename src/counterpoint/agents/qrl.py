"""QRL: quasimetric reinforcement learning, which learns the largest distance under which no step is longer than 1.

Optimal Goal-Reaching Reinforcement Learning via Quasimetric Learning (Wang et al., 2023), TD InfoNCE's strongest
online baseline (section 4.1). d is an interval quasimetric on latents, z = phi(s); T is a dynamics model of latents:

    max_d  E[ d(s, g) ]  over random pairs,  subject to  E[ relu(d(s, s') - 1)^2 ] <= eps^2

    L(d)      = E[ softplus_beta(offset - d(s, g)) ] + lambda (E[ relu(d(s, s') - 1)^2 ] - eps^2)
    L(lambda) = - lambda (E[ relu(d(s, s') - 1)^2 ] - eps^2),    lambda = softplus(rho)
    L(T)      = E[ d(T(z, a), z')^2 + d(z', T(z, a))^2 ] / 2
    L(pi)     = E[ d(T(z, a), z_g) ],    a ~ pi(. | s, g)

softplus_beta(x) = log(1 + exp(beta x)) / beta is flat for pairs that are far enough apart. By the triangle inequality,
the local constraint bounds d by the shortest path; maximising d makes the bound tight.

Goals that are whole states are encoded by phi. Goal coordinates g stand for a set of states, all s' with m(s') = g. A
separate encoder, psi, maps them to further points of the space. One more constraint, with its own multiplier, is added:

    E[ d(phi(s'), psi(m(s')))^2 ] <= eps^2                                            from a state to its goal costs 0

The largest distance under both constraints is the shortest path to the nearest state of the set, since d(s, g) <=
d(s, s') + d(s', g) for each such state; no constraint leads back from a goal to a state. The loss pushes apart pairs of
states as well as pairs of a state and a goal (the mean over both); the same distance maximises both. Without the pairs
of states, all states would collapse to a point far from all goals, since L(T) rewards that. phi encodes goals of the
observations' shape, psi encodes other goals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from counterpoint.agents.base import Agent, AgentConfig, Metrics
from counterpoint.agents.networks import EnsembleMLP, GaussianActor, InputEncoder, initialise, noisy
from counterpoint.agents.situations import StochasticPolicy
from counterpoint.data.episode import Spaces


def interval_union(start: Float[Tensor, "*batch K"], end: Float[Tensor, "*batch K"]) -> Float[Tensor, "*batch"]:
    """Return the length of the union over k of the intervals [start_k, max(start_k, end_k)].

    Intervals are sorted by start; each adds its part beyond the farthest end so far.
    """
    starts, order = start.sort(dim=-1)
    ends = torch.maximum(start, end).gather(-1, order)
    reached = ends.cummax(dim=-1).values
    fresh = torch.relu(ends[..., 1:] - torch.maximum(starts[..., 1:], reached[..., :-1]))
    return ends[..., 0] - starts[..., 0] + fresh.sum(dim=-1)


class IntervalQuasimetric(nn.Module):
    """Interval quasimetric embeddings (Wang & Isola, 2022): distances d(u, v) of E critics.

    A vector of C x K numbers consists of C components of K interval ends. d_c(u, v) is the length of the union over k
    of [u_ck, max(u_ck, v_ck)]. The distance is alpha max_c d_c + (1 - alpha) mean_c d_c with a learned alpha in (0, 1)
    for each critic. So d(u, u) = 0 and d(u, w) <= d(u, v) + d(v, w), while d(u, v) and d(v, u) may differ.

    Args:
        members: Number of critics (E).
        components: Number of components (C); a vector has C x K numbers.
    """

    def __init__(self, members: int, components: int) -> None:
        super().__init__()
        self.components = components
        self.mix = nn.Parameter(torch.zeros(members, 1))

    def forward(
        self, start: Float[Tensor, "E B _"], end: Float[Tensor, "E B _"], *, frozen: bool = False
    ) -> Float[Tensor, "E B"]:
        """Return distances from `start` to `end`, in alpha's precision; with `frozen=True`, alpha gets no gradient."""
        shape, kind = (*start.shape[:-1], self.components, -1), self.mix.dtype
        lengths = interval_union(start.to(kind).reshape(shape), end.to(kind).reshape(shape))
        share = torch.sigmoid(self.mix.detach() if frozen else self.mix)
        return share * lengths.amax(dim=-1) + (1 - share) * lengths.mean(dim=-1)


class QuasimetricCritic(nn.Module):
    """phi, psi, T and d of E critics, which share convolutions for images.

    Args:
        spaces: Shapes of observations, goals and actions.
        config: Widths, and the number of critics E.
        generator: Generator for the initial weights.
    """

    def __init__(self, spaces: Spaces, config: QRLConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()

        def mlp(*sizes: int) -> EnsembleMLP:
            return EnsembleMLP(config.critics, sizes, generator=generator)

        self.whole_state = spaces.goal == spaces.observation
        self.encode = InputEncoder(spaces, generator=generator)
        self.state_encoder = mlp(self.encode.observation_width, *config.hidden, config.latent)
        self.goal_encoder = self.state_encoder
        if not self.whole_state:
            self.goal_encoder = mlp(self.encode.goal_width, *config.hidden, config.latent)
        self.dynamics = mlp(config.latent + spaces.action, *config.hidden, config.latent)
        self.projector = mlp(config.latent, config.projector, config.components * config.component_width)
        initialise(self, "glorot", generator)
        # T starts as the identity.
        nn.init.zeros_(self.dynamics.weights[-1])
        self.quasimetric = IntervalQuasimetric(config.critics, config.components)

    def states(self, observation: Tensor) -> Float[Tensor, "E B D"]:
        """Return phi of observations."""
        latents: Tensor = self.state_encoder(self.encode(observation))
        return latents

    def goals(self, goal: Tensor) -> Float[Tensor, "E B D"]:
        """Return phi of goals that are states, or psi of goal coordinates."""
        latents: Tensor = self.goal_encoder(self.encode(goal))
        return latents

    def step(
        self, latent: Float[Tensor, "E B D"], action: Float[Tensor, "B A"], *, frozen: bool = False
    ) -> Float[Tensor, "E B D"]:
        """Return T(z, a), predicted as a change of z; with `frozen`, the parameters of T get no gradient."""
        inputs = torch.cat([latent, action.expand(latent.shape[0], *action.shape)], dim=-1)
        change: Tensor = self.dynamics(inputs, frozen=frozen)
        return latent + change

    def distances(
        self, *pairs: tuple[int, int], latents: list[Tensor], frozen: bool = False
    ) -> list[Float[Tensor, "E B"]]:
        """Return d from latent i to latent j for pairs (i, j), in one call; `frozen` as for `step`."""
        together = self.projector(torch.cat(latents, dim=1), frozen=frozen)
        projected = together.chunk(len(latents), dim=1)
        start = torch.cat([projected[i] for i, _ in pairs], dim=1)
        end = torch.cat([projected[j] for _, j in pairs], dim=1)
        found: Tensor = self.quasimetric(start, end, frozen=frozen)
        return list(found.chunk(len(pairs), dim=1))


class QRLConfig(AgentConfig):
    """Settings of QRL: the authors' values for online Fetch tasks, with TD InfoNCE's hidden layers.

    Attributes:
        critics: Number of critics; the policy minimises the longest of their distances.
        latent: Width of phi and psi.
        projector: Width of the hidden layer between latent and quasimetric.
        components: Number of components of the quasimetric (C).
        component_width: Number of interval ends per component of the quasimetric (K).
        offset: Distance beyond which pairs are hardly pushed apart.
        beta: Sharpness of the transition at `offset`.
        epsilon: Allowed root mean square of the constraint's violation.
        initial_multiplier: Initial value of the multiplier lambda.
        dynamics_weight: Weight of the dynamics loss L(T).
        critic_lr: Adam's learning rate for phi, psi, d and T.
        actor_lr: Adam's learning rate for the policy.
        multiplier_lr: Adam's learning rate for rho, which determines the multiplier.
        entropy_lr: Adam's learning rate for the logarithm of the entropy's weight.
        entropy: Hold the policy's entropy at -A by a learned weight, for online training; A is the number of action
            dimensions.
        cloning: Weight of the squared error between the policy's and the data's actions, for offline training.
        exploration_noise: Standard deviation of the noise added to sampled actions in collection, before clipping.
    """

    critics: int = Field(default=2, ge=1)
    latent: int = Field(default=128, ge=1)
    projector: int = Field(default=512, ge=1)
    components: int = Field(default=64, ge=1)
    component_width: int = Field(default=32, ge=1)
    offset: float = Field(default=15.0, ge=0)
    beta: float = Field(default=0.1, gt=0)
    epsilon: float = Field(default=0.25, gt=0)
    initial_multiplier: float = Field(default=0.01, gt=0)
    dynamics_weight: float = Field(default=0.1, gt=0)
    critic_lr: float = Field(default=1e-4, gt=0)
    actor_lr: float = Field(default=3e-5, gt=0)
    multiplier_lr: float = Field(default=1e-2, gt=0)
    entropy_lr: float = Field(default=3e-4, gt=0)
    entropy: bool = True
    cloning: float = Field(default=0.0, ge=0)
    exploration_noise: float = Field(default=0.3, ge=0)


def push_loss(distance: Float[Tensor, "*batch"], *, offset: float, beta: float) -> Float[Tensor, "*batch"]:
    """Return softplus(offset - d) with sharpness beta for each pair; it falls as pairs are pushed apart."""
    return functional.softplus(offset - distance, beta=beta)


def step_excess(distance: Float[Tensor, "*batch"], cost: float) -> Float[Tensor, "*batch"]:
    """Return relu(d - cost)^2 for each pair; 0 if the distance is at most the step's cost."""
    return torch.relu(distance - cost).square()


def dual_losses(
    excess: Float[Tensor, "*constraints"], multiplier: Float[Tensor, "*constraints"], epsilon: float
) -> tuple[Float[Tensor, "*constraints"], Float[Tensor, "*constraints"]]:
    """Return lambda (excess - eps^2), with lambda fixed, to train distances, and the negative to train multipliers."""
    violation = excess - epsilon**2
    return multiplier.detach() * violation, -multiplier * violation.detach()


def tanh_entropy(
    loc: Float[Tensor, "B A"], scale: Float[Tensor, "B A"], noise: Float[Tensor, "B A"]
) -> Float[Tensor, " B"]:
    """Return -log pi(a) at a = tanh(loc + scale noise), an estimate of the entropy from one sample."""
    before = loc + scale * noise
    # log(1 - tanh(x)^2), stable for large |x|
    squash = 2 * (math.log(2) - before - functional.softplus(-2 * before))
    return (noise.square() / 2 + scale.log() + math.log(2 * math.pi) / 2 + squash).sum(dim=-1)


class QRL(Agent):
    """Quasimetric RL, for continuous actions; arguments as for `Agent`."""

    name: ClassVar[str] = "qrl"
    value_name: ClassVar[str] = "minus the distance d(s, g), maximum over critics"
    continuous_only: ClassVar[bool] = True
    config: QRLConfig

    def build(self, weights: torch.Generator) -> None:
        """Create the critic, the policy and the multipliers."""
        config, spaces = self.config, self.spaces
        self.critic = self.network("critic", QuasimetricCritic(spaces, config, weights), config.critic_lr)
        policy = StochasticPolicy(spaces, config.hidden, weights)
        initialise(policy, "glorot", weights)
        assert isinstance(policy.head, GaussianActor)
        nn.init.zeros_(policy.head.heads.weights[-1])  # as by the authors: at first a broad distribution for all inputs
        self.actor = self.network("actor", policy, config.actor_lr)
        constraints = 1 if self.critic.whole_state else 2
        rho = torch.full((config.critics, constraints), math.log(math.expm1(config.initial_multiplier)))
        self.dual = self.network("dual", nn.ParameterDict({"rho": rho}), config.multiplier_lr)
        if config.entropy:
            weight = nn.ParameterDict({"log": torch.zeros(())})
            self.entropy_weight = self.network("entropy_weight", weight, config.entropy_lr)
        keys = {"observation", "action", "next_observation", "random_goal", "future_goal"}
        self.reads = frozenset(keys if self.critic.whole_state else keys | {"next_goal"})

    def noise(self, rows: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Sample the policy's noise for random and for future goals."""
        return {"noise": torch.randn(2 * rows, self.spaces.action, generator=generator, device=self.device)}

    def losses(self, batch: Mapping[str, Tensor]) -> Metrics:
        """Compute the losses of critic, policy and multipliers."""
        config, critic = self.config, self.critic
        states = critic.states(torch.cat([batch["observation"], batch["next_observation"]]))
        now, later = states.chunk(2, dim=1)
        wanted = [batch["random_goal"]] if critic.whole_state else [batch["random_goal"], batch["next_goal"]]
        random_goal, *reached = critic.goals(torch.cat(wanted)).chunk(len(wanted), dim=1)
        latents = [now, later, random_goal, critic.step(now, batch["action"])]
        pairs = [(0, 2), (0, 1), (3, 1), (1, 3)]
        if not critic.whole_state:
            latents += [*reached, later.roll(1, dims=1)]
            pairs += [(1, 4), (0, 5)]
        apart, step, to_next, from_next, *more = critic.distances(*pairs, latents=latents)
        membership, others = more[:1], more[1:]
        pushed = torch.stack([apart, *others])
        push = push_loss(pushed, offset=config.offset, beta=config.beta).mean()
        excess = [step_excess(step, 1.0), *(step_excess(distance, 0.0) for distance in membership)]
        violations = torch.stack([each.mean(dim=1) for each in excess], dim=1)
        multiplier = functional.softplus(self.dual["rho"])
        constraint, dual = dual_losses(violations, multiplier, config.epsilon)
        dynamics = (to_next.square() + from_next.square()).mean() / 2
        members = config.critics
        policy = self._policy_losses(batch, now.detach(), random_goal.detach())
        # A sum over critics, since each critic has a separate optimiser in the authors' code.
        loss = members * (push + config.dynamics_weight * dynamics) + constraint.sum()
        return {
            "loss": loss,
            "critic/loss": loss,
            "critic/push": push,
            "critic/dynamics": dynamics,
            "critic/distance_random": apart.mean(),
            "critic/distance_step": step.mean(),
            "critic/step_excess": violations[:, 0].mean(),
            "critic/goal_excess": violations[:, -1].mean(),
            "critic/multiplier": multiplier[:, 0].mean(),
            "dual/loss": dual.sum(),
            **policy,
        }

    def _policy_losses(self, batch: Mapping[str, Tensor], now: Tensor, random_goal: Tensor) -> Metrics:
        config, critic, noise = self.config, self.critic, batch["noise"]
        observation = torch.cat([batch["observation"]] * 2)
        goal = torch.cat([batch["random_goal"], batch["future_goal"]])
        loc, scale = self.actor.gaussian(observation, goal)
        action = torch.tanh(loc + scale * noise)
        with torch.no_grad():
            goals = torch.cat([random_goal, critic.goals(batch["future_goal"])], dim=1)
        predicted = critic.step(torch.cat([now, now], dim=1), action, frozen=True)
        (distance,) = critic.distances((0, 1), latents=[predicted, goals], frozen=True)
        farthest = distance.amax(dim=0).mean()
        entropy = tanh_entropy(loc, scale, noise).mean()
        to_future = action.chunk(2)[1]
        cloning = functional.mse_loss(to_future, batch["action"])
        loss = farthest + config.cloning * cloning
        metrics = {"actor/distance": farthest, "actor/entropy": entropy, "actor/cloning": cloning}
        if config.entropy:
            shortfall = -self.spaces.action - entropy
            weight = self.entropy_weight["log"].exp()
            loss = loss + weight.detach() * shortfall
            metrics["entropy_weight/loss"] = -weight * shortfall.detach()
        return {**metrics, "actor/loss": loss}

    def value(self, observation: Tensor, goal: Tensor) -> Float[Tensor, " B"]:
        """Return minus the longest of the critics' distances, as the policy reads them."""
        latents = [self.critic.states(observation), self.critic.goals(goal)]
        (distance,) = self.critic.distances((0, 1), latents=latents)
        return -distance.amax(dim=0)

    def choose(self, observation: Tensor, goal: Tensor, rows: Sequence[int], explore: torch.Generator | None) -> Tensor:
        """Sample from the policy and add noise; without the generator `explore`, return the policy's mode."""
        loc, scale = self.actor.gaussian(observation, goal)
        if explore is None:
            return torch.tanh(loc)
        noise = torch.randn(loc.shape, generator=explore, device=self.device)
        return noisy(torch.tanh(loc + scale * noise), self.config.exploration_noise, explore)
