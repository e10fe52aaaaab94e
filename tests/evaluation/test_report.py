from __future__ import annotations

import json
import re
import sys
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from counterpoint.encoders.dual import DualEncoder
from counterpoint.errors import BadInputError, MissingExtraError
from counterpoint.evaluation.compare import compare_command
from counterpoint.evaluation.comparison import Comparison
from counterpoint.evaluation.report import write_report
from counterpoint.formats import open_dataset
from counterpoint.formats.lerobot.writer import LeRobotWriter
from counterpoint.rewards.calibration import calibrate
from counterpoint.rewards.model import RewardModel
from tests.evaluation.fake import INSTRUCTIONS, episode
from tests.evaluation.fake_run import quick_words, write_data, write_run

COMPARISON = [field.name for field in fields(Comparison)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "balls")


@pytest.fixture
def run(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    quick_words(monkeypatch)
    return write_run(tmp_path / "run", data)


class Nesting(HTMLParser):
    """Notes tags that are closed in the wrong order."""

    VOID = ("meta", "link", "img", "input", "br", "wbr", "path", "html")

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


def halves(frames: NDArray[np.uint8], text: str) -> NDArray[np.float64]:
    return np.linspace(0, 0.5, len(frames))


def test_a_model_of_others_is_reported_by_the_comparison_of_one(
    run: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "cache"))
    theirs = Path("tests.evaluation.test_report:halves")
    page = write_report(theirs, data, out=tmp_path / "out", max_videos=4)
    assert page == tmp_path / "out" / "compare.html"
    rows = json.loads(page.with_name("compare.json").read_text())["rows"]
    assert [row["name"] for row in rows] == [str(theirs), "ramp", "constant"]
    for settings in ({"data": data}, {"out": tmp_path / "x"}, {"data": data, "out": tmp_path / "x", "embedding": True}):
        with pytest.raises(BadInputError, match="--data DATA and --out OUT"):
            write_report(theirs, **settings)
    with pytest.raises(BadInputError, match="a run's report lies in its folder"):
        write_report(run, out=tmp_path / "x")


def test_a_report_is_one_page_and_its_numbers(run: Path) -> None:
    page = write_report(run)
    assert page == run / "report.html"
    text = page.read_text()
    assert "t-SNE" not in text
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
    assert report["about"]["held_out"] == "the split val"
    rows = {row["name"]: row["inputs"] for row in report["rows"]}
    assert rows["linear, last frame"]["as recorded"]["accuracy"]["n"] == 8
    assert "Linear rows are classifiers of one frame" in text
    assert set(rows) == {
        *("run", "ramp", "constant", "random weights", "read as potential", "read as similarity"),
        *("linear, first frame", "linear, middle frame", "linear, last frame"),
    }
    assert report["about"]["split"] == "val"
    assert report["about"]["episodes_the_run_was_trained_on"] is False
    assert report["about"]["provenance"]["packages"]["torch"]
    comparison = Comparison.from_json(json.dumps({key: report[key] for key in COMPARISON}))
    assert comparison.videos == 8
    assert comparison.about["form"] == "transition"
    for numbers in [*comparison.rows[0].inputs.values(), comparison.rows[0].over_seeds]:
        assert all(estimate.n > 0 for estimate in numbers.values())
    assert {"random segments", "short segments", "wrong text", "as recorded"} <= set(comparison.rows[0].inputs)
    assert set(report["space"]) == {"as recorded", "shuffled", "mean taken away"}
    assert all(number["n"] == 8 for numbers in report["space"].values() for number in numbers.values())


def test_a_tsne_is_drawn_if_asked_for(run: Path) -> None:
    text = write_report(run, embedding=True, seed=3).read_text()
    report = json.loads((run / "report.json").read_text())
    section = text[text.index("Neighbours in the embedding space") : text.index("Where first frames lie")]
    assert "A t-SNE of 80 frames of 8 videos" in section
    assert "Distances in this picture mean little" in section
    assert section.count('class="line c') == 8
    assert all(instruction in section for instruction in INSTRUCTIONS)
    for name, digits in (("jump_ratio", 2), ("bridge_residual", 4)):
        assert f"<td>{report['space']['as recorded'][name]['value']:.{digits}f}<" in section
    flat = report["embedding"]
    assert (flat["seed"], flat["perplexity"]) == (3, pytest.approx(79 / 3))
    assert [len(video["x"]) == len(video["y"]) == len(video["steps"]) for video in flat["videos"]] == [True] * 8


