from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from counterpoint.evaluation import metrics

Array = NDArray[np.float64]
curves = arrays(np.float64, st.integers(2, 12), elements=st.integers(-5, 5).map(float))


def ranks_by_hand(values: list[float]) -> list[float]:
    """Ranks from 1; equal values share the mean of theirs."""
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2 for value in values
    ]


def correlation_by_hand(x: list[float], y: list[float]) -> float:
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    cov = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return cov / math.sqrt(sum((a - mean_x) ** 2 for a in x) * sum((b - mean_y) ** 2 for b in y))


@given(curves)
@settings(deadline=None)
def test_voc_is_the_correlation_of_ranks(values: Array) -> None:
    if np.ptp(values) == 0:
        assert metrics.value_order_correlation(values) == 0.0
        return
    ranks = ranks_by_hand(values.tolist())
    time = [float(t + 1) for t in range(len(values))]
    assert metrics.value_order_correlation(values) == pytest.approx(correlation_by_hand(ranks, time))


@given(curves)
@settings(deadline=None)
def test_kendall_is_tau_b(values: Array) -> None:
    pairs = list(itertools.combinations(values.tolist(), 2))
    up, down = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
    untied = math.sqrt((up + down) * len(pairs))
    assert metrics.kendall_tau_b(values) == pytest.approx((up - down) / untied if untied else 0.0)


@given(curves)
@settings(deadline=None)
def test_pearson_is_the_correlation_with_time(values: Array) -> None:
    expected = 0.0 if np.ptp(values) == 0 else correlation_by_hand(values.tolist(), [*map(float, range(len(values)))])
    assert metrics.value_time_correlation(values) == pytest.approx(expected)


def test_curves_are_measured_together_as_one_by_one() -> None:
    curves = np.random.default_rng(0).integers(0, 4, (5, 9)).astype(float)
    for measure in (metrics.value_order_correlation, metrics.value_time_correlation, metrics.kendall_tau_b):
        np.testing.assert_allclose(measure(curves), [measure(curve) for curve in curves])


@pytest.mark.filterwarnings("error")
def test_a_curve_that_differs_by_rounding_alone_is_constant() -> None:
    rounding = 0.3 + np.array([0.0, 1.0, 2.0, 3.0]) * 1e-16
    assert np.ptp(rounding) > 0
    for measure in (metrics.value_order_correlation, metrics.value_time_correlation, metrics.kendall_tau_b):
        assert measure(rounding) == 0.0
        assert measure(np.zeros(4)) == 0.0
        assert measure(np.array([0.3, 0.3 + 1e-7])) == pytest.approx(1.0)  # float32 sees this difference


def ranking_by_hand(levels: list[list[float]]) -> float:
    """The mean over combinations of tau-b = (concordant - discordant) / sqrt(pairs * pairs without ties)."""
    found = []
    for combination in itertools.product(*levels):
        pairs = list(itertools.combinations(combination, 2))
        up, down = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
        found.append((up - down) / math.sqrt(len(pairs) * (up + down)) if up + down else 0.0)
    return sum(found) / len(found)


def test_quality_ranking_is_the_mean_over_combinations() -> None:
    rng = np.random.default_rng(0)
    for sizes in ((3, 2), (2, 4, 3), (1, 1, 1)):
        levels = [rng.integers(0, 4, size).astype(float) for size in sizes]
        expected = ranking_by_hand([level.tolist() for level in levels])
        assert float(metrics.quality_ranking(levels)) == pytest.approx(expected)
    assert float(metrics.quality_ranking([np.zeros(2), np.ones(3), np.full(2, 2.0)])) == 1.0
    assert float(metrics.quality_ranking([np.ones(2), np.zeros(3)])) == -1.0
    assert float(metrics.quality_ranking([np.ones(2), np.ones(3)])) == 0.0
    assert math.isnan(float(metrics.quality_ranking([np.ones(2), np.zeros(0)])))


