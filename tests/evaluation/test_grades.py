from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from counterpoint.errors import BadInputError
from counterpoint.evaluation.compare import compare_command
from counterpoint.evaluation.grades import calibrated, compare_grades, grade_row, resamples, sample_of
from counterpoint.rewards.sources import FunctionReward
from counterpoint.workers import Foreign
from tests.formats.test_graded import write_graded


def light(frames: NDArray[np.uint8], text: str) -> NDArray[np.float64]:
    return np.asarray(frames.mean(axis=(1, 2, 3)) / 255)


def progress(frames: NDArray[np.uint8], text: str) -> NDArray[np.float64]:
    """The grade of `write_graded` as a share: brightness 50 is the grade 1."""
    return np.asarray(np.clip(frames.mean(axis=(1, 2, 3)) / 200 - 0.25, 0, 1))


def failing(frames: NDArray[np.uint8], text: str) -> NDArray[np.float64]:
    raise OSError("no such server")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_graded(tmp_path / "data", "train", [1, 2, 3, 4, 5, 1, 2, 3, 4, 5])
    return write_graded(tmp_path / "data", "test", [1, 1, 2, 3, 4, 5, 5, 5])


def test_rewards_are_graded_beside_a_constant(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rewards = {
        "progress": [FunctionReward(progress, "progress", progress=True)],
        "light": [FunctionReward(light, "light")],
        "broken": [FunctionReward(failing, "broken", progress=True)],
    }
    page = compare_grades(rewards, data, tmp_path / "out").read_text()
    found = json.loads((tmp_path / "out" / "compare.json").read_text())
    rows = {(row["name"], row["grading"]): row for row in found["rows"]}
    assert list(rows) == [
        ("progress", "1 + 4 progress"),
        ("progress", "calibrated"),
        ("light", "calibrated"),  # its values are not progress
        ("constant", "the median of the training part"),
    ]
    for key in list(rows)[:3]:
        numbers = rows[key]["numbers"]
        assert (numbers["mae"]["value"], numbers["exact"]["value"], numbers["kendall_tau_b"]["value"]) == (0, 1, 1)
    constant = rows["constant", "the median of the training part"]
    # Grades 1, 2, 4, 5 of droid and 1, 3, 5, 5 of bridge, each against 3.
    assert constant["embodiments"] == {"droid": 1.5, "bridge": 1.5}
    assert constant["numbers"]["within_one"]["value"] == 3 / 8
    assert 0 <= constant["numbers"]["within_one"]["low"] <= 3 / 8 <= constant["numbers"]["within_one"]["high"] <= 1
    assert constant["numbers"]["kendall_tau_b"]["value"] == 0
    assert np.sum(constant["confusion"]) == 8
    assert found["failed"] == {"broken": "OSError: no such server; expected scores"}
    said = capsys.readouterr().out
    assert "progress (calibrated): mean absolute error 0.000" in said
    assert "broken: left out, since it failed" in said
    assert "Which grades are taken for which" in page


def test_the_command_grades_such_data_sets(data: Path, tmp_path: Path) -> None:
    source = "tests.evaluation.test_grades:light"
    compare_command({"light": [source]}, data, tmp_path / "out", split="train", foreign=Foreign(cached=False))
    found = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert [row["name"] for row in found["rows"]] == ["constant"]  # nothing to calibrate on, and no progress
    assert found["about"]["fitted_on"] == 0
    with pytest.raises(BadInputError, match="OSError"):
        compare_grades({"broken": [FunctionReward(failing, "broken")]}, data, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_the_mean_over_embodiments_is_that_of_a_loop() -> None:
    rng = np.random.default_rng(0)
    true, places = rng.integers(1, 6, 40), [("a", "b", "c")[min(at // 4, 2)] for at in range(40)]
    predicted, samples = rng.integers(1, 6, 40).astype(float), resamples(places, seed=0)
    row = grade_row("r", "g", predicted, predicted, true, places, samples)
    each = []
    for place in "abc":
        errors = [abs(p - t) for p, t, where in zip(predicted, true, places, strict=True) if where == place]
        each.append(sum(errors) / len(errors))
    assert row.numbers["mae"].value == pytest.approx(sum(each) / 3)
    assert row.numbers["mae_micro"].value == pytest.approx(np.abs(predicted - true).mean())
    for sample in samples[:20]:  # every sample has as many videos of each embodiment
        assert [places[at] for at in sample] == [places[at] for at in samples[0]]


def test_calibration_is_fitted_on_other_videos_and_keeps_the_order() -> None:
    scores, grades = np.array([-9.0, -5.0, -5.0, -1.0]), np.array([1, 3, 3, 5])
    found = calibrated(scores, grades, np.array([-100.0, -9.0, -5.0, 50.0]))
    assert found.tolist() == [1, 1, 3, 5]


def test_a_sample_is_the_same_for_one_seed() -> None:
    assert sample_of(5, 9, 0) == [0, 1, 2, 3, 4]
    assert sample_of(100, 9, 0) == sample_of(100, 9, 0) != sample_of(100, 9, 1)


def test_a_data_set_without_a_split_to_compare_is_refused(tmp_path: Path) -> None:
    write_graded(tmp_path / "data", "train", [1, 2])
    with pytest.raises(BadInputError, match="expected test or val"):
        compare_grades({"light": [FunctionReward(light, "light")]}, tmp_path / "data", tmp_path / "out")
