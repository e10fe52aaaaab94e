from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from counterpoint.errors import BadInputError
from counterpoint.objectives.crossway import CrosswayConfig, CrosswayDecoder
from counterpoint.policies.diffusion import DiffusionHead
from counterpoint.policies.networks import DiffusionConfig
from tests.reference import crossway as reference

B, M, C, SIZE, P = 3, 16, 2, 24, 4


def small(**settings: object) -> CrosswayDecoder:
    torch.manual_seed(0)
    config = CrosswayConfig(**{"widths": (16, 8), "groups": 4, **settings})
    return CrosswayDecoder(M, C, SIZE, P, config)


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    bottleneck = torch.randn(B, M, 2, generator=generator)
    frames = torch.randint(0, 256, (B, C, SIZE, SIZE, 3), generator=generator, dtype=torch.uint8)
    return bottleneck, frames, torch.randn(B, P, generator=generator)


@pytest.mark.parametrize(("size", "side"), [(96, 6), (224, 7), (84, 21), (8, 8), (50, 25)])
def test_any_square_size(size: int, side: int) -> None:
    config = CrosswayConfig(widths=(8,), groups=4)
    decoder = CrosswayDecoder(M, 1, size, 0, config)
    assert decoder.images[0].side == side
    images, numbers = decoder.reconstruct(torch.randn(2, M, 4))
    assert images.shape == (2, 1, 3, size, size)
    assert numbers is None


def test_the_size_of_the_paper_policies() -> None:
    decoder = CrosswayDecoder(2048, 2, 224, 9, CrosswayConfig())
    with torch.no_grad():
        images, numbers = decoder.reconstruct(torch.zeros(1, 2048, 4))
    assert numbers is not None
    assert (images.shape, numbers.shape) == ((1, 2, 3, 224, 224), (1, 9))


@pytest.mark.parametrize("weights", [None, (0.5, 2.0)])
def test_loss_one_number_at_a_time(weights: tuple[float, float] | None) -> None:
    decoder = small(camera_weights=weights)
    bottleneck, frames, state = inputs()
    loss, metrics = decoder(bottleneck, frames, state)
    images, numbers = decoder.reconstruct(bottleneck)
    assert numbers is not None
    images, numbers = images.detach(), numbers.detach()
    wanted = reference.reconstruction(images, frames, weights or (1.0, 1.0), numbers, state)
    assert loss.item() == pytest.approx(wanted, rel=1e-5)
    assert metrics["state"].item() == pytest.approx(reference.state_error(numbers, state))


def test_a_camera_of_no_weight_teaches_nothing() -> None:
    decoder = small(camera_weights=(1.0, 0.0))
    bottleneck, frames, state = inputs()
    changed = frames.clone()
    changed[:, 1] = 255 - changed[:, 1]
    torch.testing.assert_close(decoder(bottleneck, changed, state)[0], decoder(bottleneck, frames, state)[0])


def test_the_gradient_reaches_the_bottleneck_first_step() -> None:
    decoder = small()
    bottleneck, frames, state = inputs()
    bottleneck.requires_grad_()
    torch.autograd.backward([decoder(bottleneck, frames, state)[0]])
    assert bottleneck.grad is not None
    assert bool(bottleneck.grad[:, :, 0].all())
    assert not bool(bottleneck.grad[:, :, 1:].any())
    assert all(p.grad is not None and bool(p.grad.any()) for p in decoder.parameters())


@pytest.mark.slow
def test_training_of_both_parts() -> None:
    torch.manual_seed(0)
    settings = DiffusionConfig(horizon=8, executed=4, down_dims=(16, M), groups=4, step_dim=8)
    head, decoder = DiffusionHead(2, 6, settings), small()
    _, frames, state = inputs()
    condition, actions = torch.randn(B, 2, 6), torch.rand(B, 8, 2) * 2 - 1
    noise, steps = torch.randn(B, 8, 2), torch.tensor([3, 40, 80])
    parameters = [*head.parameters(), *decoder.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=3e-3)
    before, found = [p.detach().clone() for p in parameters], []
    for _ in range(60):
        made = head.denoise(condition, actions, noise=noise, steps=steps)
        assert made.bottleneck is not None
        loss, _ = decoder(made.bottleneck, frames, state)
        diffusion = (made.predicted - made.target).square().mean()
        optimiser.zero_grad()
        torch.autograd.backward([diffusion + decoder.config.weight * loss])
        optimiser.step()
        found.append((diffusion.item(), loss.item()))
    assert found[-1][0] < found[0][0] / 10
    assert found[-1][1] < found[0][1] * 0.7
    assert all(not torch.equal(old, new) for old, new in zip(before, parameters, strict=True))


@pytest.mark.slow
def test_half_precision_and_compilation() -> None:
    decoder, (bottleneck, frames, state) = small(), inputs()
    plain = decoder(bottleneck, frames, state)[0]
    compiled = torch.compile(decoder.forward, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(bottleneck, frames, state)[0], plain)
    with torch.autocast("cpu", torch.bfloat16):
        half = decoder(bottleneck, frames, state)[0]
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, plain, rtol=0.02, atol=0.02)


def test_bad_input_is_named() -> None:
    decoder, (bottleneck, frames, state) = small(), inputs()
    with pytest.raises(BadInputError, match="frames: found shape"):
        decoder(bottleneck, frames[:, :1], state)
    with pytest.raises(BadInputError, match="frames: found shape"):
        decoder(bottleneck, frames[:, :, :20], state)
    with pytest.raises(BadInputError, match="state: found none; expected 4 numbers"):
        decoder(bottleneck, frames)
    with pytest.raises(BadInputError, match="state: found 3 numbers"):
        decoder(bottleneck, frames, state[:, :3])
    with pytest.raises(BadInputError, match="camera_weights: found 3 of them; expected 2"):
        small(camera_weights=(1.0, 1.0, 1.0))
    with pytest.raises(BadInputError, match="bottleneck_dim: found 18"):
        CrosswayDecoder(18, 1, 24, 0, CrosswayConfig())
    with pytest.raises(ValidationError, match="multiples of groups = 8"):
        CrosswayConfig(widths=(12,))
