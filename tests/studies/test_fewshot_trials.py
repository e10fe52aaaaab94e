from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from studies.fewshot import trials
from studies.fewshot.config import FewshotConfig, Pretraining, Row
from tests.studies.fewshot_world import dmc, small_benchmark, use_squares


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> FewshotConfig:
    return small_benchmark(tmp_path_factory.mktemp("squares"))


@pytest.fixture(autouse=True)
def _squares(monkeypatch: pytest.MonkeyPatch) -> None:
    use_squares(monkeypatch)


def test_rollouts_are_as_long_as_the_data(config: FewshotConfig, tmp_path: Path) -> None:
    own = dmc(config, steps=4).model_copy(update={"pretrainings": {}, "rows": (Row(name="scratch"),)})
    cell = trials.Adaptation("scratch", "top", 0)
    for evaluation in trials.adapt(own, tmp_path, cell)["curve"]:
        assert evaluation["steps"] == [4] * 5  # dm_control has no success to stop at


def test_pretraining_may_balance_tasks(config: FewshotConfig) -> None:
    pretrainings = {"a": Pretraining(objective={"name": "curl"}, data={"balance": "tasks"})}
    own = config.model_copy(update={"pretrainings": pretrainings})
    assert trials.pretraining_config(own, trials.PretrainingRun("a", 0)).data.balance == "tasks"
    with pytest.raises(ValidationError, match="balance alone, not camera"):
        Pretraining(objective={"name": "curl"}, data={"camera": "corner"})
