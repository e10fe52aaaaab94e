from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from counterpoint.data.episode import Episode
from counterpoint.data.store import MemoryStore
from counterpoint.errors import BadInputError
from counterpoint.evaluation.bench import INPUTS, WRONG
from counterpoint.evaluation.compare import write_comparison
from counterpoint.evaluation.comparison import Comparison, compare, sources_of, verdict
from counterpoint.evaluation.embedded import RECORDED
from counterpoint.evaluation.statistics import Drawn, Estimate, drawn_mean, wilson
from counterpoint.rewards.model import RewardModel
from counterpoint.rewards.sources import EncoderReward, FunctionReward
from tests.data.reading import read_episode
from tests.evaluation.fake import INSTRUCTIONS, RandomEncoder, SeeingEncoder, store

PARAPHRASES = {text: [f"please {text}", f"{text} now"] for text in INSTRUCTIONS}


def seeing() -> EncoderReward:
    return EncoderReward(RewardModel(SeeingEncoder(), form="potential"), "seeing")


def blind(seed: int = 0) -> EncoderReward:
    return EncoderReward(RewardModel(RandomEncoder(seed)), "blind")


def clock(frames: NDArray[np.uint8], instruction: str) -> NDArray[np.float64]:
    return np.arange(len(frames)) / 100


@pytest.fixture(scope="module")
def compared() -> Comparison:
    return compare(
        {"seeing": [seeing()], "blind": [blind(0), blind(1)]}, store(), segments=True, paraphrases=PARAPHRASES
    )


def test_a_reward_that_sees_is_told_from_one_that_does_not(compared: Comparison) -> None:
    rows = {row.name: row for row in compared.rows}
    assert list(rows) == ["seeing", "blind", "ramp", "constant"]
    sees = rows["seeing"].inputs[RECORDED]
    assert sees["accuracy"].value == 1.0
    assert sees["voc"].value > 0.99
    assert sees["ranking_tau_b"].value > 0.8
    assert sees["auroc"].value > 0.9
    assert rows["blind"].inputs[RECORDED]["accuracy"].low <= 0.25
    assert rows["blind"].verdict.startswith("No better than chance")
    assert "12 held-out videos" in rows["seeing"].verdict


def test_a_reward_that_fails_costs_its_own_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def failing(frames: NDArray[np.uint8], instruction: str) -> NDArray[np.float64]:
        return np.zeros(1) if instruction == INSTRUCTIONS[-1] else clock(frames, instruction)

    broken, sound = FunctionReward(failing, "broken"), FunctionReward(clock, "clock")
    found = compare({"broken": [broken], "clock": [sound], "seeing": [seeing()]}, store(each=1))
    alone = compare({"clock": [FunctionReward(clock, "clock")], "seeing": [seeing()]}, store(each=1))
    assert [row.name for row in found.rows] == [row.name for row in alone.rows]
    assert found.rows == alone.rows
    assert list(found.failed) == ["broken"]
    assert "progress of shape (1,) for" in found.failed["broken"]
    page = write_comparison(found, tmp_path).read_text()
    assert "broken: left out, since it failed" in capsys.readouterr().out
    assert "Left out, since they failed" in page
    assert Comparison.from_json((tmp_path / "compare.json").read_text()).failed == found.failed
    with pytest.raises(BadInputError, match="progress of shape"):
        compare({"broken": [FunctionReward(failing, "broken")]}, store(each=1))


