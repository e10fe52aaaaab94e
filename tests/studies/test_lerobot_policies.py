from __future__ import annotations

from typing import Any

import pytest

from studies.lerobot_policies import OURS, POLICIES, THEIRS, summary, table


def test_success_is_counted_in_both_places() -> None:
    rows: list[dict[str, Any]] = [{"trial": "data", "solved": [True, True]}]
    rows += [{"policy": "cloned", "trial": "train", "errors": {}}]
    rows += [{"policy": "cloned", "where": OURS, "solved": [True, True, False, False]}]
    rows += [{"policy": "cloned", "where": THEIRS, "solved": [True, False, True, False]}]
    rows += [{"policy": "diffusion", "where": OURS, "solved": [True] * 4}]  # not evaluated there yet
    found = summary(rows)
    assert list(found) == ["cloned"]
    assert found["cloned"][OURS]["value"] == found["cloned"][THEIRS]["value"] == pytest.approx(0.5)
    assert found["cloned"]["alike"] == 2
    assert 0 < found["cloned"][OURS]["low"] < 0.5 < found["cloned"][OURS]["high"] < 1
    assert "| cloned | 0.50 [0.15, 0.85] | 0.50 [0.15, 0.85] | 4 | 2 |" in table(found)
    assert set(found) <= set(POLICIES)
