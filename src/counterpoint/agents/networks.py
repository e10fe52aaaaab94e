"""Forward and backward passes of several multilayer perceptrons at once, written out for one CPU core.

On a CPU nearly all the time of an agent's update is spent in products of a few hundred rows with 512 x 512 weights.
PyTorch's own float32 products go to a library that runs at less than half speed on some processors, its bfloat16 ones
to oneDNN; here both go to oneDNN, which adds the bias in the same pass. (It could apply the ReLU too, but its ReLU of
NaN is 0, and a loss that is not finite must show.) Elsewhere (GPUs, double precision, a PyTorch without oneDNN)
batched products do, and autograd.

Networks of goal-reaching agents: trunks for states and pictures, twin encoders, policies.

Twins are one module whose weights carry a leading axis of 2, so that both run in one batched product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from counterpoint.errors import BadInputError

__all__ = ["CategoricalActor", "EnsembleMLP", "GaussianActor", "PixelTrunk", "flat", "perceptrons"]


ONEDNN = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def perceptrons(
    inputs: Float[Tensor, "*E B I"],
    weights: Sequence[Float[Tensor, "E _ _"]],
    biases: Sequence[Float[Tensor, "E 1 _"]],
    *,
    activate_last: bool,
) -> Float[Tensor, "E B O"]:
    """Linear layers with ReLU between, for E members side by side; under autocast, products in bfloat16.

    Args:
        inputs: Shared by the members [B, I], or one for each [E, B, I].
        weights: One [E, fan-in, fan-out] a layer.
        biases: One [E, 1, fan-out] a layer.
        activate_last: Whether a ReLU follows the last layer too.

    Returns:
        Outputs in the weights' own precision.
    """
    first = weights[0]
    if ONEDNN and first.device.type == "cpu" and first.dtype == torch.float32:
        half = torch.is_autocast_enabled("cpu")
        outputs: Tensor = _OnOneCore.apply(inputs, activate_last, half, *weights, *biases)
        return outputs
    return _batched(inputs, weights, biases, activate_last)


def _batched(inputs: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], activate_last: bool) -> Tensor:
    x = inputs.expand(weights[0].shape[0], *inputs.shape[-2:])
    last = len(weights) - 1
    for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = torch.baddbmm(bias, x, weight)
        if number < last or activate_last:
            x = functional.relu(x)
    return x.to(weights[0].dtype)


def _product(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """left @ right (+ bias) by oneDNN."""
    if left.dtype == torch.bfloat16:
        return left @ right if bias is None else torch.addmm(bias, left, right)
    # The one way to oneDNN that PyTorch has in float32; it wants the right factor as `nn.Linear` keeps its weight.
    found: Tensor = torch.ops.mkldnn._linear_pointwise(left, right.t(), bias, "none", [], "")
    return found


class _OnOneCore(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, activate_last: bool, half: bool, *parameters: Tensor) -> Tensor:
        depth = len(parameters) // 2
        kind = torch.bfloat16 if half else torch.float32
        ctx.set_materialize_grads(False)
        weights, biases = ([p.to(kind) for p in group] for group in (parameters[:depth], parameters[depth:]))
        members = weights[0].shape[0]
        hidden: list[Tensor] = []
        outputs = inputs.new_empty(members, inputs.shape[-2], weights[-1].shape[2])
        for member in range(members):
            x = (inputs if inputs.dim() == 2 else inputs[member]).to(kind).contiguous()
            for number in range(depth):
                hidden.append(x)
                x = _product(x, weights[number][member], biases[number][member, 0])
                if number < depth - 1 or activate_last:
                    x = x.relu_()
            outputs[member] = x
        ctx.activate_last, ctx.depth, ctx.shared, ctx.kind = activate_last, depth, inputs.dim() == 2, kind
        ctx.save_for_backward(outputs, *weights, *hidden)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        depth, kind = ctx.depth, ctx.kind
        outputs, *saved = ctx.saved_tensors
        weights, hidden = saved[:depth], saved[depth:]
        wanted = ctx.needs_input_grad[3:]
        if gradient is None:
            return (None,) * (3 + len(wanted))
        if ctx.activate_last:
            gradient = torch.ops.aten.threshold_backward(gradient, outputs, 0)
        # One slot for every parameter's gradient, members stacked; where there is one member, its product is the slot.
        grads: list[list[Tensor]] = [[] for _ in wanted]
        back: list[Tensor] = []
        for member in range(outputs.shape[0]):
            # oneDNN has no fast product for rows that lie apart, as slices do.
            g = gradient[member].to(kind).contiguous()
            for number in reversed(range(depth)):
                x = hidden[member * depth + number]
                if wanted[number]:
                    grads[number].append(_product(x.t(), g))
                if wanted[depth + number]:
                    grads[depth + number].append(g.sum(0, keepdim=True, dtype=torch.float32))
                if number > 0 or ctx.needs_input_grad[0]:
                    g = _product(g, weights[number][member].t())
                if number > 0:
                    g = torch.ops.aten.threshold_backward(g, x, 0)
            back.append(g)
        found = [_stacked(slots) if slots else None for slots in grads]
        to_inputs = None
        if ctx.needs_input_grad[0]:
            to_inputs = torch.stack(back).float()
            to_inputs = to_inputs.sum(0) if ctx.shared else to_inputs
        return to_inputs, None, None, *found


def _stacked(members: list[Tensor]) -> Tensor:
    """[E, ...] in float32."""
    if len(members) == 1:
        return members[0].float()[None]
    whole = torch.empty(len(members), *members[0].shape)
    for slot, member in zip(whole, members, strict=True):
        slot.copy_(member)
    return whole


LEAST_SIDE = 36
"""Of pictures: 36 -> 8 -> 3 -> 1 through the convolutions of `PixelTrunk`."""


class EnsembleMLP(nn.Module):
    """E multilayer perceptrons of equal shape in one: linear layers with ReLU between.

    Args:
        members: E, how many.
        sizes: Widths, input first.
        activate_last: Whether a ReLU follows the last layer too.
        generator: Of the initial weights (uniform in +-1/sqrt(fan-in), as `nn.Linear`).
    """

    def __init__(
        self,
        members: int,
        sizes: Sequence[int],
        *,
        activate_last: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.activate_last = activate_last
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for fan_in, fan_out in pairwise(sizes):
            bound = 1 / math.sqrt(fan_in)
            weight = torch.empty(members, fan_in, fan_out).uniform_(-bound, bound, generator=generator)
            bias = torch.empty(members, 1, fan_out).uniform_(-bound, bound, generator=generator)
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(bias))

    def forward(self, inputs: Float[Tensor, "*E B I"], *, frozen: bool = False) -> Float[Tensor, "E B O"]:
        """Outputs of every member on shared inputs [B, I] or on its own [E, B, I].

        Args:
            inputs: What goes in.
            frozen: Let gradients flow to the inputs and not to the parameters.
        """
        weights, biases = list(self.weights), list(self.biases)
        if frozen:
            weights, biases = [w.detach() for w in weights], [b.detach() for b in biases]
        return perceptrons(inputs, weights, biases, activate_last=self.activate_last)


class PixelTrunk(nn.Module):
    """The convolutions of DQN (Mnih et al., 2015) for 64 x 64 pictures, as contrastive RL uses them.

    uint8 [B, H, W, C] in [0, 255] to float [B, D].

    Args:
        shape: H, W and C; three convolutions need a height and a width of 36 at least.
        generator: Of the initial weights.

    Raises:
        BadInputError: When pictures are smaller.
    """

    def __init__(self, shape: tuple[int, ...], *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        height, width, channels = shape
        if min(height, width) < LEAST_SIDE:
            raise BadInputError(
                "pictures",
                f"{height} x {width} pixels",
                f"{LEAST_SIDE} x {LEAST_SIDE} at least, which the convolutions need",
                "render or record larger pictures; 64 x 64 is usual",
            )
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1),
            nn.ReLU(),
            nn.Flatten(),
        )
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.kaiming_uniform_(parameter, a=math.sqrt(5), generator=generator)
            else:
                nn.init.zeros_(parameter)
        with torch.no_grad():
            self.features = int(self.layers(torch.zeros(1, channels, height, width)).shape[1])

    def forward(self, pictures: Tensor) -> Float[Tensor, "B D"]:
        """Features of pictures."""
        scaled = pictures.permute(0, 3, 1, 2).float() / 255 - 0.5
        features: Tensor = self.layers(scaled)
        return features.float()


class GaussianActor(nn.Module):
    """pi(a | s, g) = tanh of a Gaussian with learned mean and standard deviation (softplus + 1e-6).

    Args:
        inputs: Width of the concatenated observation and goal.
        actions: A.
        hidden: Widths of the hidden layers; a ReLU follows each.
        generator: Of the initial weights.
    """

    def __init__(
        self, inputs: int, actions: int, hidden: Sequence[int], *, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.body = EnsembleMLP(1, [inputs, *hidden], activate_last=True, generator=generator)
        self.heads = EnsembleMLP(1, [hidden[-1], 2 * actions], generator=generator)

    def forward(self, inputs: Float[Tensor, "B I"]) -> tuple[Float[Tensor, "B A"], Float[Tensor, "B A"]]:
        """Mean and standard deviation before the tanh."""
        loc, spread = self.heads(self.body(inputs))[0].chunk(2, dim=-1)
        return loc, functional.softplus(spread) + 1e-6

    def sample(self, inputs: Float[Tensor, "B I"], noise: Float[Tensor, "B A"]) -> Float[Tensor, "B A"]:
        """The action that standard normal `noise` stands for, differentiable."""
        loc, scale = self(inputs)
        return torch.tanh(loc + scale * noise)

    def mode(self, inputs: Float[Tensor, "B I"]) -> Float[Tensor, "B A"]:
        """tanh of the mean."""
        return torch.tanh(self(inputs)[0])


class CategoricalActor(nn.Module):
    """pi(a | s, g) over A discrete actions.

    Args:
        inputs: Width of the concatenated observation and goal.
        actions: A.
        hidden: Widths of the hidden layers.
        generator: Of the initial weights.
    """

    def __init__(
        self, inputs: int, actions: int, hidden: Sequence[int], *, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.body = EnsembleMLP(1, [inputs, *hidden, actions], generator=generator)

    def forward(self, inputs: Float[Tensor, "B I"]) -> Float[Tensor, "B A"]:
        """Log-probabilities."""
        return functional.log_softmax(self.body(inputs)[0], dim=-1)

    def sample(self, inputs: Float[Tensor, "B I"], noise: Float[Tensor, "B A"]) -> Int[Tensor, " B"]:
        """The action that standard Gumbel `noise` stands for (Gumbel-max)."""
        action: Tensor = (self(inputs) + noise).argmax(dim=-1)
        return action

    def mode(self, inputs: Float[Tensor, "B I"]) -> Int[Tensor, " B"]:
        """The likeliest action."""
        action: Tensor = self(inputs).argmax(dim=-1)
        return action


def flat(*parts: Float[Tensor, "B _"]) -> Float[Tensor, "B I"]:
    """Parts side by side."""
    return torch.cat(parts, dim=-1)
