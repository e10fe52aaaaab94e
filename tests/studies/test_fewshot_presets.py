from __future__ import annotations

from pathlib import Path

import pytest

from counterpoint.errors import BadInputError
from studies.fewshot import run
from studies.fewshot.presets import PRESETS, preset
from studies.fewshot.run import fewshot_benchmark


@pytest.mark.slow
@pytest.mark.sim
def test_the_quick_preset_runs_from_nothing(tmp_path: Path) -> None:
    result = fewshot_benchmark(preset("quick"), tmp_path)
    assert set(result["table"]) == {"premier_taco/frozen", "scratch"}
    assert (tmp_path / "fewshot_scores.png").exists()
    assert not result["warnings"]


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_whole(name: str) -> None:
    config = preset(name)
    run._check(config, *run.parts(config))
    assert preset(name, {"seeds": 7}).seeds == 7


def test_an_unknown_preset_is_told() -> None:
    with pytest.raises(BadInputError, match="no such preset"):
        preset("huge")
