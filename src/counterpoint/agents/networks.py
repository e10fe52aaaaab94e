"""Networks of goal-conditioned agents: ensembles of perceptrons, encoders of inputs, actors, the contrastive critic."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from counterpoint.data.episode import Spaces
from counterpoint.errors import require

LEAST_SIDE = 8
"""The minimum side of an image: 8 -> 2 -> 1 -> 1 through the convolutions of `ImageTrunk`."""


Activation = Literal["relu", "gelu"]
LAYER_NORM_EPSILON = 1e-6
"""Flax's, in which OGBench's agents are written; torch's is 1e-5."""


class Form(NamedTuple):
    """The form of hidden layers: their activation and, if `layer_norm`, a layer normalisation after it (as in OGBench).

    `gelu` is its tanh approximation, which is JAX's default.
    """

    activation: Activation = "relu"
    layer_norm: bool = False


PLAIN = Form()
Initialisation = Literal["fan_in", "glorot", "orthogonal", "torch"]
"""Kinds of initial weights of perceptrons, from the authors of each method; see `initialise`."""


def initialise(module: nn.Module, kind: Initialisation, generator: torch.Generator | None = None) -> None:
    """Initialise the weights and biases of every `EnsembleMLP` in a module; a layer has I inputs and O outputs.

    ==========  ===================================  ======  ========================================================
    kind        weights                              biases  authors' code
    ==========  ===================================  ======  ========================================================
    fan_in      uniform in +-sqrt(3 / I)             0       TD InfoNCE; the policies of contrastive RL
    glorot      uniform in +-sqrt(6 / (I + O))       0       critics of contrastive RL and C-learning; HER; QRL; OGBench
    orthogonal  orthogonal, gain sqrt 2              0       IQL
    torch       uniform in +-1 / sqrt(I)             same    TD3 + BC
    ==========  ===================================  ======  ========================================================
    """
    for network in module.modules():
        if not isinstance(network, EnsembleMLP):
            continue
        for weight, bias in zip(network.weights, network.biases, strict=True):
            inputs, outputs = weight.shape[1:]
            nn.init.zeros_(bias)
            if kind == "orthogonal":
                for member in weight.detach():
                    nn.init.orthogonal_(member, math.sqrt(2), generator=generator)
                continue
            bound = {"fan_in": 3 / inputs, "glorot": 6 / (inputs + outputs), "torch": 1 / inputs}[kind] ** 0.5
            for each in (weight, bias) if kind == "torch" else (weight,):
                nn.init.uniform_(each, -bound, bound, generator=generator)


