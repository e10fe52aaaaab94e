from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from counterpoint.cli import main
from counterpoint.data.episode import Episode
from counterpoint.data.store import MemoryStore
from counterpoint.errors import BadInputError
from counterpoint.evaluation.compare import Comparison, compare, compare_command, write_comparison
from counterpoint.evaluation.reward_bench import INPUTS, RECORDED, WRONG
from counterpoint.rewards.model import RewardModel
from counterpoint.rewards.sources import EncoderReward, FunctionReward
from tests.data.reading import read_episode
from tests.evaluation.fake import INSTRUCTIONS, RandomEncoder, SeeingEncoder, store
from tests.evaluation.fake_run import quick_words, write_data, write_run


def seeing() -> EncoderReward:
    return EncoderReward(RewardModel(SeeingEncoder(), form="potential"), "seeing")


def blind(seed: int = 0) -> EncoderReward:
    return EncoderReward(RewardModel(RandomEncoder(seed)), "blind")


def clock(frames: NDArray[np.uint8], instruction: str) -> NDArray[np.float64]:
    return np.arange(len(frames)) / 100


@pytest.fixture(scope="module")
def compared() -> Comparison:
    return compare({"seeing": [seeing()], "blind": [blind(0), blind(1)]}, store())


def test_a_reward_that_sees_is_told_from_one_that_does_not(compared: Comparison) -> None:
    rows = {row.name: row for row in compared.rows}
    assert list(rows) == ["seeing", "blind", "ramp", "constant"]
    sees = rows["seeing"].inputs[RECORDED]
    assert sees["accuracy"].value == 1.0
    assert sees["voc"].value > 0.99
    assert sees["kendall_tau_b"].value > 0.8
    assert sees["auroc"].value > 0.9
    assert rows["blind"].inputs[RECORDED]["accuracy"].low <= 0.25
    assert rows["blind"].verdict.startswith("No better than chance")
    assert "12 held-out videos" in rows["seeing"].verdict


def test_controls_stand_beside_every_reward(compared: Comparison) -> None:
    rows = {row.name: row for row in compared.rows}
    for row in compared.rows:
        assert set(row.inputs) == {*INPUTS, WRONG}
        assert row.control == (row.name in ("ramp", "constant"))
    ramp, constant = (rows[name].inputs[RECORDED] for name in ("ramp", "constant"))
    assert ramp["voc"].value == pytest.approx(1.0)  # VOC alone says nothing
    assert constant["voc"].value == 0.0
    for control in (ramp, constant):
        assert control["accuracy"].value == 0.0
        assert control["auroc"].value == 0.5
        assert control["kendall_tau_b"].value == 0.0
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
    assert numbers["kendall_tau_b"].value > 0.9


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
    assert numbers["auroc"].value == numbers["kendall_tau_b"].value == 1.0
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


def test_the_command_compares_runs_and_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick_words(monkeypatch)
    data = write_data(tmp_path / "data", each=1)
    run = write_run(tmp_path / "run", data)
    main(
        [
            "compare",
            str(run),
            "tests.evaluation.test_compare:clock",
            "--data",
            str(data),
            "--out",
            str(tmp_path / "out"),
        ]
    )
    assert "compare.html" in capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert [row["name"] for row in found["rows"]] == [
        *("run", "tests.evaluation.test_compare:clock", "ramp", "constant", "random weights"),
        *("linear, first frame", "linear, middle frame", "linear, last frame"),
    ]
    assert [row["control"] for row in found["rows"]] == 2 * [False] + 6 * [True]
    assert found["about"]["held_out"] == "the split val"
    assert not any(row["trained_on_these"] for row in found["rows"])
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "data": {**config["data"], "cameras": ["top"]}}))
    with pytest.raises(BadInputError, match="'top'"):  # the views of training are the default
        compare_command({"run": [str(run)]}, data, tmp_path / "again", split="train")
    (run / "config.json").write_text(json.dumps(config))
    compare_command({"run": [str(run)]}, data, tmp_path / "again", split="train")
    again = json.loads((tmp_path / "again" / "compare.json").read_text())
    assert [row["trained_on_these"] for row in again["rows"]] == [True] + 6 * [False]
    assert "was trained on these very videos" in (tmp_path / "again" / "compare.html").read_text()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], "nothing"),
        (["no/such/run"], "no/such/run"),
        (["tests.evaluation.test_compare:nothing"], "nothing"),
        (["a/run", "b/run"], "two of one name"),
    ],
)
def test_a_bad_call_ends_in_one_message(
    words: list[str], found: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compare", *words, "--data", str(tmp_path), "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    assert found in capsys.readouterr().err
