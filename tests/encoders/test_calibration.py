from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from counterpoint.encoders.calibration import best_f1, isotonic
from counterpoint.errors import BadInputError

Array = NDArray[np.float64]
values = st.lists(st.tuples(st.integers(-20, 20), st.integers(0, 10), st.integers(1, 5)), min_size=1, max_size=30)


def least_squares_by_hand(x: Array, y: Array, weight: Array) -> list[float]:
    """The minimax formula of isotonic regression at each distinct x, in plain loops."""
    levels = sorted(set(x.tolist()))
    groups = [[i for i in range(len(x)) if x[i] == level] for level in levels]
    sums = [(sum(weight[i] for i in g), sum(weight[i] * y[i] for i in g)) for g in groups]

    def mean(first: int, last: int) -> float:
        return float(sum(s for _, s in sums[first : last + 1]) / sum(w for w, _ in sums[first : last + 1]))

    count = len(levels)
    return [max(min(mean(a, b) for b in range(k, count)) for a in range(k + 1)) for k in range(count)]


@given(values)
def test_the_fit_is_the_least_squares_one_of_all_that_never_decrease(triples: list[tuple[int, int, int]]) -> None:
    x, y, weight = (np.array(column, np.float64) for column in zip(*triples, strict=True))
    knots, fitted = isotonic(x, y, weight, bins=10**6)
    found = np.interp(sorted(set(x.tolist())), knots, fitted)
    np.testing.assert_allclose(found, least_squares_by_hand(x, y, weight), atol=1e-9)


def test_the_fit_is_sklearn_s() -> None:
    regression = pytest.importorskip("sklearn.isotonic").IsotonicRegression()
    rng = np.random.default_rng(0)
    x = rng.normal(size=200)
    y, weight = np.tanh(x) + rng.normal(size=200), rng.uniform(0.5, 2, 200)
    knots, fitted = isotonic(x, y, weight, bins=10**6)
    np.testing.assert_allclose(np.interp(x, knots, fitted), regression.fit(x, y, weight).predict(x), atol=1e-9)


@given(values, st.integers(1, 8))
def test_few_groups_give_few_knots_that_rise(triples: list[tuple[int, int, int]], bins: int) -> None:
    x, y, weight = (np.array(column, np.float64) for column in zip(*triples, strict=True))
    knots, fitted = isotonic(x, y, weight, bins)
    assert 1 <= len(knots) <= 2 * bins
    assert (np.diff(knots) > 0).all()
    assert (np.diff(fitted) >= 0).all()
    assert y.min() - 1e-9 <= fitted.min() <= fitted.max() <= y.max() + 1e-9


def f1_by_hand(scores: Array, success: NDArray[np.bool_], threshold: float) -> float:
    hits = sum(1 for s, good in zip(scores, success, strict=True) if s >= threshold and good)
    wrong = sum(1 for s, good in zip(scores, success, strict=True) if (s >= threshold) != good)
    return 2 * hits / (2 * hits + wrong)


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=20))
def test_no_threshold_has_a_greater_f1(pairs: list[tuple[int, bool]]) -> None:
    scores, success = np.array([float(s) for s, _ in pairs]), np.array([good for _, good in pairs])
    if success.all() or not success.any():
        with pytest.raises(BadInputError, match="successes and failures"):
            best_f1(scores, success)
        return
    threshold, f1 = best_f1(scores, success)
    assert f1 == pytest.approx(f1_by_hand(scores, success, threshold))
    assert f1 >= max(f1_by_hand(scores, success, t) for t in np.arange(-0.5, 7.5, 0.5)) - 1e-12
