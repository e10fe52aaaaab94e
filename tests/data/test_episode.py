from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from counterpoint.data.episode import Episode, EpisodeInfo, says_nothing, task_of, visible
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


UNSEEN = ["\u200b", "\ufeff", " \t\u00a0\u3000", "\u2060\u200d \u200e"]


@pytest.mark.parametrize("text", UNSEEN)
def test_a_text_that_shows_nothing_is_no_instruction(text: str) -> None:
    info = EpisodeInfo(3, text, 10.0, segments=((0, "open"), (2, text)))
    assert (info.instruction, info.segments) == ("", ((0, "open"), (2, "")))
    assert says_nothing(text)
    assert says_nothing(f"{text}None{text}")
    assert visible(f"{text}open\u200b it{text}") == "open\u200b it"
    assert task_of([(0, text), (1, "open")]) == "open"


def test_words_are_kept_as_they_are() -> None:
    assert EpisodeInfo(3, " open it ", 10.0).instruction == " open it "
    assert not says_nothing("nones")
