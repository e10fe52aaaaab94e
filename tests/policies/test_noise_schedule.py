from __future__ import annotations

import math
import sys
from typing import Any

import pytest
import torch
from diffusers.schedulers.scheduling_ddim import DDIMScheduler
from diffusers.schedulers.scheduling_ddpm import DDPMScheduler
from torch import Tensor

from counterpoint.errors import MissingExtraError
from counterpoint.policies.diffusion import NoiseSchedule, gaussian
from counterpoint.policies.networks import Prediction, Sampler, Spacing

SAMPLERS: list[tuple[Sampler, int]] = [("ddim", 8), ("ddim", 100), ("ddpm", 100), ("ddpm", 10)]
PREDICTIONS: list[Prediction] = ["epsilon", "sample", "v"]
SPACINGS: list[Spacing] = ["leading", "trailing"]


def library(sampler: Sampler, prediction: Prediction, spacing: Spacing = "leading") -> Any:
    shared: dict[str, Any] = {"beta_schedule": "squaredcos_cap_v2", "clip_sample": True, "timestep_spacing": spacing}
    shared["prediction_type"] = "v_prediction" if prediction == "v" else prediction
    if sampler == "ddim":
        # Diffusion Policy's configuration, said in full.
        return DDIMScheduler(num_train_timesteps=100, set_alpha_to_one=True, steps_offset=0, **shared)
    return DDPMScheduler(num_train_timesteps=100, variance_type="fixed_small", **shared)


def levels() -> list[float]:
    """Alpha bar: the product of 1 - min(1 - c(t + 1) / c(t), .999), where c(t) = cos^2((t / T + .008) pi / 2.016)."""
    curve = [math.cos((t / 100 + 0.008) / 1.008 * math.pi / 2) ** 2 for t in range(101)]
    kept, made = 1.0, []
    for t in range(100):
        kept *= 1 - min(1 - curve[t + 1] / curve[t], 0.999)
        made.append(kept)
    return made


def test_the_squared_cosine() -> None:
    schedule = NoiseSchedule(100, 8, "ddim", "epsilon")
    wanted = torch.tensor(levels())
    torch.testing.assert_close(schedule.signal.square(), wanted, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(schedule.signal.square() + schedule.noise.square(), torch.ones(100))


def test_noise_is_added_as_in_the_library() -> None:
    clean, noise, steps = torch.randn(4, 3, 2), torch.randn(4, 3, 2), torch.tensor([0, 1, 50, 99])
    made = NoiseSchedule(100, 8, "ddim", "epsilon").add_noise(clean, noise, steps)
    torch.testing.assert_close(made, library("ddim", "epsilon").add_noise(clean, noise, steps))
    made = NoiseSchedule(100, 8, "ddim", "v").velocity(clean, noise, steps)
    torch.testing.assert_close(made, library("ddim", "v").get_velocity(clean, noise, steps))


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize(("sampler", "steps"), SAMPLERS)
def test_steps_are_those_of_the_library(sampler: Sampler, steps: int, prediction: Prediction, spacing: Spacing) -> None:
    theirs = library(sampler, prediction, spacing)
    theirs.set_timesteps(steps)
    schedule = NoiseSchedule(100, steps, sampler, prediction, spacing)
    assert schedule.steps.tolist() == theirs.timesteps.tolist()
    sample = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    ours, own = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    for number, step in enumerate(theirs.timesteps):
        output = sample + torch.sin(5 * sample)  # any network will do
        wanted = theirs.step(output, step, sample, generator=own).prev_sample
        # float32 coefficients of the noisiest steps are known to three digits.
        torch.testing.assert_close(schedule.update(number, sample, output, ours), wanted, rtol=1e-3, atol=1e-4)
        sample = wanted


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize(("sampler", "steps"), SAMPLERS)
def test_who_knows_the_clean_sample_arrives_there(sampler: Sampler, steps: int, prediction: Prediction) -> None:
    clean = torch.linspace(-1, 1, 12).reshape(1, 4, 3)
    schedule = NoiseSchedule(100, steps, sampler, prediction)
    sample = torch.randn(1, 4, 3, generator=torch.Generator().manual_seed(0))
    for number, step in enumerate(schedule.steps):
        noise = (sample - schedule.signal[step] * clean) / schedule.noise[step]
        v = schedule.velocity(clean, noise, step[None])
        sample = schedule.update(number, sample, {"epsilon": noise, "sample": clean, "v": v}[prediction])
    torch.testing.assert_close(sample, clean, rtol=1e-4, atol=1e-4)


def test_a_wild_network_is_clipped() -> None:
    schedule = NoiseSchedule(100, 100, "ddpm", "sample")
    sample = schedule.update(99, torch.zeros(1, 1, 2), torch.tensor([[[50.0, -50.0]]]))
    torch.testing.assert_close(sample, torch.tensor([[[1.0, -1.0]]]))


def test_tables_move_with_the_module_and_are_not_saved() -> None:
    schedule = NoiseSchedule(100, 8, "ddim", "epsilon").to("meta")
    assert {table.device.type for table in schedule.buffers()} == {"meta"}
    assert schedule.state_dict() == {}


def test_noise_of_a_generator_is_repeated() -> None:
    def drawn(seed: int | None) -> Tensor:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        return gaussian((3, 2), torch.device("cpu"), generator)

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
    torch.manual_seed(0)
    first = drawn(None)
    torch.manual_seed(0)
    assert torch.equal(drawn(None), first)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diffusers.schedulers.scheduling_ddim", None)
    with pytest.raises(MissingExtraError, match=r"\[diffusion\]"):
        NoiseSchedule(100, 8, "ddim", "epsilon")
