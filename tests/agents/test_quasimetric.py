from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from counterpoint.agents.qrl import IntervalQuasimetric, interval_union
from tests.reference import goal_baselines as reference


def vectors(count: int, width: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(count, width, generator=generator, dtype=torch.float64)


@given(K=st.integers(1, 9), seed=st.integers(0, 999), grid=st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_union_equals_the_loop(K: int, seed: int, grid: bool) -> None:
    start, end = vectors(4, K, seed), vectors(4, K, seed + 1)
    if grid:  # ties and intervals that touch
        start, end = (start * 2).round(), (end * 2).round()
    expected = [reference.interval_union(u, v) for u, v in zip(start.tolist(), end.tolist(), strict=True)]
    torch.testing.assert_close(interval_union(start, end), torch.tensor(expected, dtype=torch.float64))


def test_disjoint_nested_and_empty_intervals() -> None:
    start = torch.tensor([[0.0, 5.0, 9.0], [0.0, 1.0, 2.0], [1.0, 2.0, 3.0]])
    end = torch.tensor([[1.0, 7.0, 8.0], [10.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
    assert interval_union(start, end).tolist() == [3.0, 10.0, 0.0]


def test_the_distance_equals_the_loop() -> None:
    quasimetric = IntervalQuasimetric(2, 3)
    with torch.no_grad():
        quasimetric.mix.copy_(torch.tensor([[0.3], [-1.2]]))
    start, end = vectors(8, 12).reshape(2, 4, 12), vectors(8, 12, 1).reshape(2, 4, 12)
    found = quasimetric(start, end)
    for member in range(2):
        share = torch.sigmoid(quasimetric.mix[member, 0]).item()
        for row in range(4):
            expected = reference.quasimetric(start[member, row].tolist(), end[member, row].tolist(), 3, share)
            assert found[member, row].item() == pytest.approx(expected, rel=1e-5)


@given(seed=st.integers(0, 10**6), scale=st.sampled_from([1e-3, 1.0, 1e3]))
@settings(max_examples=60, deadline=None)
def test_it_is_a_quasimetric(seed: int, scale: float) -> None:
    quasimetric = IntervalQuasimetric(1, 4)
    u, v, w = vectors(3 * 16, 20, seed, scale).reshape(3, 1, 16, 20)
    with torch.no_grad():
        assert torch.equal(quasimetric(u, u), torch.zeros(1, 16))
        assert (quasimetric(u, v) > 0).all()
        through = quasimetric(u, v) + quasimetric(v, w)
        assert (quasimetric(u, w) <= through * (1 + 1e-5)).all()
        assert not torch.allclose(quasimetric(u, v), quasimetric(v, u))


def test_it_grows_in_proportion_and_ignores_a_common_shift() -> None:
    quasimetric = IntervalQuasimetric(1, 4)
    u, v = vectors(2 * 8, 20).reshape(2, 1, 8, 20)
    torch.testing.assert_close(quasimetric(3 * u, 3 * v), 3 * quasimetric(u, v))
    torch.testing.assert_close(quasimetric(u + 2, v + 2), quasimetric(u, v), rtol=1e-5, atol=1e-5)


def test_the_gradient_is_the_numerical_one() -> None:
    start, end = vectors(3, 6).requires_grad_(), vectors(3, 6, 1).requires_grad_()
    assert torch.autograd.gradcheck(interval_union, (start, end))
