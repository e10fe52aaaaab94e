"""Action diffusion: training adds noise to demonstrated actions, and acting removes noise step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from counterpoint.errors import BadInputError, MissingExtraError
from counterpoint.policies.networks import (
    ConditionalUnet1d,
    DenoisingTransformer,
    DiffusionConfig,
    Prediction,
    Sampler,
    Spacing,
)
from counterpoint.policies.normalizer import LinearNormalizer

Generators = torch.Generator | Sequence[torch.Generator] | None
"""One generator, a sequence with one generator for each row, or `None` for the global generator."""


class Update(NamedTuple):
    """The coefficients of one sampling step; both samplers and all prediction types have this form.

    clean = clip(clean_from_sample x + clean_from_output y, -1, 1), with x the noisy sample and y the network's output;
    the next x = from_clean clean + from_sample x + from_output y + from_noise z, z ~ N(0, 1).
    """

    clean_from_sample: float
    clean_from_output: float
    from_clean: float
    from_sample: float
    from_output: float
    from_noise: float


class NoiseSchedule(nn.Module):
    """The squared-cosine schedule of `diffusers`, with tables on the module's device and updates as Python numbers.

    In diffusers, `step` reads its coefficients from the device at every call; here they are computed once, so that no
    step waits for the device. As in Diffusion Policy, clean samples are clipped to [-1, 1], DDPM's variance is the
    small fixed one, and DDIM adds no noise (eta = 0). As in diffusers, a sampling step goes down by train_steps //
    inference_steps training steps, even where consecutive steps with spacing `trailing` are one further apart.

    Args:
        train_steps: Number of steps of the training schedule.
        inference_steps: Number of sampling steps.
        sampler: DDIM or DDPM.
        prediction: The meaning of the network's output: the noise (`epsilon`), the clean `sample`, or `v`.
        spacing: Rule that chooses the sampling steps from the training schedule; see `DiffusionConfig`.
    """

    signal: Tensor
    noise: Tensor
    steps: Tensor

    def __init__(
        self,
        train_steps: int,
        inference_steps: int,
        sampler: Sampler,
        prediction: Prediction,
        spacing: Spacing = "leading",
    ) -> None:
        super().__init__()
        self.train_steps = train_steps
        scheduler = _scheduler(train_steps, sampler, spacing)
        scheduler.set_timesteps(inference_steps)
        kept = scheduler.alphas_cumprod.double()  # alpha bar of each training step
        self.register_buffer("signal", kept.sqrt().float(), persistent=False)
        self.register_buffer("noise", (1 - kept).sqrt().float(), persistent=False)
        self.register_buffer("steps", scheduler.timesteps.clone(), persistent=False)
        stride, levels = train_steps // inference_steps, kept.tolist()
        make = _ddim if sampler == "ddim" else _ddpm
        self.updates = [
            make(levels[step], levels[step - stride] if step >= stride else 1.0, prediction)
            for step in scheduler.timesteps.tolist()
        ]

    def add_noise(
        self, clean: Float[Tensor, "B K A"], noise: Float[Tensor, "B K A"], steps: Int[Tensor, " B"]
    ) -> Float[Tensor, "B K A"]:
        """Return the noisy sample at each row's step (Eq. 4 of Ho et al., 2020)."""
        return self.signal[steps][:, None, None] * clean + self.noise[steps][:, None, None] * noise

    def velocity(
        self, clean: Float[Tensor, "B K A"], noise: Float[Tensor, "B K A"], steps: Int[Tensor, " B"]
    ) -> Float[Tensor, "B K A"]:
        """Return the target of prediction `v` at each row's step (Salimans and Ho, 2022, Appendix D)."""
        return self.signal[steps][:, None, None] * noise - self.noise[steps][:, None, None] * clean

    def update(
        self, number: int, sample: Float[Tensor, "B K A"], output: Float[Tensor, "B K A"], generator: Generators = None
    ) -> Float[Tensor, "B K A"]:
        """Return the next sample after sampling step `number`, counted from the first (noisiest) step."""
        now = self.updates[number]
        clean = (now.clean_from_sample * sample + now.clean_from_output * output).clamp(-1, 1)
        after = now.from_clean * clean + now.from_sample * sample + now.from_output * output
        if now.from_noise:
            after = after + now.from_noise * gaussian(sample.shape, sample.device, generator)
        return after


def gaussian(shape: tuple[int, ...], device: torch.device, generator: Generators = None) -> Tensor:
    """Return standard normal numbers; a CPU generator gives the same numbers on every device.

    With a generator for each row, a row's numbers do not depend on other rows.
    """
    if isinstance(generator, Sequence):
        return torch.cat([gaussian((1, *shape[1:]), device, one) for one in generator])
    source = device if generator is None else generator.device
    return torch.randn(shape, generator=generator, device=source).to(device)


def _scheduler(train_steps: int, sampler: Sampler, spacing: Spacing) -> Any:
    try:
        from diffusers.schedulers.scheduling_ddim import DDIMScheduler
        from diffusers.schedulers.scheduling_ddpm import DDPMScheduler
    except ImportError:
        raise MissingExtraError("diffusers", "diffusion") from None
    kind = DDIMScheduler if sampler == "ddim" else DDPMScheduler
    return kind(num_train_timesteps=train_steps, beta_schedule="squaredcos_cap_v2", timestep_spacing=spacing)


def _clean(level: float, prediction: Prediction) -> tuple[float, float]:
    if prediction == "sample":
        return 0.0, 1.0
    if prediction == "v":
        return level**0.5, -((1 - level) ** 0.5)
    return level**-0.5, -(((1 - level) / level) ** 0.5)