def test_controls_stand_beside_every_reward(compared: Comparison) -> None:
    rows = {row.name: row for row in compared.rows}
    for row in compared.rows:
        more = set() if row.control else {"random segments", "short segments", "paraphrases"}
        assert set(row.inputs) == {*INPUTS, WRONG} | more
        assert row.control == (row.name in ("ramp", "constant"))
    ramp, constant = (rows[name].inputs[RECORDED] for name in ("ramp", "constant"))
    assert ramp["voc"].value == pytest.approx(1.0)  # VOC alone says nothing
    assert constant["voc"].value == 0.0
    for control in (ramp, constant):
        assert control["accuracy"].value == 0.0
        assert control["auroc"].value == 0.5
        assert control["ranking_tau_b"].value == 0.0
        assert control["grade_error"].value == pytest.approx(1.2, abs=0.01)
    sees = rows["seeing"].inputs
    assert sees["reversed"]["voc"].value < -0.9
    assert sees["frozen"]["voc"].value == 0.0
    assert sees[WRONG]["voc"].value < 0.5
    assert "accuracy" not in sees[WRONG]
    assert "voc" not in sees["first frame"]
    assert sees["first frame"]["accuracy"].value < 0.6


def test_differences_are_paired_and_complete(compared: Comparison) -> None:
    rows = {row.name: row.inputs[RECORDED] for row in compared.rows}
    assert len(compared.differences) == 6
    for difference in compared.differences:
        for name, estimate in difference.numbers.items():
            values = [rows[row][name].value for row in (difference.of, difference.over)]
            assert estimate.value == pytest.approx(values[0] - values[1])
    first = compared.differences[0].numbers["accuracy"]
    assert first.low > 0


def test_seeds_are_averaged_and_have_an_interval_of_their_own(compared: Comparison) -> None:
    apart = [compare({"blind": [blind(seed)]}, store()).rows[0].inputs[RECORDED]["voc"] for seed in (0, 1)]
    row = compared.rows[1]
    assert row.seeds == row.over_seeds["voc"].n == 2
    assert row.inputs[RECORDED]["voc"].value == pytest.approx((apart[0].value + apart[1].value) / 2)
    assert row.over_seeds["voc"].value == pytest.approx(row.inputs[RECORDED]["voc"].value)
    assert 0.0 <= row.over_seeds["accuracy"].low <= row.over_seeds["accuracy"].high <= 1.0


def test_recorded_failures_are_what_success_is_detected_against() -> None:
    """Episodes that go the wrong way under an instruction are its failures."""
    made, opposite = [], dict(zip(INSTRUCTIONS, (1, 0, 3, 2), strict=True))
    for number, info in enumerate(store().episodes):
        whole = read_episode(store(), number)
        made.append(whole)
        if number % 3 == 0:
            wrong = INSTRUCTIONS[opposite[info.instruction]]
            made.append(Episode(whole.frames, wrong, whole.timestamps, success=False))
    found = compare({"seeing": [seeing()]}, MemoryStore(made))
    assert (found.videos, found.successes, found.failures) == (16, 12, "4 recorded")
    numbers = found.rows[0].inputs[RECORDED]
    assert numbers["accuracy"].n == 12
    assert numbers["auroc"].value > 0.9
    assert numbers["ranking_tau_b"].value > 0.9


def test_a_threshold_comes_from_validation_where_there_is_one() -> None:
    found = compare({"seeing": [seeing()]}, store(each=2), validation=store(each=1))
    assert found.threshold == "validation"
    assert found.rows[0].inputs[RECORDED]["f1"].value > 0.8


def test_json_holds_everything(compared: Comparison, tmp_path: Path) -> None:
    page = write_comparison(compared, tmp_path / "out")
    text = (tmp_path / "out" / "compare.json").read_text()
    assert "NaN" not in text
    assert Comparison.from_json(text).rows == compared.rows
    html = page.read_text()
    assert "https://" not in html
    for word in ("seeing", "ramp", "constant", "frozen", "wrong text", "tau-b"):
        assert word in html
    for row in compared.rows[:2]:
        assert row.verdict.split(":")[0] in html


