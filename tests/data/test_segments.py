from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from counterpoint.data.cache import cached
from counterpoint.data.segments import AlteredStore, SegmentStore, counterfactuals
from counterpoint.data.store import MemoryStore
from tests.data.numbered import numbered_store
from tests.data.reading import read_episode
from tests.formats.made import memory_store


def test_segments_are_episodes_of_their_own(tmp_path: Path) -> None:
    whole = numbered_store([5, 7, 4])
    length = whole.episodes[0].length
    parts = ((0, "reach"), (2, "grasp"))
    whole.episodes = (replace(whole.episodes[0], success=False, segments=parts), *whole.episodes[1:])
    view = SegmentStore(whole)
    assert [info.instruction for info in view.episodes[:3]] == ["reach", "grasp", whole.episodes[1].instruction]
    assert view.lengths[:3].tolist() == [2, length - 2, whole.episodes[1].length]
    assert (view.episodes[1].success, view.owner[:3].tolist(), view.first[:3].tolist()) == (None, [0, 0, 1], [0, 2, 0])
    assert np.array_equal(view.frames(1, np.array([1, 0])), whole.frames(0, np.array([3, 2])))
    assert np.array_equal(view.timestamps(1), whole.timestamps(0)[2:] - whole.timestamps(0)[2])
    episodes, steps = np.array([1, 2, 1]), np.array([[0, 1], [2, 0], [1, 1]])
    owner, inside = np.array([0, 1, 0]), steps + np.array([[2], [0], [2]])
    for source in ("frames", "actions"):
        assert np.array_equal(view.gather(source, episodes, steps), whole.gather(source, owner, inside))
    store = cached(view, size=16, root=tmp_path, progress=False)
    assert store.episodes == view.episodes
    assert view.fingerprint != whole.fingerprint
    assert cached(whole, size=16, root=tmp_path, progress=False).episodes[0].segments == parts


def test_depth_of_a_segment_begins_at_its_first_step() -> None:
    depth = np.arange(5 * 6, dtype=np.uint16).reshape(5, 2, 3)
    parts = ((0, "reach"), (2, "grasp"))
    whole = replace(read_episode(memory_store((5,)), 0), depth={"deep": depth}, segments=parts)
    view = SegmentStore(MemoryStore([whole]))
    assert view.depth_cameras == ("deep",)
    np.testing.assert_array_equal(view.depth(1, np.array([1, 0])), depth[[3, 2]])


def test_altered_copies_show_and_say_what_a_reward_should_score_low() -> None:
    whole = numbered_store([9, 3, 12, 8], instructions=("open it", "close it"))
    infos = whole.episodes
    whole.episodes = (*infos[:3], replace(infos[3], success=False, wordings=("shut it",)))
    view = AlteredStore(whole, ("rewound", "clipped", "failed"), least=3, seed=5)
    texts = [info.instruction for info in view.episodes]
    # Episode 1 is too short for a copy, and a failed episode has none.
    assert texts[:4] == ["open it", "close it", "open it", "fail to close it"]
    assert texts[4:] == ["undo: open it", "begin to open it"] * 2
    assert view.owner.tolist() == [0, 1, 2, 3, 0, 0, 2, 2]
    assert view.episodes[3].wordings == ("fail to shut it",)
    assert [info.success for info in view.episodes] == [None] * 3 + [False] * 5
    for episode in range(4, 8):
        steps, T = view.steps[episode], whole.episodes[view.owner[episode]].length
        assert len(steps) == view.episodes[episode].length >= 3
        if texts[episode].startswith("undo"):
            assert np.all(np.diff(steps) == -1)
            assert steps[0] >= T // 2
        else:
            assert steps.tolist() == list(range(len(steps)))
            assert len(steps) < T
        shown = view.frames(episode, np.arange(len(steps)))
        assert shown[:, 0, 0, 1].tolist() == steps.tolist()
        assert set(shown[:, 0, 0, 0].tolist()) == {view.owner[episode]}
        assert np.all(np.diff(view.timestamps(episode)) > 0)
        at = np.array([[0, 1, 2]])
        for source in ("frames", "state"):
            inside = np.array([view.owner[episode]]), steps[at]
            np.testing.assert_array_equal(view.gather(source, np.array([episode]), at), whole.gather(source, *inside))
    assert (
        AlteredStore(whole, ("rewound",), seed=5).fingerprint != AlteredStore(whole, ("rewound",), seed=6).fingerprint
    )


def test_counterfactuals_exchange_words_for_their_opposites() -> None:
    own = ("open the left door", "turn on the stove", "close the left door", "wave")
    assert set(counterfactuals(own)) == {"open the right door", "close the right door", "turn off the stove"}
    assert counterfactuals(["move it from left to right"]) == ("move it from right to left",)
    assert counterfactuals(["put it on top"]) == ("put it off top", "put it on bottom")