class EnsembleMLP(nn.Module):
    """E perceptrons of equal shape; stacked weights let all run in one matrix product.

    Args:
        members: Number of perceptrons (E).
        sizes: Widths of the layers, input first.
        activate_last: Let the output be followed by `form` too.
        form: The form of the hidden layers.
        generator: Generator for the initial weights, of kind "fan_in" in `initialise`.
    """

    rows: ClassVar[int] = -2
    """The dimension along which inputs and outputs are independent rows; see `Processes`."""

    def __init__(
        self,
        members: int,
        sizes: Sequence[int],
        *,
        activate_last: bool = False,
        form: Form = PLAIN,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.activate_last, self.form = activate_last, form
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for fan_in, fan_out in pairwise(sizes):
            for rows, parameters in ((fan_in, self.weights), (1, self.biases)):
                parameters.append(nn.Parameter(torch.empty(members, rows, fan_out)))
        self.scales, self.shifts = nn.ParameterList(), nn.ParameterList()
        if form.layer_norm:
            for width in sizes[1:] if activate_last else sizes[1:-1]:
                self.scales.append(nn.Parameter(torch.ones(members, 1, width)))
                self.shifts.append(nn.Parameter(torch.zeros(members, 1, width)))
        initialise(self, "fan_in", generator)

    def forward(self, inputs: Float[Tensor, "*E B I"], *, frozen: bool = False) -> Float[Tensor, "E B O"]:
        """Return the outputs of every member, in the parameters' precision.

        Args:
            inputs: Inputs that members share, [B, I], or separate inputs for each member, [E, B, I].
            frozen: Let gradients flow to the inputs but not to the parameters.
        """
        x, last = inputs.expand(len(self.weights[0]), *inputs.shape[-2:]), len(self.weights) - 1
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = product(x, *((weight.detach(), bias.detach()) if frozen else (weight, bias)))
            if number < last or self.activate_last:
                x = self._follow(x, number, frozen)
        return x.to(self.weights[0].dtype)

    def _follow(self, x: Float[Tensor, "E B W"], number: int, frozen: bool) -> Float[Tensor, "E B W"]:
        x = functional.relu(x) if self.form.activation == "relu" else gelu(x)
        if not self.form.layer_norm:
            return x
        scale, shift = self.scales[number][:, 0], self.shifts[number][:, 0]
        if frozen:
            scale, shift = scale.detach(), shift.detach()
        # One call for each member, since a call for all cannot scale and shift in the same pass.
        width, members = x.shape[-1:], zip(x, scale, shift, strict=True)
        return torch.stack([functional.layer_norm(one, width, w, b, LAYER_NORM_EPSILON) for one, w, b in members])


def gelu(x: Tensor) -> Tensor:
    """Return GELU in its tanh approximation, `x / 2 (1 + tanh(z))` with `z = sqrt(2 / pi) (x + 0.044715 x^3)`.

    Compiled, it is computed as `x sigmoid(2 z)`, which is the same: the compiler's tanh is slower.
    """
    if not torch.compiler.is_compiling():
        return functional.gelu(x, approximate="tanh")
    return x * torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x * x * x))


ONEDNN = "AVX512" in torch.backends.cpu.get_cpu_capability() and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
"""True if oneDNN computes large products. PyTorch takes MKL, which does not use AVX-512 on AMD's processors."""
LEAST_ROWS, LEAST_WEIGHTS, WIDE = 16, 2**14, 512
"""Sizes from which oneDNN is faster, although a call takes longer: least rows, least weights, or least inputs."""


def product(
    x: Float[Tensor, "E B I"], weight: Float[Tensor, "E I O"], bias: Float[Tensor, "E 1 O"] | None = None
) -> Float[Tensor, "E B O"]:
    """Return `x @ weight + bias`, by the fastest library for the processor and the sizes.

    A row of the result does not depend on the number of rows, unless there are fewer than 16.
    """
    members, inputs, outputs = weight.shape
    heavy = inputs * outputs > LEAST_WEIGHTS or (inputs >= WIDE and members * outputs > 1)
    large = heavy and x.shape[1] >= LEAST_ROWS
    single = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    if ONEDNN and large and single and not torch.is_autocast_enabled("cpu"):
        found: Tensor = _onednn(x, weight, bias)
        return found
    return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias, x, weight)


