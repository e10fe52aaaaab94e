"""Interval quasimetric embeddings (IQE): a distance with a direction, for any pair of vectors.

Improved Representation of Asymmetrical Distances with Interval Quasimetric Embeddings (Wang & Isola, 2022). A vector
of C x K numbers is read as C components of K interval ends. For component c

    d_c(u, v) = | union over k of [u_ck, max(u_ck, v_ck)] |        the length of the union on the line

and the distance is their "maxmean" with a learned a in (0, 1):

    d(u, v) = a max_c d_c(u, v) + (1 - a) mean_c d_c(u, v)

Whatever the vectors, d(u, u) = 0, d(u, v) >= 0 and d(u, w) <= d(u, v) + d(v, w), while d(u, v) and d(v, u) may differ:
going down a slope is shorter than going up.

QRL's critic: states and goals as points of a space, actions as moves in it, and the distance between points.

`qrl.py` has the equations in which phi, psi, T and d stand.

QRL: quasimetric reinforcement learning. The distance that is as large as possible while no step is longer than 1.

Optimal Goal-Reaching Reinforcement Learning via Quasimetric Learning (Wang et al., 2023), TD InfoNCE's strongest
online baseline (section 4.1). d is an interval quasimetric on latents, z = phi(s); T is a model of latents:

    max_d  E[ d(s, g) ]  over random pairs,  subject to  E[ relu(d(s, s') - 1)^2 ] <= eps^2

    L(d)      = E[ softplus_beta(offset - d(s, g)) ] + lambda (E[ relu(d(s, s') - 1)^2 ] - eps^2)
    L(lambda) = - lambda (E[ relu(d(s, s') - 1)^2 ] - eps^2),    lambda = softplus(rho)
    L(T)      = E[ d(T(z, a), z')^2 + d(z', T(z, a))^2 ] / 2
    L(pi)     = E[ d(T(z, a), z_g) ],    a ~ pi(. | s, g)

softplus_beta(x) = log(1 + exp(beta x)) / beta flattens for pairs that are far enough apart. The triangle inequality
turns the local constraint into an upper bound by the shortest path; raising d makes the bound tight.

Goals that are whole states are encoded by phi. Goal coordinates m(s) name a set of states, all s' with m(s') = g; they
get an encoder of their own, psi, as further points of the space, and one more constraint with its own multiplier:

    E[ d(phi(s'), psi(m(s')))^2 ] <= eps^2                                            from a state to its goal costs 0

The largest distance under both is the shortest path to the nearest state of the set, as d(s, g) <= d(s, s') + d(s', g)
for each of them; nothing leads back from a goal to a state. Pairs of states are then pushed apart as well as pairs of a
state and a goal (the mean over both). One distance is largest for both; without the former, states collapse to a point
far from all goals, which L(T) rewards. phi is used for goals of the observations' shape, psi for others.
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

from counterpoint.agents.base import (
    Agent,
    AgentConfig,
    Metrics,
    Spaces,
    continuous_only,
    descend,
    kept,
    on_device,
    prepared,
)
from counterpoint.agents.critics import Sight
from counterpoint.agents.gcbc import Policy
from counterpoint.agents.networks import EnsembleMLP
from counterpoint.data.draws import GoalSpec

__all__ = [
    "QRL",
    "IntervalQuasimetric",
    "QRLConfig",
    "QuasimetricCritic",
    "dual_losses",
    "interval_union",
    "push_loss",
    "step_excess",
    "tanh_entropy",
]


def interval_union(start: Float[Tensor, "*batch K"], end: Float[Tensor, "*batch K"]) -> Float[Tensor, "*batch"]:
    """Length of the union over k of the intervals [start_k, max(start_k, end_k)].

    Sorted by start, each interval adds what lies beyond the farthest end so far.
    """
    starts, order = start.sort(dim=-1)
    ends = torch.maximum(start, end).gather(-1, order)
    reached = ends.cummax(dim=-1).values
    fresh = torch.relu(ends[..., 1:] - torch.maximum(starts[..., 1:], reached[..., :-1]))
    return ends[..., 0] - starts[..., 0] + fresh.sum(dim=-1)


class IntervalQuasimetric(nn.Module):
    """d(u, v) of embeddings of E critics, each with its own a.

    Args:
        members: E.
        components: C; a vector has C x K numbers.
    """

    def __init__(self, members: int, components: int) -> None:
        super().__init__()
        self.components = components
        self.mix = nn.Parameter(torch.zeros(members, 1))

    def forward(
        self, start: Float[Tensor, "E B _"], end: Float[Tensor, "E B _"], *, frozen: bool = False
    ) -> Float[Tensor, "E B"]:
        """Distances from `start` to `end`, in float32; `frozen` keeps gradients from a."""
        shape = (*start.shape[:-1], self.components, -1)
        lengths = interval_union(start.float().reshape(shape), end.float().reshape(shape))
        share = torch.sigmoid(self.mix.detach() if frozen else self.mix)
        return share * lengths.amax(dim=-1) + (1 - share) * lengths.mean(dim=-1)


class QuasimetricCritic(nn.Module):
    """phi, psi, T and d of E critics; convolutions for pictures are shared among them.

    Args:
        spaces: What is seen and done.
        hidden: Widths of the hidden layers of phi, psi and T.
        members: E.
        latent: D, the width of phi and psi.
        projector: Width of the hidden layer between latent and quasimetric.
        components: C of the quasimetric.
        component_width: K of the quasimetric.
        generator: Of the initial weights.
    """

    def __init__(
        self,
        spaces: Spaces,
        hidden: Sequence[int],
        *,
        members: int,
        latent: int,
        projector: int,
        components: int,
        component_width: int,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.whole_state = spaces.goal == spaces.observation
        self.sight = Sight(spaces, generator=generator)
        self.state_encoder = EnsembleMLP(members, [self.sight.observation_width, *hidden, latent], generator=generator)
        self.goal_encoder = (
            self.state_encoder
            if self.whole_state
            else EnsembleMLP(members, [self.sight.goal_width, *hidden, latent], generator=generator)
        )
        self.dynamics = EnsembleMLP(members, [latent + spaces.action, *hidden, latent], generator=generator)
        # T starts as "nothing changes".
        nn.init.zeros_(self.dynamics.weights[-1])
        nn.init.zeros_(self.dynamics.biases[-1])
        width = components * component_width
        self.projector = EnsembleMLP(members, [latent, projector, width], generator=generator)
        self.quasimetric = IntervalQuasimetric(members, components)

    def states(self, observation: Tensor) -> Float[Tensor, "E B D"]:
        """phi."""
        latents: Tensor = self.state_encoder(self.sight(observation))
        return latents

    def goals(self, goal: Tensor) -> Float[Tensor, "E B D"]:
        """phi of a goal that is a state, psi of goal coordinates."""
        latents: Tensor = self.goal_encoder(self.sight(goal))
        return latents

    def step(
        self, latent: Float[Tensor, "E B D"], action: Float[Tensor, "B A"], *, frozen: bool = False
    ) -> Float[Tensor, "E B D"]:
        """T(z, a), predicted as a change of z; `frozen` keeps gradients from its parameters."""
        inputs = torch.cat([latent, action.expand(latent.shape[0], *action.shape)], dim=-1)
        change: Tensor = self.dynamics(inputs, frozen=frozen)
        return latent + change

    def distances(
        self, *pairs: tuple[int, int], latents: list[Tensor], frozen: bool = False
    ) -> list[Float[Tensor, "E B"]]:
        """d from latent i to latent j for pairs (i, j), in one call; `frozen` as for `step`."""
        together = self.projector(torch.cat(latents, dim=1), frozen=frozen)
        projected = together.chunk(len(latents), dim=1)
        start = torch.cat([projected[i] for i, _ in pairs], dim=1)
        end = torch.cat([projected[j] for _, j in pairs], dim=1)
        found: Tensor = self.quasimetric(start, end, frozen=frozen)
        return list(found.chunk(len(pairs), dim=1))


class QRLConfig(AgentConfig):
    """Settings of QRL: the authors' for online Fetch tasks, with TD InfoNCE's hidden layers.

    Attributes:
        critics: How many critics; the policy fears the longest of their distances.
        latent: Width of phi and psi.
        projector: Width of the hidden layer between latent and quasimetric.
        components: C of the quasimetric.
        component_width: K of the quasimetric.
        offset: Distance beyond which pairs are pushed little.
        beta: Sharpness of that bend.
        epsilon: Root of the squared violation allowed.
        initial_multiplier: lambda at the start.
        dynamics_weight: Weight of L(T).
        critic_lr: Adam's rate for phi, psi, d and T.
        actor_lr: Adam's rate for the policy.
        multiplier_lr: Adam's rate for rho and for the weight of the entropy.
        entropy: Whether the policy's entropy is held at -A by a learned weight (online).
        cloning: Weight of the squared error to the data's actions (offline).
        exploration_noise: Standard deviation of noise added to drawn actions while collecting, before clipping.
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
    entropy: bool = True
    cloning: float = Field(default=0.0, ge=0)
    exploration_noise: float = Field(default=0.3, ge=0)


