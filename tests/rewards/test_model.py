from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from counterpoint.encoders.base import DualEncoder, EncoderConfig
from counterpoint.errors import BadInputError
from counterpoint.rewards import RewardModel
from tests.evaluation.fake import INSTRUCTIONS, RandomEncoder, SeeingEncoder, episode
from tests.evaluation.fake_run import quick_words

FRAMES = episode(INSTRUCTIONS[0], 9, seed=0).frames["front"]


def test_one_instruction_gives_a_curve_and_several_a_row_each() -> None:
    model = RewardModel(RandomEncoder())
    several = model.potential(FRAMES, list(INSTRUCTIONS))
    one = model.potential(FRAMES, INSTRUCTIONS[2])
    assert several.shape == (4, 9)
    assert one.shape == (9,)
    assert one.dtype == np.float32
    np.testing.assert_allclose(one, several[2], atol=1e-6)


def test_rewards_come_in_the_kind_of_the_frames() -> None:
    model = RewardModel(RandomEncoder())
    tensor = model.reward(torch.from_numpy(FRAMES), "push")
    array = model.reward(FRAMES, "push")
    assert isinstance(tensor, Tensor)
    assert isinstance(array, np.ndarray)
    assert not tensor.requires_grad
    np.testing.assert_array_equal(tensor.numpy(), array)


def test_steps_add_up_to_the_gain() -> None:
    model = RewardModel(RandomEncoder())
    steps, curve = (method(FRAMES, list(INSTRUCTIONS)) for method in (model.steps, model.potential))
    assert steps.shape == (4, 8)
    np.testing.assert_allclose(steps.sum(axis=1), curve[:, -1] - curve[:, 0], atol=1e-5)
    assert model.steps(FRAMES[:1], "push").shape == (0,)


def test_reward_means_the_form() -> None:
    potential = RewardModel(RandomEncoder(), form="potential")
    direction = RewardModel(RandomEncoder(), form="direction")
    np.testing.assert_array_equal(potential.reward(FRAMES, "push"), potential.potential(FRAMES, "push"))
    np.testing.assert_array_equal(direction.reward(FRAMES, "push"), potential.direction(FRAMES, "push"))
    assert direction.reward(FRAMES, "push")[0] == 0.0
    with pytest.raises(BadInputError, match="sideways"):
        RewardModel(RandomEncoder(), form="sideways")  # type: ignore[arg-type]


def test_a_reward_that_sees_rises_under_its_own_instruction_alone() -> None:
    rewards = RewardModel(SeeingEncoder()).direction(FRAMES, list(INSTRUCTIONS))
    assert rewards[:, -1].argmax() == 0
    assert rewards[0, -1] > 0.9
    assert rewards[1, -1] < -0.9


def test_bad_frames_and_instructions_are_refused_by_every_method() -> None:
    model = RewardModel(RandomEncoder())
    for method in (model.potential, model.direction, model.steps, model.reward):
        with pytest.raises(BadInputError, match="frames"):
            method(FRAMES.astype(np.float32), "push")
        with pytest.raises(BadInputError, match="instruction"):
            method(FRAMES, "")


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    quick_words(monkeypatch)
    torch.manual_seed(0)
    encoder = DualEncoder(EncoderConfig(image_size=32, embed_dim=8))
    encoder.save_pretrained(tmp_path / "run" / "model")
    return tmp_path / "run"


def write_config(run: Path, **keys: Any) -> None:
    (run / "config.json").write_text(json.dumps(keys))


def test_a_run_and_its_folder_of_weights_load(saved: Path) -> None:
    write_config(saved, reward_form="direction")
    of_run = RewardModel.from_pretrained(saved)
    of_folder = RewardModel.from_pretrained(str(saved / "model"))
    assert (of_run.form, of_folder.form) == ("direction", "potential")
    np.testing.assert_array_equal(of_run.potential(FRAMES, "push"), of_folder.potential(FRAMES, "push"))


def test_a_run_that_names_no_form_rewards_by_the_potential(saved: Path) -> None:
    write_config(saved, objective={"name": "liv"})
    assert RewardModel.from_pretrained(saved).form == "potential"


@pytest.mark.parametrize(
    ("content", "word"), [('{"reward_form": "up"}', "up"), ("{", "broken JSON"), ("[]", "list"), (None, "no such")]
)
def test_a_run_with_a_bad_configuration_is_refused(saved: Path, content: str | None, word: str) -> None:
    if content is not None:
        (saved / "config.json").write_text(content)
    with pytest.raises(BadInputError, match=word):
        RewardModel.from_pretrained(saved)


def test_a_run_that_has_not_finished_is_refused(tmp_path: Path) -> None:
    write_config(tmp_path)
    with pytest.raises(BadInputError, match="model"):
        RewardModel.from_pretrained(tmp_path)
    with pytest.raises(BadInputError, match="nowhere"):
        RewardModel.from_pretrained(tmp_path / "nowhere" / "at" / "all")
