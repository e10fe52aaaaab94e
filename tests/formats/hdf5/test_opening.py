"""HDF5 files whose damage takes the library down."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset
from counterpoint.formats.hdf5 import opening
from tests.formats.hdf5.made import write_robomimic

pytest.importorskip("h5py", reason="needs the extra `hdf5`")


def test_damage_that_crashes_hdf5_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_robomimic(tmp_path / "demo.hdf5")
    monkeypatch.setattr(opening, "subprocess", subprocess)  # as everywhere but in tests
    monkeypatch.setattr(opening, "_LOOK", "import os; os.abort()")
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "cache"))
    for _ in range(2):  # it is looked at again, as another version of the library may survive
        with pytest.raises(BadInputError, match="damage that crashes or hangs the HDF5 library"):
            open_dataset(path)
    monkeypatch.undo()
    assert len(open_dataset(path).episodes) == 3


def test_damage_that_hangs_hdf5_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_robomimic(tmp_path / "demo.hdf5")
    monkeypatch.setattr(opening, "_LOOK", "import time; time.sleep(60)")
    monkeypatch.setattr(opening, "_SECONDS", 0.3)
    with pytest.raises(BadInputError, match="damage that crashes or hangs the HDF5 library"):
        open_dataset(path)