def push_loss(distance: Float[Tensor, "*batch"], *, offset: float, beta: float) -> Float[Tensor, "*batch"]:
    """softplus(offset - d) of sharpness beta, per pair: falls as pairs are pushed apart."""
    return functional.softplus(offset - distance, beta=beta)


def step_excess(distance: Float[Tensor, "*batch"], cost: float) -> Float[Tensor, "*batch"]:
    """relu(d - cost)^2, per pair: 0 where the distance is no longer than what the step costs."""
    return torch.relu(distance - cost).square()


def dual_losses(
    excess: Float[Tensor, "*constraints"], multiplier: Float[Tensor, "*constraints"], epsilon: float
) -> tuple[Float[Tensor, "*constraints"], Float[Tensor, "*constraints"]]:
    """What distances and multipliers minimise: lambda (excess - eps^2) with the one or the other held fixed."""
    violation = excess - epsilon**2
    return multiplier.detach() * violation, -multiplier * violation.detach()


def tanh_entropy(
    loc: Float[Tensor, "B A"], scale: Float[Tensor, "B A"], noise: Float[Tensor, "B A"]
) -> Float[Tensor, " B"]:
    """-log pi(a) at a = tanh(loc + scale noise), an estimate of the entropy from one draw."""
    before = loc + scale * noise
    # log(1 - tanh(x)^2), stable far out
    squash = 2 * (math.log(2) - before - functional.softplus(-2 * before))
    return (noise.square() / 2 + scale.log() + math.log(2 * math.pi) / 2 + squash).sum(dim=-1)