def _ddim(level: float, after: float, prediction: Prediction) -> Update:
    """Return the update of Eq. 12 of Song et al. (2021), without noise.

    Epsilon comes from the network's output, not from the clipped sample.
    """
    if prediction == "epsilon":
        from_sample, from_output = 0.0, (1 - after) ** 0.5
    elif prediction == "v":
        from_sample, from_output = ((1 - after) * (1 - level)) ** 0.5, ((1 - after) * level) ** 0.5
    else:
        from_sample = ((1 - after) / (1 - level)) ** 0.5
        from_output = -from_sample * level**0.5
    return Update(*_clean(level, prediction), after**0.5, from_sample, from_output, 0.0)


def _ddpm(level: float, after: float, prediction: Prediction) -> Update:
    """Return the update of Eq. 6 and 7 of Ho et al. (2020)."""
    kept = level / after
    from_clean = after**0.5 * (1 - kept) / (1 - level)
    from_sample = kept**0.5 * (1 - after) / (1 - level)
    deviation = ((1 - after) / (1 - level) * (1 - kept)) ** 0.5
    return Update(*_clean(level, prediction), from_clean, from_sample, 0.0, deviation)


STEPS_AT_ONCE = 8
"""Maximum number of sampling steps whose conditioning is computed at once, to bound the memory."""


@dataclass(frozen=True)
class Denoised:
    """The output of a forward pass in training; the loss is the mean squared difference of `predicted` and `target`.

    Attributes:
        predicted: [B, K, A], the network's output.
        target: [B, K, A], the noise, the normalised actions, or `v`.
        bottleneck: [B, M, k], the U-Net's innermost features; `None` for the transformer.
    """

    predicted: Tensor
    target: Tensor
    bottleneck: Tensor | None


class DiffusionHead(nn.Module):
    """A head that maps embedded observations to windows of actions.

    `normalizer` maps actions to [-1, 1] by the training episodes' range, which is set before training.

    Args:
        action_dim: Number of action dimensions (A).
        condition_dim: Width of one observation (O): its embedded cameras and its normalised state.
        config: Settings of network and sampler.
    """

    def __init__(self, action_dim: int, condition_dim: int, config: DiffusionConfig) -> None:
        super().__init__()
        self.action_dim, self.condition_dim, self.config = action_dim, condition_dim, config
        self.normalizer = LinearNormalizer(action_dim)
        self.schedule = NoiseSchedule(
            config.train_steps, config.inference_steps, config.sampler, config.prediction, config.timestep_spacing
        )
        self.network: ConditionalUnet1d | DenoisingTransformer
        unet = config.network == "unet"
        self.network = (ConditionalUnet1d if unet else DenoisingTransformer)(action_dim, condition_dim, config)

    def denoise(
        self,
        condition: Float[Tensor, "B To O"],
        actions: Float[Tensor, "B K A"],
        *,
        noise: Float[Tensor, "B K A"] | None = None,
        steps: Int[Tensor, " B"] | None = None,
    ) -> Denoised:
        """Add noise to actions and predict it (Eq. 5 of the paper).

        Args:
            condition: Embeddings of the newest To observations, the oldest first.
            actions: Actions in the environment's units, the first at the oldest observation's step.
            noise: Standard normal noise; by default it is sampled.
            steps: The diffusion steps, in [0, train_steps); by default they are sampled uniformly.

        Raises:
            BadInputError: If the shape of condition or actions does not fit the head.
        """
        self._check(condition, actions)
        clean = self.normalizer(actions.float())
        noise = torch.randn_like(clean) if noise is None else noise
        if steps is None:
            steps = torch.randint(self.config.train_steps, (len(clean),), device=clean.device)
        noisy = self.schedule.add_noise(clean, noise, steps)
        predicted, bottleneck = self.network(noisy, self.network.conditioning(steps, condition))
        if self.config.prediction == "v":
            target = self.schedule.velocity(clean, noise, steps)
        else:
            target = noise if self.config.prediction == "epsilon" else clean
        return Denoised(predicted.float(), target, bottleneck)

    @torch.no_grad()
    def sample(self, condition: Float[Tensor, "B To O"], *, generator: Generators = None) -> Float[Tensor, "B K A"]:
        """Return actions in the environment's units, within the range of the training episodes.

        Call this in evaluation mode. It never waits for the device; a CPU generator gives equal noise on every device.

        Args:
            condition: Embeddings of the newest To observations, the oldest first.
            generator: Generator of the initial noise, and of DDPM's noise at every step: one for all rows, or one for
                each row.
        """
        self._check(condition)
        rows, number = len(condition), 0
        sample = gaussian((rows, self.config.horizon, self.action_dim), condition.device, generator)
        for steps in torch.split(self.schedule.steps, STEPS_AT_ONCE):
            conditioning = self.network.conditioning(
                steps.repeat_interleave(rows, output_size=len(steps) * rows), condition.repeat(len(steps), 1, 1)
            )
            for now in zip(*(torch.split(part, rows) for part in conditioning), strict=True):
                predicted, _ = self.network(sample, now)
                sample = self.schedule.update(number, sample, predicted.float(), generator)
                number += 1
        return self.normalizer.restore(sample)

    def _check(self, condition: Tensor, actions: Tensor | None = None) -> None:
        config = self.config
        shapes = [("condition", condition, (config.obs_steps, self.condition_dim), "observations, numbers of each")]
        if actions is not None:
            shapes.append(("actions", actions, (config.horizon, self.action_dim), "steps, numbers of each"))
        for name, found, wanted, meaning in shapes:
            if tuple(found.shape[1:]) != wanted:
                expected = f"[B, {wanted[0]}, {wanted[1]}] ({meaning})"
                raise BadInputError(name, f"shape {tuple(found.shape)}", expected, "build another head for it")
