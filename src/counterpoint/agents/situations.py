"""Networks over situations (an observation and a goal): policies and values, each with its own encoder of inputs."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from counterpoint.agents.networks import PLAIN, CategoricalActor, EnsembleMLP, Form, InputEncoder, actor, flat, noisy
from counterpoint.data.episode import Spaces


class StochasticPolicy(nn.Module):
    """pi(a | s, g) including an encoder of inputs: N(a; tanh mu, sigma), or log-probabilities of discrete actions.

    Args:
        spaces: Shapes of observations, goals and actions.
        hidden: Widths of the hidden layers.
        generator: Generator for the initial weights.
        min_scale: Number that is added to the standard deviation.
    """

    def __init__(
        self,
        spaces: Spaces,
        hidden: tuple[int, ...],
        generator: torch.Generator | None = None,
        *,
        min_scale: float = 0.0,
    ) -> None:
        super().__init__()
        self.min_scale = min_scale
        self.encode = InputEncoder(spaces, generator=generator)
        self.head = actor(spaces, self.encode.width, hidden, generator)

    def gaussian(self, observation: Tensor, goal: Tensor) -> tuple[Float[Tensor, "B A"], Float[Tensor, "B A"]]:
        """Return the mean before its tanh and the standard deviation, in float32."""
        loc, scale = self.head(self.encode.situation(observation, goal))
        return loc.float(), scale.float() + self.min_scale

    def log_probabilities(self, observation: Tensor, goal: Tensor) -> Float[Tensor, "B A"]:
        """Return the log-probabilities of discrete actions, in float32."""
        logits: Tensor = self.head(self.encode.situation(observation, goal))
        return logits.float()

    def act(
        self, observation: Tensor, goal: Tensor, generator: torch.Generator | None, spread: float = 0.0
    ) -> Float[Tensor, "B A"] | Int[Tensor, " B"]:
        """Return the policy's mode.

        With a generator, return a sample plus noise of standard deviation `spread`, clipped to [-1, 1].
        """
        if isinstance(self.head, CategoricalActor):
            scores = self.log_probabilities(observation, goal)
            return torch.multinomial(scores.exp(), 1, generator=generator)[:, 0] if generator else scores.argmax(-1)
        loc, scale = self.gaussian(observation, goal)
        # The sum of two independent Gaussians is one Gaussian.
        scale = torch.hypot(scale, scale.new_tensor(spread))
        return noisy(torch.tanh(loc), scale, generator) if generator else torch.tanh(loc)


class SituationMLP(nn.Module):
    """E perceptrons over (s, g) with one shared encoder: V, Q, or a deterministic policy before its tanh.

    Args:
        spaces: Shapes of observations, goals and actions.
        hidden: Widths of the hidden layers.
        outputs: Number of outputs (O).
        generator: Generator for the initial weights.
        members: Number of perceptrons (E).
        actions: Number of action dimensions (A) if the network also reads an action, as Q does; otherwise 0.
        form: The form of the hidden layers.
    """

    def __init__(
        self,
        spaces: Spaces,
        hidden: tuple[int, ...],
        outputs: int,
        generator: torch.Generator | None = None,
        *,
        members: int = 1,
        actions: int = 0,
        form: Form = PLAIN,
    ) -> None:
        super().__init__()
        self.encode = InputEncoder(spaces, generator=generator)
        sizes = [self.encode.width + actions, *hidden, outputs]
        self.body = EnsembleMLP(members, sizes, form=form, generator=generator)

    def forward(
        self, observation: Tensor, goal: Tensor, *action: Float[Tensor, "B A"], frozen: bool = False
    ) -> Float[Tensor, "E B O"]:
        """Return outputs; `frozen` lets gradients flow to the action but not to the parameters."""
        situation = self.encode.situation(observation, goal)
        found: Tensor = self.body(flat(situation.detach() if frozen else situation, *action), frozen=frozen)
        return found
