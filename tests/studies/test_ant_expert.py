from __future__ import annotations

from pathlib import Path

import pytest

from counterpoint.envs.goal.ogbench_oracles import load_walker
from studies.ant_expert import AntExpertConfig, ant_expert_study, table
from studies.harness import load_preset

pytest.importorskip("stable_baselines3")
pytest.importorskip("ogbench")
pytestmark = [pytest.mark.sim, pytest.mark.slow]


def test_an_interrupted_training_goes_on_and_leaves_an_expert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_preset("ant_expert", AntExpertConfig, "quick")
    assert isinstance(config, AntExpertConfig)

    def stopped(walker: object, path: Path) -> None:
        if (tmp_path / "runs" / "0" / "curve.json").exists():
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("counterpoint.envs.goal.ogbench_oracles.Walker.save", stopped)
        with pytest.raises(KeyboardInterrupt):
            ant_expert_study(config, tmp_path)
    found = ant_expert_study(config, tmp_path)
    assert found["steps"] == 300
    assert load_walker(tmp_path / "expert-0.safetensors")
    log = (tmp_path / "logs" / "ant-0.log").read_text()
    assert log.count("step 150:") == 1
    assert log.count("step 300:") == 2


def test_the_table_has_every_evaluation_beside_random_actions() -> None:
    row = {"random": [0.0, 1.0], "curve": [{"step": 50_000, "returns": [2.0, 2.0]}]}
    lines = table([row]).splitlines()
    assert lines[2].startswith("| 0 (random actions) | 0.5 [")
    assert lines[3] == "| 50,000 | 2.0 [2.0, 2.0] |"
