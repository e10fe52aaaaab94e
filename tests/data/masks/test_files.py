from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from counterpoint.data.masks.command import MaskFiles
from counterpoint.data.store import MemoryStore
from counterpoint.errors import BadInputError
from tests.data.made import memory_store
from tests.data.masks.made import made_masks, write_masks


@pytest.fixture
def store() -> MemoryStore:
    return memory_store()


@pytest.mark.parametrize("packed", [False, True])
def test_both_layouts(tmp_path: Path, store: MemoryStore, packed: bool) -> None:
    masks = {"wrist": made_masks(), "top": [~mask for mask in made_masks()]}
    files = MaskFiles(write_masks(tmp_path / "masks", masks, packed=packed), store)
    assert files.cameras == ("top", "wrist")
    for camera, own in masks.items():
        for number, mask in enumerate(own):
            np.testing.assert_array_equal(files.masks(number, camera), mask)


@pytest.mark.parametrize("packed", [False, True])
def test_missing_frames_are_named_and_counted(tmp_path: Path, store: MemoryStore, packed: bool) -> None:
    masks = made_masks()
    masks[1] = masks[1][:2]
    folder = write_masks(tmp_path / "masks", {"top": masks}, packed=packed)
    with pytest.raises(BadInputError, match="5 frames without a mask: episode_000001/top/000002, ") as caught:
        MaskFiles(folder, store)
    assert "masks" in caught.value.where


def test_every_missing_frame_counts_over_episodes(tmp_path: Path, store: MemoryStore) -> None:
    folder = write_masks(tmp_path / "masks", {"top": made_masks()[:2]})
    (folder / "episode_000000/top/000001.png").unlink()
    with pytest.raises(BadInputError, match=r"4 frames .*episode_000000/top/000001, episode_000002/top/000000"):
        MaskFiles(folder, store)


def small(path: Path) -> None:
    Image.new("L", (16, 12)).save(path)


def grey(path: Path) -> None:
    Image.new("L", (32, 24), 90).save(path)


def broken(path: Path) -> None:
    path.write_bytes(b"\x89PNG no more")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (small, r"a mask of 16x12 pixels; expected 32x24, the size of its image"),
        (grey, r"found the values 90; expected two values"),
        (broken, "damaged content"),
    ],
)
def test_a_bad_picture_is_named(
    tmp_path: Path, store: MemoryStore, spoil: Callable[[Path], None], message: str
) -> None:
    folder = write_masks(tmp_path / "masks", {"top": made_masks()})
    spoil(folder / "episode_000001/top/000003.png")
    with pytest.raises(BadInputError, match=message) as caught:
        MaskFiles(folder, store).masks(1, "top")
    assert caught.value.where.endswith("000003.png")


def test_bad_arrays(tmp_path: Path, store: MemoryStore) -> None:
    folder = write_masks(tmp_path / "masks", {"top": made_masks(size=(24, 30))}, packed=True)
    with pytest.raises(BadInputError, match="30x24"):
        MaskFiles(folder, store).masks(0, "top")
    (folder / "episode_000001.npz").write_bytes(b"PK no more")
    with pytest.raises(BadInputError, match=r"damaged content.*an \.npz file"):
        MaskFiles(folder, store)


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"junk"])
def test_damaged_arrays_are_one_message(tmp_path: Path, store: MemoryStore, content: bytes) -> None:
    folder = write_masks(tmp_path / "masks", {"top": made_masks()}, packed=True)
    (folder / "episode_000001.npz").write_bytes(content)
    with pytest.raises(BadInputError, match=r"episode_000001\.npz.*an \.npz file"):
        MaskFiles(folder, store)


def test_a_flipped_byte_of_compressed_arrays_is_one_message(tmp_path: Path, store: MemoryStore) -> None:
    folder = write_masks(tmp_path / "masks", {"top": made_masks()}, packed=True)
    file = folder / "episode_000001.npz"
    noise = np.random.default_rng(0).integers(0, 2, (7, 24, 32), dtype=np.uint8)
    np.savez_compressed(file, top=noise)
    whole = file.read_bytes()
    for at in range(200, len(whole) - 200, 29):  # past the zip's own header, which has unread fields
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        with pytest.raises(BadInputError, match=r"episode_000001\.npz"):
            MaskFiles(folder, store).masks(1, "top")


@pytest.mark.parametrize("shape", [(), (24, 32)])
def test_an_array_that_is_not_a_mask_a_frame(tmp_path: Path, store: MemoryStore, shape: tuple[int, ...]) -> None:
    folder = write_masks(tmp_path / "masks", {"top": made_masks()}, packed=True)
    np.savez(folder / "episode_000001.npz", allow_pickle=False, top=np.zeros(shape, np.uint8))
    with pytest.raises(BadInputError, match=r"an array of shape .*expected \(7, H, W\)"):
        MaskFiles(folder, store)


def test_a_camera_that_only_later_episodes_have_lacks_frames(tmp_path: Path, store: MemoryStore) -> None:
    folder = write_masks(tmp_path / "masks", {"top": made_masks(), "wrist": made_masks()})
    shutil.rmtree(folder / "episode_000000/wrist")
    with pytest.raises(BadInputError, match="5 frames without a mask: episode_000000/wrist/000000, "):
        MaskFiles(folder, store)


@pytest.mark.parametrize("packed", [False, True])
def test_an_episode_that_the_data_set_has_not(tmp_path: Path, store: MemoryStore, packed: bool) -> None:
    folder = write_masks(tmp_path / "masks", {"top": made_masks((5, 7, 3, 4))}, packed=packed)
    with pytest.raises(BadInputError, match=r"found episode_000003.*; expected episode_000000 to episode_000002"):
        MaskFiles(folder, store)


def test_a_palette_is_looked_up(tmp_path: Path, store: MemoryStore) -> None:
    masks = made_masks()
    folder = write_masks(tmp_path / "masks", {"top": masks})
    for step, mask in enumerate(masks[1]):
        picture = Image.frombytes("P", mask.shape[::-1], (~mask).astype(np.uint8).tobytes())
        picture.putpalette([255, 255, 255, 0, 0, 0])  # number 0 is white, the robot
        picture.save(folder / f"episode_000001/top/{step:06d}.png")
    np.testing.assert_array_equal(MaskFiles(folder, store).masks(1, "top"), masks[1])


def test_other_layouts(tmp_path: Path, store: MemoryStore) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInputError, match="lay masks out so"):
        MaskFiles(tmp_path / "empty", store)
    with pytest.raises(BadInputError, match=r"a camera 'side'.*one of top, wrist"):
        MaskFiles(write_masks(tmp_path / "side", {"side": made_masks()}), store)
    folder = write_masks(tmp_path / "long", {"top": made_masks((5, 8, 3))})
    with pytest.raises(BadInputError, match=r"a mask for frame 7; expected masks for frames 0 to 6"):
        MaskFiles(folder, store)
    (folder / "episode_000001/top/000007.png").rename(folder / "episode_000001/top/7.png")
    with pytest.raises(BadInputError, match=r"7\.png"):
        MaskFiles(folder, store)
