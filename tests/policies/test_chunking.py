from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoint.data.episode import Array
from counterpoint.errors import BadInputError
from counterpoint.policies.chunking import ActionChunks, RecedingHorizon, TemporalEnsemble
from tests.reference.chunking import receding_horizon, temporal_ensemble

K, A = 5, 2
KINDS: list[Callable[[], ActionChunks]] = [
    lambda: RecedingHorizon(1),
    lambda: RecedingHorizon(3),
    lambda: RecedingHorizon(K),
    lambda: TemporalEnsemble(0.0),
    lambda: TemporalEnsemble(0.7),
]


def stepped(chunks: ActionChunks, rows: list[int], plans: Array) -> Array:
    """One step of rows that could all be given `plans` [n, K, A]."""
    due = np.flatnonzero(chunks.left(rows) == 0)
    if len(due):
        chunks.give([rows[place] for place in due], plans[due])
    return chunks.take(rows)


def episode(chunks: ActionChunks, plans: Array, row: int = 0) -> Array:
    """[T, A] of one environment by itself."""
    chunks.reset([row])
    return np.concatenate([stepped(chunks, [row], plan[None]) for plan in plans])


def drawn(steps: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(steps, K, A)).astype(np.float32)


@given(st.integers(1, 14), st.floats(0, 3), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_the_ensemble_is_that_of_plain_loops(steps: int, decay: float, seed: int) -> None:
    plans = drawn(steps, seed)
    found = episode(TemporalEnsemble(decay), plans)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, temporal_ensemble(plans.tolist(), decay), rtol=1e-5, atol=1e-6)


@given(st.integers(1, 14), st.integers(1, K), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_the_receding_horizon_is_that_of_plain_loops(steps: int, executed: int, seed: int) -> None:
    plans = drawn(steps, seed)
    found = episode(RecedingHorizon(executed), plans)
    np.testing.assert_array_equal(found, np.array(receding_horizon(plans.tolist(), executed), np.float32))


@pytest.mark.parametrize("make", KINDS)
def test_plans_that_agree_are_followed(make: Callable[[], ActionChunks]) -> None:
    """Weights sum to 1: whatever is predicted of a step by every plan is done there."""
    truth = np.random.default_rng(1).normal(size=(30, A)).astype(np.float32)
    plans = np.stack([truth[t : t + K] for t in range(20)])
    np.testing.assert_allclose(episode(make(), plans), truth[:20], rtol=1e-6)


def test_without_decay_it_is_the_mean() -> None:
    plans = drawn(9)
    found = episode(TemporalEnsemble(0.0), plans)
    for t in range(9):
        predictions = [plans[made, t - made] for made in range(max(0, t - K + 1), t + 1)]
        np.testing.assert_allclose(found[t], np.mean(predictions, 0), rtol=1e-5, atol=1e-6)


def test_the_oldest_prediction_weighs_most() -> None:
    """As the decay grows the oldest prediction alone is left; at every decay weights fall with age's rank."""
    plans = np.zeros((K, K, 1), np.float32)
    plans[0] = 1  # the oldest says 1, all others 0
    shares = [episode(TemporalEnsemble(decay), plans)[-1, 0] for decay in (0.0, 0.01, 1.0, 50.0)]
    np.testing.assert_allclose(shares[0], 1 / K, rtol=1e-6)
    np.testing.assert_allclose(shares[-1], 1, rtol=1e-6)
    assert shares == sorted(shares)
    weights = np.exp(-0.01 * np.arange(K))
    np.testing.assert_allclose(shares[1], 1 / weights.sum(), rtol=1e-6)


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_rows_do_not_mix(make: Callable[[], ActionChunks], order: list[int]) -> None:
    """Rows that begin, pause and begin again at times of their own act as each would by itself."""
    together, plans = make(), drawn(12 * 3).reshape(12, 3, K, A)
    acted: dict[int, list[Array]] = {0: [], 1: [], 2: []}
    seen: dict[int, list[Array]] = {0: [], 1: [], 2: []}
    alone = make
    for t in range(12):
        begins = [row for row in range(3) if t == row or (t == 7 and row == 1)]
        together.reset(begins)
        for row in begins:
            acted[row], seen[row] = [], []
        rows = [row for row in order if t >= row and not (t == 5 and row == 0)]
        for row, action in zip(rows, stepped(together, rows, plans[t, rows]), strict=True):
            acted[row].append(action)
            seen[row].append(plans[t, row])
    for row in range(3):
        np.testing.assert_array_equal(np.stack(acted[row]), episode(alone(), np.stack(seen[row]), row=40))


def test_the_ensemble_needs_no_plan_at_every_step() -> None:
    chunks, plans = TemporalEnsemble(0.3), drawn(2)
    chunks.give([0], plans[:1])
    np.testing.assert_allclose(chunks.take([0])[0], plans[0, 0], rtol=1e-6)
    np.testing.assert_allclose(chunks.take([0])[0], plans[0, 1], rtol=1e-6)
    chunks.give([0], plans[1:])
    weights = np.exp(-0.3 * np.arange(2))
    expected = (weights[0] * plans[0, 2] + weights[1] * plans[1, 0]) / weights.sum()
    np.testing.assert_allclose(chunks.take([0])[0], expected, rtol=1e-5)


def test_an_ensemble_over_the_first_actions_of_each_plan() -> None:
    """ICon's has 8: at step t the plans of steps t - 7 to t, the oldest first."""
    length, plans, chunks = 3, drawn(6), TemporalEnsemble(0.3, 3)
    for t in range(6):
        chunks.give([0], plans[t : t + 1])
        seen = [plans[s, t - s] for s in range(max(0, t - length + 1), t + 1)]
        weights = np.exp(-0.3 * np.arange(len(seen)))
        np.testing.assert_allclose(chunks.take([0])[0], np.average(seen, axis=0, weights=weights), rtol=1e-5)
    with pytest.raises(BadInputError, match="length: found 0"):
        TemporalEnsemble(0.3, 0)


@pytest.mark.parametrize("make", KINDS)
def test_a_row_without_a_plan_is_named(make: Callable[[], ActionChunks]) -> None:
    chunks = make()
    assert chunks.left([3]).tolist() == [0]
    with pytest.raises(BadInputError, match="row 3: found no plan"):
        chunks.take([3])
    chunks.give([3], drawn(1))
    chunks.take([3])
    with pytest.raises(BadInputError, match="row 5: found no plan"):
        chunks.take([3, 5] if chunks.left([3])[0] else [5])
    chunks.reset([3])
    with pytest.raises(BadInputError, match="row 3: found no plan"):
        chunks.take([3])


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(BadInputError, match="executed: found 0"):
        RecedingHorizon(0)
    with pytest.raises(BadInputError, match="6 of plans of 5"):
        RecedingHorizon(6).give([0], drawn(1))
    for decay in (-0.1, float("inf"), float("nan")):
        with pytest.raises(BadInputError, match="decay: found"):
            TemporalEnsemble(decay)
