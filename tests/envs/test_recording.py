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
    frames = {"top": np.zeros((3, 16, 16, 3), np.uint8)}
    made.add(0, Recording(zeros, zeros, zeros[:, 0], success=True, frames=frames), {"seed": 0}, 10.0)
    return made


def read(staging: Staging) -> None:
    staging.episode(0, [""], 10.0)
    staging.videos(0)


@pytest.mark.parametrize("name", ["episode.json", "arrays.npz", "top.mp4"])
def test_a_damaged_episode_is_one_message(staging: Staging, name: str) -> None:
    assert len(staging.episode(0, [""], 10.0)) == 3
    path = staging.folder / "000000" / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(BadInputError, match=rf"000000/{name}: found sha256 .*remove its folder"):
        read(staging)


@pytest.mark.parametrize("name", ["arrays.npz", "top.mp4", "masks.npz", "SHA256SUMS"])
def test_a_file_without_its_digest_or_a_digest_without_its_file_is_refused(staging: Staging, name: str) -> None:
    digests = staging.folder / "000000" / "SHA256SUMS"
    kept = [line for line in digests.read_text().splitlines(keepends=True) if name not in line]
    (staging.folder / "000000" / name).unlink(missing_ok=True)
    if name == "SHA256SUMS":
        digests.write_text("".join(kept)[:-20])
    elif name == "masks.npz":
        (staging.folder / "000000" / name).write_bytes(b"of somebody else")
    with pytest.raises(BadInputError, match="remove its folder"):
        read(staging)


def test_a_second_process_is_refused_until_the_first_is_done(staging: Staging, tmp_path: Path) -> None:
    second = Staging(tmp_path / "out")
    with pytest.raises(BadInputError, match=f"a run that process {os.getpid()} records"):
        second.open({"seed": 0})
    staging.close()
    second.open({"seed": 0})
    assert second.finished() == {0}
    second.close()


def test_a_recording_of_another_version_or_other_settings_is_refused(staging: Staging, tmp_path: Path) -> None:
    staging.close()
    with pytest.raises(BadInputError, match=r"episodes recorded with another \[seed\]: seed = 0; expected seed = 1"):
        Staging(tmp_path / "out").open({"seed": 1})
    (staging.folder / "collect.json").write_text('{"seed": 0}')  # as 0.1 wrote it
    with pytest.raises(BadInputError, match=r"episodes recorded of no format, of another version.*make it again"):
        Staging(tmp_path / "out").open({"seed": 0})
    assert staging.finished() == {0}
