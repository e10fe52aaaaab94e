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
from counterpoint.objectives.base import symmetric_infonce, unit
from counterpoint.objectives.contrastive_rl import (
    awr_loss,
    contrastive_nce_loss,
    ddpgbc_loss,
    inner_product_logits,
    logsumexp_penalty,
    negative_distance_logits,
    row_column_infonce_loss,
    scaled_inner_product,
)
from counterpoint.objectives.td_infonce import mc_infonce_loss
from tests.golden.load import golden
from tests.reference import contrastive_rl as plain

Energy = Callable[[Tensor, Tensor], Tensor]
EXACT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-13}
ENERGIES: dict[str, Energy] = {
    "norm": negative_distance_logits,
    "l2": lambda phi, psi: negative_distance_logits(phi, psi, squared=True),
    "dot": inner_product_logits,
}
DIRECTIONS = {"fwd": "forward", "bwd": "backward", "sym": "symmetric"}
OF_LOGITS: list[Callable[[Tensor], Tensor]] = [
    contrastive_nce_loss,
    row_column_infonce_loss,
    lambda logits: logsumexp_penalty(logits, 0.1),
]


def infonce(logits: Tensor, short: str) -> Tensor:
    """JaxGCRL's forms: its symmetric loss is the sum of both directions."""
    direction: Any = DIRECTIONS[short]
    return row_column_infonce_loss(logits, direction) * (2 if short == "sym" else 1)


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
    logits = scaled_inner_product(phi, psi)
    assert logits.shape == (6, 6, 2)
    twin = contrastive_nce_loss(logits)
    torch.testing.assert_close(twin, arrays["nce_loss_twin"].to(dtype), **close)
    for gradient, name in zip(torch.autograd.grad(twin, (phi, psi)), ("grad_phi", "grad_psi"), strict=True):
        torch.testing.assert_close(gradient, arrays[name].to(dtype), **close)
    single = contrastive_nce_loss(scaled_inner_product(phi[0], psi[0]))
    torch.testing.assert_close(single, arrays["nce_loss_single"].to(dtype), **close)
    (gradient,) = torch.autograd.grad(single, phi)
    torch.testing.assert_close(gradient[0], arrays["single_grad_phi"].to(dtype), **close)


def log_prob(mean: Tensor, action: Tensor) -> Tensor:
    """Of a Gaussian of unit standard deviation, summed over action dimensions."""
    return (-(action - mean).square() / 2 - math.log(2 * math.pi) / 2).sum(1)


def test_ogbench_ddpgbc() -> None:
    arrays, meta = golden("crl_ogbench_a")
    mean = arrays["actor_mean"].requires_grad_()
    q = arrays["q"].T + mean.clamp(-1, 1) @ arrays["q_slope"].T
    loss = ddpgbc_loss(q, log_prob(mean, arrays["actions"]), alpha=meta["hyper"]["alpha_ddpgbc"])
    torch.testing.assert_close(loss, arrays["ddpgbc_loss"], **EXACT)
    (gradient,) = torch.autograd.grad(loss, mean)
    torch.testing.assert_close(gradient, arrays["ddpgbc_grad_mean"], **EXACT)


def test_ogbench_awr() -> None:
    arrays, meta = golden("crl_ogbench_a")
    mean = arrays["actor_mean"].requires_grad_()
    q = (arrays["q"].T + arrays["actions"] @ arrays["q_slope"].T).requires_grad_()
    v = arrays["v"].requires_grad_()
    loss = awr_loss(q, v, log_prob(mean, arrays["actions"]), alpha=meta["hyper"]["alpha_awr"])
    torch.testing.assert_close(loss, arrays["awr_loss"], **EXACT)
    (gradient,) = torch.autograd.grad(loss, mean, retain_graph=True)
    torch.testing.assert_close(gradient, arrays["awr_grad_mean"], **EXACT)
    assert all(g is None for g in torch.autograd.grad(loss, (q, v), allow_unused=True))


# The authors' numbers: JaxGCRL.


