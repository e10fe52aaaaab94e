from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from counterpoint.data.spec import Spec
from counterpoint.data.transitions import GoalMix, Tail, Transitions, TransitionTable, future_offsets
from counterpoint.errors import BadInputError

TAILS: tuple[Tail, ...] = get_args(Tail)
LENGTHS = (1, 2, 5, 6, 17)
DRAWS = 40_000


def table(lengths: Sequence[int], discount: float = 0.99, tail: Tail = "renormalise") -> TransitionTable:
    return Transitions(discount, tail).table(np.array(lengths), np.zeros(0, np.int64))


def offset_pmf(m: int, discount: float, tail: Tail) -> NDArray[np.float64]:
    """P(k), k = 1..m, written out."""
    geometric = [(1 - discount) * discount ** (k - 1) for k in range(1, m + 1)]
    if tail == "clip":
        geometric[-1] = 1 - sum(geometric[:-1])
        return np.array(geometric)
    return np.array(geometric) / sum(geometric)


def joint_pmf(lengths: tuple[int, ...], discount: float, tail: Tail) -> dict[tuple[int, int, int], float]:
    """P(episode, step, offset), from the words of the three rules."""
    found: dict[tuple[int, int, int], float] = {}
    for episode, T in enumerate(lengths):
        for step in range(T):
            for k in range(1, T - step + 1):
                # Under `reject` a transition and an offset count as drawn, with their own weight, if k fits.
                weight = (1 - discount) * discount ** (k - 1)
                if tail != "reject":
                    weight = float(offset_pmf(T - step, discount, tail)[k - 1])
                found[episode, step, k] = weight
    total = sum(found.values())
    return {outcome: weight / total for outcome, weight in found.items()}


def assert_drawn_from(counts: NDArray[np.float64], pmf: NDArray[np.float64]) -> None:
    """Pearson's statistic, outcomes with an expectation below 5 pooled, within 5 standard deviations of its mean."""
    expected = pmf * counts.sum()
    rare = expected < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    assert observed[expected == 0].sum() == 0
    observed, expected = observed[expected > 0], expected[expected > 0]
    statistic = float(((observed - expected) ** 2 / expected).sum())
    freedom = max(len(expected) - 1, 1)
    assert statistic < freedom + 5 * np.sqrt(2 * freedom) + 5


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize(
    ("m", "discount"), [(1, 0.5), (2, 0.0), (2, 0.99), (7, 1e-3), (8, 0.5), (8, 1 - 1e-9), (300, 0.99), (300, 1 - 1e-9)]
)
def test_offsets_have_the_stated_distribution(m: int, discount: float, tail: Tail) -> None:
    drawn = future_offsets(np.full(DRAWS, m), discount, tail, np.random.default_rng(m))
    counts = np.bincount(drawn, minlength=m + 1)[1:].astype(np.float64)
    assert_drawn_from(counts, offset_pmf(m, discount, tail))


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 10**9), min_size=1, max_size=50),
    st.floats(0, 1, exclude_max=True),
    st.sampled_from(TAILS),
    st.integers(0, 2**32),
)
def test_offsets_stay_inside_the_episode(remaining: list[int], discount: float, tail: Tail, seed: int) -> None:
    m = np.array(remaining)
    drawn = future_offsets(m, discount, tail, np.random.default_rng(seed))
    assert drawn.dtype == np.int64
    assert (drawn >= 1).all()
    assert (drawn <= m).all()


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("discount", [0.0, 0.95])
def test_transition_and_future_have_the_stated_joint_distribution(discount: float, tail: Tail) -> None:
    draws, rng = table(LENGTHS, discount, tail), np.random.default_rng(3)
    episode, step = draws.transitions(5 * DRAWS, rng)
    offset = future_offsets(np.array(LENGTHS)[episode] - step, discount, tail, rng)
    seen = Counter(zip(episode.tolist(), step.tolist(), offset.tolist(), strict=True))
    pmf = joint_pmf(LENGTHS, discount, tail)
    assert seen.keys() <= pmf.keys()
    counts = np.array([seen[key] for key in pmf], dtype=np.float64)
    assert_drawn_from(counts, np.array(list(pmf.values())))


