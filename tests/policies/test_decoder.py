from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from counterpoint.policies.heads import CausalDecoder, HeadConfig
from tests.reference.resnet_t import decode

H, M, E = 5, 2, 8


def decoder(dropout: float = 0.0, seed: int = 0) -> CausalDecoder:
    torch.manual_seed(seed)
    config = HeadConfig(token=E, history=H, layers=2, heads=3, feedforward=12, dropout=dropout)
    return CausalDecoder(config).double().eval()


def tokens(B: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(B, H, M, E, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def since(first: int, B: int = 3) -> Tensor:
    """Valid from step `first` on."""
    return (torch.arange(H) >= first).expand(B, H)


@pytest.mark.parametrize("first", [0, 2, H - 1])
def test_plain_loop(first: int) -> None:
    made, given_tokens, valid = decoder(), tokens(), since(first)
    ours = torch.where(valid[..., None, None], made(given_tokens, valid), 0)
    for row, mine in zip(given_tokens, ours, strict=True):
        torch.testing.assert_close(mine, decode(made, row, valid[0].tolist()), rtol=1e-6, atol=1e-7)


@settings(max_examples=15, deadline=None)
@given(step=st.integers(0, H - 1), first=st.integers(0, H - 1))
def test_a_step_depends_on_itself_and_the_valid_past(step: int, first: int) -> None:
    made, before = decoder(), tokens()
    after = before.clone()
    after[:, step] += tokens(seed=1)[:, step]  # a constant would be normalised away
    moved = (made(after, since(first)) - made(before, since(first))).abs().amax((0, 2, 3)) > 1e-9
    reached = [h == step or (h > step >= first) for h in range(H)]
    assert moved.tolist() == reached


def test_padding_is_never_looked_at() -> None:
    made, given_tokens = decoder(), tokens()
    poisoned = given_tokens.clone()
    poisoned[:, :3] = 1e6
    torch.testing.assert_close(made(poisoned, since(3))[:, 3:], made(given_tokens, since(3))[:, 3:])


def test_nothing_but_padding_stays_finite() -> None:
    decoded = decoder()(tokens(), torch.zeros(3, H, dtype=torch.bool))
    assert bool(decoded.isfinite().all())


def test_dropout_acts_in_training_alone() -> None:
    made = decoder(dropout=0.5)
    assert torch.equal(made(tokens(), since(0)), made(tokens(), since(0)))
    made.train()
    assert not torch.equal(made(tokens(), since(0)), made(tokens(), since(0)))


def test_libero_size() -> None:
    """Attention 64 -> 3 x 6 x 64 -> 64, feed-forward 64 -> 256 -> 64, two normalisations; four layers."""
    made = CausalDecoder(HeadConfig(history=10))
    attention = 64 * 3 * 6 * 64 + 6 * 64 * 64 + 64
    feedforward = 64 * 256 + 256 + 256 * 64 + 64
    assert sum(p.numel() for p in made.parameters()) == 4 * (attention + feedforward + 2 * 2 * 64)
