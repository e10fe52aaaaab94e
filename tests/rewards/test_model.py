from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.errors import BadInputError
from counterpoint.rewards import RewardForm, RewardModel
from counterpoint.rewards.embedding import embed_frames, embed_text
from counterpoint.rewards.model import potential, transition
from tests.encoders.saved_kinds import write_digests
from tests.evaluation.fake import INSTRUCTIONS, RandomEncoder, SeeingEncoder, episode
from tests.evaluation.fake_run import quick_words

FRAMES = episode(INSTRUCTIONS[0], 9, seed=0).frames["front"]


def test_one_instruction_gives_a_curve_and_several_a_row_each() -> None:
    model = RewardModel(RandomEncoder())
    several = model.reward(FRAMES, list(INSTRUCTIONS))
    one = model.reward(FRAMES, INSTRUCTIONS[2])
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


@pytest.mark.parametrize(("form", "other"), [("potential", "transition"), ("transition", "potential")])
def test_reward_means_the_form(form: RewardForm, other: RewardForm) -> None:
    encoder = RandomEncoder()
    curve = {"potential": potential, "transition": transition}[form]
    expected = curve(embed_frames(encoder, FRAMES), embed_text(encoder, "push"))[0].astype(np.float32)
    np.testing.assert_array_equal(RewardModel(encoder, form=form).reward(FRAMES, "push"), expected)
    np.testing.assert_array_equal(RewardModel(encoder, form=other).reward(FRAMES, "push", form=form), expected)
    assert (expected[0] == 0.0) == (form == "transition")


def test_another_form_is_refused() -> None:
    with pytest.raises(BadInputError, match="sideways"):
        RewardModel(RandomEncoder(), form="sideways")  # type: ignore[arg-type]


def test_a_reward_that_sees_rises_under_its_own_instruction_alone() -> None:
    rewards = RewardModel(SeeingEncoder()).reward(FRAMES, list(INSTRUCTIONS), form="transition")
    assert rewards[:, -1].argmax() == 0
    assert rewards[0, -1] > 0.9
    assert rewards[1, -1] < -0.9


def test_bad_frames_and_instructions_are_refused_by_every_form() -> None:
    model = RewardModel(RandomEncoder())
    forms: tuple[RewardForm | None, ...] = ("potential", "transition", None)
    for form in forms:
        with pytest.raises(BadInputError, match="frames"):
            model.reward(FRAMES.astype(np.float32), "push", form=form)
        for bad in ("", ()):
            with pytest.raises(BadInputError, match="instruction"):
                model.reward(FRAMES, bad, form=form)


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    quick_words(monkeypatch)
    torch.manual_seed(0)
    encoder = DualEncoder(EncoderConfig(image_size=32, embed_dim=8, reward_form="transition"))
    encoder.save_pretrained(tmp_path / "run" / "model")
    return tmp_path / "run"


def test_a_run_and_its_folder_of_weights_are_scored_as_the_encoder_was_trained(saved: Path) -> None:
    of_run = RewardModel.from_pretrained(saved)
    of_folder = RewardModel.from_pretrained(str(saved / "model"), form="potential")
    assert (of_run.form, of_folder.form) == ("transition", "potential")
    np.testing.assert_array_equal(of_run.reward(FRAMES, "push", form="potential"), of_folder.reward(FRAMES, "push"))
    assert RewardModel(RandomEncoder()).form == "potential"


def test_an_unknown_form_is_refused(saved: Path) -> None:
    config = saved / "model" / "config.json"
    config.write_text(config.read_text().replace('"transition"', '"up"'))
    with pytest.raises(BadInputError, match="sha256"):
        RewardModel.from_pretrained(saved)
    write_digests(saved / "model")
    with pytest.raises(BadInputError, match="reward_form"):
        RewardModel.from_pretrained(saved)


def test_an_encoder_for_control_is_refused_with_what_to_do_instead(tmp_path: Path) -> None:
    ObservationEncoder(ObservationConfig(size=32, embed_dim=8)).save_pretrained(tmp_path / "model")
    with pytest.raises(BadInputError, match="counterpoint evaluate"):
        RewardModel.from_pretrained(tmp_path)


def test_a_run_that_has_not_finished_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="model"):
        RewardModel.from_pretrained(tmp_path)
    with pytest.raises(BadInputError, match="nowhere"):
        RewardModel.from_pretrained(tmp_path / "nowhere" / "at" / "all")


def test_a_goal_image_is_reached_at_its_own_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    model = RewardModel(SeeingEncoder())
    assert model.reward(FRAMES, goal=FRAMES[-1]).argmax() == len(FRAMES) - 1
    trained = RewardModel(SeeingEncoder())
    trained.trained_form = trained.form = "goal"
    distances = trained.reward(FRAMES, goal=FRAMES[-1])
    assert distances[-1] == 0.0
    assert (np.diff(distances) > -0.05).all()
    with pytest.raises(BadInputError, match="--goal IMAGE"):
        trained.reward(FRAMES, "push")
    with pytest.raises(BadInputError, match="--goal IMAGE"):
        trained.reward(FRAMES, "push", form="potential")
    with pytest.raises(BadInputError, match="language reward"):
        model.reward(FRAMES, "push", form="language")


def test_several_cameras_give_the_mean_of_their_rewards() -> None:
    other = episode(INSTRUCTIONS[3], 9, seed=4, size=48).frames["front"]
    model = RewardModel(SeeingEncoder(), form="transition")
    both = {"front": FRAMES, "side": other}
    expected = (model.reward(FRAMES, list(INSTRUCTIONS)) + model.reward(other, list(INSTRUCTIONS))) / 2
    np.testing.assert_allclose(model.reward(both, list(INSTRUCTIONS)), expected, atol=1e-6)
    np.testing.assert_array_equal(model.reward({"front": FRAMES}, "push"), model.reward(FRAMES, "push"))
    tensors = model.reward({name: torch.from_numpy(view) for name, view in both.items()}, INSTRUCTIONS[0])
    assert isinstance(tensors, Tensor)
    goal: dict[str, NDArray[Any]] = {name: view[-1] for name, view in both.items()}
    distances = model.reward(both, goal=goal)
    assert distances.argmax() == 8
    with pytest.raises(BadInputError, match="9 of front, 4 of side"):
        model.reward({"front": FRAMES, "side": other[:4]}, "push")
