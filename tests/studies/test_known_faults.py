from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from studies.harness import RESULTS, environments, read_rows

ROOT = Path(__file__).resolve().parents[2]
KNOWN = tomllib.loads((ROOT / "studies" / "known_faults.toml").read_text())
SENTENCE = "were recorded before a fault of the environment was mended"


def refused(known: Mapping[str, Any], digests: Mapping[str, Mapping[str, str] | None]) -> list[str]:
    """Return the results that a known fault may have touched and that are not named as such.

    Args:
        known: The content of `known_faults.toml`.
        digests: By result, the digests of the suites' code with which it was recorded; `None` for older results.
    """
    found = []
    for fault in known["fault"]:
        patterns = known["suites"][fault["suite"]]
        for name, own in digests.items():
            uses = any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
            faulty = own is None or own[fault["suite"]] in fault["digests"]
            if uses and faulty and name not in fault["not_run_again"]:
                found.append(name)
    return found


def stored() -> dict[str, Mapping[str, str] | None]:
    return {path.stem: read_rows(path)[1].get("environments") for path in RESULTS.glob("*.parquet")}


def test_no_result_predates_the_fix_of_a_known_fault_in_silence() -> None:
    assert refused(KNOWN, stored()) == []


def test_no_result_is_called_old_that_was_run_again() -> None:
    digests = stored()
    for fault in KNOWN["fault"]:
        again = [name for name in fault["not_run_again"] if digests.get(name, None) is not None]
        assert again == []
        assert set(fault["not_run_again"]) <= digests.keys()


@pytest.mark.parametrize(
    ("digests", "old", "expected"),
    [
        ({"fewshot_x": None}, [], ["fewshot_x"]),
        ({"fewshot_x": None}, ["fewshot_x"], []),
        ({"fewshot_x": {"metaworld": "faulty"}}, [], ["fewshot_x"]),
        ({"fewshot_x": {"metaworld": "mended"}, "occupancy": None}, [], []),
    ],
)
def test_a_table_of_faulty_data_is_refused(digests: Any, old: Collection[str], expected: list[str]) -> None:
    fault = {"suite": "metaworld", "digests": ["faulty"], "not_run_again": old}
    assert refused({"suites": {"metaworld": ["fewshot_*"]}, "fault": [fault]}, digests) == expected


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("fewshot", "fewshot_finetuned"),
        ("labelled_cloning", "labelled_cloning"),
        ("language_cloning", "lcbc"),
        ("metaworld_rewards", "metaworld_rewards"),
        ("reward_rl", "reward_rl"),
    ],
)
def test_pages_say_which_results_are_old(page: str, name: str) -> None:
    old = any(name in fault["not_run_again"] for fault in KNOWN["fault"])
    text = " ".join((ROOT / "docs" / "results" / f"{page}.md").read_text().split())
    assert (SENTENCE in text) == old


def test_digests_follow_the_code_of_their_suite_and_of_what_all_share(tmp_path: Path) -> None:
    for name in ("base.py", "toy/env.py", "other.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("a = 1\n")
    first = environments(tmp_path)
    assert set(first) == {"toy"}
    (tmp_path / "toy" / "env.py").write_text("a = 2\n")
    second = environments(tmp_path)
    assert first != second
    (tmp_path / "base.py").write_text("a = 3\n")
    assert environments(tmp_path) != second
    assert {"kitchen", "metaworld", "robosuite", "dmc", "goal"} <= environments().keys()
