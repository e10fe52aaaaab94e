"""How noise is added to actions in training, and taken away step by step in acting: DDPM and DDIM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from counterpoint.errors import MissingExtraError

__all__ = ["Generators", "NoiseSchedule", "Prediction", "Sampler", "Update"]

Prediction = Literal["epsilon", "sample"]
Sampler = Literal["ddim", "ddpm"]
Generators = torch.Generator | Sequence[torch.Generator] | None
"""One, one for each row, or the global one."""


class Update(NamedTuple):
    """A step of sampling; both samplers and both predictions are of this one form.

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
    """The squared-cosine schedule of `diffusers`, its tables on the module's device and its updates as plain numbers.

    diffusers' own `step` looks its coefficients up again at every call, on the device that the step number lives on.
    Here they are computed once, and no step waits for the device. Clean samples are clipped to [-1, 1], DDPM's
    variance is the small fixed one, DDIM adds no noise (eta = 0) and takes every (train_steps // inference_steps)-th
    step, as in Diffusion Policy.

    Args:
        train_steps: Of training's schedule.
        inference_steps: Of sampling.
        sampler: Which of the two.
        prediction: What the network's output is: the noise (`epsilon`) or the clean sample.
    """

    signal: Tensor
    noise: Tensor
    steps: Tensor

    def __init__(
        self, train_steps: int, inference_steps: int, sampler: Sampler, prediction: Prediction
    ) -> None:
        super().__init__()
        self.train_steps = train_steps
        scheduler = _scheduler(train_steps, sampler, prediction)
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
        """The noisy sample at each row's step (Eq. 4 of Ho et al., 2020)."""
        return self.signal[steps][:, None, None] * clean + self.noise[steps][:, None, None] * noise

    def update(
        self,
        number: int,
        sample: Float[Tensor, "B K A"],
        output: Float[Tensor, "B K A"],
        generator: Generators = None,
    ) -> Float[Tensor, "B K A"]:
        """The next sample of step `number`, counted from the first (noisiest) of sampling."""
        now = self.updates[number]
        clean = (now.clean_from_sample * sample + now.clean_from_output * output).clamp(-1, 1)
        after = now.from_clean * clean + now.from_sample * sample + now.from_output * output
        if now.from_noise:
            after = after + now.from_noise * gaussian(sample.shape, sample.device, generator)
        return after


def gaussian(shape: tuple[int, ...], device: torch.device, generator: Generators = None) -> Tensor:
    """Standard normal numbers; equal ones on every device when the generator is a CPU's.

    With a generator for each row, what a row gets does not depend on the rows beside it.
    """
    if isinstance(generator, Sequence):
        return torch.cat([gaussian((1, *shape[1:]), device, one) for one in generator])
    source = device if generator is None else generator.device
    return torch.randn(shape, generator=generator, device=source).to(device)


def _scheduler(train_steps: int, sampler: Sampler, prediction: Prediction) -> Any:
    try:
        from diffusers.schedulers.scheduling_ddim import DDIMScheduler
        from diffusers.schedulers.scheduling_ddpm import DDPMScheduler
    except ImportError:
        raise MissingExtraError("diffusers", "diffusion") from None
    kind = DDIMScheduler if sampler == "ddim" else DDPMScheduler
    return kind(
        num_train_timesteps=train_steps, beta_schedule="squaredcos_cap_v2", prediction_type=prediction
    )


def _clean(level: float, prediction: Prediction) -> tuple[float, float]:
    if prediction == "sample":
        return 0.0, 1.0
    return level**-0.5, -(((1 - level) / level) ** 0.5)


def _ddim(level: float, after: float, prediction: Prediction) -> Update:
    """Eq. 12 of Song et al. (2021) with no noise; the noise is the network's, not that of the clipped sample."""
    if prediction == "epsilon":
        from_sample, from_output = 0.0, (1 - after) ** 0.5
    else:
        from_sample = ((1 - after) / (1 - level)) ** 0.5
        from_output = -from_sample * level**0.5
    return Update(*_clean(level, prediction), after**0.5, from_sample, from_output, 0.0)


def _ddpm(level: float, after: float, prediction: Prediction) -> Update:
    """Eq. 6 and 7 of Ho et al. (2020)."""
    kept = level / after
    from_clean = after**0.5 * (1 - kept) / (1 - level)
    from_sample = kept**0.5 * (1 - after) / (1 - level)
    deviation = ((1 - after) / (1 - level) * (1 - kept)) ** 0.5
    return Update(*_clean(level, prediction), from_clean, from_sample, 0.0, deviation)
