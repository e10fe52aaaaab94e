from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from counterpoint.errors import BadInputError, MissingExtraError
from counterpoint.rewards import RewardModel
from counterpoint.rewards.calibration import calibrate
from counterpoint.rewards.embedding import STATE
from counterpoint.rewards.foreign import LeRobotScorer
from counterpoint.rewards.sources import EncoderReward, FunctionReward, TolerantReward, constant, open_reward, ramp
from tests.evaluation.fake import INSTRUCTIONS, SeeingEncoder, episode, store
from tests.evaluation.fake_run import quick_words

FRAMES = episode(INSTRUCTIONS[0], 9, seed=0).frames["front"]
ALL = np.arange(9)


def brightness(frames: NDArray[np.uint8], instruction: str) -> NDArray[np.float64]:
    return np.asarray(frames.mean(axis=(1, 2, 3)) * (1.0 if "red" in instruction else -1.0))


SIZES: dict[str, Any] = {"image_size": 32, "embed_dim": 8}


def small() -> torch.nn.Module:
    """A network of a user's own."""
    return torch.nn.Sequential(torch.nn.Conv2d(3, 6, 3, 2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4))


class Model:
    """A reward model as LeRobot's."""

    def compute_reward(self, batch: dict[str, Any]) -> Tensor:
        return torch.zeros(1)


seeing_model = Model()


def test_an_encoder_answers_for_any_order_of_the_frames() -> None:
    """The curve of a permuted video is that of the video whose frames were permuted before encoding."""
    model = RewardModel(SeeingEncoder(), form="transition")
    order = np.array([4, 4, 0, 8])
    curves = EncoderReward(model, "seeing").watch({"front": FRAMES}, {})
    np.testing.assert_allclose(curves(order, INSTRUCTIONS), model.reward(FRAMES[order], list(INSTRUCTIONS)), atol=1e-6)
    assert curves(ALL, INSTRUCTIONS[1:3]).shape == (2, 9)


def test_a_potential_is_its_gain_and_one_frame_its_level() -> None:
    model = RewardModel(SeeingEncoder(), form="potential")
    curves = EncoderReward(model, "seeing").watch({"front": FRAMES}, {})
    raw = model.reward(FRAMES, list(INSTRUCTIONS))
    np.testing.assert_allclose(curves(ALL, INSTRUCTIONS), raw - raw[:, :1], atol=1e-6)
    np.testing.assert_allclose(curves(np.array([8]), INSTRUCTIONS), raw[:, 8:], atol=1e-6)


def test_several_cameras_are_the_mean() -> None:
    side = FRAMES[::-1]
    for reward in (FunctionReward(brightness, "b"), EncoderReward(RewardModel(SeeingEncoder()), "seeing")):
        apart = [reward.watch({"x": view}, {})(ALL, INSTRUCTIONS) for view in (FRAMES, side)]
        both = reward.watch({"front": FRAMES, "side": side}, {})(ALL, INSTRUCTIONS)
        np.testing.assert_allclose(both, np.mean(apart, axis=0), atol=1e-12)


def test_functions_are_called_with_frames_and_a_text_and_checked() -> None:
    curves = FunctionReward(brightness, "b").watch({"front": FRAMES}, {})(ALL[::-1], INSTRUCTIONS)
    np.testing.assert_allclose(curves[0], brightness(FRAMES, "red")[::-1])
    np.testing.assert_allclose(curves[2], -curves[0])
    assert ramp(FRAMES, "")[[0, -1]].tolist() == [0.0, 1.0]
    assert set(constant(FRAMES, "").tolist()) == {0.5}


