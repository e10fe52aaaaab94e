from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from counterpoint.policies.networks import ConditionalUnet1d, DiffusionConfig, step_waves
from tests.reference import diffusion_networks as reference

A, TO, O, K = 3, 2, 5, 8  # noqa: E741


def small(**settings: object) -> ConditionalUnet1d:
    torch.manual_seed(0)
    made = {"down_dims": (8, 12, 16), "groups": 4, "step_dim": 6, "horizon": K, "executed": 1, **settings}
    return ConditionalUnet1d(A, O, DiffusionConfig.model_validate(made))


def inputs(n: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    noisy = torch.randn(n, K, A, generator=generator)
    return noisy, torch.tensor([0, 7, 50, 99])[:n], torch.randn(n, TO, O, generator=generator)


def counted(action: int, condition: int, widths: tuple[int, ...], kernel: int, step: int) -> int:
    """Parameters from the architecture as it is described, level by level.

    A block from i to o channels: convolution i o k + o, group norm 2 o; o o k + o and 2 o again; the modulation
    (step + condition) 2 o + 2 o; and a convolution of one tap, i o + o, where i differs from o. Each level has two
    on the way down and two on the way up (none for the first), the bottom has two. Three taps halve, four double.
    """

    def block(i: int, o: int) -> int:
        convolutions = i * o * kernel + o * o * kernel + 2 * (o + 2 * o)
        return convolutions + (step + condition + 1) * 2 * o + (i * o + o if i != o else 0)

    total = step * 4 * step + 4 * step + 4 * step * step + step
    for i, o in zip((action, *widths[:-1]), widths, strict=True):
        total += block(i, o) + block(o, o)
    total += 2 * block(widths[-1], widths[-1])
    for narrow, wide in itertools.pairwise(widths):
        total += block(2 * wide, narrow) + block(narrow, narrow)  # joined to its twin of as many channels
        total += 3 * narrow * narrow + narrow + 4 * narrow * narrow + narrow
    first = widths[0]
    return total + first * first * kernel + first + 2 * first + first * action + action


@pytest.mark.parametrize(
    ("action", "condition", "settings", "published"),
    [
        # Push-T from states: 5 numbers of 2 observations.
        (2, 10, {"down_dims": (256, 512, 1024), "step_dim": 256}, None),
        # Push-T from images: 64 + 2 numbers of 2 observations. LeRobot's model of the same configuration logs
        # 262 709 026 parameters; of these 11 197 088 are of its ResNet-18, spatial softmax and linear map.
        (2, 132, {"down_dims": (512, 1024, 2048)}, 262_709_026 - 11_197_088),
        # ICon's: two ViT-S and 128 numbers of proprioception of 2 observations, 7 actions, half as wide.
        (7, 2 * (2 * 384 + 128), {}, 88_680_071),
    ],
)
def test_as_many_parameters_as_published(
    action: int, condition: int, settings: dict[str, object], published: int | None
) -> None:
    with torch.device("meta"):
        config = DiffusionConfig.model_validate(settings)
        made = ConditionalUnet1d(action, condition // 2, config)
    found = sum(parameter.numel() for parameter in made.parameters())
    assert found == counted(action, condition, config.down_dims, 5, config.step_dim)
    assert published in (None, found)


def test_shapes_of_the_paper() -> None:
    with torch.device("meta"):
        made = ConditionalUnet1d(7, 777, DiffusionConfig(down_dims=(512, 1024, 2048)))
        conditioning = made.conditioning(torch.zeros(3, dtype=torch.int64), torch.zeros(3, 2, 777))
        output, bottleneck = made(torch.zeros(3, 16, 7), conditioning)
    channels = [512, 512, 1024, 1024, 2048, 2048, 2048, 2048, 1024, 1024, 512, 512]
    assert [part.shape for part in conditioning] == [(3, 2 * each) for each in channels]
    assert output.shape == (3, 16, 7)
    assert bottleneck.shape == (3, 2048, 4)


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("widths", [(8, 16), (8, 12, 16)])
def test_one_number_at_a_time(widths: tuple[int, ...], learns: bool) -> None:
    """With and without gradients, for which convolutions are computed in two ways."""
    made = small(down_dims=widths)
    noisy, steps, condition = inputs()
    with torch.set_grad_enabled(learns):
        output, bottleneck = made(noisy, made.conditioning(steps, condition))
    weights = {name: value.detach() for name, value in made.state_dict().items()}
    for row in range(len(noisy)):
        wanted, inner = reference.unet(
            noisy[row], int(steps[row]), condition[row], weights, levels=len(widths), groups=4, step_dim=6
        )
        torch.testing.assert_close(output[row], wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(bottleneck[row], inner, rtol=1e-4, atol=1e-5)


def test_waves_of_steps() -> None:
    waves = step_waves(torch.tensor([0, 3]), 8)
    assert waves[0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert waves[1, 0] == pytest.approx(math.sin(3))
    assert waves[1, 3] == pytest.approx(math.sin(3e-4))


def test_conditioning_of_several_steps_at_once() -> None:
    made = small()
    _, _, condition = inputs(2)
    steps = torch.tensor([84, 72, 0])
    at_once = made.conditioning(steps.repeat_interleave(2), condition.repeat(3, 1, 1))
    for number, step in enumerate(steps):
        alone = made.conditioning(step.expand(2), condition)
        for part, wanted in zip(at_once, alone, strict=True):
            torch.testing.assert_close(part[2 * number : 2 * number + 2], wanted)


def test_every_parameter_learns() -> None:
    made = small()
    noisy, steps, condition = inputs()
    output, _ = made(noisy, made.conditioning(steps, condition))
    torch.autograd.backward([output.square().mean()])
    assert all(p.grad is not None and bool(p.grad.any()) for p in made.parameters())
