from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoint.data.commands import convert
from counterpoint.data.doctor import examine
from counterpoint.data.formats import open_dataset
from counterpoint.data.masks.command import write_masks as command
from counterpoint.data.masks.robot import binary_mask, mask_frames
from counterpoint.errors import BadInputError
from tests.data.made import write_lerobot, write_lerobot_v21, write_videos
from tests.data.masks.made import made_masks, write_masks


def add(path: Path, out: Path, **given: Any) -> None:
    usual: dict[str, Any] = {"files": None, "sam": None, "camera": None, "points": (), "box": None}
    command(path, out, **{**usual, "batch_size": 4, "device": "cpu", **given})


@pytest.mark.parametrize("write", [write_lerobot, write_lerobot_v21])
def test_masks_from_files_stand_beside_their_pictures(
    tmp_path: Path, write: Callable[[Path], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    source, masks = write(tmp_path / "data"), made_masks()
    add(source, tmp_path / "out", files=write_masks(tmp_path / "masks", {"top": masks}))
    before, after = open_dataset(source), open_dataset(tmp_path / "out")
    assert after.cameras == (*before.cameras, "top_mask")
    assert after.episodes == before.episodes
    for number, episode in enumerate(after.episodes):
        steps = np.arange(episode.length)
        np.testing.assert_array_equal(after.frames(number, steps, "top_mask"), mask_frames(masks[number]))
        for camera in before.cameras:  # copied, not encoded again
            frames = after.frames(number, steps, camera)
            np.testing.assert_array_equal(frames, before.frames(number, steps, camera))
        np.testing.assert_array_equal(after.actions(number), before.actions(number))
    assert examine(tmp_path / "out") == []
    info = json.loads((tmp_path / "out/meta/info.json").read_text())
    assert info["counterpoint"]["masks"] == {"top_mask": {"from": "masks"}}
    captured = capsys.readouterr()
    assert "Wrote" in captured.out
    assert "warning" not in captured.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "masks", "out"]


def test_statistics_of_masks_are_kept_as_those_of_pictures(tmp_path: Path) -> None:
    source, masks = write_lerobot(tmp_path / "data"), made_masks()
    add(source, tmp_path / "out", files=write_masks(tmp_path / "masks", {"top": masks}))
    stats = json.loads((tmp_path / "out/meta/stats.json").read_text())["observation.images.top_mask"]
    share = np.concatenate(masks).mean()
    np.testing.assert_allclose(np.ravel(stats["mean"]), share, rtol=1e-6)
    assert stats["count"] == [15]
    assert set(stats) == set(json.loads((source / "meta/stats.json").read_text())["observation.images.top"])


def test_a_second_camera_may_be_added_later_but_none_twice(tmp_path: Path) -> None:
    folders = {
        camera: write_masks(tmp_path / camera, {camera: made_masks()}, packed=True) for camera in ("top", "wrist")
    }
    add(write_lerobot(tmp_path / "data"), tmp_path / "one", files=folders["top"])
    add(tmp_path / "one", tmp_path / "both", files=folders["wrist"])
    assert open_dataset(tmp_path / "both").cameras == ("top", "wrist", "top_mask", "wrist_mask")
    with pytest.raises(BadInputError, match="'top' with a mask already"):
        add(tmp_path / "both", tmp_path / "again", files=folders["top"])


def test_masks_without_robot_or_without_surroundings_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    masks = made_masks()
    masks[0][:] = False
    masks[2][:] = True
    add(write_lerobot(tmp_path / "data"), tmp_path / "out", files=write_masks(tmp_path / "m", {"top": masks}))
    told = capsys.readouterr().err
    assert "the mask of top is empty in every frame of 1 episodes (0)" in told
    assert "the mask of top is full in every frame of 1 episodes (2)" in told
    findings = examine(tmp_path / "out")
    assert [finding.found for finding in findings] == [
        "a mask that is empty in every frame",
        "a mask that is full in every frame",
    ]
    assert [finding.where.rpartition(", ")[2] for finding in findings] == ["episode 0", "episode 2"]


def test_a_bad_mask_leaves_nothing_behind(tmp_path: Path) -> None:
    source, masks = write_lerobot(tmp_path / "data"), made_masks()
    folder = write_masks(tmp_path / "masks", {"top": masks})
    (folder / "episode_000002/top/000001.png").write_bytes(b"")
    with pytest.raises(BadInputError, match="damaged content"):
        add(source, tmp_path / "out", files=folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "masks"]


def test_bad_requests(tmp_path: Path) -> None:
    source = write_lerobot(tmp_path / "data")
    folder = write_masks(tmp_path / "masks", {"top": made_masks()})
    for given, message in (
        ({}, "neither --from nor --sam"),
        ({"files": folder, "sam": "model"}, "both --from and --sam"),
        ({"files": folder, "points": ((1.0, 2.0),)}, "beside --from"),
    ):
        with pytest.raises(BadInputError, match=message):
            add(source, tmp_path / "out", **given)
    with pytest.raises(BadInputError, match="an existing path"):
        add(source, folder, files=folder)
    with pytest.raises(BadInputError, match=r"video folder.*counterpoint data convert"):
        add(write_videos(tmp_path / "videos"), tmp_path / "out", files=folder)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("size", [None, 16])
def test_converted_masks_stay_exact_and_binary(tmp_path: Path, size: int | None) -> None:
    source, masks = write_lerobot(tmp_path / "data"), made_masks()
    add(source, tmp_path / "out", files=write_masks(tmp_path / "masks", {"top": masks}))
    store = open_dataset(convert(tmp_path / "out", tmp_path / "converted", size=size))
    for number, mask in enumerate(masks):
        kept = store.frames(number, np.arange(len(mask)), "top_mask")
        assert set(np.unique(kept)) == {0, 255}
        if size is None:
            np.testing.assert_array_equal(binary_mask(kept), mask)