def detection_by_hand(scores: list[float], positive: list[bool]) -> tuple[float, float]:
    pairs = [
        (a, b)
        for a, good in zip(scores, positive, strict=True)
        if good
        for b, g in zip(scores, positive, strict=True)
        if not g
    ]
    area = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs) / len(pairs)
    precision, before = 0.0, 0.0
    for threshold in sorted(set(scores), reverse=True):
        named = [good for value, good in zip(scores, positive, strict=True) if value >= threshold]
        recall = sum(named) / sum(positive)
        precision += sum(named) / len(named) * (recall - before)
        before = recall
    return area, precision


def test_detection_agrees_with_loops_and_with_scikit_learn() -> None:
    ours = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    for _ in range(20):
        scores, positive = rng.integers(0, 5, 14).astype(float), rng.random(14) < 0.4
        positive[:2] = True, False
        area, precision = detection_by_hand(scores.tolist(), positive.tolist())
        assert float(metrics.auroc(scores, positive)) == pytest.approx(area)
        assert float(metrics.auprc(scores, positive)) == pytest.approx(precision)
        assert precision == pytest.approx(ours.average_precision_score(positive, scores))
        passed = scores >= 2
        hits = sum(a and b for a, b in zip(passed, positive, strict=True))
        assert float(metrics.f1(passed, positive)) == pytest.approx(2 * hits / (passed.sum() + positive.sum()))
    assert math.isnan(float(metrics.auroc(scores, np.ones(14, bool))))
    assert math.isnan(float(metrics.auprc(scores, np.zeros(14, bool))))
    assert math.isnan(float(metrics.f1(passed, np.zeros(14, bool))))


def test_weights_count_a_thing_as_often_as_repeating_it() -> None:
    rng = np.random.default_rng(1)
    scores, positive = rng.integers(0, 5, 12).astype(float), np.arange(12) % 3 == 0
    counts = rng.integers(0, 4, (5, 12)).astype(float)
    passed: NDArray[Any] = scores > 2
    for metric, first in ((metrics.auroc, scores), (metrics.auprc, scores), (metrics.f1, passed)):
        together = metric(first, positive, counts)
        assert together.shape == (5,)
        for row, value in zip(counts, together, strict=True):
            again = np.repeat(np.arange(12), row.astype(int))
            assert value == pytest.approx(float(metric(first[again], positive[again])), nan_ok=True)
    levels = [scores[:4], scores[4:7], scores[7:]]
    parts = [counts[:, :4], counts[:, 4:7], counts[:, 7:]]
    for at, value in enumerate(metrics.quality_ranking(levels, parts)):
        repeated = [np.repeat(level, part[at].astype(int)) for level, part in zip(levels, parts, strict=True)]
        assert value == pytest.approx(float(metrics.quality_ranking(repeated)), nan_ok=True)


def test_grades_are_the_nearest_quarters() -> None:
    found = metrics.grade(np.array([-1.0, 0.0, 0.12, 0.13, 0.5, 0.87, 0.88, 1.0, 2.0]))
    assert found.tolist() == [1, 1, 1, 2, 3, 4, 5, 5, 5]


def test_controls_of_voc() -> None:
    ramp = np.arange(20.0)
    voc = metrics.value_order_correlation
    assert voc(ramp) == pytest.approx(1.0)
    assert voc(ramp[::-1]) == pytest.approx(-1.0)
    assert voc(np.full(20, 0.3)) == 0.0
    shuffled = [voc(np.random.default_rng(seed).permutation(ramp)) for seed in range(200)]
    assert abs(float(np.mean(shuffled))) < 0.06


def ordering_by_hand(s: list[float], t: list[float]) -> float:
    kept = total = 0
    for i, j, k in itertools.permutations(range(len(s)), 3):
        if abs(t[i] - t[j]) < abs(t[i] - t[k]):
            total += 1
            kept += abs(s[i] - s[j]) < abs(s[i] - s[k])
    return kept / total if total else math.nan


