"""The table of numbers, the page that defines them, and what the bench returns say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import counterpoint.objectives
from counterpoint.evaluation.bench import INPUTS, PARAPHRASES, SEGMENTS, WRONG
from counterpoint.evaluation.comparison import Comparison, compare
from counterpoint.evaluation.definitions import ABBREVIATIONS, LOGGED, METRICS, REWARD, SPACE, spelt
from counterpoint.evaluation.embedded import CENTRED, RECORDED, SHUFFLED, embed_store, measure_space
from counterpoint.rewards.model import RewardModel
from counterpoint.rewards.sources import EncoderReward
from tests.evaluation.fake import INSTRUCTIONS, SeeingEncoder, store

PAGE = Path("docs/methods/metrics.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in PAGE.splitlines() if line.startswith("| ")]


@pytest.fixture(scope="module")
def compared() -> Comparison:
    seeing, paraphrases = EncoderReward(RewardModel(SeeingEncoder()), "seeing"), {t: [f"do {t}"] for t in INSTRUCTIONS}
    return compare({"seeing": [seeing]}, store(each=2), segments=True, paraphrases=paraphrases)


def test_the_page_defines_every_number_as_the_code_does_and_no_other() -> None:
    defined = {row[0].strip("`"): row[1:4] for row in ROWS if len(row) == 5 and row[0].startswith("`")}
    every = {**METRICS, **LOGGED}
    assert defined == {name: [metric.formula, metric.chance, metric.better] for name, metric in every.items()}


def test_every_accuracy_that_training_logs_has_a_chance_level() -> None:
    objectives = Path(counterpoint.objectives.__path__[0])
    logged = {name for path in objectives.glob("*.py") for name in re.findall(r'"(\w*_accuracy)"', path.read_text())}
    assert logged == set(LOGGED)
    assert all(metric.chance != "none" and metric.level(4, 0.5) in (None, 0.5) for metric in LOGGED.values())


def test_the_bench_returns_every_number_and_no_other(compared: Comparison) -> None:
    returned = {name for row in compared.rows for numbers in row.inputs.values() for name in numbers}
    assert returned == set(REWARD) - {"stage_accuracy"}  # these videos have no stages
    space = measure_space(embed_store(SeeingEncoder(), store(each=2)))
    assert {name for numbers in space.values() for name in numbers} == set(SPACE)
    assert set(space) == {RECORDED, SHUFFLED, CENTRED}


def test_the_page_names_every_input_and_no_other(compared: Comparison) -> None:
    start, end = PAGE.index("## Inputs"), PAGE.index("## Rows")
    lines = [line.split("|")[1] for line in PAGE[start:end].splitlines() if line.startswith("| `")]
    named = {name for line in lines for name in re.findall("`([^`]+)`", line)}
    assert named == set(compared.rows[0].inputs) == {*INPUTS, WRONG, PARAPHRASES, *SEGMENTS}


def test_chance_levels_are_those_of_the_table(compared: Comparison) -> None:
    """Successes are a third of the trajectories: beside each are its first half and another instruction."""
    numbers = {"1/L": 0.25, "p": 1 / 3, "2p / (1 + p)": 0.5, "1/2": 0.5, "0": 0.0, "1": 1.0, "1.2": 1.2}
    levels = {name: numbers[metric.chance] for name, metric in REWARD.items() if metric.chance != "ramp"}
    assert compared.chance == pytest.approx(levels)
    for metric in SPACE.values():
        assert (metric.level(4, 1 / 3) is None) == (metric.chance in ("shuffled", "ramp", "none"))


def test_every_abbreviation_in_a_title_is_spelt_out() -> None:
    for metric in METRICS.values():
        html = spelt(metric.title)
        for short in re.findall(r"\b[A-Z][A-Z0-9]+\b|tau-b", metric.title):
            assert f'<abbr title="{ABBREVIATIONS[short]}">{short}</abbr>'.replace("'", "&#39;") in html
    assert spelt("<VOC>") == f'&lt;<abbr title="{ABBREVIATIONS["VOC"]}">VOC</abbr>&gt;'
