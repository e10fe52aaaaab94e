from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from counterpoint.errors import BadInputError
from counterpoint.evaluation.report import open_held_out, write_report
from counterpoint.evaluation.reward_eval import Evaluation
from counterpoint.formats.lerobot.writer import LeRobotWriter
from tests.evaluation.fake import INSTRUCTIONS, episode
from tests.evaluation.fake_run import quick_words, write_data, write_run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "balls")


@pytest.fixture
def run(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    quick_words(monkeypatch)
    return write_run(tmp_path / "run", data)


class Nesting(HTMLParser):
    """Notes tags that are closed in the wrong order."""

    VOID = ("meta", "link", "img", "input", "br", "path", "html")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID and (not self.open or self.open.pop() != tag):
            self.wrong.append(tag)


def test_a_report_is_one_page_and_its_numbers(run: Path) -> None:
    page = write_report(run)
    assert page == run / "report.html"
    text = page.read_text()
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text
    assert len(text) < 8_000_000
    for instruction in INSTRUCTIONS:
        assert instruction in text
    assert text.count('<script type="application/json">') == 4
    assert len(re.findall(r'class="line c0" d="M[\d.]+ [\d.]+L', text)) >= 4
    nesting = Nesting()
    nesting.feed(text)
    assert nesting.wrong == []
    assert nesting.open == []
    report = json.loads((run / "report.json").read_text())
    assert next(iter(report)) == "verdict"
    assert report["verdict"].startswith(("No better than chance", "Worse than chance"))
    assert re.search(r'class="lede"><b>(No better|Worse) than chance', text)
    assert report["held_out"] == "the split val"
    assert report["evaluation"]["estimates"]["accuracy_linear_last_frame"]["n"] == 8
    assert "a linear classifier of the last frame" in text
    assert report["split"] == "val"
    assert report["episodes_the_run_was_trained_on"] is False
    assert report["provenance"]["packages"]["torch"]
    evaluation = Evaluation.from_json(json.dumps(report["evaluation"]))
    assert evaluation.videos == 8
    assert evaluation.form == "transition"
    assert all(estimate.n > 0 for estimate in evaluation.estimates.values())


def test_reporting_twice_says_the_same(run: Path) -> None:
    write_report(run)
    before = json.loads((run / "report.json").read_text())["evaluation"]
    write_report(run)
    assert json.loads((run / "report.json").read_text())["evaluation"] == before


def test_training_episodes_are_owned_up_to(run: Path) -> None:
    text = write_report(run, split="train").read_text()
    assert "trained on these very episodes" in text
    assert json.loads((run / "report.json").read_text())["episodes_the_run_was_trained_on"] is True


def test_one_instruction_alone_is_sent_to_the_command_that_measures_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_words(monkeypatch)
    writer = LeRobotWriter(
        tmp_path / "one", fps=10, cameras={"front": (64, 64)}, action_dim=None, state_dim=None, robot_type="table"
    )
    for number in range(4):
        writer.add_episode(episode(INSTRUCTIONS[0], 10, seed=number, size=64))
    writer.finalize({"train": "0:2", "val": "2:4"})
    run = write_run(tmp_path / "run", tmp_path / "one")
    with pytest.raises(BadInputError, match=r"one instruction.*counterpoint compare"):
        write_report(run)


def test_a_run_without_a_log_has_a_report_without_curves(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    assert "How training went" not in write_report(run).read_text()


def test_a_broken_log_is_named(run: Path) -> None:
    (run / "metrics.jsonl").write_text('{"step": 1, "split": "train"}\nnonsense\n{"step": 2, "split": "train"}\n')
    with pytest.raises(BadInputError, match=r"metrics\.jsonl, line 2"):
        write_report(run)


def test_data_moved_elsewhere_must_be_named(run: Path, data: Path, tmp_path: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    gone = {**config["data"], "path": str(tmp_path / "gone")}
    (run / "config.json").write_text(json.dumps({**config, "data": gone}))
    with pytest.raises(BadInputError, match="--data"):
        write_report(run)
    assert "a linear classifier" not in write_report(run, data).read_text()


@pytest.mark.parametrize(("content", "word"), [("{", "no JSON object"), ("[]", "list"), (None, "no such")])
def test_a_run_with_a_bad_configuration_is_refused(run: Path, content: str | None, word: str) -> None:
    (run / "config.json").unlink()
    if content is not None:
        (run / "config.json").write_text(content)
    with pytest.raises(BadInputError, match=word):
        write_report(run)


@pytest.mark.parametrize("section", [None, {}, {"path": "x"}, {"size": 32}])
def test_a_configuration_without_data_is_refused(section: object) -> None:
    with pytest.raises(BadInputError, match=r"data\.path"):
        open_held_out({"data": section}, Path("config.json"), None, None, most=9, seed=0)


def test_held_out_episodes_are_those_of_the_split(data: Path, tmp_path: Path) -> None:
    config = {"data": {"path": str(data), "size": 32, "cache": str(tmp_path)}}
    store, source, about = open_held_out(config, tmp_path, None, None, most=100, seed=0)
    assert about == {
        "data": str(data),
        "split": "val",
        "held_out": "the split val",
        "episodes_the_run_was_trained_on": False,
        "episodes_left_out": 0,
        "episodes_drawn_from": 8,
    }
    assert store.frames(0, np.array([0])).shape == (1, 32, 32, 3)
    assert source.frames(0, np.array([0])).shape == (1, 64, 64, 3)
    store, source, about = open_held_out(config, tmp_path, None, None, most=3, seed=0)
    assert (len(store.episodes), len(source.episodes), about["episodes_drawn_from"]) == (3, 3, 8)
    with pytest.raises(BadInputError, match="elsewhere"):
        open_held_out(config, tmp_path, None, "elsewhere", most=3, seed=0)


def test_episodes_that_training_held_out_are_reported_on_and_named(tmp_path: Path) -> None:
    data = write_data(tmp_path / "whole", split=False, each=2)
    section = {"path": str(data), "size": 32, "cache": str(tmp_path / "cache")}
    _, source, about = open_held_out({"data": section, "held_out": [3, 1]}, tmp_path, None, None, most=9, seed=0)
    assert len(source.episodes) == 2
    assert about["held_out"] == "2 of 16 episodes, left out of training by task: 1, 3"
    assert about["episodes_the_run_was_trained_on"] is False
    other = {"data": {**section, "path": str(tmp_path)}}  # a run on other data has seen none of these
    _, source, about = open_held_out(other, tmp_path, data, None, most=99, seed=0)
    assert (len(source.episodes), about["episodes_the_run_was_trained_on"]) == (16, False)


def test_data_without_held_out_episodes_is_refused_or_owned_up_to(tmp_path: Path) -> None:
    data = write_data(tmp_path / "whole", split=False, each=1)
    config = {"data": {"path": str(data), "size": 32, "cache": str(tmp_path / "cache")}}
    with pytest.raises(BadInputError, match="--split"):
        open_held_out(config, tmp_path, None, None, most=9, seed=0)
    assert open_held_out(config, tmp_path, None, "train", most=9, seed=0)[2]["episodes_the_run_was_trained_on"]
