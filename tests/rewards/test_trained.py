"""From training to a reward curve: a run is scored as it was trained, without a word from the user."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from counterpoint.errors import BadInputError
from counterpoint.evaluation.report import write_report
from counterpoint.formats.video import encode_video
from counterpoint.rewards import RewardForm, RewardModel
from counterpoint.rewards.curves import reward_command
from counterpoint.training import train as training
from tests.evaluation.fake import INSTRUCTIONS, episode
from tests.evaluation.fake_run import quick_words, write_data

FRAMES = episode(INSTRUCTIONS[0], 9, seed=0, size=64).frames["front"]


def train(name: str, tmp_path: Path) -> Path:
    overrides = {
        "objective": {"name": name},
        "train.steps": 1,
        "train.batch_size": 4,
        "train.trackers": [],
        "data.size": 32,
        "data.cache": str(tmp_path / "cache"),
        "encoder": {"image_size": 32, "embed_dim": 8},
    }
    training.train("decisionnce_t-demo", write_data(tmp_path / "data", each=2), tmp_path / "run", overrides=overrides)
    return tmp_path / "run"


@pytest.fixture
def video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    quick_words(monkeypatch)
    encode_video(tmp_path / "clip.mp4", FRAMES, fps=5)
    return tmp_path / "clip.mp4"


def column(path: Path) -> list[float]:
    with path.open(newline="") as file:
        return [float(row[2]) for row in list(csv.reader(file))[1:]]


@pytest.mark.parametrize(
    ("name", "form"),
    [
        pytest.param("decisionnce_t", "transition", marks=pytest.mark.slow),
        ("decisionnce_p", "potential"),
        pytest.param("r3m", "language", marks=pytest.mark.slow),
    ],
)
def test_a_run_is_scored_as_it_was_trained(name: str, form: RewardForm, video: Path, tmp_path: Path) -> None:
    run = train(name, tmp_path)
    model = RewardModel.from_pretrained(run)
    assert model.form == form
    (table, _, page) = reward_command([video], INSTRUCTIONS[0], model=run, out=tmp_path / "out")
    scores = model.reward(FRAMES, INSTRUCTIONS[0], form=form)
    np.testing.assert_allclose(column(table), scores, atol=0.05)  # the video is compressed
    if form == "transition":
        assert column(table)[0] == 0.0
        report = json.loads(write_report(run, split="val").with_suffix(".json").read_text())
        assert report["about"]["form"] == "transition"
        other = reward_command([video], INSTRUCTIONS[0], model=run, out=tmp_path / "other", form="potential")
        assert column(other[0])[0] != 0.0
        assert "gain of the cosine of the frame and the instruction" in other[2].read_text()
    assert ("gain of the" in page.read_text()) == (form == "potential")
    if form == "language":
        assert 0 < min(scores) < max(scores) < 1
        with pytest.raises(BadInputError, match="the form language"):
            reward_command([video], INSTRUCTIONS[0], model=run, out=tmp_path / "out", form="potential")


@pytest.mark.slow
def test_a_run_without_language_takes_a_goal_image(video: Path, tmp_path: Path) -> None:
    run, goal = train("vip", tmp_path), tmp_path / "goal.png"
    Image.fromarray(FRAMES[-1]).save(goal)
    table = reward_command([video], goal=goal, model=run, out=tmp_path / "out")[0]
    values = column(table)
    assert max(values) <= 0
    assert int(np.argmax(values)) == len(FRAMES) - 1
    with pytest.raises(BadInputError, match="--goal IMAGE"):
        reward_command([video], "push", model=run, out=tmp_path / "out")
    report = json.loads(write_report(run).with_suffix(".json").read_text())  # its goals: outcomes of training episodes
    assert report["about"]["form"] == "goal"
    assert "ordering" not in report["space"]["as recorded"]
    goal.write_bytes(b"no image")
    with pytest.raises(BadInputError, match=r"goal\.png"):
        reward_command([video], goal=goal, model=run, out=tmp_path / "out")