def raising(frames: NDArray[np.uint8], text: str) -> NDArray[np.float64]:
    raise OSError("no such server")


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (lambda f, t: np.zeros(3), r"progress of shape \(3,\) for 9 frames"),
        (lambda f, t: np.full(len(f), np.nan), "progress that is not finite"),
        (lambda f, t: {"progress": np.zeros(9), "success": np.zeros(2)}, r"success of shape \(2,\)"),
        (lambda f, t: {"reward": np.zeros(9)}, "found reward; expected progress, success, stage and known"),
        (lambda f, t: {"success": np.zeros(9)}, "found success; expected progress"),
        (lambda f, t: {"progress": np.zeros(9), "known": np.zeros(9)}, "progress that is not finite"),
        (lambda f, t: "nothing", "ValueError: could not convert"),
        (raising, "OSError: no such server"),
    ],
)
def test_what_a_function_returns_is_checked(bad: Any, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        FunctionReward(bad, "bad").predict({"front": FRAMES}, "go")


def test_values_between_known_frames_are_interpolated() -> None:
    known = np.isin(ALL, [0, 4, 8])
    scores = {"progress": np.where(known, ALL, np.nan), "known": known, "stage": ALL // 5}
    found = FunctionReward(lambda f, t: scores, "f").predict({"front": FRAMES}, "go")
    np.testing.assert_array_equal(found.progress, ALL)
    assert found.known is not None
    assert found.stage is not None
    assert (found.known.sum(), found.stage.tolist()[-1], found.success) == (3, 1, None)


def test_a_function_that_reads_the_state_gets_it() -> None:
    def function(frames: NDArray[np.uint8], text: str, state: NDArray[np.float64]) -> NDArray[np.float64]:
        return state[:, 0]

    function.reads_state = True  # type: ignore[attr-defined]
    state = np.arange(18.0).reshape(9, 2)
    curves = FunctionReward(function, "f").watch({"front": FRAMES, STATE: state}, {})
    np.testing.assert_array_equal(curves(ALL[::-1], INSTRUCTIONS[:1])[0], state[::-1, 0])


def test_a_tolerant_function_is_not_called_after_a_failure() -> None:
    called = []

    def function(frames: NDArray[np.uint8], text: str) -> NDArray[np.float64]:
        called.append(text)
        return np.zeros(len(frames) if text == "good" else 1)

    tolerant = TolerantReward(FunctionReward(function, "f", progress=True))
    assert tolerant.progress
    for text in ("good", "bad", "good"):
        assert tolerant.predict({"front": FRAMES}, text).progress.tolist() == [0.0] * 9
    assert called == ["good", "bad"]
    assert tolerant.failure is not None


def test_rewards_are_opened_by_their_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_words(monkeypatch)
    torch.manual_seed(0)
    saved = DualEncoder(EncoderConfig(image_size=32, embed_dim=8, reward_form="transition"))
    saved.save_pretrained(tmp_path / "run" / "model")
    run = open_reward(str(tmp_path / "run"))
    assert isinstance(run, EncoderReward)
    assert (run.name, run.model.form) == ("run", "transition")
    function = open_reward("tests.rewards.test_sources:brightness", name="light")
    assert isinstance(function, FunctionReward)
    assert function.name == "light"
    theirs = open_reward("tests.rewards.test_sources:seeing_model")
    assert isinstance(theirs, FunctionReward)
    assert isinstance(theirs.function, LeRobotScorer)
    for source in ("tests.rewards.test_sources:nothing", "no.such.module:f", "tests.rewards.test_sources:ALL"):
        with pytest.raises(BadInputError, match=r"function"):
            open_reward(source)
    with pytest.raises(BadInputError, match="nowhere"):
        open_reward(str(tmp_path / "nowhere"))


@pytest.mark.skipif(importlib.util.find_spec("lerobot") is not None, reason="lerobot is installed here")
def test_a_folder_of_a_lerobot_model_needs_lerobot(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"type": "robometer"}))
    with pytest.raises(MissingExtraError, match="lerobot"):
        open_reward(str(tmp_path))


def test_random_weights_have_the_same_form_and_know_nothing_of_the_trained_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick_words(monkeypatch)
    torch.manual_seed(0)
    trained = EncoderReward(RewardModel(DualEncoder(EncoderConfig(image_size=32, embed_dim=8))), "run")
    before = torch.get_rng_state()
    one, same, other = trained.untrained(1), trained.untrained(1), trained.untrained(2)
    assert torch.equal(torch.get_rng_state(), before)
    assert one is not None
    assert same is not None
    assert other is not None
    curves = [reward.watch({"front": FRAMES}, {})(ALL, INSTRUCTIONS) for reward in (trained, one, same, other)]
    np.testing.assert_array_equal(curves[1], curves[2])
    assert not np.allclose(curves[0], curves[1])
    assert not np.allclose(curves[1], curves[3])
    assert EncoderReward(RewardModel(SeeingEncoder()), "seeing").untrained() is None


def test_a_calibrated_reward_has_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    model = RewardModel(SeeingEncoder(), form="transition")
    assert not EncoderReward(model, "seeing").progress
    model.calibration = calibrate(model, store(each=2))
    reward = EncoderReward(model, "seeing")
    assert reward.progress
    found = reward.watch({"front": FRAMES}, {})(ALL, INSTRUCTIONS[:2], progress=True)
    np.testing.assert_allclose(found, model.progress(FRAMES, list(INSTRUCTIONS[:2])), atol=1e-6)
    raw = reward.watch({"front": FRAMES}, {})(ALL, INSTRUCTIONS[:2])
    np.testing.assert_allclose(raw, model.reward(FRAMES, list(INSTRUCTIONS[:2])), atol=1e-6)


def test_encoders_on_one_frozen_backbone_share_its_features(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_words(monkeypatch)
    config = EncoderConfig(image="module", image_model="tests.rewards.test_sources:small", freeze_image=True, **SIZES)
    trained = EncoderReward(RewardModel(DualEncoder(config).eval()), "run")
    fresh = trained.untrained(3)
    assert fresh is not None
    shared: dict[str, Any] = {}
    curves = [reward.watch({"front": FRAMES}, shared)(ALL, INSTRUCTIONS) for reward in (trained, fresh)]
    assert len(shared) == 1
    raw = trained.model.reward(FRAMES, list(INSTRUCTIONS))
    np.testing.assert_allclose(curves[0], raw - raw[:, :1], atol=1e-5)
    assert not np.allclose(curves[0], curves[1])
    two = trained.watch({"front": FRAMES, "side": FRAMES[::-1]}, {})(ALL, INSTRUCTIONS)
    both = trained.model.reward({"front": FRAMES, "side": FRAMES[::-1].copy()}, list(INSTRUCTIONS))
    np.testing.assert_allclose(two, both - both[:, :1], atol=1e-5)
