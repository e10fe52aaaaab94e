from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from counterpoint.data.episode import Episode
from counterpoint.data.store import MemoryStore
from counterpoint.encoders.calibration import averaged
from counterpoint.encoders.config import EncoderConfig
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset
from counterpoint.rewards import RewardForm, RewardModel
from counterpoint.rewards.calibration import _Watched, calibrate
from counterpoint.rewards.embedding import embed_text
from counterpoint.training.train import train
from tests.data.reading import read_episode
from tests.evaluation.fake import INSTRUCTIONS, SeeingEncoder, episode, store

FORMS: tuple[RewardForm, ...] = ("potential", "transition", "goal")


def seeing(form: RewardForm) -> RewardModel:
    model = RewardModel(SeeingEncoder())
    model.trained_form = model.form = form
    return model


def part(whole: Episode, steps: int, success: bool | None = None) -> Episode:
    """The first steps of an episode."""
    return replace(
        whole,
        frames={name: frames[:steps] for name, frames in whole.frames.items()},
        timestamps=whole.timestamps[:steps],
        success=success,
    )


def calibrated(form: RewardForm, validation: MemoryStore | None = None) -> RewardModel:
    model = seeing(form)
    model.calibration = calibrate(model, store(), validation)
    return model


def curve(model: RewardModel, one: Episode) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    frames = one.frames["front"]
    goal = episode(one.instruction, 15, seed=99).frames["front"][-1] if model.trained_form == "goal" else None
    found = model.progress(frames, goal=goal) if goal is not None else model.progress(frames, one.instruction)
    assert isinstance(found, np.ndarray)
    return found


@pytest.mark.parametrize("form", FORMS)
def test_progress_rises_from_0_to_1_on_unseen_successes(form: RewardForm) -> None:
    model = calibrated(form)
    for text in INSTRUCTIONS:
        found = curve(model, episode(text, 20, seed=77))
        assert found.dtype == np.float32
        assert 0 <= found.min() <= found.max() <= 1
        assert found[0] < 0.2
        assert found[-1] > 0.7


def test_a_gain_gives_the_share_of_the_way() -> None:
    model = calibrated("potential")
    found = curve(model, episode(INSTRUCTIONS[0], 21, seed=77))
    assert np.abs(found - np.arange(21) / 20).mean() < 0.12
    assert model.calibration is not None
    assert model.calibration.error < 0.12 < model.calibration.error_of_a_constant


@pytest.mark.parametrize("form", ["potential", "goal"])
def test_truncated_and_failed_episodes_end_below_successes(form: RewardForm) -> None:
    model = calibrated(form)
    ends = {"whole": 20, "most": 14, "half": 10, "few": 5}
    for text in INSTRUCTIONS:
        whole = episode(text, 20, seed=77)
        found = [curve(model, part(whole, steps))[-1] for steps in ends.values()]
        assert all(a > b for a, b in itertools.pairwise(found)), found
        other = episode(INSTRUCTIONS[3 - INSTRUCTIONS.index(text)], 20, seed=78)
        failed = curve(model, replace(other, instruction=text))[-1]
        assert failed < found[1]


