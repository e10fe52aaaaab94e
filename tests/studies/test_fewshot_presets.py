from __future__ import annotations

from pathlib import Path

import pytest

from studies.fewshot import run
from studies.fewshot.config import FewshotConfig
from studies.fewshot.run import fewshot_study
from studies.harness import load_preset, presets


@pytest.mark.slow
@pytest.mark.sim
def test_the_quick_preset_runs_from_nothing(tmp_path: Path) -> None:
    result = fewshot_study(load_preset("fewshot", FewshotConfig, "quick"), tmp_path)
    assert set(result["table"]) == {"premier_taco/frozen", "scratch"}
    assert (tmp_path / "fewshot_scores.png").exists()
    assert not result["warnings"]


@pytest.mark.parametrize("name", presets("fewshot"))
def test_presets_are_whole(name: str) -> None:
    config = load_preset("fewshot", FewshotConfig, name)
    run._check(config, *run.plan(config))