def test_one_instruction_alone_leaves_progress(tmp_path: Path) -> None:
    """Most data sets of robots have one task: its rewards can rise, and tell a whole video from its first half."""
    one = MemoryStore([read_episode(store(), number) for number in range(3)])
    found = compare({"seeing": [seeing()]}, one)
    numbers = found.rows[0].inputs[RECORDED]
    assert "accuracy" not in numbers
    assert WRONG not in found.rows[0].inputs
    assert numbers["voc"].value > 0.9
    assert numbers["auroc"].value == numbers["ranking_tau_b"].value == 1.0
    assert found.rows[0].verdict.startswith("Rises with time: rank correlation")
    assert found.rows[2].verdict.startswith("Does not rise")
    assert found.failures == "none recorded"
    assert "taken for which" not in write_comparison(found, tmp_path / "out").read_text()


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(BadInputError, match="rewards"):
        compare({}, store(each=1))
    whole = read_episode(store(), 0)
    failed = MemoryStore([Episode(whole.frames, whole.instruction, whole.timestamps, success=False)])
    with pytest.raises(BadInputError, match="failures alone"):
        compare({"clock": [FunctionReward(clock, "clock")]}, failed)


def test_segments_and_paraphrases_are_told_apart_too(compared: Comparison) -> None:
    sees, blind = (row.inputs for row in compared.rows[:2])
    assert sees["paraphrases"]["accuracy"].value == 1.0
    assert sees["random segments"]["accuracy"].value > 0.9
    assert sees["short segments"]["accuracy"].value > 0.5
    assert blind["random segments"]["accuracy"].value < 0.5
    for name in ("triples", "triples_one_word_apart"):
        assert sees[RECORDED][name].value == 1.0
    assert sees["reversed"]["accuracy"].value == 0.0
    assert sees["reversed"]["triples_one_word_apart"].value < 0.5
    assert abs(sees["shuffled"]["voc"].value) < 0.3
    assert sees["reversed"]["voc"].value == pytest.approx(-sees[RECORDED]["voc"].value)


def test_chance_is_what_a_guess_gets(compared: Comparison) -> None:
    """Wholes are a third of the trajectories: each video has its first half and another instruction beside it."""
    assert compared.chance["accuracy"] == 0.25
    assert compared.chance["triples"] == compared.chance["auroc"] == 0.5
    assert compared.chance["auprc"] == pytest.approx(1 / 3)
    assert compared.chance["f1"] == pytest.approx(0.5)
    constant = next(row.inputs[RECORDED] for row in compared.rows if row.name == "constant")
    for name in ("voc", "auroc", "ranking_tau_b", "auprc", "confusion_gap"):
        assert constant[name].value == pytest.approx(compared.chance[name]), name
    assert constant["grade_error"].value == pytest.approx(compared.chance["grade_error"], abs=0.01)


def test_heatmaps_average_the_videos_of_an_instruction(compared: Comparison) -> None:
    whole, short = compared.rows[0].heatmaps
    assert (whole.name, short.name) == ("whole videos", "short segments")
    assert short.rows == short.columns == INSTRUCTIONS
    values = np.array(whole.values)
    assert (values.argmax(axis=1) == np.arange(4)).all()
    for row, column in itertools.permutations(range(4), 2):
        assert values[row, column] < values[row, row]


def test_candidates_without_videos_are_columns_only() -> None:
    more = "push the green ball right"
    found = compare({"seeing": [seeing()]}, store(each=1), instructions=[more])
    assert found.chance["accuracy"] == 0.2
    assert found.rows[0].heatmaps[0].rows == INSTRUCTIONS
    assert found.rows[0].heatmaps[0].columns == (*INSTRUCTIONS, more)


def test_paraphrases_must_cover_every_instruction() -> None:
    with pytest.raises(BadInputError, match="paraphrases"):
        compare({"blind": [blind()]}, store(each=1), paraphrases={INSTRUCTIONS[0]: ["shove"]})


@pytest.mark.slow
def test_a_comparison_is_a_function_of_the_seed() -> None:
    def rows(seed: int) -> object:
        return compare({"blind": [blind()]}, store(each=2), segments=True, seed=seed).rows

    assert rows(5) == rows(5)
    assert rows(5) != rows(6)


