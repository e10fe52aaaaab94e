from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from counterpoint.files import write_atomically
from counterpoint.rewards.page import Line, Panel, jpeg, make_player


def test_images_are_small_and_keep_their_shape() -> None:
    frame = np.random.default_rng(0).integers(0, 256, (480, 640, 3)).astype(np.uint8)
    with Image.open(io.BytesIO(jpeg(frame, side=200))) as image:
        assert image.size == (200, 150)
    with Image.open(io.BytesIO(jpeg(frame[:20, :30]))) as image:
        assert image.size == (30, 20)


def test_a_player_carries_every_value_and_every_image() -> None:
    images = {0: jpeg(np.zeros((8, 8, 3), np.uint8)), 3: jpeg(np.full((8, 8, 3), 255, np.uint8))}
    lines = [Line([0, 1, 2, 3], [1, 2, 3, 4], "rest"), Line([0, 1, 2, 3], [0.1, 0.2, 0.3, 0.4], "c0", "up", live=True)]
    panels = [Panel(lines, "r", "s"), Panel(lines[:1], "r", "s", title="another run")]
    view = make_player(panels, [0, 1, 2, 3], [0, 5, 10, 15], images)
    data = view["data"]
    assert data["shown"] == [0, 3]
    assert data["steps"] == [0, 5, 10, 15]
    assert [chart["lines"] for chart in data["charts"]] == [[{"kind": "c0", "values": [0.1, 0.2, 0.3, 0.4]}], []]
    assert [title for title, _ in view["charts"]] == ["", "another run"]
    assert all(uri.startswith("data:image/jpeg;base64,") for uri in data["images"])
    assert (view["width"], view["height"]) == (8, 8)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "page.html"
    write_atomically(path, b"old")

    def fails(self: Path, content: bytes) -> int:
        self.touch()
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_bytes", fails)
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, b"new")
    assert path.read_text() == "old"
    assert [p.name for p in path.parent.iterdir()] == ["page.html"]
