from __future__ import annotations

from pathlib import Path

import pytest

from counterpoint.training.imitation import build_imitation
from studies.icon import pace
from studies.icon.config import ComparisonConfig
from studies.icon.data import open_episodes
from studies.icon.pace import measure_pace, paced, read_pace, steps_of
from studies.icon.trials import PolicyTrial, imitation_config
from tests.data.sampling import sampler
from tests.studies.icon_world import CAMERA, SOURCE, recorded_comparison


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ComparisonConfig:
    return recorded_comparison(tmp_path_factory.mktemp("robots"))


def test_the_number_of_steps_is_the_loader_s(config: ComparisonConfig, tmp_path: Path) -> None:
    by_epoch = {"train": {"epochs": 3, "batch_size": 4}}
    own = config.model_copy(update={"training": config.training | by_epoch, "transfer": None})
    settings = imitation_config(own, PolicyTrial("ICon-Diff-C", SOURCE, 0))
    train, _ = open_episodes(own, tmp_path, SOURCE)
    spec = build_imitation(settings, train, (CAMERA,)).sampling()
    loader = sampler(train, spec, batch_size=4, seed=0, camera=(CAMERA,))
    assert steps_of(settings, train) == settings.train.total_steps(loader.epoch_size)


@pytest.mark.slow
def test_the_slowest_method_s_pace_decides_for_all(
    config: ComparisonConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "WARM", 2)
    monkeypatch.setattr(pace, "TIMED", 6)
    own = config.model_copy(update={"minutes": 0.2})
    cells = [PolicyTrial(method.name, SOURCE, 0) for method in own.methods]
    measure_pace(own, tmp_path, cells)
    found = read_pace(tmp_path)
    assert found is not None
    assert found["seconds_a_step"].keys() == {"Diff-C", "ICon-Diff-C"}
    assert found["steps"] == max(1, int(12 / max(found["seconds_a_step"].values())))
    measure_pace(own, tmp_path, [])  # it stands, whatever the machine is doing now
    assert read_pace(tmp_path) == found
    settings = paced(own, tmp_path, cells[0], open_episodes(own, tmp_path, SOURCE)[0])
    assert settings.train.steps == found["steps"]
    assert not (tmp_path / "runs" / "pace-Diff-C").exists()