def test_every_number_says_n_and_how_its_interval_was_made(compared: Comparison) -> None:
    for row, numbers in [(one, numbers) for one in compared.rows for numbers in one.inputs.values()]:
        for name, estimate in numbers.items():
            assert estimate.n == compared.videos == 12, (row.name, name)
            inside = estimate.low <= estimate.value + 1e-12 <= estimate.high + 2e-12
            assert inside or name == "auprc", (row.name, name)  # resamples with fewer failures bias it upwards
            assert estimate.method, (row.name, name)


def test_the_verdict_says_plainly_what_was_learned(compared: Comparison) -> None:
    def sources(scene: float, end: float, motion: float, half: float = 0.3) -> dict[str, Estimate]:
        given = {"scene": scene, "end state": end, "motion": motion}
        return {name: Estimate(value, value - half, value + half, 18, "") for name, value in given.items()}

    told = verdict(wilson(11, 18), 9, sources(0.11, 0.1, 0.4))
    assert told.startswith(
        "Recognises the motion: tells the right instruction from the others in 61 % of 18 held-out videos (95 % "
    )
    assert told.endswith(
        "chance 11 %). The scene (first frame alone) gives 11 %, the end state (last frame) adds 10 points (-20 to "
        "40), the motion adds 40 points (10 to 70)."
    )
    leads = {
        "Recognises the scene: ": sources(0.67, -0.1, -0.06),
        "Recognises the end state: ": sources(0.2, 0.5, -0.09),
        "Recognises the scene or the end state, and perhaps the motion: ": sources(0.2, 0.2, 0.21),
    }
    for lead, found in leads.items():
        assert verdict(wilson(11, 18), 9, found).startswith(lead)
    assert verdict(wilson(2, 9), 9, leads["Recognises the scene: "]).startswith("No better than chance")
    assert verdict(wilson(0, 90), 9, leads["Recognises the scene: "]).startswith("Worse than chance")
    assert "18 videos it was trained on" in verdict(wilson(11, 18), 9, sources(0.1, 0, 0.5), held_out=False)
    assert compared.rows[1].verdict.startswith("No better than chance")
    assert "12 held-out videos" in compared.rows[0].verdict


def test_sources_are_paired_differences_to_the_better_reading_of_each_frame() -> None:
    """By hand: three videos, of which the whole is right on all, the first frame on one, the last on two."""
    weights = np.array([[1, 1, 1], [2, 1, 0], [0, 0, 3]]) / 3

    def drawn(*right: int) -> Drawn:
        return drawn_mean(np.array(right, float), weights)

    found = sources_of(drawn(1, 1, 1), [drawn(0, 0, 0), drawn(1, 0, 0)], [drawn(1, 1, 0), drawn(0, 0, 0)])
    assert {name: one.value for name, one in found.items()} == pytest.approx(
        {"scene": 1 / 3, "end state": 1 / 3, "motion": 1 / 3}
    )
    draws: dict[str, list[float]] = {"scene": [2 / 3, 0], "end state": [1 / 3, 0], "motion": [0, 1]}
    for name, values in draws.items():
        expected = np.quantile(values, [0.025, 0.975])
        np.testing.assert_allclose([found[name].low, found[name].high], expected)
    alone = sources_of(drawn(1, 1, 1), [drawn(1, 1, 1)], [drawn(0, 0, 1)])
    assert alone["motion"].value == 0  # the first frame is the better one


def test_undefined_numbers_are_null_and_other_text_is_refused(compared: Comparison) -> None:
    numbers = {"voc": replace(compared.rows[0].inputs[RECORDED]["voc"], low=math.nan)}
    odd = replace(compared, rows=(replace(compared.rows[0], inputs={RECORDED: numbers}),))
    assert "NaN" not in odd.to_json()
    assert math.isnan(Comparison.from_json(odd.to_json()).rows[0].inputs[RECORDED]["voc"].low)
    for text in ("", "[]", '{"rows": {}}'):
        with pytest.raises(BadInputError, match=r"Comparison\.to_json"):
            Comparison.from_json(text)
