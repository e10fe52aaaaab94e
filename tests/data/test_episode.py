from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from counterpoint.data.episode import Episode
from counterpoint.errors import BadInputError

GOOD: dict[str, Any] = {
    "frames": {"front": np.zeros((3, 4, 5, 3), np.uint8)},
    "instruction": "wave",
    "timestamps": np.arange(3) / 10,
    "actions": np.zeros((3, 2), np.float32),
}


def test_good_episode() -> None:
    episode = Episode(**GOOD)
    assert len(episode) == 3
    assert "front 4x5" in repr(episode)


def test_mappings_are_frozen() -> None:
    episode = Episode(**GOOD)
    with pytest.raises(TypeError):
        episode.frames["front"] = np.zeros(1)  # type: ignore[index]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"frames": {"front": np.zeros((3, 4, 5, 3), np.float32)}}, "expected uint8"),
        ({"frames": {"front": np.zeros((2, 4, 5, 3), np.uint8)}}, r"\(3, H, W, 3\)"),
        ({"frames": {}}, "at least one camera"),
        ({"instruction": 3}, "expected text"),
        ({"timestamps": np.array([0.0, 0.2, 0.1])}, "strictly increasing"),
        ({"timestamps": np.array([0.0, 0.1, 0.1])}, "strictly increasing"),
        ({"timestamps": np.array([0.0, np.nan, 0.1])}, "finite"),
        ({"actions": np.full((3, 2), np.nan, np.float32)}, "not finite at step 0"),
        ({"actions": np.zeros((3, 2))}, "float32"),
        ({"state": np.zeros((4, 2), np.float32)}, "float32"),
        ({"rewards": np.zeros((3, 1), np.float32)}, r"expected float32 \(3,\)"),
        ({"rewards": np.array([0, np.inf, 0], np.float32)}, "not finite at step 1"),
    ],
)
def test_bad_episodes_say_what_is_wrong(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        Episode(**(GOOD | change))
