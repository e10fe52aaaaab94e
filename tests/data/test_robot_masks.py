from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoint.cli.data.doctor import examine
from counterpoint.data.episode import Array, Episode
from counterpoint.data.resize import resize
from counterpoint.data.robot_masks import (
    as_mask,
    binary_mask,
    constant,
    examine_masks,
    mask_camera,
    mask_frames,
    masked_cameras,
    rgb_cameras,
)
from counterpoint.data.store import MemoryStore
from counterpoint.errors import BadInputError
from counterpoint.formats.lerobot.writer import LeRobotWriter
from tests.data.masks_made import made_masks
from tests.formats.made import smooth_frames


def test_names() -> None:
    cameras = ("top", "wrist", "top_mask", "gas_mask")
    assert mask_camera("top") == "top_mask"
    assert rgb_cameras(cameras) == ("top", "wrist", "gas_mask")  # of no camera `gas`
    assert masked_cameras(cameras) == ("top",)


@given(seed=st.integers(0, 1000), height=st.integers(1, 9), width=st.integers(1, 9))
def test_frames_and_masks_are_each_others_reverse(seed: int, height: int, width: int) -> None:
    mask = np.random.default_rng(seed).random((2, height, width)) < 0.5
    frames = mask_frames(mask)
    assert frames.shape == (2, height, width, 3)
    np.testing.assert_array_equal(binary_mask(frames), mask)
    np.testing.assert_array_equal(as_mask("here", frames), mask)


def test_a_resized_mask_keeps_its_place_and_share() -> None:
    mask = np.zeros((1, 96, 96), np.bool_)
    mask[:, 24:72, 30:54] = True
    small = binary_mask(resize(mask_frames(mask), 32))
    expected = np.zeros((1, 32, 32), np.bool_)
    expected[:, 8:24, 10:18] = True
    np.testing.assert_array_equal(small, expected)


@pytest.mark.parametrize("on", [1, 255])
def test_both_ways_of_writing_a_mask(on: int) -> None:
    mask = np.eye(6, dtype=np.bool_)
    np.testing.assert_array_equal(as_mask("here", mask), mask)
    np.testing.assert_array_equal(as_mask("here", mask.astype(np.uint8) * on), mask)
    coloured = np.repeat((mask.astype(np.uint8) * on)[..., None], 4, axis=-1)
    coloured[..., 3] = 255  # opaque
    np.testing.assert_array_equal(as_mask("here", coloured), mask)


def test_masks_of_more_than_two_values_are_refused() -> None:
    grey = np.array([[0, 255, 17], [130, 0, 0]], np.uint8)
    with pytest.raises(BadInputError, match=r"here: found the values 17, 130 beside 0 and 255"):
        as_mask("here", grey)
    with pytest.raises(BadInputError, match="colours"):
        as_mask("here", np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    with pytest.raises(BadInputError, match=r"0\.5"):
        as_mask("here", np.full((2, 2), 0.5, np.float32))


def store_of(mask: Array) -> MemoryStore:
    frames = {"top": smooth_frames(len(mask), 24, 32), "top_mask": mask}
    times = np.arange(len(mask)) / 10
    state = np.zeros((len(mask), 1), np.float32)
    return MemoryStore([Episode(frames, "push", times, state=state)])


@pytest.mark.parametrize(
    ("mask", "found"),
    [
        (mask_frames(made_masks()[0]), None),
        (mask_frames(made_masks(size=(12, 16))[0]), "masks of 16x12 pixels"),
        (mask_frames(made_masks()[0]) // 2, "the values 127"),
        (mask_frames(made_masks()[0]) // 255, "1 on the robot"),
        (np.zeros((70, 24, 32, 3), np.uint8), "a mask that is empty in every frame"),
        (np.full((3, 24, 32, 3), 255, np.uint8), "a mask that is full in every frame"),
    ],
)
def test_findings(mask: Array, found: str | None) -> None:
    findings = examine_masks(Path("data"), store_of(mask), 0)
    assert [finding.found.startswith(found or "") for finding in findings] == ([] if found is None else [True])
    assert all(finding.where == "data, top_mask, episode 0" for finding in findings)


def test_empty_at_times_is_no_finding() -> None:
    mask = np.zeros((70, 24, 32), np.bool_)
    mask[66] = True
    assert constant(mask) is None
    assert examine_masks(Path("data"), store_of(mask_frames(mask)), 0) == []


def write_with_masks(root: Path, **settings: Any) -> None:
    """Seven frames of a camera and their masks, as videos where `image_cameras` does not say otherwise."""
    sizes = {"top": (24, 32), "top_mask": (24, 32)}
    writer = LeRobotWriter(root, fps=10, cameras=sizes, action_dim=None, state_dim=1, robot_type="none", **settings)
    frames = {"top": smooth_frames(7, 24, 32), "top_mask": mask_frames(made_masks()[1])}
    writer.add_episode(Episode(frames, "push", np.arange(7) / 10, state=np.zeros((7, 1), np.float32)))
    writer.finalize()


@pytest.mark.slow
def test_the_doctor_reports_a_frame_without_its_mask(tmp_path: Path) -> None:
    write_with_masks(tmp_path / "data", image_cameras=("top_mask",))
    assert examine(tmp_path / "data") == []
    path, key = tmp_path / "data/data/chunk-000/file-000.parquet", "observation.images.top_mask"
    table = pq.read_table(path)
    images = table[key].to_pylist()
    images[3] = None
    column = pa.array(images, table[key].type)
    pq.write_table(table.set_column(table.column_names.index(key), key, column), path)
    (finding,) = examine(tmp_path / "data")
    assert "an image without bytes" in finding.found
    assert finding.where.endswith("episode 0")


@pytest.mark.slow
def test_the_doctor_reports_values_that_a_video_has_blurred(tmp_path: Path) -> None:
    """Masks belong into PNG: written as video they are no longer binary."""
    write_with_masks(tmp_path / "data")
    (finding,) = examine(tmp_path / "data")
    assert finding.where.endswith("top_mask, episode 0")
    assert "expected two values" in str(finding)