def test_time_plays_no_part() -> None:
    """A slow episode, and one that waits at its end, are scored by what they show."""
    model, whole = calibrated("potential"), episode(INSTRUCTIONS[0], 20, seed=77)
    frames = whole.frames["front"]
    slow = model.progress(frames.repeat(3, axis=0), whole.instruction)
    np.testing.assert_allclose(slow, np.asarray(model.progress(frames, whole.instruction)).repeat(3), atol=1e-6)
    stuck = model.progress(np.concatenate([frames[:8], frames[7:8].repeat(40, axis=0)]), whole.instruction)
    np.testing.assert_allclose(stuck[8:], stuck[7], atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_the_value_at_a_frame_depends_on_frames_up_to_it_alone(form: RewardForm) -> None:
    model, whole = calibrated(form), episode(INSTRUCTIONS[1], 16, seed=77)
    found = curve(model, whole)
    for steps in (1, 2, 7, 15):
        np.testing.assert_allclose(curve(model, part(whole, steps)), found[:steps], atol=1e-6)


@pytest.mark.parametrize("form", ["potential", "transition"])
def test_a_stream_has_the_values_of_the_whole_video(form: RewardForm) -> None:
    model, one = calibrated(form), episode(INSTRUCTIONS[0], 15, seed=99)
    frames = one.frames["front"]
    stream = model.stream(one.instruction)
    moments = [stream.add(frame) for frame in frames]
    np.testing.assert_allclose([each.reward for each in moments], model.reward(frames, one.instruction), atol=1e-6)
    np.testing.assert_allclose(
        [each.progress or 0.0 for each in moments], model.progress(frames, one.instruction), atol=1e-6
    )
    assert [each.success for each in moments] == model.success(frames, one.instruction).tolist()
    cameras = model.stream(one.instruction)
    both = [cameras.add({"front": frame, "side": frame[::-1]}) for frame in frames]
    whole = model.reward({"front": frames, "side": frames[:, ::-1]}, one.instruction)
    np.testing.assert_allclose([each.reward for each in both], whole, atol=1e-6)


def test_a_stream_refuses_frames_of_another_size_and_empty_words() -> None:
    model = seeing("potential")
    stream, frame = model.stream("push"), np.zeros((32, 32, 3), np.uint8)
    assert stream.add(frame).progress is None  # it has no calibration
    for bad in (frame[:16], {"front": frame}, frame[..., 0]):
        with pytest.raises(BadInputError, match="as the first frame"):
            stream.add(bad)
    with pytest.raises(BadInputError, match="instruction"):
        model.stream(" ")


def test_without_failures_the_threshold_is_a_quantile_and_says_so() -> None:
    alone, held_out = calibrated("potential").calibration, calibrated("potential", store(each=2)).calibration
    assert alone is not None
    assert held_out is not None
    assert alone.success_from == held_out.success_from == "quantile of successes (uncalibrated)"
    assert (alone.measured_on, alone.measured_episodes) == ("training", 12)
    assert (held_out.measured_on, held_out.measured_episodes) == ("validation", 8)
    finals = [curve(calibrated("potential"), read_episode(store(), n))[-1] for n in range(12)]
    assert alone.success == pytest.approx(np.quantile(finals, 0.1), abs=1e-5)


def test_failures_among_the_validation_episodes_fix_the_threshold() -> None:
    whole = [episode(text, 20, seed=50 + n) for n in range(3) for text in INSTRUCTIONS]
    mixed = MemoryStore([replace(one, success=True) for one in whole] + [part(one, 9, success=False) for one in whole])
    model = calibrated("potential", mixed)
    assert model.calibration is not None
    assert model.calibration.success_from == "F1 on unseen episodes"
    few = calibrated("potential", MemoryStore([read_episode(mixed, number) for number in range(16)])).calibration
    assert few is not None
    assert few.success_from == "quantile of successes (uncalibrated)"
    for text in INSTRUCTIONS:
        unseen = episode(text, 20, seed=77).frames["front"]
        flags = np.asarray(model.success(unseen, text))
        assert flags.dtype == bool
        assert flags[-1]
        assert not flags[:10].any()


def shortened(by: float) -> RewardModel:
    """A reward whose embeddings of frames are `by` times as long, as if it had learned too much by heart."""
    model = seeing("potential")
    score = model.score
    model.score = lambda *given: by * score(*given)  # type: ignore[method-assign]
    return model


def test_the_map_is_fitted_to_unseen_episodes_where_there_are_enough() -> None:
    """Gains of training episodes are three times those of others: a map that is fitted to them ends at a third."""
    judge, learned, data = seeing("potential"), shortened(3.0), store()
    parts = [tuple(range(0, 12, 2)), tuple(range(1, 12, 2))]
    crossed = calibrate(learned, data, judges=[(judge, part) for part in parts])
    alone = calibrate(learned, data)
    assert crossed is not None
    assert alone is not None
    assert (crossed.measured_on, crossed.measured_episodes) == ("cross-fitting", 12)
    assert crossed.error < 0.12 < crossed.error_of_a_constant
    assert max(crossed.rewards) < max(alone.rewards) / 2
    held_out, few = (calibrate(judge, data, store(each=each)) for each in (4, 2))
    assert held_out is not None
    assert few is not None
    assert (held_out.episodes, few.episodes) == (16, 12)  # of the regression: those held out, and those of training
    assert held_out.measured_on == few.measured_on == "validation"


def uneven() -> RewardModel:
    """A reward that gains a third as much under the first instruction as under the others."""
    model = seeing("potential")
    score, (small,) = model.score, embed_text(model.encoder, [INSTRUCTIONS[0]])
    model.score = lambda form, frames, targets: (  # type: ignore[method-assign]
        score(form, frames, targets) * np.where((targets == small).all(axis=-1), 1 / 3, 1.0)[:, None]
    )
    return model


def test_stages_have_maps_of_their_own_where_these_err_less() -> None:
    model = uneven()
    one_map, own = (calibrate(model, store(), store(each=6), by_stage=by_stage) for by_stage in (False, True))
    assert one_map is not None
    assert own is not None
    assert not one_map.stages
    assert own.stages.keys() == set(INSTRUCTIONS)
    assert own.error_of_one_map == one_map.averaged_error > own.averaged_error
    assert (own.rewards, own.memory) == (one_map.rewards, one_map.memory)  # for instructions that are no stages
    small, large = (max(own.stages[text].rewards) for text in INSTRUCTIONS[:2])
    assert small == pytest.approx(large / 3, rel=0.2)
    model.calibration = own
    frames = episode(INSTRUCTIONS[0], 20, seed=77).frames["front"]
    whole = np.asarray(model.progress(frames, list(INSTRUCTIONS)))
    assert whole[0, -1] == pytest.approx(1, abs=0.1)
    np.testing.assert_array_equal(whole[0], np.asarray(model.progress(frames, INSTRUCTIONS[0])))
    stream = model.stream(INSTRUCTIONS[0])
    assert [stream.add(frame).progress for frame in frames] == pytest.approx(whole[0].tolist(), abs=1e-6)
    gained = np.linspace(0, small, 9)
    assert own.labels_of(gained, INSTRUCTIONS[0])[-1] > 1.4 * own.labels_of(gained, "another instruction")[-1]


def test_stages_share_one_map_where_their_own_would_not_err_less_or_cannot_be_tested() -> None:
    clock, untested = seeing("potential"), uneven()
    clock.score = lambda form, frames, targets: np.linspace(0, 1, len(frames))[None]  # type: ignore[method-assign]
    alike = calibrate(clock, store(), store(each=6), by_stage=True)
    assert alike is not None
    assert not alike.stages
    assert alike.error_of_one_map is None
    for validation in (None, store(each=2)):  # there are too few held-out segments for the regression
        assert calibrate(untested, store(), validation, by_stage=True) == calibrate(untested, store(), validation)


def test_monotone_progress_never_falls_and_reads_the_running_maximum() -> None:
    known = calibrated("potential").calibration
    assert known is not None
    gained = np.array([0.0, 0.4, 0.1, 0.6, 0.2]).repeat(9) * max(known.rewards)
    found, free = known.labels_of(gained, monotone=True), known.labels_of(gained)
    assert (np.diff(found) >= 0).all()
    means = averaged(gained, np.arange(len(gained)), known.memory)
    assert means[26] < means[17]
    assert (found[26], free[26] < free[17]) == (found[17], True)
    expected = np.interp(np.maximum.accumulate(means), known.monotone_rewards, known.monotone_progress)
    np.testing.assert_array_equal(found, expected)


def test_the_average_solves_its_equation_at_any_sampling() -> None:
    """Compared with small steps of memory * dm/dt = reward - m; a reward of a straight line lags by `memory` steps."""
    steps, memory = np.array([0.0, 1.0, 4.0, 5.0, 9.0, 20.0]), 3.0
    rewards = np.array([0.2, 0.8, -0.5, 0.1, 0.9, 0.3])
    fine = np.linspace(0, 20, 200_001)
    curve, mean, expected = np.interp(fine, steps, rewards), rewards[0], []
    for at, value in zip(fine.tolist(), curve.tolist(), strict=True):
        if at in steps.tolist():
            expected.append(mean)
        mean += (value - mean) * 1e-4 / memory
    np.testing.assert_allclose(averaged(rewards, steps, memory), expected, atol=1e-4)
    some = np.arange(0.0, 100.0, 7.0)
    line = np.asarray(0.5 * some, np.float64)
    np.testing.assert_allclose(averaged(line, some, memory)[5:], line[5:] - 1.5, atol=1e-4)


def test_labels_average_over_a_tenth_of_a_training_episode_and_err_less_than_single_frames() -> None:
    rng = np.random.default_rng(0)
    model = seeing("potential")
    score = model.score
    model.score = lambda *given: score(*given) + rng.normal(0, 0.2, size=score(*given).shape)  # type: ignore[method-assign]
    known = calibrate(model, store(), store(each=4))
    assert known is not None
    lengths = [one.length for one in store().episodes]
    assert known.memory == pytest.approx(0.1 * (np.mean(lengths) - 1))
    assert known.averaged_error < known.error


def test_labels_do_not_average_where_it_makes_them_worse() -> None:
    """Rewards are exact shares of their episodes; an average lags by more of a short episode than of a long one."""
    model = seeing("potential")
    model.score = lambda form, frames, targets: np.linspace(0, 1, len(frames))[None]  # type: ignore[method-assign]
    known = calibrate(model, MemoryStore([part(read_episode(store(), n), 3 + n) for n in range(12)]))
    assert known is not None
    assert known.memory == 0
    assert known.averaged_error == known.error < 0.05
    gained = np.linspace(0, max(known.rewards), 7)
    np.testing.assert_array_equal(known.labels_of(gained), known.progress_of(gained))


def test_failures_are_no_examples_of_progress() -> None:
    model, good = seeing("potential"), [read_episode(store(), n) for n in range(12)]
    still = [replace(part(one, 1 + len(one) // 4), success=False) for one in good]
    both = calibrate(model, MemoryStore([*good, *still]))
    assert both == calibrate(model, MemoryStore(good))
    assert calibrate(model, MemoryStore(still)) is None


def test_frames_unlike_the_training_data_are_far_from_them() -> None:
    model = calibrated("potential")
    like = episode(INSTRUCTIONS[2], 20, seed=77).frames["front"]
    black = np.zeros_like(like[:3])
    near, far = np.asarray(model.novelty(like)), np.asarray(model.novelty(black))
    assert np.mean(near > 1) < 0.2
    assert (far > near.max()).all()


def test_a_tensor_gives_a_tensor_and_several_instructions_a_row_each() -> None:
    model, frames = calibrated("potential"), episode(INSTRUCTIONS[0], 9, seed=77).frames["front"]
    found = model.progress(torch.from_numpy(frames), list(INSTRUCTIONS))
    assert isinstance(found, torch.Tensor)
    assert found.shape == (4, 9)
    assert found[:, -1].argmax() == 0
    assert isinstance(model.success(torch.from_numpy(frames), INSTRUCTIONS[0]), torch.Tensor)
    assert isinstance(model.novelty(torch.from_numpy(frames)), torch.Tensor)


def test_a_model_without_calibration_is_refused() -> None:
    frames = episode(INSTRUCTIONS[0], 9, seed=77).frames["front"]
    with pytest.raises(BadInputError, match="counterpoint train"):
        RewardModel(SeeingEncoder()).progress(frames, "push")
    with pytest.raises(BadInputError, match="expected an instruction"):
        calibrated("potential").progress(frames, goal=frames[-1])
    with pytest.raises(BadInputError, match="--goal IMAGE"):
        calibrated("goal").progress(frames, "push")


def test_of_two_readings_the_one_that_measures_progress_is_calibrated() -> None:
    """A direction has no length: the cosine of the change is near 1 from the first steps on."""
    found = calibrated("transition").calibration
    assert found is not None
    assert found.form == "potential"


def test_a_configuration_keeps_it() -> None:
    found = calibrated("transition", store(each=2)).calibration
    config = EncoderConfig(calibration=found)
    assert EncoderConfig.model_validate_json(config.model_dump_json()) == config


def test_one_frame_episodes_and_those_without_words_are_left_out() -> None:
    good = [read_episode(store(), n) for n in range(6)]
    odd = [part(good[0], 1), replace(good[1], instruction="")]
    model = seeing("potential")
    assert calibrate(model, MemoryStore([*good, *odd])) == calibrate(seeing("potential"), MemoryStore(good))
    assert calibrate(model, MemoryStore(odd)) is None
    assert calibrate(seeing("goal"), MemoryStore([replace(one, instruction="") for one in good])) is not None


@pytest.mark.release
@pytest.mark.sim
def test_on_meta_world_truncated_episodes_end_below_whole_ones(tmp_path: Path) -> None:
    from counterpoint.envs.metaworld.collect import MetaWorldCollectConfig, collect_metaworld

    tasks = ("drawer-open-v3", "button-press-topdown-v3", "window-open-v3")
    counts = {"episodes": 6, "val_episodes": 2, "test_episodes": 4}
    config = MetaWorldCollectConfig(out=tmp_path / "data", tasks=tasks, size=64, workers=2, **counts)
    data = collect_metaworld(config)
    overrides = {"train.steps": 400, "train.trackers": []}
    model = RewardModel.from_pretrained(train("decisionnce_t-demo", data, tmp_path / "run", overrides=overrides).folder)
    found = model.check_calibration()
    assert found.measured_on == "validation"
    assert found.error < found.error_of_a_constant
    ends = []
    for number, info in enumerate((held_out := open_dataset(data, split="test")).episodes):
        frames = held_out.frames(number, np.arange(info.length))
        shares = (1.0, 0.6, 0.3)
        ends.append([model.progress(frames[: int(share * info.length)], info.instruction)[-1] for share in shares])
    whole, most, few = np.array(ends).T
    assert whole.mean() > most.mean() > few.mean()
    assert np.mean(whole[:, None] > few) > 0.8  # of all pairs


def test_the_share_of_an_episode_counts_its_steps_and_not_the_frames_that_were_seen() -> None:
    seen = _Watched("open the drawer", True, np.array([0.0, 2.0, 10.0]), np.zeros((3, 4)))
    np.testing.assert_allclose(seen.share, [0, 0.2, 1])
