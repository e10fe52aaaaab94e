"""Number of files that a reader of one update passes through, and number of changes between them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import counterpoint
from tests.agents.point_world import point_batch, small_agent

ROOT = str(Path(counterpoint.__file__).parent)


def visited(call: Callable[[], object]) -> list[str]:
    """The package's file of every call and every return, in order."""
    found: list[str] = []

    def calls(frame: FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(ROOT):
            return None
        found.append(file)
        frame.f_trace_lines = False
        return returns

    def returns(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "return":
            found.append(frame.f_code.co_filename)
        return returns

    before = sys.gettrace()
    sys.settrace(calls)
    try:
        call()
    finally:
        sys.settrace(before)
    return found


@pytest.mark.parametrize(
    "settings", [{}, {"actor_goals": "future", "behaviour_cloning": 0.1}], ids=["online", "offline"]
)
def test_an_update_of_td_infonce_passes_through_few_files(settings: dict[str, Any]) -> None:
    agent = small_agent("td_infonce", **settings)
    agent.update(point_batch(0), 0)
    files = visited(lambda: agent.update(point_batch(1), 1))
    assert len(set(files)) <= 7, sorted(set(files))
    assert sum(one != other for one, other in pairwise(files)) <= 25
    assert f"{ROOT}/errors.py" not in files  # a message is put together when it is needed, and not before
