from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from counterpoint.data.store import EpisodeStore, MemoryStore
from counterpoint.errors import BadInputError
from counterpoint.policies.demonstrations import Demonstrations
from tests.data.reading import read_episode
from tests.policies.demos import demonstrations


def changed(store: EpisodeStore, **parts: object) -> MemoryStore:
    """The second episode with other parts."""
    episodes = [read_episode(store, number) for number in range(len(store.episodes))]
    episodes[1] = replace(episodes[1], **parts)  # type: ignore[arg-type]
    return MemoryStore(episodes)


def test_statistics_are_of_all_steps() -> None:
    store = demonstrations(3, action_dim=3)
    found = Demonstrations.of(store)
    actions = np.concatenate([store.actions(number) for number in range(3)]).astype(np.float64)
    np.testing.assert_allclose(found.actions.mean, actions.mean(0))
    np.testing.assert_allclose(found.actions.deviation, actions.std(0))
    np.testing.assert_allclose(found.actions.low, actions.min(0))
    np.testing.assert_allclose(found.actions.high, actions.max(0))
    assert (found.count, found.action_dim, found.state_dim) == (3, 3, 3)
    assert Demonstrations.model_validate_json(found.model_dump_json()) == found


def test_instruction_of_one_task_alone() -> None:
    assert Demonstrations.of(demonstrations(2)).instruction == "centre the square 0"
    assert Demonstrations.of(demonstrations(2, tasks=2)).instruction == ""


def test_state_may_be_absent_everywhere() -> None:
    store = demonstrations(2)
    episodes = [replace(read_episode(store, number), state=None) for number in range(2)]
    assert Demonstrations.of(MemoryStore(episodes)).state_dim == 0


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ({"actions": None}, "demonstration 1: found no actions"),
        ({"actions": np.zeros((12, 5), np.float32)}, "actions of 5 dimensions"),
        ({"state": None}, "demonstration 1: found no state"),
        ({"state": np.zeros((12, 1), np.float32)}, "state of 1 dimensions"),
    ],
)
def test_bad_demonstrations(parts: dict[str, object], complaint: str) -> None:
    with pytest.raises(BadInputError, match=complaint):
        Demonstrations.of(changed(demonstrations(2), **parts))