@given(arrays(np.float64, st.integers(1, 8), elements=st.floats(-1, 1)), st.randoms())
@settings(max_examples=60, deadline=None)
def test_ordering_counts_triples(similarity: Array, random: object) -> None:
    times = np.sort(np.random.default_rng(len(similarity)).choice(40, len(similarity), replace=False) * 1.0)
    expected = ordering_by_hand(similarity.tolist(), times.tolist())
    assert metrics.ordering(similarity, times) == pytest.approx(expected, nan_ok=True)


def test_ordering_of_known_curves() -> None:
    ramp = np.arange(9.0)
    assert metrics.ordering(ramp) == 1.0
    assert metrics.ordering(-ramp) == 1.0  # even in the sign of the similarity
    assert metrics.ordering(np.zeros(9)) == 0.0
    noise = [metrics.ordering(np.random.default_rng(seed).normal(size=12)) for seed in range(100)]
    assert float(np.mean(noise)) == pytest.approx(0.5, abs=0.02)


def test_matched_and_triples_agree_with_loops() -> None:
    rng = np.random.default_rng(0)
    scores, own = rng.integers(0, 4, (30, 5)).astype(float), rng.integers(0, 5, 30)
    hits, shares = metrics.matched(scores, own), metrics.triples(scores, own)
    gaps = metrics.confusion_gap(scores, own)
    for row, mine in enumerate(own):
        others = [scores[row, column] for column in range(5) if column != mine]
        assert hits[row] == all(scores[row, mine] > other for other in others)
        assert shares[row] == pytest.approx(sum(scores[row, mine] > other for other in others) / 4)
        assert gaps[row] == pytest.approx(scores[row, mine] - sum(others) / 4)


def test_a_collapsed_encoder_matches_nothing() -> None:
    scores, own = np.full((6, 3), 0.7), np.array([0, 1, 2, 0, 1, 2])
    assert not metrics.matched(scores, own).any()
    assert (metrics.triples(scores, own) == 0.0).all()
    np.testing.assert_allclose(metrics.confusion_gap(scores, own), 0.0, atol=1e-12)


def test_hard_negatives_differ_in_one_word() -> None:
    texts = ["Open the drawer.", "close drawer", "open the door", "open the big drawer", "open the drawer"]
    apart = metrics.one_word_apart(texts)
    assert apart.tolist() == [
        [False, True, True, False, False],
        [True, False, False, False, True],
        [True, False, False, False, True],
        [False, False, False, False, False],
        [False, True, True, False, False],
    ]
    scores = np.array([[1.0, 2.0, 0.0, 9.0, 9.0], [0.0, 0.0, 0.0, 1.0, 0.0]])
    assert metrics.triples(scores, np.array([0, 3]), apart).tolist() == pytest.approx([0.5, math.nan], nan_ok=True)


def test_steps_and_jumps() -> None:
    path = np.array([[0.0, 0.0], [3.0, 4.0], [3.0, 4.0], [3.0, 5.0]])
    assert metrics.step_norms(path).tolist() == [5.0, 0.0, 1.0]
    assert metrics.jump_ratio(path) == pytest.approx(2.5)
    assert metrics.jump_ratio(np.arange(12.0).reshape(6, 2)) == pytest.approx(1.0)
    assert math.isnan(metrics.jump_ratio(np.ones((4, 2))))


def test_bridge_residual_is_the_papers_term() -> None:
    rng = np.random.default_rng(0)
    z, t = rng.normal(size=(6, 3)), np.array([2.0, 3.0, 5.0, 6.0, 9.0, 12.0])
    terms = []
    for i in range(1, 5):
        share = (t[i] - t[0]) / (t[5] - t[0])
        mean = z[0] + share * (z[5] - z[0])
        variance = (t[i] - t[0]) * (t[5] - t[i]) / (t[5] - t[0])
        terms.append(float(((z[i] - mean) ** 2).sum()) / (2 * variance))
    assert metrics.bridge_residual(z, t) == pytest.approx(np.mean(terms))
    assert metrics.bridge_residual(np.outer(np.arange(5.0), [1.0, 2.0])) == pytest.approx(0.0)
    assert math.isnan(metrics.bridge_residual(z[:2]))