def test_too_few_frames_for_a_tsne_are_refused_before_any_embedding(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoint.evaluation.report.WatchedReward.watch", None)
    with pytest.raises(BadInputError, match="--embedding: found 8 frame"):
        write_report(run, embedding=True, max_videos=4, max_frames=2)
    assert not (run / "report.html").exists()


def test_the_page_of_a_calibrated_run_gives_the_errors_of_progress_and_of_labels(run: Path, data: Path) -> None:
    encoder = DualEncoder.from_pretrained(run / "model")
    known = calibrate(RewardModel(encoder), open_dataset(data))
    assert known is not None
    errors = known.model_copy(update={"error": 0.301, "averaged_error": 0.202, "monotone_error": 0.103})
    encoder.config = encoder.config.model_copy(update={"calibration": errors})
    encoder.save_pretrained(run / "model")
    shown = " ".join(write_report(run).read_text().split())
    assert "(0.202 if it is averaged over time, as in labels; 0.103 if it may also never fall)" in shown
    assert "the reward errs by 0.301 on" in shown


def test_a_report_is_a_comparison_of_one_reward(run: Path, data: Path, tmp_path: Path) -> None:
    """The same numbers with the same intervals, whichever command is asked."""
    write_report(run)
    compare_command({"run": [str(run)]}, data, tmp_path / "out")
    report, compared = (json.loads(path.read_text()) for path in (run / "report.json", tmp_path / "out/compare.json"))
    theirs = {row["name"]: row for row in report["rows"]}
    assert [row["name"] for row in compared["rows"]] == [name for name in theirs if not name.startswith("read as")]
    for row in compared["rows"]:
        assert row["verdict"] == theirs[row["name"]]["verdict"]
        assert row["inputs"].items() <= theirs[row["name"]]["inputs"].items()
        assert row["heatmaps"] == theirs[row["name"]]["heatmaps"][:1]
    assert compared["chance"] == report["chance"]


@pytest.mark.slow
def test_reporting_twice_says_the_same(run: Path) -> None:
    write_report(run)
    before = json.loads((run / "report.json").read_text())["rows"]
    write_report(run)
    assert json.loads((run / "report.json").read_text())["rows"] == before


@pytest.mark.slow
def test_training_episodes_are_owned_up_to(run: Path) -> None:
    text = write_report(run, split="train").read_text()
    assert "trained on these very episodes" in text
    assert json.loads((run / "report.json").read_text())["about"]["episodes_the_run_was_trained_on"] is True


def test_one_instruction_alone_leaves_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick_words(monkeypatch)
    writer = LeRobotWriter(
        tmp_path / "one", fps=10, cameras={"front": (64, 64)}, action_dim=None, state_dim=None, robot_type="table"
    )
    for number in range(4):
        writer.add_episode(episode(INSTRUCTIONS[0], 10, seed=number, size=64))
    writer.finalize({"train": "0:2", "val": "2:4"})
    run = write_run(tmp_path / "run", tmp_path / "one")
    page = write_report(run).read_text()
    report = json.loads((run / "report.json").read_text())
    assert "accuracy" not in report["rows"][0]["inputs"]["as recorded"]
    assert report["verdict"] in capsys.readouterr().out
    assert "There is one instruction, so nothing was told apart" in page
    assert "taken for which" not in page


@pytest.mark.slow
def test_a_run_without_a_log_has_a_report_without_curves(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    assert "How training went" not in write_report(run).read_text()


def test_a_broken_log_is_named(run: Path) -> None:
    (run / "metrics.jsonl").write_text('{"step": 1, "split": "train"}\nnonsense\n{"step": 2, "split": "train"}\n')
    with pytest.raises(BadInputError, match=r"metrics\.jsonl, line 2"):
        write_report(run)


@pytest.mark.slow
def test_data_moved_elsewhere_must_be_named(run: Path, data: Path, tmp_path: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    gone = {**config["data"], "path": str(tmp_path / "gone")}
    (run / "config.json").write_text(json.dumps({**config, "data": gone}))
    with pytest.raises(BadInputError, match="--data"):
        write_report(run)
    assert "Linear rows" not in write_report(run, data).read_text()


@pytest.mark.parametrize(("content", "word"), [("{", "no JSON object"), ("[]", "list"), (None, "no such")])
def test_a_run_with_a_bad_configuration_is_refused(run: Path, content: str | None, word: str) -> None:
    (run / "config.json").unlink()
    if content is not None:
        (run / "config.json").write_text(content)
    with pytest.raises(BadInputError, match=word):
        write_report(run)


@pytest.mark.parametrize("section", [None, {}, {"size": 32}])
def test_a_configuration_without_data_is_refused(run: Path, section: object) -> None:
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "data": section}))
    with pytest.raises(BadInputError, match=r"data\.path"):
        write_report(run)


@pytest.mark.slow
def test_the_main_numbers_are_printed_and_written_into_the_card(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = run / "model" / "README.md"
    assert "None stated" in card.read_text()
    for seed in (0, 1):  # the second report replaces the first one's numbers
        write_report(run, seed=seed)
        report = json.loads((run / "report.json").read_text())
        assert capsys.readouterr().out == report["verdict"] + "\n"
        found, text = report["results"]["right instruction first"], card.read_text()
        shown = f"{found['value']:.3f} | {found['low']:.3f} to {found['high']:.3f} | {found['n']} |"
        assert f"| right instruction first | {shown}" in text
        assert text.count("| right instruction first |") == 1
        assert "None stated" not in text


def test_missing_extras_are_named_before_any_work(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("jinja2", "sklearn", "matplotlib"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            patch.setattr("counterpoint.evaluation.report.RewardModel.from_pretrained", None)
            with pytest.raises(MissingExtraError, match=module):
                write_report(run)


@pytest.mark.slow
def test_every_abbreviation_of_a_page_is_spelt_out(run: Path) -> None:
    text = re.sub(r"<(style|script|abbr|pre)\b.*?</\1>|<[^>]*>", " ", write_report(run).read_text(), flags=re.S)
    assert not re.findall(r"\b(?:VOC|AUROC|AUPRC|F1|tau-b)\b", text)