def test_rejection_in_closed_form_is_rejection() -> None:
    """Beside the same number of survivors of drawing again and again."""
    discount, rng = 0.9, np.random.default_rng(0)
    flat = [(episode, step) for episode, T in enumerate(LENGTHS) for step in range(T)]
    literal: Counter[tuple[int, int]] = Counter()
    for place, k in zip(rng.integers(len(flat), size=DRAWS), rng.geometric(1 - discount, DRAWS), strict=True):
        episode, step = flat[place]
        if step + k <= LENGTHS[episode]:
            literal[episode, step] += 1
    drawn = table(LENGTHS, discount, "reject").transitions(DRAWS, rng)
    closed = Counter(zip(drawn[0].tolist(), drawn[1].tolist(), strict=True))
    pmf = np.array([literal[key] for key in flat]) / sum(literal.values())
    assert np.abs(np.array([closed[key] for key in flat]) / DRAWS - pmf).max() < 0.01


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([1, 2, 3, 8, 9]), min_size=1, max_size=6), st.sampled_from(TAILS), st.integers(0, 99))
def test_every_transition_and_state_is_reached_and_no_other(lengths: list[int], tail: Tail, seed: int) -> None:
    draws, rng = table(lengths, 0.8, tail), np.random.default_rng(seed)
    episode, step = draws.transitions(8000, rng)
    wanted = {(e, t) for e, T in enumerate(lengths) for t in range(T)}
    assert set(zip(episode.tolist(), step.tolist(), strict=True)) == wanted
    episode, step = draws.states(8000, rng)
    wanted = {(e, t) for e, T in enumerate(lengths) for t in range(T + 1)}
    assert set(zip(episode.tolist(), step.tolist(), strict=True)) == wanted
    assert len(draws) == sum(lengths)


def test_the_next_state_follows_its_transition() -> None:
    draws, _ = table(LENGTHS).draw(256, seed=0, step=0, wanted=())
    assert (draws["next"].episode == draws["transition"].episode).all()
    assert (draws["next"].steps == draws["transition"].steps + 1).all()


def test_states_are_uniform() -> None:
    episode, step = table(LENGTHS).states(DRAWS, np.random.default_rng(1))
    first = np.cumsum([0, *(T + 1 for T in LENGTHS)])
    counts = np.bincount(first[episode] + step, minlength=first[-1]).astype(np.float64)
    assert_drawn_from(counts, np.full(first[-1], 1 / first[-1]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keys": {"gaol"}}, "gaol"),
        ({"keys": set(), "discount": 1.0}, "discount"),
        ({"keys": set(), "discount": float("nan")}, "discount"),
        ({"keys": set(), "sequence": -1}, "sequence"),
    ],
)
def test_impossible_specs_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        Spec.transitions(**arguments)  # type: ignore[arg-type]


def mixed_goals(mix: GoalMix, lengths: Sequence[int], discount: float = 0.9, subgoal: int = 3) -> dict[str, Any]:
    """Many draws of transitions of OGBench's goals, as arrays."""
    index = Transitions(discount, "clip", goals={"value": mix}, subgoal=subgoal)
    drawn = index.table(np.array(lengths), np.zeros(0, np.int64))
    draws, values = drawn.draw(DRAWS, 0, 0, {"transition", "value", "value.target", "subgoal"})
    names = {name: (draw.episode, draw.steps) for name, draw in draws.items()}
    return names | {"reached": values["value.reached"]}


def test_a_mixture_has_its_shares_of_goals() -> None:
    lengths = [50] * 40
    found = mixed_goals(GoalMix(current=0.2, future=0.5, random=0.3), lengths)
    (own, at), (episode, step) = found["transition"], found["value"]
    later = (episode == own) & (step > at)
    # Of the random goals, one in 40 is of the same episode, and half of these come later.
    assert found["reached"].mean() == pytest.approx(0.2, abs=0.01)
    assert later.mean() == pytest.approx(0.5 + 0.3 / 80, abs=0.01)
    assert (episode != own).mean() == pytest.approx(0.3 * 39 / 40, abs=0.01)
    assert (found["reached"] == ((episode == own) & (step == at))).all()


@pytest.mark.parametrize("geometric", [True, False])
def test_later_goals_have_ogbench_s_distribution(geometric: bool) -> None:
    found = mixed_goals(GoalMix(future=1.0, geometric=geometric), [9], discount=0.8)
    (_, at), (_, step) = found["transition"], found["value"]
    offsets = (step - at)[at == 2]  # seven states come later
    counts = np.bincount(offsets, minlength=8)[1:].astype(np.float64)
    uniform = np.array([0.5, 1, 1, 1, 1, 1, 0.5]) / 6  # a uniform number from 1 to 7, rounded
    assert_drawn_from(counts, offset_pmf(7, 0.8, "clip") if geometric else uniform)


def test_subgoals_stop_at_the_end_of_the_episode_and_at_goals_of_the_same_episode() -> None:
    for mix in (GoalMix(future=1.0, geometric=False), GoalMix(random=1.0)):
        found = mixed_goals(mix, [4, 9, 30])
        (own, at), (goal_episode, goal), (episode, target) = found["transition"], found["value"], found["value.target"]
        last = np.array([4, 9, 30])[own]
        assert (episode == own).all()
        assert (found["subgoal"][1] == np.minimum(at + 3, last)).all()
        stop = goal if mix.future else last
        assert (target == np.minimum(at + 3, stop)).all()
        assert mix.future or (goal < np.array([4, 9, 30])[goal_episode]).all()


def test_shares_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"add up to 0\.8; they must add up to 1"):
        GoalMix(future=0.5, random=0.3)
