from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoint.data.anchors import Anchors, Balance, NearNegatives, draw_near
from counterpoint.data.spec import Spec
from counterpoint.errors import BadInputError
from tests.golden.load import golden


def servable(index: Anchors, length: int) -> list[int]:
    """Anchors by the definition: every later step exists, and a negative where one is asked for."""
    found = []
    for t in range(length):
        later = [*(t + offset for offset in index.offsets), t + max(0, index.actions - 1)]
        if max(later) > length - 1:
            continue
        if index.near is not None:
            p = t + index.offsets[-1]
            near = {p + d for d in range(-index.near.window, index.near.window + 1) if d != 0}
            near = {s for s in near if 0 <= s < length and not (index.near.exclude_anchor and s == t)}
            if not near:
                continue
        found.append(t)
    return found


@given(
    K=st.integers(0, 6),
    W=st.integers(1, 6),
    length=st.integers(1, 20),
    near=st.booleans(),
    exclude=st.booleans(),
    offsets=st.sampled_from(["positive", "all", "before"]),
)
def test_anchors_are_those_that_can_be_served(
    K: int, W: int, length: int, near: bool, exclude: bool, offsets: str
) -> None:
    chosen = {"positive": (0, K), "all": tuple(range(K + 1)), "before": (-2, 0, K)}[offsets]
    index = Anchors(chosen, NearNegatives(W, exclude) if near else None, K)
    expected = servable(index, length)
    assert expected == list(range(len(expected)))
    assert index.counts(np.array([length])).tolist() == [len(expected)]
    assert (length >= index.min_length) == bool(expected)


def test_views_count_offsets_and_negatives() -> None:
    lengths, tasks = np.array([40]), np.zeros(1, np.int64)
    for near, views in ((None, 2), (NearNegatives(5), 3), (NearNegatives(5, every=True), 12)):
        draws, _ = Anchors((0, 3), near, 3).table(lengths, tasks).draw(7, 0, 0, ())
        assert draws["views"].steps.shape == (7, views)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"offsets": ()}, "at least one offset"),
        ({"offsets": (0,), "stack": 0}, "one frame a stack"),
        ({"offsets": (0, 3), "near": NearNegatives(0)}, "1 or more"),
        ({"offsets": (0, -1), "near": NearNegatives(2)}, "a last offset of 0 or more"),
    ],
)
def test_what_makes_no_sense_is_refused(asked: dict[str, object], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        Spec.steps(**{"actions": 1, **asked})  # type: ignore[arg-type]


K, W = 3, 5


def candidates(near: NearNegatives, anchor: int, positive: int, length: int) -> set[int]:
    window = set(range(positive - near.window, positive + near.window + 1)) - {positive}
    return {s for s in window if 0 <= s < length and not (near.exclude_anchor and s == anchor)}


@settings(max_examples=200)
@given(
    length=st.integers(2, 25),
    window=st.integers(1, 8),
    exclude=st.booleans(),
    seed=st.integers(0, 2**31),
    data=st.data(),
)
def test_negatives_are_candidates_and_every_takes_all_of_them(
    length: int, window: int, exclude: bool, seed: int, data: st.DataObject
) -> None:
    positive = data.draw(st.integers(0, length - 1))
    anchor = data.draw(st.integers(0, positive))
    one = NearNegatives(window, exclude)
    allowed = candidates(one, anchor, positive, length)
    if not allowed:
        return
    row = (np.array([anchor]), np.array([positive]), np.array([length]))
    steps, valid = draw_near(one, *row, np.random.default_rng(seed))
    assert steps.shape == (1, 1)
    assert valid.all()
    assert int(steps[0, 0]) in allowed
    steps, valid = draw_near(NearNegatives(window, exclude, every=True), *row, np.random.default_rng(seed))
    assert steps.shape == (1, 2 * window)
    assert sorted(steps[valid].tolist()) == sorted(allowed)
    assert set(steps[~valid].tolist()) <= allowed


@pytest.mark.parametrize(("anchor", "exclude"), [(0, False), (0, True), (20, False), (20, True), (56, False)])
def test_one_negative_is_uniform_over_its_candidates(anchor: int, exclude: bool) -> None:
    near, length, count = NearNegatives(W, exclude), 60, 20_000
    rows = (np.full(count, anchor), np.full(count, anchor + K), np.full(count, length))
    steps, _ = draw_near(near, *rows, np.random.default_rng(0))
    allowed = sorted(candidates(near, anchor, anchor + K, length))
    found, counts = np.unique(steps, return_counts=True)
    assert found.tolist() == allowed
    share = 1 / len(allowed)
    assert np.abs(counts / count - share).max() < 4.5 * np.sqrt(share * (1 - share) / count)


def test_interior_anchors_draw_as_the_authors_do() -> None:
    """Same positives, same support, the same frequency of every distance; their wrapped negatives never occur."""
    arrays, meta = golden("premier_taco_window_a")
    assert (meta["hyper"]["nstep"], meta["hyper"]["window_size"]) == (K, W)
    anchor, positive, negative = (arrays[f"{n}_index"].numpy().astype(int) for n in ("anchor", "next", "neg"))
    length = meta["hyper"]["episode_len_L"] + 1  # observations
    interior = anchor + K >= W
    theirs = (negative - positive)[interior]
    lengths, tasks = np.array([length]), np.array([0])
    rng = np.random.default_rng(0)
    table = Anchors((0, K), NearNegatives(W), K).table(lengths, tasks)
    episodes, anchors = table.anchors(len(anchor), rng)
    steps, _ = draw_near(NearNegatives(W), anchors, anchors + K, lengths[episodes], rng)
    own = (steps[:, 0] - anchors - K)[(anchors + K >= W) & (anchors <= anchor.max())]
    expected = [d for d in range(-W, W + 1) if d != 0]
    np.testing.assert_array_equal(positive - anchor, K)
    for distances in (theirs, own):
        found, counts = np.unique(distances, return_counts=True)
        assert found.tolist() == expected
        deviation = np.sqrt(0.1 * 0.9 / len(distances))
        assert np.abs(counts / len(distances) - 0.1).max() < 4.5 * deviation
    wrapped = np.abs(negative - positive) > W
    assert wrapped.sum() == meta["observed"]["wrapped"]
    assert np.abs(steps[:, 0] - anchors - K).max() == W
    # The authors never take the last anchors although their futures exist.
    assert anchor.max() == length - 1 - K - W
    assert anchors.max() == length - 1 - K


@pytest.mark.parametrize("balance", ["steps", "tasks"])
def test_anchors_are_uniform_over_steps_or_over_tasks(balance: Balance) -> None:
    lengths, tasks = np.array([10, 2, 24, 14, 13]), np.array([1, 1, 0, 1, 0])
    index = Anchors((0, K), None, K, balance=balance)
    table = index.table(lengths, tasks)
    counts = index.counts(lengths)
    assert counts.tolist() == [7, 0, 21, 11, 10]
    assert len(table) == 49
    number = 60_000
    episodes, steps = table.anchors(number, np.random.default_rng(0))
    expected = np.zeros((len(lengths), lengths.max()))
    for episode, count in enumerate(counts):
        of_task = counts[tasks == tasks[episode]].sum()
        expected[episode, :count] = 1 / counts.sum() if balance == "steps" else 1 / 2 / of_task
    found = np.zeros_like(expected)
    np.add.at(found, (episodes, steps), 1 / number)
    assert expected.sum() == pytest.approx(1)
    assert not found[expected == 0].any()
    assert (np.abs(found - expected) <= 4.5 * np.sqrt(expected / number)).all()
