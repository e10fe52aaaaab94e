"""Policies that are extracted from a value, as in OGBench: weighted regression, and the critic's gradient with cloning.

Park, Frans, Eysenbach and Levine, "OGBench: Benchmarking Offline Goal-Conditioned RL", ICLR 2025 (Appendix C), and its
code (`impls`, commit 1d41409). With the policy pi(a | s, g) = N(mu(s, g), 1), whose samples are clipped to [-1, 1], and
an advantage A or a critic Q::

    AWR       - E[ min(exp(alpha A(s, a, g)), 100) log pi(a | s, g) ]
    DDPG+BC   - E[ Q(s, clip(mu(s, g)), g) ] / sg E|Q|  -  alpha E[ log pi(a | s, g) ]
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.agents.networks import Activation, EnsembleMLP, Form, InputEncoder, initialise
from counterpoint.data.episode import Spaces

LARGEST_WEIGHT = 100.0
"""The maximum of AWR's weights."""


class UnitGaussian(nn.Module):
    """N(mu, 1) with an unsquashed mean; the last layer begins near 0.

    Args:
        inputs: Width of the inputs.
        outputs: Number of dimensions (A).
        hidden: Widths of the hidden layers.
        activation: Activation after every hidden layer.
        generator: Generator for the initial weights.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        hidden: Sequence[int],
        activation: Activation = "gelu",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        form = Form(activation)
        self.body = EnsembleMLP(1, [inputs, *hidden], activate_last=True, form=form, generator=generator)
        self.head = EnsembleMLP(1, [hidden[-1], outputs], generator=generator)
        initialise(self, "glorot", generator)
        with torch.no_grad():
            self.head.weights[0].mul_(0.1)

    def forward(self, inputs: Float[Tensor, "B I"]) -> Float[Tensor, "B A"]:
        """Return the mean."""
        mean: Tensor = self.head(self.body(inputs))[0]
        return mean


class GoalPolicy(nn.Module):
    """pi(a | s, g) = N(mu(s, g), 1) with an encoder of inputs; arguments as for `UnitGaussian`."""

    def __init__(
        self,
        spaces: Spaces,
        hidden: Sequence[int],
        activation: Activation = "gelu",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.encode = InputEncoder(spaces, generator=generator)
        self.head = UnitGaussian(self.encode.width, spaces.action, hidden, activation, generator)

    def forward(self, observation: Tensor, goal: Tensor) -> Float[Tensor, "B A"]:
        """Return the mean action, not clipped."""
        mean: Tensor = self.head(self.encode.situation(observation, goal))
        return mean


def log_likelihood(mean: Float[Tensor, "B A"], actions: Float[Tensor, "B A"]) -> Float[Tensor, " B"]:
    """Return log N(a; mean, 1), summed over dimensions."""
    return -((actions - mean).square() / 2 + math.log(2 * math.pi) / 2).sum(dim=-1)


def advantage_weight(advantage: Float[Tensor, " B"], temperature: float, largest: float) -> Float[Tensor, " B"]:
    """Return min(exp(beta advantage), largest), detached."""
    return (temperature * advantage).exp().clamp_max(largest).detach()


def awr_loss(
    mean: Float[Tensor, "B A"], actions: Float[Tensor, "B A"], advantage: Float[Tensor, " B"], alpha: float
) -> Float[Tensor, ""]:
    """Return the mean negative log-likelihood of actions, weighted by min(exp(alpha advantage), 100)."""
    return -(advantage_weight(advantage, alpha, LARGEST_WEIGHT) * log_likelihood(mean, actions)).mean()


def ddpg_bc_loss(
    mean: Float[Tensor, "B A"], actions: Float[Tensor, "B A"], q: Float[Tensor, " B"], alpha: float
) -> Float[Tensor, ""]:
    """Return -E[Q] / E|Q| - alpha E[log pi(a)], for Q of the policy's clipped mean."""
    scale = q.detach().abs().mean() + 1e-6
    return -q.mean() / scale - alpha * log_likelihood(mean, actions).mean()
