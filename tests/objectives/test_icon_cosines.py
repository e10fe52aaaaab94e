from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from counterpoint.objectives.icon import icon_logits


def token_cosines(tokens: Sequence[Tensor], mask: Tensor, keys: Tensor, prefix: int = 0) -> Tensor:
    return icon_logits(tokens, mask, keys[..., :1], keys[..., 1:], temperature=1.0, prefix=prefix)


def case(
    L: int = 2, n: int = 3, P: int = 9, D: int = 5, K: int = 4, prefix: int = 0, seed: int = 0
) -> tuple[list[Tensor], Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = [
        torch.randn(n, prefix + P, D, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(L)
    ]
    mask = torch.rand(n, P, generator=generator) < 0.5
    keys = torch.randint(P, (L, n, K), generator=generator)
    return tokens, mask, keys


def plain(tokens: list[Tensor], mask: Tensor, keys: Tensor, prefix: int = 0) -> Tensor:
    """The same by automatic differentiation."""
    layers = []
    for layer, x in enumerate(tokens):
        patches = x[:, prefix:]
        own = keys[layer] if keys.ndim == 3 else keys
        sides = torch.stack([mask, ~mask], 1).to(x.dtype)
        queries = sides @ patches / sides.sum(-1, keepdim=True).clamp(min=1)
        chosen = patches.gather(1, own[..., None].expand(-1, -1, x.shape[-1]))
        layers.append(functional.normalize(queries, dim=-1) @ functional.normalize(chosen, dim=-1).mT)
    return torch.stack(layers)


@pytest.mark.parametrize("prefix", [0, 1, 5])
@pytest.mark.parametrize("shared", [False, True])
def test_value_and_gradient(prefix: int, shared: bool) -> None:
    tokens, mask, keys = case(prefix=prefix)
    if shared:
        keys = keys[0]
    ours, theirs = token_cosines(tokens, mask, keys, prefix=prefix), plain(tokens, mask, keys, prefix)
    torch.testing.assert_close(ours, theirs)
    pull = torch.randn_like(ours)
    for mine, other in zip(
        torch.autograd.grad(ours, tokens, pull), torch.autograd.grad(theirs, tokens, pull), strict=True
    ):
        torch.testing.assert_close(mine, other)


def test_gradcheck_with_repeated_keys() -> None:
    tokens, mask, keys = case(n=2, P=4, D=3, K=6)
    assert torch.autograd.gradcheck(lambda *x: token_cosines(x, mask, keys), tokens)


def test_views_of_larger_tensors() -> None:
    tokens, mask, keys = case(prefix=2)
    ours = token_cosines([x[:, 2:] for x in tokens], mask, keys)
    whole = token_cosines(tokens, mask, keys, prefix=2)
    torch.testing.assert_close(ours, whole)
    for mine, other in zip(
        torch.autograd.grad(ours.sum(), tokens), torch.autograd.grad(whole.sum(), tokens), strict=True
    ):
        torch.testing.assert_close(mine, other)
        assert (mine[:, :2] == 0).all()


def test_only_layers_that_learn_get_a_gradient() -> None:
    tokens, mask, keys = case()
    tokens[0] = tokens[0].detach()
    torch.autograd.backward([token_cosines(tokens, mask, keys).sum()])
    assert tokens[0].grad is None
    assert tokens[1].grad is not None


def test_a_side_without_tokens_and_tokens_of_zeros() -> None:
    tokens, mask, keys = case()
    mask[0], mask[1] = False, True
    with torch.no_grad():
        tokens[0][2] = 0
        tokens[1][2, :4] = 1e-30
    cosines = token_cosines(tokens, mask, keys)
    assert (cosines[:, 0, 0] == 0).all()
    assert (cosines[:, 1, 1] == 0).all()
    for gradient in torch.autograd.grad(cosines.sum(), tokens):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_precision(dtype: torch.dtype) -> None:
    tokens, mask, keys = case()
    expected = token_cosines(tokens, mask, keys)
    narrow = [x.detach().to(dtype).requires_grad_() for x in tokens]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = token_cosines(narrow, mask, keys)
    assert ours.dtype == torch.float32
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(ours.double(), expected, atol=tolerance, rtol=0)
    for mine, other in zip(
        torch.autograd.grad(ours.sum(), narrow), torch.autograd.grad(expected.sum(), tokens), strict=True
    ):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine.double(), other, atol=10 * tolerance, rtol=0)


def test_the_graph_can_be_kept() -> None:
    tokens, mask, keys = case()
    value = token_cosines(tokens, mask, keys).square().sum()
    first = torch.autograd.grad(value, tokens, retain_graph=True)
    for mine, other in zip(first, torch.autograd.grad(value, tokens), strict=True):
        assert torch.equal(mine, other)