@pytest.mark.parametrize("name", ENERGIES)
@pytest.mark.parametrize("short", DIRECTIONS)
def test_jaxgcrl_infonce(name: str, short: str) -> None:
    arrays, meta = golden("crl_jaxgcrl_a")
    phi, psi = arrays["sa_repr"].requires_grad_(), arrays["g_repr"].requires_grad_()
    logits = ENERGIES[name](phi, psi)
    torch.testing.assert_close(logits, arrays[f"{name}_logits"], **EXACT)
    loss = infonce(logits, short)
    torch.testing.assert_close(loss, arrays[f"{name}_{short}_infonce_loss"], **EXACT)
    # They add 1e-6 to the logits before the penalty.
    penalty = logsumexp_penalty(logits + 1e-6, meta["hyper"]["logsumexp_penalty_coeff"])
    torch.testing.assert_close(loss + penalty, arrays[f"{name}_{short}_infonce_loss_with_lse_penalty0.1"], **EXACT)
    gradients = torch.autograd.grad(loss + penalty, (phi, psi))
    for gradient, side in zip(gradients, ("sa", "g"), strict=True):
        torch.testing.assert_close(gradient, arrays[f"{name}_{short}_infonce_grad_{side}"], **EXACT)


@pytest.mark.parametrize("short", DIRECTIONS)
def test_jaxgcrl_infonce_of_free_logits(short: str) -> None:
    arrays, _ = golden("crl_jaxgcrl_a")
    logits = arrays["free_logits"].requires_grad_()
    loss = infonce(logits, short)
    torch.testing.assert_close(loss, arrays[f"free_{short}_infonce"], **EXACT)
    (gradient,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(gradient, arrays[f"free_{short}_infonce_grad"], **EXACT)


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


def test_jaxgcrl_cosine_is_not_reproduced() -> None:
    arrays, _ = golden("crl_jaxgcrl_a")
    phi, psi = arrays["sa_repr"], arrays["g_repr"]
    # Theirs divides by the norm of all representations together;
    whole = phi.square().sum().sqrt() * psi.square().sum().sqrt()
    torch.testing.assert_close(phi @ psi.T / whole, arrays["cosine_logits"], rtol=1e-5, atol=1e-9)
    # a cosine divides by the two vectors' own.
    cosines = inner_product_logits(unit(phi), unit(psi))
    expected = torch.nn.functional.cosine_similarity(phi[:, None], psi[None], dim=2)
    torch.testing.assert_close(cosines, expected)
    assert not torch.allclose(cosines, arrays["cosine_logits"], rtol=0.5)


# Plain loops and properties.


@pytest.mark.parametrize("twins", [0, 2])
@pytest.mark.parametrize("B", [1, 4])
def test_plain_loop(B: int, twins: int) -> None:
    phi, psi = representations(B, twins=twins)
    pairs = list(zip(phi, psi, strict=True)) if twins else [(phi, psi)]
    for name, energy in ENERGIES.items():
        oracle = torch.stack([plain.energy(x, y, name) for x, y in pairs], 2)
        oracle = oracle if twins else oracle[..., 0]
        ours = energy(phi, psi)
        torch.testing.assert_close(ours, oracle, rtol=1e-7, atol=1e-9)
        singles = list(ours.unbind(2)) if twins else [ours]
        expected = torch.stack([plain.nce(F) for F in singles]).mean()
        torch.testing.assert_close(contrastive_nce_loss(ours), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(scaled_inner_product(phi, psi), inner_product_logits(phi, psi) / 3**0.5)


@pytest.mark.parametrize("loss", OF_LOGITS)
def test_gradcheck(loss: Callable[[Tensor], Tensor]) -> None:
    phi, psi = representations(3, twins=2)
    for energy in ENERGIES.values():
        assert torch.autograd.gradcheck(lambda x, y, e=energy: loss(e(x, y)), (phi, psi))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), B=st.integers(1, 6), twins=st.sampled_from([0, 2]))
