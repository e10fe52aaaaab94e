from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from counterpoint.data.store import EpisodeStore
from counterpoint.evaluation.rank import Seen
from studies import curation
from studies.curation import detected_at, found_bad, found_swapped, solved_at, streamed, summary
from studies.rewards.run import failures, joined
from tests.data.numbered import numbered_store


def test_success_is_detected_after_three_frames_in_a_row() -> None:
    assert detected_at(np.array([0.9, 0.9, 0.1, 0.9, 0.8, 0.9, 0.1]), 0.8) == 5
    assert detected_at(np.array([0.9, 0.9, 0.1, 0.9, 0.9]), 0.8) is None
    assert detected_at(np.ones(3), 1.0) == 2
    assert solved_at(np.array([0.0, 0.0, 1.0, 0.0, 1.0])) == 2


def test_failures_join_the_training_videos() -> None:
    store = numbered_store([4, 5, 6])
    store.episodes = tuple(
        replace(info, success=won) for info, won in zip(store.episodes, (True, False, None), strict=True)
    )
    assert failures(store).lengths.tolist() == [5]
    both = joined([numbered_store([3]), failures(store)])
    assert both.lengths.tolist() == [3, 5]
    np.testing.assert_array_equal(both.state(1), store.state(1))
    assert joined([store]) is store


def ideal(reward: Any, store: EpisodeStore) -> list[Seen]:
    """Progress to 1 where the instruction is the episode's own and it succeeds, and to .2 elsewhere."""
    del reward
    own = {4: "one", 5: "two"}
    ends = [1.0 if info.success and own[info.length] == info.instruction else 0.2 for info in store.episodes]
    curves = [np.linspace(0, end, info.length) for end, info in zip(ends, store.episodes, strict=True)]
    return [Seen(curve, 0.0, "", 0.5 - end) for curve, end in zip(curves, ends, strict=True)]


def stores() -> tuple[EpisodeStore, EpisodeStore]:
    found = [numbered_store([4, 5, 4, 5, 4, 5]) for _ in range(2)]
    for store, success in zip(found, (True, False), strict=True):
        store.episodes = tuple(replace(info, success=success) for info in store.episodes)
    return found[0], found[1]


def test_an_ideal_reward_finds_every_bad_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curation, "look", ideal)
    good, bad = stores()
    found = found_bad(None, good, bad)  # type: ignore[arg-type]
    assert found["score"] == found["end"] == found["rival"] == 1
    assert found["unlike"] == 0.5
    swapped = found_swapped(None, good, seed=3)  # type: ignore[arg-type]
    assert swapped["score"] == swapped["end"] == 1


class Threshold:
    """A reward whose threshold of success is .6."""

    class model:  # noqa: N801
        @staticmethod
        def check_calibration() -> Any:
            return type("Known", (), {"success": 0.6})


def test_a_stream_is_early_late_or_a_false_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curation, "HOLD", 1)
    monkeypatch.setattr(curation, "look", ideal)
    good, bad = stores()
    steps = [3 if info.length == 5 else 2 for info in good.episodes]  # where the ideal curve passes .6
    late = streamed(Threshold(), good, [step - 1 for step in steps], {"noise": bad})  # type: ignore[arg-type]
    assert late == {"detected": 1.0, "early": 0.0, "delay": 1.0, "false alarms: noise": 0.0}
    early = streamed(Threshold(), good, [step + 1 for step in steps], {"noise": good})  # type: ignore[arg-type]
    assert (early["early"], early["false alarms: noise"]) == (1, 1)
    assert np.isnan(early["delay"])


def test_numbers_are_means_over_seeds() -> None:
    rows = [{"row": "a", "seed": seed, "groups": {"stream": {"early": value}}} for seed, value in ((0, 0.2), (1, 0.4))]
    assert summary(rows)["rows"]["a"]["stream"]["early"]["mean"] == pytest.approx(0.3)
