from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from counterpoint.data.store_views import SubsetStore
from counterpoint.encoders.calibration import best_f1
from counterpoint.evaluation import metrics
from counterpoint.evaluation.bench import CUTS, INPUTS, WRONG, Answered, Bench, ask
from counterpoint.evaluation.embedded import RECORDED
from counterpoint.rewards.model import RewardModel
from counterpoint.rewards.sources import EncoderReward, FunctionReward, ramp
from tests.evaluation.fake import INSTRUCTIONS, SeeingEncoder, store

Array = NDArray[np.float64]


@pytest.fixture(scope="module")
def answered() -> list[Answered]:
    seeing = EncoderReward(RewardModel(SeeingEncoder(), form="potential"), "seeing")
    return ask([seeing, FunctionReward(ramp, "ramp", progress=True)], store(each=2), INSTRUCTIONS)


def test_answers_are_those_of_the_video_that_is_shown(answered: list[Answered]) -> None:
    model = RewardModel(SeeingEncoder(), form="potential")
    episodes = store(each=2)
    for number, info in enumerate(episodes.episodes):
        frames = episodes.frames(number, np.arange(info.length))
        own, middle = INSTRUCTIONS.index(info.instruction), info.length // 2
        for name, shown in (("reversed", frames[::-1]), ("frozen", frames[[middle] * info.length]), (RECORDED, frames)):
            curve = model.reward(np.ascontiguousarray(shown), list(INSTRUCTIONS))
            found = answered[0].inputs[name]
            np.testing.assert_allclose(found.ends[number], curve[:, -1] - curve[:, 0], atol=1e-6)
            gained = curve[own].astype(np.float64)
            assert found.voc[number] == pytest.approx(metrics.value_order_correlation(gained), abs=0.02)
        half = model.reward(frames[: info.length // 2], info.instruction)
        assert answered[0].inputs[RECORDED].halves[number] == pytest.approx(half[-1] - half[0], abs=1e-6)
        for name, at in (("first frame", 0), ("middle frame", middle), ("last frame", info.length - 1)):
            level = model.reward(frames[[at]], list(INSTRUCTIONS))[:, 0]
            np.testing.assert_allclose(answered[0].inputs[name].ends[number], level, atol=1e-6)
            assert np.isnan(answered[0].inputs[name].voc[number])
        cuts = [max(1, round(cut * (info.length - 1)) + 1) for cut in CUTS]
        expected = [
            model.reward(frames[:cut], info.instruction)[-1] - model.reward(frames[:1], info.instruction)[0]
            for cut in cuts
        ]
        expected[0] = model.reward(frames[:1], info.instruction)[0]  # one frame: its level
        np.testing.assert_allclose(answered[0].cuts[number], expected, atol=1e-6)


def test_a_wrong_text_is_the_mean_over_the_others(answered: list[Answered]) -> None:
    recorded, wrong = answered[0].inputs[RECORDED], answered[0].inputs[WRONG]
    for number, info in enumerate(store(each=2).episodes):
        own = INSTRUCTIONS.index(info.instruction)
        others = [column for column in range(4) if column != own]
        assert wrong.ends[number, own] == pytest.approx(recorded.ends[number, others].mean())
        np.testing.assert_array_equal(wrong.ends[number, others], recorded.ends[number, others])


def test_a_clock_rises_whatever_it_is_shown(answered: list[Answered]) -> None:
    for name in ("reversed", "shuffled", "frozen", WRONG, RECORDED):
        np.testing.assert_allclose(answered[1].inputs[name].voc, 1.0)
    np.testing.assert_array_equal(answered[1].cuts[0], [0.0, 1.0, 1.0, 1.0, 1.0])


def bench(success: list[bool] | None = None) -> Bench:
    own = np.array([INSTRUCTIONS.index(info.instruction) for info in store(each=2).episodes])
    return Bench(own, np.array(success or [True] * 8), INSTRUCTIONS)


def test_failures_are_those_recorded_or_another_goal() -> None:
    without = bench()
    assert not without.recorded
    for video, column, level in without.items.tolist():
        assert (column == without.own[video]) == (level > 0)
        if level == 0:
            assert without.hard[without.own[video], column]
    assert sorted(without.items[:, 2].tolist()) == [0] * 8 + [1] * 8 + [2] * 8
    with_failures = bench([False, True] * 4)
    assert with_failures.recorded
    assert sorted(with_failures.items[:, 2].tolist()) == [0] * 4 + [1] * 4 + [2] * 4
    assert (with_failures.items[:, 1] == with_failures.own[with_failures.items[:, 0]]).all()


def test_numbers_agree_with_plain_loops_on_every_resample(answered: list[Answered]) -> None:
    made = bench([True, False] * 4)
    found = made.numbers(answered[0], RECORDED, None, progress=False)
    answers = answered[0].inputs[RECORDED]
    scores, positive = made.scores(answers), made.items[:, 2] == 2
    for row in (0, 1, 7, 100):
        repeats = made.weights[row].astype(int)
        videos = np.repeat(np.arange(8), repeats)
        won = [made.success[v] for v in videos]
        mine = [answers.voc[v] for v, good in zip(videos, won, strict=True) if good]
        assert found["voc"].values[row] == pytest.approx(np.mean(mine), nan_ok=True)
        items = np.concatenate([np.flatnonzero(made.items[:, 0] == v) for v in videos])
        area = float(metrics.auroc(scores[items], positive[items]))
        assert found["auroc"].values[row] == pytest.approx(area, nan_ok=True)
        taus = []
        for task in range(4):
            levels = [
                scores[items][(made.items[items, 1] == task) & (made.items[items, 2] == rank)] for rank in range(3)
            ]
            taus.append(float(metrics.quality_ranking(levels)))
        assert found["ranking_tau_b"].values[row] == pytest.approx(np.nanmean(taus))
    assert found["voc"].n == 4
    assert "grade_error" not in found


def test_thresholds_are_never_fixed_on_what_they_judge(answered: list[Answered]) -> None:
    made = bench()
    answers = answered[0].inputs[RECORDED]
    scores, positive = made.scores(answers), made.items[:, 2] == 2
    passed = np.zeros(len(scores), bool)
    for half in (0, 1):
        mine = made.fold[made.items[:, 0]] == half
        passed[mine] = scores[mine] >= best_f1(scores[~mine], positive[~mine])[0]
    expected = float(metrics.f1(passed, positive))
    assert made.numbers(answered[0], RECORDED, None, progress=False)["f1"].values[0] == pytest.approx(expected)
    strict = made.numbers(answered[0], RECORDED, (np.array([5.0, 9.0]), np.array([False, True])), progress=False)
    assert strict["f1"].values[0] == 0.0


def test_grades_of_progress_are_compared_with_the_share_that_is_shown(answered: list[Answered]) -> None:
    found = bench().numbers(answered[1], RECORDED, None, progress=True)
    assert found["grade_error"].values[0] == pytest.approx((0 + 3 + 2 + 1 + 0) / 5)


def test_videos_are_asked_in_any_number() -> None:
    one = ask([FunctionReward(ramp, "ramp")], SubsetStore(store(each=1), [2]), INSTRUCTIONS)[0]
    assert set(one.inputs) == {*INPUTS, WRONG}
    assert one.inputs[RECORDED].ends.shape == (1, 4)
