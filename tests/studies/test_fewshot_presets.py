from __future__ import annotations

from pathlib import Path

import pytest

from studies.fewshot import run
from studies.fewshot.config import FewshotConfig
from studies.fewshot.run import fewshot_study
from studies.harness import load_preset, presets


@pytest.mark.release
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


def test_rows_of_the_comparison_differ_in_their_pretraining_alone() -> None:
    """One augmentation, one normalisation, one length of cloning, whether the encoder is frozen or not."""
    config = load_preset("fewshot", FewshotConfig, "cpu")
    assert {(row.frozen, row.pretraining) for row in config.rows if not row.frozen} == {
        (False, name) for name in (*config.pretrainings, None)
    }
    for row in config.rows:
        assert not row.clone
        assert not row.encoder
        assert row.initialize_from is None
    for pretraining in config.pretrainings.values():
        assert not any((pretraining.encoder, pretraining.train, pretraining.optimizer, pretraining.data))
        assert pretraining.initialize_from is None
        assert pretraining.objective["shift"] == 0
