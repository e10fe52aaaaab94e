from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from counterpoint.envs.recording import Recording, Staging
from counterpoint.errors import BadInputError


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    made = Staging(tmp_path / "out")
    made.open({"seed": 0})
    zeros = np.zeros((3, 2), np.float32)
    made.add(0, Recording(zeros, zeros, zeros[:, 0], success=True), {"seed": 0}, 10.0)
    return made


@pytest.mark.parametrize("name", ["episode.json", "arrays.npz"])
def test_a_damaged_episode_is_one_message(staging: Staging, name: str) -> None:
    assert len(staging.episode(0, "", 10.0)) == 3
    path = staging.folder / "000000" / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(BadInputError, match=rf"000000/{name}: found sha256 .*remove its folder"):
        staging.episode(0, "", 10.0)


def test_a_second_process_is_refused_until_the_first_is_done(staging: Staging, tmp_path: Path) -> None:
    second = Staging(tmp_path / "out")
    with pytest.raises(BadInputError, match=f"a run that process {os.getpid()} records"):
        second.open({"seed": 0})
    staging.close()
    second.open({"seed": 0})
    assert second.finished() == {0}
    second.close()