def test_symmetries(seed: int, B: int, twins: int) -> None:
    phi, psi = (x.detach() for x in representations(B, twins=twins, seed=seed))
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(B, generator=generator)
    for energy in ENERGIES.values():
        F = energy(phi, psi)
        for loss in OF_LOGITS:
            torch.testing.assert_close(loss(energy(phi[..., order, :], psi[..., order, :])), loss(F))
        # NCE treats situations and futures alike, and so does the symmetric InfoNCE.
        torch.testing.assert_close(contrastive_nce_loss(F.transpose(0, 1)), contrastive_nce_loss(F))
        torch.testing.assert_close(row_column_infonce_loss(F.transpose(0, 1)), row_column_infonce_loss(F))
        assert contrastive_nce_loss(F) > 0
        # A constant of the row is free under forward InfoNCE, of the column under backward; the penalty sees it.
        shift = torch.randn(B, 1, *F.shape[2:], dtype=torch.float64, generator=generator)
        forward = row_column_infonce_loss(F + shift, "forward")
        torch.testing.assert_close(forward, row_column_infonce_loss(F, "forward"))
        backward = row_column_infonce_loss(F + shift.transpose(0, 1), "backward")
        torch.testing.assert_close(backward, row_column_infonce_loss(F, "backward"))
        centred = F - F.logsumexp(1, keepdim=True)
        assert logsumexp_penalty(centred, 0.1) < 1e-20
    apart = negative_distance_logits(phi, psi)
    assert (apart <= -1e-3 + 1e-12).all()
    moved = negative_distance_logits(phi + 1.5, psi + 1.5)
    torch.testing.assert_close(moved, apart, rtol=1e-6, atol=1e-6)


def test_directions() -> None:
    F = inner_product_logits(*representations())
    torch.testing.assert_close(row_column_infonce_loss(F, "forward"), mc_infonce_loss(F))
    torch.testing.assert_close(row_column_infonce_loss(F), symmetric_infonce(F))


@pytest.mark.parametrize("B", [1, 8])
def test_nce_of_zero_logits_is_the_logarithm_of_two(B: int) -> None:
    value = contrastive_nce_loss(torch.zeros(B, B, 2, dtype=torch.float64))
    assert float(value) == pytest.approx(math.log(2))


def test_large_logits_in_single_precision() -> None:
    F = (1e6 * inner_product_logits(*representations(dtype=torch.float32))).detach().requires_grad_()
    for loss in OF_LOGITS:
        value = loss(F)
        assert value.isfinite()
        assert torch.autograd.grad(value, F)[0].isfinite().all()


def test_distance_of_equal_representations() -> None:
    phi, _ = representations(dtype=torch.float32)
    large = (100 * phi).detach().requires_grad_()
    for squared in (False, True):
        F = negative_distance_logits(large, large, squared=squared)
        assert (F <= 0).all()
        assert torch.autograd.grad(F.sum(), large)[0].isfinite().all()


def test_half_precision_and_autocast() -> None:
    phi, psi = representations(dtype=torch.float32)
    expected = contrastive_nce_loss(scaled_inner_product(phi, psi))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(contrastive_nce_loss(scaled_inner_product(phi, psi)), expected)


def test_awr_clips_its_weights() -> None:
    q, v, likely = (torch.full((3,), x, dtype=torch.float64) for x in (50.0, 0.0, -1.0))
    assert float(awr_loss(q, v, likely, alpha=3.0)) == pytest.approx(100)
    assert float(awr_loss(v, q, likely, alpha=3.0)) == pytest.approx(0, abs=1e-30)


def test_ddpgbc_does_not_depend_on_the_unit_of_q() -> None:
    generator = torch.Generator().manual_seed(0)
    q, likely = torch.randn(6, 2, generator=generator), torch.randn(6, generator=generator)
    large = ddpgbc_loss(1e4 * q, likely, alpha=0.1)
    torch.testing.assert_close(large, ddpgbc_loss(q, likely, alpha=0.1), rtol=1e-4, atol=1e-4)


def test_wrong_shapes_are_refused() -> None:
    phi, psi = representations()
    for energy in (*ENERGIES.values(), scaled_inner_product):
        with pytest.raises(BadInputError, match="phi, psi"):
            energy(phi, psi[:3])
        with pytest.raises(BadInputError):
            energy(phi[0], psi[0])
    for loss in OF_LOGITS:
        with pytest.raises(BadInputError, match="logits"):
            loss(torch.zeros(3, 4))
    row = torch.zeros(3)
    with pytest.raises(BadInputError, match="q: found"):
        ddpgbc_loss(torch.zeros(2, 3), row, alpha=0.1)
    with pytest.raises(BadInputError, match="q: found"):
        awr_loss(row, torch.zeros(3, 1), row, alpha=0.1)