def test_a_brownian_bridge_has_the_residual_it_should() -> None:
    rng = np.random.default_rng(0)
    steps, residuals = 30, []
    for _ in range(300):
        walk = np.concatenate([np.zeros((1, 4)), rng.normal(size=(steps, 4)).cumsum(axis=0)])
        residuals.append(metrics.bridge_residual(walk))
    assert float(np.mean(residuals)) == pytest.approx(4 / 2, rel=0.1)  # half a chi-square of 4 dimensions


def test_similarities_of_rows() -> None:
    rows = np.random.default_rng(0).normal(size=(6, 3))
    unit = [row / np.linalg.norm(row) for row in rows]
    pairs = [float(a @ b) for a, b in itertools.combinations(unit, 2)]
    assert metrics.pairwise_cosine(rows) == pytest.approx(np.mean(pairs))
    weights = np.array([[1.0, 1, 1, 1, 1, 1], [2, 0, 1, 0, 3, 0]])
    drawn = np.repeat(np.arange(6), [2, 0, 1, 0, 3, 0])
    others = [float(unit[a] @ unit[b]) for a, b in itertools.permutations(drawn, 2) if a != b]
    np.testing.assert_allclose(metrics.pairwise_cosine(rows, weights), [np.mean(pairs), np.mean(others)])
    assert metrics.pairwise_cosine(np.ones((4, 2))) == pytest.approx(1.0)
    assert math.isnan(metrics.pairwise_cosine(rows[:1]))


def test_effective_rank_of_known_spectra() -> None:
    assert metrics.effective_rank(np.eye(7)) == pytest.approx(7.0)
    assert metrics.effective_rank(np.outer(np.arange(1.0, 9.0), [1.0, -2.0, 3.0])) == pytest.approx(1.0)
    singular = np.array([3.0, 1.0])
    share = singular / singular.sum()
    expected = float(np.exp(-(share * np.log(share)).sum()))
    assert metrics.effective_rank(np.diag(singular)) == pytest.approx(expected)
    assert metrics.effective_rank(np.zeros((4, 3))) == pytest.approx(1.0)


def test_effective_rank_of_many_videos_is_that_of_their_frames() -> None:
    rng = np.random.default_rng(0)
    videos = [rng.normal(size=(rng.integers(4, 9), 5)) for _ in range(23)]
    found = metrics.effective_rank_estimate(videos)
    assert found.value == pytest.approx(metrics.effective_rank(np.concatenate(videos)))
    assert found.low < found.value < found.high
    assert found.n == 23
    assert np.isnan(metrics.effective_rank_estimate(videos[:1]).low)


def test_time_is_found_where_it_is_and_only_there() -> None:
    rng = np.random.default_rng(0)
    direction = rng.normal(size=6)
    lengths = rng.integers(10, 20, 12)
    ordered = [np.outer(np.linspace(0, 1, n), direction) + rng.normal(0, 0.05, (n, 6)) for n in lengths]
    random = [rng.normal(size=(n, 6)) for n in lengths]
    weights = np.stack([np.ones(12), np.eye(12)[3] * 12])
    found, nothing = metrics.time_probe(ordered, weights), metrics.time_probe(random)
    assert (found > 0.95).all()
    assert nothing < 0.1


def test_time_is_probed_on_unseen_videos() -> None:
    """A video's own look gives its time away within it, and nothing in another video."""
    rng = np.random.default_rng(0)
    videos = [np.outer(np.linspace(0, 1, 12), rng.normal(size=30)) for _ in range(10)]
    assert metrics.time_probe(videos) < 0.2


def test_one_video_cannot_be_probed() -> None:
    assert np.isnan(metrics.time_probe([np.ones((5, 3))]))
