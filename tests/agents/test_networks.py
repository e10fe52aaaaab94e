from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from counterpoint.agents.networks import EnsembleMLP


def network(
    sizes: tuple[int, ...], members: int = 2, **settings: bool
) -> tuple[EnsembleMLP, list[Tensor], list[Tensor]]:
    """A network whose biases are large enough to matter, with its weights and biases."""
    generator = torch.Generator().manual_seed(0)
    made = EnsembleMLP(members, sizes, generator=generator, **settings)
    with torch.no_grad():
        for fan_in, weight, bias in zip(sizes, made.weights, made.biases, strict=False):
            weight.copy_(torch.randn(weight.shape, generator=generator) / fan_in**0.5)
            bias.normal_(generator=generator)
    return made, list(made.weights), list(made.biases)


def by_layers(x: Tensor, weights: list[Tensor], biases: list[Tensor], activate_last: bool) -> Tensor:
    """One member at a time, one layer at a time."""
    outputs = []
    for member in range(len(weights[0])):
        y = x if x.dim() == 2 else x[member]
        for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            y = functional.linear(y, weight[member].T, bias[member, 0])
            if number < len(weights) - 1 or activate_last:
                y = y.clamp(min=0)
        outputs.append(y)
    return torch.stack(outputs)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("activate_last", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_values_and_gradients_are_those_of_single_layers(
    shared: bool, activate_last: bool, dtype: torch.dtype, tolerance: float
) -> None:
    made = network((7, 32, 32, 5), activate_last=activate_last)[0].to(dtype)
    weights, biases = list(made.weights), list(made.biases)
    x = torch.randn(*([] if shared else [2]), 9, 7, generator=torch.Generator().manual_seed(1)).to(dtype)
    leaves = [x.requires_grad_(), *weights, *biases]
    seed = torch.randn(2, 9, 5, generator=torch.Generator().manual_seed(2)).to(dtype)
    found = made(x)
    expected = by_layers(x, weights, biases, activate_last)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    for one, other in zip(
        torch.autograd.grad((found * seed).sum(), leaves),
        torch.autograd.grad((expected * seed).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=10 * tolerance, atol=10 * tolerance)


def test_under_autocast_products_are_in_bfloat16_and_results_in_float32() -> None:
    made, weights, biases = network((7, 64, 64, 5))
    x = torch.randn(9, 7, generator=torch.Generator().manual_seed(1))
    leaves = [p.requires_grad_() for p in (*weights, *biases)]
    exact = made(x)
    with torch.autocast("cpu", torch.bfloat16):
        rough = made(x)
    assert rough.dtype == torch.float32
    assert not torch.equal(rough, exact)
    torch.testing.assert_close(rough, exact, rtol=0.05, atol=0.05)
    for one, other in zip(
        torch.autograd.grad(rough.sum(), leaves), torch.autograd.grad(exact.sum(), leaves), strict=True
    ):
        assert one.dtype == torch.float32
        assert float((one - other).norm() / other.norm()) < 0.05


def test_what_is_not_finite_stays_so() -> None:
    made, _, _ = network((7, 16, 16, 5), activate_last=True)
    x = torch.zeros(4, 7)
    x[1, 2] = torch.nan
    found = made(x)
    assert bool(found[:, 1].isnan().all())
    assert bool(found[:, [0, 2, 3]].isfinite().all())


def test_gradients_are_only_of_what_wants_them() -> None:
    made = EnsembleMLP(2, [3, 8, 4], generator=torch.Generator().manual_seed(0))
    x = torch.ones(5, 3, requires_grad=True)
    torch.autograd.backward([made(x, frozen=True).sum()])
    assert x.grad is not None
    assert all(p.grad is None for p in made.parameters())
    frozen = x.grad.clone()
    x.grad = None
    torch.autograd.backward([made(x).sum()])
    assert torch.equal(frozen, x.grad)  # type: ignore[arg-type]
    assert all(p.grad is not None for p in made.parameters())


def test_one_member_and_no_hidden_layer() -> None:
    made, weights, biases = network((3, 2), members=1)
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(3))
    expected = x @ weights[0][0] + biases[0][0]
    torch.testing.assert_close(made(x)[0], expected)