@torch.library.custom_op("counterpoint::product", mutates_args=())
def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `x @ weight + bias` by oneDNN; an operator of its own, because the compiler wants constant weights."""
    biases = [None] * len(x) if bias is None else bias[:, 0]
    linear = torch.ops.mkldnn._linear_pointwise
    members = zip(x, weight, biases, strict=True)
    rows = [linear(_dense(one), _dense(w).T, b, "none", [], "") for one, w, b in members]
    return torch.stack(rows) if len(rows) > 1 else rows[0][None]


def _dense(matrix: Tensor) -> Tensor:
    """Return a matrix whose rows or columns lie one after the other in memory; oneDNN is 20 times as slow without."""
    return matrix if matrix.is_contiguous() or matrix.T.is_contiguous() else matrix.contiguous()


@_onednn.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:2], weight.shape[2])


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    (x, weight), (of_x, of_weight, of_bias) = ctx.saved_tensors, ctx.needs_input_grad
    return (
        _onednn(gradient, weight.mT, None) if of_x else None,
        _onednn(x.mT, gradient, None) if of_weight else None,
        gradient.sum(1, keepdim=True) if of_bias else None,
    )


_onednn.register_autograd(_gradients, setup_context=_keep)


class ImageTrunk(nn.Module):
    """The convolutions of DQN (Mnih et al., 2015), as used in contrastive RL: uint8 [B, H, W, C] to float [B, D].

    Convolutions are padded (64 -> 16 -> 8 -> 8), and pixels are scaled to [0, 1]. As in the authors' code, initial
    weights are normal with standard deviation 1 / sqrt(fan-in), truncated at two standard deviations.

    Args:
        shape: H, W and C; height and width must be at least 8.
        generator: Generator for the initial weights.

    Raises:
        BadInputError: If height or width is less than 8.
    """

    rows: ClassVar[int] = 0

    def __init__(self, shape: tuple[int, ...], *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        height, width, channels = shape
        found, expected = f"{height} x {width} pixels", f"{LEAST_SIDE} x {LEAST_SIDE} at least"
        require(min(height, width) >= LEAST_SIDE, "images", found, expected, "render larger images, such as 64 x 64")
        convolutions = (nn.Conv2d(channels, 32, 8, 4, 2), nn.Conv2d(32, 64, 4, 2, 1), nn.Conv2d(64, 64, 3, 1, 1))
        self.layers = nn.Sequential(*(each for layer in convolutions for each in (layer, nn.ReLU())), nn.Flatten())
        for parameter in self.parameters():
            if parameter.dim() > 1:
                deviation = 1 / math.sqrt(parameter[0].numel())
                nn.init.trunc_normal_(parameter, 0, deviation, -2 * deviation, 2 * deviation, generator=generator)
            else:
                nn.init.zeros_(parameter)
        with torch.no_grad():
            self.features = int(self.layers(torch.zeros(1, channels, height, width)).shape[1])

    def forward(self, images: Tensor) -> Float[Tensor, "B D"]:
        """Return the features of images."""
        features: Tensor = self.layers(images.permute(0, 3, 1, 2).float() / 255)
        return features.float()


class InputEncoder(nn.Module):
    """Maps observations and goals to vectors: states stay unchanged, images pass through convolutions.

    Observations and goals that are images of equal shape share convolutions. Twin critics share them too, as in the
    authors' code of contrastive RL.

    Args:
        spaces: Shapes of observations and goals.
        generator: Generator for the initial weights.

    Raises:
        BadInputError: If a shape is neither a state's, (D,), nor an image's, (H, W, C), or images are too small.
    """

    def __init__(self, spaces: Spaces, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.trunks = nn.ModuleDict()
        widths: dict[tuple[int, ...], int] = {}
        for name, shape in (("observations", spaces.observation), ("goals", spaces.goal)):
            expected, hint = "states (D,) or images (H, W, C)", "flatten states; give images a channel axis"
            require(len(shape) in (1, 3), name, f"shape {shape}", expected, hint)
            if len(shape) == 1:
                widths[shape] = shape[0]
            elif shape not in widths:
                trunk = ImageTrunk(shape, generator=generator)
                self.trunks[_key(shape)], widths[shape] = trunk, trunk.features
        self.observation_width, self.goal_width = widths[spaces.observation], widths[spaces.goal]
        self.width = self.observation_width + self.goal_width

    def forward(self, values: Tensor) -> Float[Tensor, "B D"]:
        """Return vectors for states [B, D] or uint8 images [B, H, W, C]."""
        if values.dim() == 2:
            return values
        features: Tensor = self.trunks[_key(values.shape[1:])](values)
        return features

    def situation(self, observation: Tensor, goal: Tensor) -> Float[Tensor, "B I"]:
        """Return the concatenated vectors of observation and goal."""
        return flat(self(observation), self(goal))


def _key(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


class GaussianActor(nn.Module):
    """pi(a | s, g) = tanh of a Gaussian with learned mean and standard deviation (softplus + 1e-6).

    Args:
        inputs: Width of the concatenated observation and goal.
        actions: Number of action dimensions, or of discrete actions (A).
        hidden: Widths of the hidden layers; a ReLU follows each.
        generator: Generator for the initial weights.
    """

    def __init__(
        self, inputs: int, actions: int, hidden: Sequence[int], *, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.body = EnsembleMLP(1, [inputs, *hidden], activate_last=True, generator=generator)
        self.heads = EnsembleMLP(1, [hidden[-1], 2 * actions], generator=generator)

    def forward(self, inputs: Float[Tensor, "B I"]) -> tuple[Float[Tensor, "B A"], Float[Tensor, "B A"]]:
        """Return mean and standard deviation before the tanh."""
        loc, spread = self.heads(self.body(inputs))[0].chunk(2, dim=-1)
        return loc, functional.softplus(spread) + 1e-6

    def sample(self, inputs: Float[Tensor, "B I"], noise: Float[Tensor, "B A"]) -> Float[Tensor, "B A"]:
        """Return the action for standard normal `noise`, differentiable."""
        loc, scale = self(inputs)
        return torch.tanh(loc + scale * noise)

    def mode(self, inputs: Float[Tensor, "B I"]) -> Float[Tensor, "B A"]:
        """Return tanh of the mean."""
        return torch.tanh(self(inputs)[0])


class CategoricalActor(nn.Module):
    """pi(a | s, g) over A discrete actions; arguments as for `GaussianActor`."""

    def __init__(
        self, inputs: int, actions: int, hidden: Sequence[int], *, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.body = EnsembleMLP(1, [inputs, *hidden, actions], generator=generator)

    def forward(self, inputs: Float[Tensor, "B I"]) -> Float[Tensor, "B A"]:
        """Return log-probabilities."""
        return functional.log_softmax(self.body(inputs)[0], dim=-1)

    def sample(self, inputs: Float[Tensor, "B I"], noise: Float[Tensor, "B A"]) -> Int[Tensor, " B"]:
        """Return the action for standard Gumbel `noise` (Gumbel-max)."""
        action: Tensor = (self(inputs) + noise).argmax(dim=-1)
        return action

    def mode(self, inputs: Float[Tensor, "B I"]) -> Int[Tensor, " B"]:
        """Return the most likely action."""
        action: Tensor = self(inputs).argmax(dim=-1)
        return action


def actor(
    spaces: Spaces, inputs: int, hidden: Sequence[int], generator: torch.Generator | None = None
) -> CategoricalActor | GaussianActor:
    """Return the policy's network for the actions of `spaces`."""
    kind = CategoricalActor if spaces.discrete else GaussianActor
    return kind(inputs, spaces.action, hidden, generator=generator)


