from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from counterpoint.evaluation.compare import scene_rewards
from counterpoint.evaluation.comparison import Comparison, compare
from counterpoint.formats import open_dataset
from counterpoint.rewards.model import RewardModel
from counterpoint.rewards.sources import EncoderReward, FunctionReward
from tests.evaluation.fake import INSTRUCTIONS, SeeingEncoder, episode
from tests.evaluation.fake_run import write_data


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Episodes whose last frame shows what was done, and whose first shows nothing."""
    return write_data(tmp_path / "data")


def motion(frames: NDArray[np.uint8], instruction: str) -> NDArray[np.float64]:
    """A reward that sees nothing in one frame alone."""
    found: NDArray[np.float64] = RewardModel(SeeingEncoder(), form="transition").reward(frames, instruction)
    return found


def compared(data: Path) -> Comparison:
    ours = EncoderReward(RewardModel(SeeingEncoder(), form="transition"), "ours")
    scenes = scene_rewards(ours, {"data": {"path": str(data), "train_split": "train"}}, INSTRUCTIONS, 0)
    return compare({"ours": [FunctionReward(motion, "ours")]}, open_dataset(data, split="val"), scenes=scenes)


def test_the_classifier_knows_what_its_frame_shows_and_is_named_where_it_does_as_well(data: Path) -> None:
    found = compared(data)
    accuracy = {row.name: row.inputs["as recorded"]["accuracy"].value for row in found.rows}
    assert accuracy["linear, last frame"] == accuracy["ours"] == 1.0
    assert accuracy["linear, first frame"] < 0.7
    assert found.rows[0].verdict.startswith("Recognises the end state")
    assert found.rows[0].sources["end state"].value == pytest.approx(1.0 - accuracy["linear, first frame"])
    last = next(row for row in found.rows if row.name == "linear, last frame")
    assert last.inputs["reversed"]["accuracy"].value < 0.7  # it ends with the first frame


def test_a_frame_has_one_score_whatever_the_order_and_unknown_instructions_have_none(data: Path) -> None:
    ours = EncoderReward(RewardModel(SeeingEncoder(), form="transition"), "ours")
    config = {"data": {"path": str(data), "train_split": "train"}}
    rewards = scene_rewards(ours, config, [*INSTRUCTIONS, "wave"], 0)
    frames = {"front": episode(INSTRUCTIONS[0], 10, seed=3, size=64).frames["front"]}
    texts = [*INSTRUCTIONS, "wave"]
    for name, at in (("first", 0), ("middle", 5), ("last", 9)):
        (one,) = rewards[f"linear, {name} frame"]
        curves = one.watch(frames, {})(np.arange(10), texts)
        assert curves.shape == (5, 10)
        np.testing.assert_allclose(curves, one.watch(frames, {})(np.array([at]), texts).repeat(10, axis=1))
        np.testing.assert_allclose(curves.sum(axis=0), 1.0)
        assert (curves[4] == 0.0).all()


def test_there_is_no_classifier_without_training_episodes_or_two_tasks(data: Path, tmp_path: Path) -> None:
    ours = EncoderReward(RewardModel(SeeingEncoder(), form="transition"), "ours")
    assert scene_rewards(ours, {"data": {"path": str(tmp_path / "moved")}}, INSTRUCTIONS, 0) == {}
    assert scene_rewards(ours, {"data": {"path": str(data)}}, INSTRUCTIONS[:1], 0) == {}