class QRL(Agent):
    """Quasimetric RL.

    Args:
        config: Its settings.
        spaces: What it sees and does; actions must be continuous.
        seed: Of initial weights and every draw.
        device: Where it lives.

    Raises:
        BadInputError: When actions are discrete.
    """

    name: ClassVar[str] = "qrl"

    def __init__(self, config: QRLConfig, spaces: Spaces, *, seed: int = 0, device: torch.device | str = "cpu") -> None:
        continuous_only(self.name, spaces)
        super().__init__(config, spaces, seed=seed, device=device)
        self.config = config
        weights = torch.Generator().manual_seed(seed)
        self.critic = QuasimetricCritic(
            spaces,
            config.hidden,
            members=config.critics,
            latent=config.latent,
            projector=config.projector,
            components=config.components,
            component_width=config.component_width,
            generator=weights,
        ).to(self.device)
        self.actor = Policy(spaces, config.hidden, weights).to(self.device)
        constraints = 1 if self.critic.whole_state else 2
        rho = math.log(math.expm1(config.initial_multiplier))
        self.dual = nn.ParameterDict(
            {"rho": torch.full((config.critics, constraints), rho), "log_entropy_weight": torch.zeros(())}
        ).to(self.device)
        self.modules = {"critic": self.critic, "actor": self.actor, "dual": self.dual}
        self.optimizers = {
            "critic": torch.optim.Adam(self.critic.parameters(), lr=config.critic_lr),
            "actor": torch.optim.Adam(self.actor.parameters(), lr=config.actor_lr),
            "dual": torch.optim.Adam(self.dual.parameters(), lr=config.multiplier_lr),
        }
        self._losses = prepared(self.losses, config, self.device)

    def sampling(self) -> GoalSpec:
        """Transitions, random goals, and future goals for the policy."""
        keys = {"observation", "action", "next_observation", "random_goal", "future_goal"}
        if not self.critic.whole_state:
            keys.add("next_goal")
        return GoalSpec(frozenset(keys), discount=self.config.discount)

    def losses(self, batch: Mapping[str, Tensor], noise: Float[Tensor, "P A"]) -> Metrics:
        """Losses of critic, policy and multipliers; `noise` is standard normal, P = 2 B."""
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
        actor, entropy_weight, metrics = self._policy_losses(batch, now.detach(), random_goal.detach(), noise)
        # A sum over critics, as each has an optimiser of its own in the authors' code.
        loss = members * (push + config.dynamics_weight * dynamics) + constraint.sum()
        return {
            "loss": loss,
            "critic/push": push,
            "critic/dynamics": dynamics,
            "critic/distance_random": apart.mean(),
            "critic/distance_step": step.mean(),
            "critic/step_excess": violations[:, 0].mean(),
            "critic/goal_excess": violations[:, -1].mean(),
            "critic/multiplier": multiplier[:, 0].mean(),
            "dual/loss": dual.sum() + entropy_weight,
            **metrics,
            "actor/loss": actor,
        }

    def _policy_losses(
        self, batch: Mapping[str, Tensor], now: Tensor, random_goal: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor, Metrics]:
        config, critic = self.config, self.critic
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
        shortfall = -self.spaces.action - entropy
        weight = self.dual["log_entropy_weight"].exp()
        to_future = action.chunk(2)[1]
        cloning = functional.mse_loss(to_future, batch["action"])
        loss = farthest + config.cloning * cloning
        if config.entropy:
            loss = loss + weight.detach() * shortfall
        entropy_weight = -weight * shortfall.detach() * float(config.entropy)
        metrics = {"actor/distance": farthest, "actor/entropy": entropy, "actor/cloning": cloning}
        return loss, entropy_weight, metrics

    def update(self, batch: Mapping[str, Tensor], step: int) -> Metrics:
        """One step each of distances, policy and multipliers, all from the same parameters."""
        metrics = self._losses(on_device(batch, self.sampling().keys, self.device), self._noise(batch))
        losses = {"critic": metrics["loss"], "actor": metrics["actor/loss"], "dual": metrics["dual/loss"]}
        self._watch(losses)
        descend(losses, self.optimizers)
        return {name: value.detach() for name, value in metrics.items()}

    @torch.no_grad()
    def evaluate(self, batch: Mapping[str, Tensor]) -> dict[str, float]:
        """The losses on a batch."""
        with kept(self.generator):
            metrics = self._losses(on_device(batch, self.sampling().keys, self.device), self._noise(batch))
        return {name: float(value) for name, value in metrics.items()}

    def _noise(self, batch: Mapping[str, Tensor]) -> Tensor:
        shape = (2 * len(batch["observation"]), self.spaces.action)
        return torch.randn(shape, generator=self.generator, device=self.device)

    def choose(self, observation: Tensor, goal: Tensor, rows: Sequence[int], explore: bool) -> Tensor:
        """See `Agent.choose`."""
        loc, scale = self.actor.gaussian(observation, goal)
        action = torch.tanh(loc)
        if explore:
            inner, outer = torch.randn((2, *loc.shape), generator=self.generator, device=self.device)
            action = torch.tanh(loc + scale * inner) + self.config.exploration_noise * outer
        return action.clamp(-1, 1)