class ContrastiveCritic(nn.Module):
    """Encoders phi and psi, two copies (twins) of each, behind one shared `InputEncoder`.

        phi(s, a)  or phi(s, a, g)      situation, action and (TD InfoNCE) the commanded goal
        psi(s+)                         a future state, in goal coordinates
        f[i, j, twin] = phi[twin, i] . psi[twin, j] / temperature

    With unit vectors (`normalise`) and temperature 1 every logit lies in [-1, 1].

    Args:
        spaces: Shapes of observations, goals and actions.
        hidden: Widths of the hidden layers.
        representation: Number of dimensions of phi and psi (D).
        normalise: Scale phi and psi to unit length.
        temperature: Divisor of phi.
        reads_goal: Let phi also read the goal that the policy is commanded to reach.
        init: Initial weights of phi and psi; see `initialise`.
        form: The form of the hidden layers.
        generator: Generator for the initial weights.
    """

    def __init__(
        self,
        spaces: Spaces,
        hidden: Sequence[int],
        representation: int,
        *,
        normalise: bool = False,
        temperature: float = 1.0,
        reads_goal: bool = False,
        init: Initialisation = "fan_in",
        form: Form = PLAIN,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.spaces, self.normalise, self.temperature, self.reads_goal = spaces, normalise, temperature, reads_goal
        self.encode = InputEncoder(spaces, generator=generator)
        inputs = self.encode.observation_width + spaces.action + reads_goal * self.encode.goal_width
        self.phi = EnsembleMLP(2, [inputs, *hidden, representation], form=form, generator=generator)
        self.psi = EnsembleMLP(2, [self.encode.goal_width, *hidden, representation], form=form, generator=generator)
        initialise(self, init, generator)

    def features(self, batch: Mapping[str, Tensor], keys: Iterable[str]) -> dict[str, Tensor]:
        """Return the batch as inputs of phi and psi: states unchanged, images as features, actions as vectors.

        Args:
            batch: The batch, with `action`.
            keys: Keys of the batch's observations and goals, in the same order in all processes.
        """
        encoded = {key: self.encode(batch[key]) for key in keys}
        return encoded | {"action": action_vectors(batch["action"], self.spaces)}

    def encode_actions(
        self,
        observation: Float[Tensor, "B _"],
        action: Float[Tensor, "B A"],
        goal: Float[Tensor, "B G"] | None = None,
        *,
        frozen: bool = False,
    ) -> Float[Tensor, "2 B D"]:
        """Return phi divided by the temperature.

        Args:
            observation: Encoded observations.
            action: Action vectors.
            goal: Encoded goals, used only if `reads_goal` is True.
            frozen: Let gradients flow to the inputs but not to the parameters.
        """
        parts = (observation, action, goal) if self.reads_goal and goal is not None else (observation, action)
        return self._unit(self.phi(flat(*parts), frozen=frozen)) / self.temperature

    def encode_futures(self, futures: Float[Tensor, "B G"], *, frozen: bool = False) -> Float[Tensor, "2 B D"]:
        """Return psi of encoded future states."""
        return self._unit(self.psi(futures, frozen=frozen))

    def forward(self, observation: Tensor, action: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
        """Return phi of situations commanded to reach `goal`, and psi of `goal`, each [2, B, D], from raw inputs."""
        wanted = self.encode(goal)
        taken = action_vectors(action, self.spaces)
        return self.encode_actions(self.encode(observation), taken, wanted), self.encode_futures(wanted)

    def _unit(self, vectors: Float[Tensor, "2 B D"]) -> Float[Tensor, "2 B D"]:
        if not self.normalise:
            return vectors
        unit: Tensor = vectors / (torch.linalg.vector_norm(vectors, dim=-1, keepdim=True) + 1e-8)
        return unit


def pairs(phi: Float[Tensor, "2 B D"], psi: Float[Tensor, "2 M D"]) -> Float[Tensor, "B M 2"]:
    """Return f for every pair of a row of phi and a row of psi, twins on the last axis, in the inputs' precision."""
    with torch.autocast(phi.device.type, enabled=False):
        return product(phi, psi.transpose(1, 2)).permute(1, 2, 0)


def matched(phi: Float[Tensor, "2 B D"], psi: Float[Tensor, "2 B D"]) -> Float[Tensor, "B 2"]:
    """Return f for each row of phi and the same row of psi, with twins on the last axis."""
    return (phi * psi).sum(-1).T


def pair_metrics(logits: Float[Tensor, "B B 2"]) -> dict[str, Float[Tensor, ""]]:
    """Return the share of rows whose largest logit is on the diagonal, and the mean logits on and off the diagonal."""
    found = logits.detach()
    rows, _, twins = found.shape
    positive = found.diagonal().sum()
    own = found.argmax(dim=1) == torch.arange(rows, device=found.device)[:, None]
    return {
        "categorical_accuracy": own.float().mean(),
        "logits_pos": positive / (rows * twins),
        "logits_neg": (found.sum() - positive) / (rows * (rows - 1) * twins),
    }


def action_vectors(action: Tensor, spaces: Spaces) -> Float[Tensor, "B A"]:
    """Return actions as inputs of critics: continuous actions unchanged, discrete actions one-hot."""
    return functional.one_hot(action, spaces.action).to(torch.float32) if spaces.discrete else action


def noisy(action: Tensor, scale: float | Tensor, generator: torch.Generator) -> Tensor:
    """Add Gaussian noise of standard deviation `scale` to actions and clip them to [-1, 1]."""
    noise = torch.randn(action.shape, generator=generator, device=action.device)
    return (action + scale * noise).clamp(-1, 1)


def flat(*parts: Float[Tensor, "B _"]) -> Float[Tensor, "B I"]:
    """Return the parts, flattened and concatenated."""
    return torch.cat(parts, dim=-1)
