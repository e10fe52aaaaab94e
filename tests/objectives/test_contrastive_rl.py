from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from counterpoint.errors import BadInputError
from counterpoint.objectives.contrastive_rl import contrastive_nce_loss, logsumexp_penalty, reaching_rows
from counterpoint.objectives.td_infonce import mc_infonce_loss
from tests.golden.load import golden
from tests.reference import contrastive_rl as plain

EXACT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-13}
OF_LOGITS: list[Callable[[Tensor], Tensor]] = [contrastive_nce_loss, lambda logits: logsumexp_penalty(logits, 0.1)]


def products(phi: Tensor, psi: Tensor) -> Tensor:
    """Of every pair, twins last."""
    return phi @ psi.T if phi.ndim == 2 else (phi @ psi.mT).movedim(0, -1)


def representations(
    B: int = 5, D: int = 3, twins: int = 0, seed: int = 0, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (twins, B, D) if twins else (B, D)
    return [torch.randn(shape, dtype=dtype, generator=generator).requires_grad_() for _ in range(2)]


# The authors' numbers: OGBench.


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_ogbench_nce(dtype: torch.dtype) -> None:
    arrays, _ = golden("crl_ogbench_a")
    close: dict[str, Any] = EXACT if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-7}
    phi, psi = (arrays[name].to(dtype).requires_grad_() for name in ("phi", "psi"))
    logits = products(phi, psi) / phi.shape[-1] ** 0.5
    assert logits.shape == (6, 6, 2)
    twin = contrastive_nce_loss(logits)
    torch.testing.assert_close(twin, arrays["nce_loss_twin"].to(dtype), **close)
    for gradient, name in zip(torch.autograd.grad(twin, (phi, psi)), ("grad_phi", "grad_psi"), strict=True):
        torch.testing.assert_close(gradient, arrays[name].to(dtype), **close)
    single = contrastive_nce_loss(products(phi[0], psi[0]) / phi.shape[-1] ** 0.5)
    torch.testing.assert_close(single, arrays["nce_loss_single"].to(dtype), **close)
    (gradient,) = torch.autograd.grad(single, phi)
    torch.testing.assert_close(gradient[0], arrays["single_grad_phi"].to(dtype), **close)


# The authors' numbers: JaxGCRL.


def test_jaxgcrl_infonce() -> None:
    arrays, meta = golden("crl_jaxgcrl_a")
    phi, psi = arrays["sa_repr"].requires_grad_(), arrays["g_repr"].requires_grad_()
    logits = products(phi, psi)
    torch.testing.assert_close(logits, arrays["dot_logits"], **EXACT)
    loss = mc_infonce_loss(logits)
    torch.testing.assert_close(loss, arrays["dot_fwd_infonce_loss"], **EXACT)
    # They add 1e-6 to the logits before the penalty.
    penalty = logsumexp_penalty(logits + 1e-6, meta["hyper"]["logsumexp_penalty_coeff"])
    torch.testing.assert_close(loss + penalty, arrays["dot_fwd_infonce_loss_with_lse_penalty0.1"], **EXACT)
    gradients = torch.autograd.grad(loss + penalty, (phi, psi))
    for gradient, side in zip(gradients, ("sa", "g"), strict=True):
        torch.testing.assert_close(gradient, arrays[f"dot_fwd_infonce_grad_{side}"], **EXACT)


