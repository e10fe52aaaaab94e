from __future__ import annotations

import copy
from typing import Any, Literal

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from counterpoint.data.statistics import Statistics
from counterpoint.errors import BadInputError
from counterpoint.policies.diffusion import DiffusionHead
from counterpoint.policies.networks import DiffusionConfig, Sampler

A, TO, O, K, B = 2, 2, 4, 8, 4  # noqa: E741
NETWORKS = ["unet", "transformer"]
SMALL: dict[str, Any] = {
    "horizon": K,
    "executed": 4,
    "down_dims": (32, 64),
    "step_dim": 16,
    "layers": 2,
    "width": 64,
    "attention_dropout": 0.0,
}


def small(network: str, **settings: object) -> DiffusionHead:
    torch.manual_seed(0)
    head = DiffusionHead(A, O, DiffusionConfig(**{**SMALL, "network": network, **settings}))
    head.normalizer.normalise_by(Statistics.of(demonstrations()[1].flatten(0, 1).numpy()))
    return head


def demonstrations() -> tuple[Tensor, Tensor]:
    """Conditions [B, To, O] and windows of actions [B, K, A] between -3 and 7."""
    generator = torch.Generator().manual_seed(3)
    condition = torch.randn(B, TO, O, generator=generator)
    turns = torch.linspace(0, 3, K)[:, None] + torch.rand(B, 1, A, generator=generator) * 6
    return condition, 2 + 5 * torch.sin(turns)


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def fit(head: DiffusionHead, rounds: int, *, copies: int = 1, **given: Tensor) -> list[float]:
    """Losses of training on the demonstrations alone, so many copies of them a batch."""
    condition, actions = (part.repeat(copies, 1, 1) for part in demonstrations())
    optimiser = torch.optim.AdamW(head.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, rounds)
    losses = []
    for _ in range(rounds):
        made = head.denoise(condition, actions, **given)
        loss = (made.predicted - made.target).square().mean()
        optimiser.zero_grad()
        torch.autograd.backward([loss])
        optimiser.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def misses(head: DiffusionHead) -> Tensor:
    """How far samples lie from the demonstrations of the same condition, whose range is 10."""
    condition, actions = (part.repeat(16, 1, 1) for part in demonstrations())
    return (head.eval().sample(condition, generator=drawn()) - actions).abs()


@pytest.mark.slow
@pytest.mark.parametrize("network", ["transformer", "unet"])
def test_fixed_noise_is_learned_by_heart(network: str) -> None:
    head = small(network)
    before = copy.deepcopy(head.network.state_dict())
    noise = torch.randn(B, K, A, generator=drawn())
    losses = fit(head, 150, noise=noise, steps=torch.tensor([5, 30, 60, 95]))
    assert losses[-1] < losses[0] / 100
    tables = {name for name, _ in head.network.named_buffers()}
    after = {name: value for name, value in head.network.state_dict().items() if name not in tables}
    assert all(not torch.equal(value, before[name]) for name, value in after.items())


@pytest.mark.release
@pytest.mark.parametrize(("network", "rounds"), [("unet", 100), ("transformer", 250)])
def test_samples_match_the_demonstrations(network: str, rounds: int) -> None:
    head = small(network, prediction="sample")
    losses = fit(head, rounds, copies=4)
    assert losses[-1] < losses[0] / 100
    missed = misses(head)
    assert float(missed.max()) < 1
    assert float(missed.mean()) < 0.2


@pytest.mark.release
@pytest.mark.parametrize("network", NETWORKS)
def test_samples_match_the_demonstrations_by_predicting_noise(network: str) -> None:
    # At the noisiest steps a small error in the noise is a large one in the actions: this takes longer to learn.
    head = small(network, sampler="ddpm")
    fit(head, 250, copies=16)
    assert float(misses(head).mean()) < 0.4


@pytest.mark.parametrize("sampler", ["ddim", "ddpm"])
@pytest.mark.parametrize("network", NETWORKS)
def test_samples_stay_in_the_training_range(network: str, sampler: Sampler) -> None:
    head = small(network, sampler=sampler, train_steps=12).eval()
    actions = np.stack([np.linspace(-3, 7, 9), np.full(9, 0.5)], axis=1)
    head.normalizer.normalise_by(Statistics.of(actions))
    for parameter in head.network.parameters():  # a network gone wild
        torch.nn.init.normal_(parameter, generator=drawn())
    sampled = head.sample(100 * demonstrations()[0], generator=drawn())
    assert sampled.shape == (B, K, A)
    assert bool(((sampled >= head.normalizer.low) & (sampled <= head.normalizer.high)).all())
    assert bool((sampled[..., 1] == 0.5).all())


@pytest.mark.parametrize("sampler", ["ddim", "ddpm"])
@pytest.mark.parametrize("network", NETWORKS)
def test_sampling_is_the_plain_loop(network: str, sampler: Sampler) -> None:
    """All steps' conditioning is computed in one go; a step at a time gives the same."""
    head = small(network, sampler=sampler, train_steps=20).eval()
    condition, generator = demonstrations()[0], drawn(4)
    sample = torch.randn(B, K, A, generator=generator)
    with torch.no_grad():
        for number, step in enumerate(head.schedule.steps):
            output, _ = head.network(sample, head.network.conditioning(step.expand(B), condition))
            sample = head.schedule.update(number, sample, output, generator)
    sampled = head.sample(condition, generator=drawn(4))
    torch.testing.assert_close(sampled, head.normalizer.restore(sample), rtol=1e-4, atol=1e-4)


