from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from counterpoint.data.commands import doctor, info
from counterpoint.data.formats.minari.reader import describe_minari, examine_minari
from counterpoint.data.formats.minari.writer import write_minari
from tests.data.formats.minari.made import goal_episodes, raw_dataset, raw_episode

pytest.importorskip("minari")
pytest.importorskip("h5py")


def _written(out: Path, *, success: bool = True) -> Path:
    return write_minari(
        out, goal_episodes((4, 2, 7), success=success), env_id="PointMaze_UMaze-v3", description="Made by a test."
    )


def test_info_and_doctor_know_minari(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _written(tmp_path / "maze")
    info(path)
    told = capsys.readouterr().out
    for fact in ("PointMaze_UMaze-v3", "3, of 2 to 7 transitions", "13", "2 dimensions", "67% of 3 episodes"):
        assert fact in told
    assert doctor(path) == 0
    assert "nothing wrong" in " ".join(capsys.readouterr().out.split())


def test_success_that_nobody_recorded_is_said(tmp_path: Path) -> None:
    assert describe_minari(_written(tmp_path / "maze", success=False))["success"] == "not recorded"


def test_a_damaged_file_is_a_finding(tmp_path: Path) -> None:
    path = _written(tmp_path / "maze")
    file = path / "data" / "main_data.hdf5"
    file.write_bytes(file.read_bytes()[:500])
    assert len(examine_minari(path)) == 1
    assert doctor(path) == 2


def test_flat_observations_have_whole_states_as_goals(tmp_path: Path) -> None:
    spaces = pytest.importorskip("gymnasium").spaces
    seen, acted = spaces.Box(-1, 1, (4,), np.float64), spaces.Box(-1, 1, (2,), np.float32)
    episode = raw_episode(np.zeros((6, 4)), np.zeros((5, 2), np.float32))
    path = raw_dataset(tmp_path / "flat", seen, acted, [episode])
    assert describe_minari(path)["goals"] == "4 (whole states)"
    assert examine_minari(path) == []
    assert doctor(path) == 0
    assert describe_minari(_written(tmp_path / "maze"))["goals"] == "2"


def test_flat_observations_do_not_hide_what_else_is_wrong(tmp_path: Path) -> None:
    spaces = pytest.importorskip("gymnasium").spaces
    seen, acted = spaces.Box(-1, 1, (4,), np.float64), spaces.Box(-np.inf, np.inf, (2,), np.float32)
    episode = raw_episode(np.zeros((6, 4)), np.zeros((5, 2), np.float32))
    (wrong,) = examine_minari(raw_dataset(tmp_path / "flat", seen, acted, [episode]))
    assert "bounded" in str(wrong)