def test_jaxgcrl_infonce_of_free_logits() -> None:
    arrays, _ = golden("crl_jaxgcrl_a")
    logits = arrays["free_logits"].requires_grad_()
    loss = mc_infonce_loss(logits)
    torch.testing.assert_close(loss, arrays["free_fwd_infonce"], **EXACT)
    (gradient,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(gradient, arrays["free_fwd_infonce_grad"], **EXACT)


def test_jaxgcrl_binary_nce_is_not_reproduced() -> None:
    arrays, _ = golden("crl_jaxgcrl_a")
    logits = arrays["free_logits"].requires_grad_()
    theirs = -torch.sigmoid(logits).mean()
    torch.testing.assert_close(theirs, arrays["free_binary_nce"], **EXACT)
    # Theirs does not know which pairs belong together: it pushes every logit up,
    assert (torch.autograd.grad(theirs, logits)[0] < 0).all()
    moved = logits.roll(1, 0)
    torch.testing.assert_close(-torch.sigmoid(moved).mean(), theirs)
    # where NCE pushes up the diagonal and pulls down the rest.
    ours = contrastive_nce_loss(logits)
    (gradient,) = torch.autograd.grad(ours, logits)
    assert torch.equal(gradient < 0, torch.eye(6, dtype=torch.bool))
    assert not torch.isclose(contrastive_nce_loss(moved), ours)
    assert not torch.isclose(ours, arrays["free_binary_nce"])


# Plain loops and properties.


@pytest.mark.parametrize("twins", [0, 2])
@pytest.mark.parametrize("B", [1, 4])
def test_plain_loop(B: int, twins: int) -> None:
    phi, psi = representations(B, twins=twins)
    pairs = list(zip(phi, psi, strict=True)) if twins else [(phi, psi)]
    oracle = torch.stack([plain.products(x, y) for x, y in pairs], 2)
    ours = products(phi, psi)
    torch.testing.assert_close(ours, oracle if twins else oracle[..., 0])
    singles = list(ours.unbind(2)) if twins else [ours]
    expected = torch.stack([plain.nce(F) for F in singles]).mean()
    torch.testing.assert_close(contrastive_nce_loss(ours), expected, rtol=1e-10, atol=1e-12)


def test_the_actors_cost_is_minus_the_lesser_twin() -> None:
    logits = torch.tensor([[3.0, -1.0], [0.5, 2.0]])
    assert reaching_rows(logits).tolist() == [1.0, -0.5]
    assert reaching_rows(logits[:, 0]).tolist() == [-3.0, -0.5]


@pytest.mark.parametrize("loss", OF_LOGITS)
def test_gradcheck(loss: Callable[[Tensor], Tensor]) -> None:
    phi, psi = representations(3, twins=2)
    assert torch.autograd.gradcheck(lambda x, y: loss(products(x, y)), (phi, psi))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), B=st.integers(1, 6), twins=st.sampled_from([0, 2]))
def test_symmetries(seed: int, B: int, twins: int) -> None:
    phi, psi = (x.detach() for x in representations(B, twins=twins, seed=seed))
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(B, generator=generator)
    F = products(phi, psi)
    for loss in OF_LOGITS:
        torch.testing.assert_close(loss(products(phi[..., order, :], psi[..., order, :])), loss(F))
    # NCE treats situations and futures alike.
    torch.testing.assert_close(contrastive_nce_loss(F.transpose(0, 1)), contrastive_nce_loss(F))
    assert contrastive_nce_loss(F) > 0
    # A constant of the row is free under InfoNCE; the penalty sees it.
    shift = torch.randn(B, 1, *F.shape[2:], dtype=torch.float64, generator=generator)
    torch.testing.assert_close(mc_infonce_loss(F + shift), mc_infonce_loss(F))
    centred = F - F.logsumexp(1, keepdim=True)
    assert logsumexp_penalty(centred, 0.1) < 1e-20


@pytest.mark.parametrize("B", [1, 8])
def test_nce_of_zero_logits_is_the_logarithm_of_two(B: int) -> None:
    value = contrastive_nce_loss(torch.zeros(B, B, 2, dtype=torch.float64))
    assert float(value) == pytest.approx(math.log(2))


def test_large_logits_in_single_precision() -> None:
    F = (1e6 * products(*representations(dtype=torch.float32))).detach().requires_grad_()
    for loss in OF_LOGITS:
        value = loss(F)
        assert value.isfinite()
        assert torch.autograd.grad(value, F)[0].isfinite().all()


def test_half_precision_and_autocast() -> None:
    logits = products(*representations(dtype=torch.float32)).detach()
    losses: list[Callable[[Tensor], Tensor]] = [*OF_LOGITS, lambda logits: reaching_rows(logits.diagonal())]
    for loss in losses:
        expected = loss(logits)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(loss(logits), expected)
        assert loss(logits.bfloat16()).dtype == torch.float32


def test_wrong_shapes_are_refused() -> None:
    for loss in OF_LOGITS:
        with pytest.raises(BadInputError, match="logits"):
            loss(torch.zeros(3, 4))
