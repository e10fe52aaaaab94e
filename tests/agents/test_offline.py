from __future__ import annotations

from pathlib import Path

import pytest

from counterpoint.errors import BadInputError
from counterpoint.training import agent
from counterpoint.training.agent import recorded_evaluation


def _recorded(folder: Path, note: bytes, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(agent, "is_minari", lambda path: path == folder / "train")
    (folder / "collect.json").write_bytes(note)
    return str(folder)


def test_the_recorder_s_environment_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = _recorded(tmp_path, b'{"evaluation": {"name": "PointMaze_UMaze-v3"}}', monkeypatch)
    assert recorded_evaluation(data) == {"name": "PointMaze_UMaze-v3"}
    assert recorded_evaluation(f"{data}/train") == {"name": "PointMaze_UMaze-v3"}
    assert recorded_evaluation(str(tmp_path / "train" / "data")) == {}


@pytest.mark.parametrize(
    "note", [b"", b'{"evaluat', b"\xff\xfe", b"{}", b"[]", b"null", b'{"evaluation": 3}', b'{"evaluation": "x"}']
)
def test_a_damaged_note_is_one_message(note: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = _recorded(tmp_path, note, monkeypatch)
    with pytest.raises(BadInputError, match=r"collect.json: found no environment .* --env"):
        recorded_evaluation(data)
