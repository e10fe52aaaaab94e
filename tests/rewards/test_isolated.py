from __future__ import annotations

import sqlite3
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from counterpoint.errors import BadInputError
from counterpoint.rewards.isolated import IsolatedScorer, ScoreCache
from counterpoint.rewards.sources import FunctionReward, open_reward
from counterpoint.workers import Foreign
from tests.evaluation.fake import INSTRUCTIONS, episode

OWN = Foreign(python=Path(sys.executable))
FRAMES = episode(INSTRUCTIONS[0], 9, seed=0).frames["front"]
MODULE = """
import os, signal, time
import numpy as np

def light(frames, text):
    print("printed by the model")
    if text == "hang":
        time.sleep(60)
    if text == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if text == "eat":
        np.ones(1 << 36)
    if text == "raise":
        raise ValueError("no such word")
    return frames.mean(axis=(1, 2, 3)) / 255

light.progress = True
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "a_model_of_others.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return "a_model_of_others:light"


def test_a_model_in_a_process_of_its_own_scores_as_here(source: str) -> None:
    scorer = IsolatedScorer(source, OWN)
    assert scorer.progress
    assert not scorer.reads_state
    large = np.repeat(FRAMES, 200, axis=0)  # more than a pipe holds
    np.testing.assert_array_equal(scorer(large, "go")["progress"], large.mean(axis=(1, 2, 3)) / 255)
    assert "a_model_of_others" not in sys.modules


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hang", "no answer in 0.5 s"),
        ("die", "died (signal 9)"),
        ("eat", "MemoryError"),
        ("raise", "ValueError: no such word"),
    ],
)
def test_what_happens_to_it_is_one_message_and_it_goes_on(source: str, text: str, said: str) -> None:
    scorer = IsolatedScorer(source, replace(OWN, seconds=0.5, memory=4))
    with pytest.raises(BadInputError) as told:
        scorer(FRAMES, text)
    assert said in str(told.value)
    scorer.seconds = 30.0
    assert scorer(FRAMES, "go")["progress"].shape == (9,)


def test_a_model_that_cannot_be_loaded_is_refused(source: str) -> None:
    with pytest.raises(BadInputError, match="no attribute 'dark'"):
        IsolatedScorer("a_model_of_others:dark", OWN)


def test_the_process_ends_with_its_scorer(source: str) -> None:
    scorer = IsolatedScorer(source, OWN)
    process = scorer._process
    assert process is not None
    scorer.close()
    assert process.poll() is not None
    scorer.close()


def test_scores_are_kept_by_content(tmp_path: Path) -> None:
    called = []

    def function(frames: NDArray[np.uint8], text: str) -> NDArray[np.float64]:
        called.append(text)
        return np.linspace(0, 1, len(frames))

    first, other = (FunctionReward(function, "f", cache=ScoreCache(files, tmp_path / "x.sqlite")) for files in "ab")
    for _ in range(2):
        first.predict({"": FRAMES}, "go")
    first.predict({"": FRAMES}, "stop")
    first.predict({"": FRAMES[::-1]}, "go")
    assert called == ["go", "stop", "go"]
    np.testing.assert_array_equal(first.predict({"": FRAMES}, "go").progress, np.linspace(0, 1, 9))
    other.predict({"": FRAMES}, "go")
    assert len(called) == 4


def test_a_damaged_database_is_begun_again(tmp_path: Path) -> None:
    (tmp_path / "x.sqlite").write_bytes(b"no database" * 100)
    cache = ScoreCache("a", tmp_path / "x.sqlite")
    cache.put("key", {"progress": np.ones(3)})
    found = ScoreCache("a", tmp_path / "x.sqlite").get("key")
    assert found is not None
    assert found["progress"].tolist() == [1, 1, 1]


def test_without_a_writable_cache_scores_are_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("sqlite3.connect", full)
    reward = FunctionReward(lambda frames, text: np.zeros(len(frames)), "f", cache=ScoreCache("a", tmp_path / "x"))
    assert reward.predict({"": FRAMES}, "go").progress.tolist() == [0.0] * 9


def test_a_reward_of_others_is_opened_in_its_own_python(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "cache"))
    reward = open_reward(source, foreign=OWN, name="theirs")
    assert isinstance(reward, FunctionReward)
    assert (reward.name, reward.progress) == ("theirs", True)
    np.testing.assert_allclose(reward.predict({"": FRAMES}, "go").progress, FRAMES.mean(axis=(1, 2, 3)) / 255)
    assert (tmp_path / "cache" / "scores.sqlite").is_file()


@pytest.mark.parametrize(
    ("foreign", "said"),
    [
        (Foreign(python=Path("nowhere/python")), "found nowhere/python; expected a Python interpreter"),
        (Foreign(python=Path(sys.executable), memory=0), "more than 0 GB"),
        (Foreign(memory=4), "add --python PATH"),
        (Foreign(seconds=0), "--seconds: found 0"),
    ],
)
def test_settings_that_cannot_work_are_refused_first(foreign: Foreign, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        open_reward("no_such:model", foreign=foreign)
