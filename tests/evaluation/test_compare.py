from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from counterpoint.cli import main
from counterpoint.encoders import DualEncoder, EncoderConfig
from counterpoint.errors import BadInputError, MissingExtraError
from counterpoint.evaluation.compare import GOALS, compare_command, compare_unseen
from counterpoint.evaluation.comparison import compare
from counterpoint.evaluation.embedded import RECORDED
from counterpoint.formats import open_dataset
from counterpoint.rewards.embedding import embed_steps
from counterpoint.rewards.sources import EncoderReward, FunctionReward, open_reward
from counterpoint.training.compare import compare as compare_all
from tests.evaluation.fake import store
from tests.evaluation.fake_run import quick_words, write_data, write_run


def clock(frames: NDArray[np.uint8], instruction: str) -> NDArray[np.float64]:
    return np.arange(len(frames)) / 100


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
    said, wrote = capsys.readouterr(), "Wrote " + str(tmp_path / "out" / "compare.html")
    *verdicts, last = said.out.splitlines()
    assert (len(verdicts), last) == (2, wrote)
    assert re.match(r"run: .* in \d+ % of 4 held-out videos \(95 % interval \d+ to \d+ %, chance 25 %\)", verdicts[0])
    assert "Warning" not in said.err
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


def test_goal_images_of_a_model_that_is_no_run_come_from_the_training_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_words(monkeypatch)
    data, config = write_data(tmp_path / "data"), EncoderConfig(image_size=32, embed_dim=8, reward_form="goal")
    reward = open_reward(str(DualEncoder(config).save_pretrained(tmp_path / "weights")))
    assert isinstance(reward, EncoderReward)
    settings: dict[str, Any] = {"split": None, "max_videos": 4, "seed": 0, "max_frames": 8}
    compare_unseen({"weights": [reward]}, {"weights": []}, data, **settings)
    store = open_dataset(data, split="train")
    for text, goals in reward.goals.items():
        own = [number for number, info in enumerate(store.episodes) if info.instruction == text][:GOALS]
        last = [(number, np.array([store.episodes[number].length - 1])) for number in own]
        expected = [embed_steps(reward.model.encoder, store, number, step) for number, step in last]
        np.testing.assert_allclose(goals, np.concatenate(expected), rtol=1e-5, atol=1e-6)
    assert len(reward.goals) >= 2
    for split, source in (("train", data), (None, write_data(tmp_path / "whole", split=False))):
        with pytest.raises(BadInputError, match=r"no training episodes.*expected a split train beside"):
            compare_command({"weights": [str(tmp_path / "weights")]}, source, tmp_path / "out", split=split)
    run = write_run(tmp_path / "run", data)
    compare_command({"weights": [str(tmp_path / "weights")], "run": [str(run)]}, data, tmp_path / "out")
    rows = json.loads((tmp_path / "out" / "compare.json").read_text())["rows"]
    assert [row["name"] for row in rows][:2] == ["weights", "run"]


def test_missing_extras_are_named_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingExtraError, match="sklearn"):
        compare_command({"none": ["no/such/run"]}, tmp_path, tmp_path / "out")
    with pytest.raises(MissingExtraError, match="sklearn"):
        compare_all(recipes=["decisionnce_t-demo"], data=tmp_path, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_curve_that_hardly_changes_is_compared_without_a_warning(
    recwarn: pytest.WarningsRecorder, capsys: pytest.CaptureFixture[str]
) -> None:
    def still(frames: NDArray[np.uint8], instruction: str) -> NDArray[np.float64]:
        return np.linspace(0.3, 0.3 + 1e-15, len(frames))

    found = compare({"still": [FunctionReward(still, "still")]}, store(each=1))
    assert found.rows[0].inputs[RECORDED]["voc_pearson"].value == 0.0
    assert [str(one.message) for one in recwarn.list] == []
    assert "Warning" not in capsys.readouterr().err


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