def test_a_generator_repeats_a_sample() -> None:
    head, condition = small("unet").eval(), demonstrations()[0]
    first = head.sample(condition, generator=drawn(1))
    assert torch.equal(head.sample(condition, generator=drawn(1)), first)
    assert not torch.equal(head.sample(condition, generator=drawn(2)), first)


@pytest.mark.parametrize("prediction", ["epsilon", "sample"])
@pytest.mark.parametrize("network", NETWORKS)
def test_what_training_compares(network: str, prediction: str) -> None:
    head, (condition, actions) = small(network, prediction=prediction), demonstrations()
    noise, steps = torch.randn(B, K, A, generator=drawn()), torch.tensor([0, 20, 50, 99])
    made = head.denoise(condition, actions, noise=noise, steps=steps)
    clean = (actions - head.normalizer.middle) / head.normalizer.reach
    assert float(clean.abs().max()) == pytest.approx(1)
    torch.testing.assert_close(made.target, noise if prediction == "epsilon" else clean)
    noisy = head.schedule.add_noise(clean, noise, steps)
    output, _ = head.network(noisy, head.network.conditioning(steps, condition))
    torch.testing.assert_close(made.predicted, output)
    if network == "unet":
        assert made.bottleneck is not None
        assert made.bottleneck.shape == (B, 64, K // 2)
    else:
        assert made.bottleneck is None


def test_drawn_steps_are_even() -> None:
    torch.manual_seed(0)
    head, met = small("unet", train_steps=4), torch.zeros(4)
    made = head.schedule.add_noise

    def watched(clean: Tensor, noise: Tensor, steps: Tensor) -> Tensor:
        met.add_(torch.bincount(steps, minlength=4))
        return made(clean, noise, steps)

    head.schedule.add_noise = watched  # type: ignore[method-assign]
    condition, actions = (part.repeat(500, 1, 1) for part in demonstrations())
    with torch.no_grad():
        head.denoise(condition, actions)
    assert float((met / met.sum() - 0.25).abs().max()) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_half_precision_and_compilation(network: str) -> None:
    head, (condition, actions) = small(network, train_steps=8), demonstrations()
    compiled = torch.compile(head.denoise, backend="eager", fullgraph=True)
    noise, steps = torch.randn(B, K, A), torch.tensor([0, 2, 4, 7])
    plain = head.denoise(condition, actions, noise=noise, steps=steps).predicted
    torch.testing.assert_close(
        compiled(condition, actions, noise=noise, steps=steps).predicted, plain, rtol=1e-4, atol=1e-5
    )
    with torch.autocast("cpu", torch.bfloat16):
        made = head.denoise(condition, actions, noise=noise, steps=steps)
        sampled = head.eval().sample(condition, generator=drawn())
    assert made.predicted.dtype == made.target.dtype == sampled.dtype == torch.float32
    torch.testing.assert_close(made.predicted, plain, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_saved_head_samples_the_same(network: str) -> None:
    head, condition = small(network).eval(), demonstrations()[0]
    torch.manual_seed(5)
    config = DiffusionConfig.model_validate_json(head.config.model_dump_json())
    other = DiffusionHead(A, O, config).eval()
    other.load_state_dict(head.state_dict())
    wanted = head.sample(condition, generator=drawn())
    assert torch.equal(other.sample(condition, generator=drawn()), wanted)
    assert torch.equal(copy.deepcopy(head).sample(condition, generator=drawn()), wanted)


def test_how_many_steps_a_sampler_takes() -> None:
    assert DiffusionConfig().inference_steps == 8
    assert DiffusionConfig(sampler="ddpm").inference_steps == 100
    assert DiffusionConfig(train_steps=5).inference_steps == 5
    assert DiffusionConfig(sampler="ddpm", inference_steps=10).inference_steps == 10


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"executed": 16}, "executed of at most horizon - obs_steps \\+ 1 = 15"),
        ({"inference_steps": 101}, "at most train_steps = 100"),
        ({"horizon": 10}, "horizon a multiple of 4"),
        ({"kernel_size": 4}, "kernel_size odd"),
        ({"down_dims": (12, 16)}, "multiples of groups = 8"),
        ({"network": "transformer", "heads": 3}, "width a multiple of heads = 3"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        DiffusionConfig(**settings)


@pytest.mark.parametrize("network", NETWORKS)
def test_other_shapes_are_named(network: Literal["unet", "transformer"]) -> None:
    head, (condition, actions) = small(network), demonstrations()
    with pytest.raises(BadInputError, match="condition: found shape"):
        head.denoise(condition[:, :1], actions)
    with pytest.raises(BadInputError, match="condition: found shape"):
        head.sample(condition[..., :3])
    with pytest.raises(BadInputError, match="actions: found shape"):
        head.denoise(condition, actions[:, :-1])
