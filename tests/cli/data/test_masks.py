from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from counterpoint.cli.data.convert import convert
from counterpoint.cli.data.doctor import examine
from counterpoint.cli.data.masks import MaskFiles, SamMasks
from counterpoint.cli.data.masks import write_masks as command
from counterpoint.data.robot_masks import binary_mask, mask_frames
from counterpoint.data.store import MemoryStore
from counterpoint.errors import BadInputError, MissingExtraError
from counterpoint.formats import open_dataset
from tests.data.masks_made import made_masks, write_masks
from tests.formats.made import memory_store, write_lerobot, write_lerobot_v21, write_videos
from tests.hub_here import hub_cache


def add(path: Path, out: Path, **given: Any) -> None:
    usual: dict[str, Any] = {"files": None, "sam": None, "camera": None, "points": (), "box": None}
    command(path, out, **{**usual, "batch_size": 4, "device": "cpu", **given})


@pytest.mark.parametrize("write", [write_lerobot, pytest.param(write_lerobot_v21, marks=pytest.mark.slow)])
def test_masks_from_files_stand_beside_their_images(
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


def test_a_data_set_of_the_hub_gets_masks_in_a_copy_without_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_cache(monkeypatch, tmp_path / "hub").add("lab/arms", write_lerobot(tmp_path / "data"))
    add(Path("lab/arms"), tmp_path / "out", files=write_masks(tmp_path / "masks", {"top": made_masks()}))
    assert "top_mask" in open_dataset(tmp_path / "out").cameras
    assert not any(file.is_symlink() for file in (tmp_path / "out").rglob("*"))


def test_statistics_of_masks_are_kept_as_those_of_images(tmp_path: Path) -> None:
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


@pytest.mark.slow
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
def test_a_bad_image_is_named(tmp_path: Path, store: MemoryStore, spoil: Callable[[Path], None], message: str) -> None:
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
        image = Image.frombytes("P", mask.shape[::-1], (~mask).astype(np.uint8).tobytes())
        image.putpalette([255, 255, 255, 0, 0, 0])  # number 0 is white, the robot
        image.save(folder / f"episode_000001/top/{step:06d}.png")
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


POINTS = ((20.0, 6.0), (21.0, 7.0))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random model of Segment Anything's form, for images of 32 pixels in 8 x 8 patches."""
    transformers: Any = pytest.importorskip("transformers", reason="needs the extra `text`")
    torch.manual_seed(0)
    config = transformers.SamConfig(
        vision_config={
            **{"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32},
            **{"patch_size": 4, "output_channels": 16, "mlp_dim": 16, "window_size": 4, "num_pos_feats": 8},
            "global_attn_indexes": [1],
        },
        prompt_encoder_config={"hidden_size": 16, "image_size": 32, "patch_size": 4},
        mask_decoder_config={
            **{"hidden_size": 16, "mlp_dim": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
            "iou_head_hidden_dim": 16,
        },
    )
    folder = tmp_path_factory.mktemp("sam")
    transformers.SamModel(config).save_pretrained(folder)
    processing: Any = transformers.SamImageProcessor(
        size={"longest_edge": 32},
        pad_size={"height": 32, "width": 32},
        mask_size={"longest_edge": 8},
        mask_pad_size={"height": 8, "width": 8},
    )
    transformers.SamProcessor(processing).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("box", [None, (2.0, 3.0, 30.0, 20.0)])
def test_masks_of_the_images_size_whatever_the_batch(
    model: Path, box: tuple[float, float, float, float] | None
) -> None:
    store = memory_store()
    masks = [
        SamMasks(str(model), store, camera="wrist", points=POINTS, box=box, batch_size=size, device="cpu").masks(
            1, "wrist"
        )
        for size in (2, 7)
    ]
    assert masks[0].shape == (7, 24, 32)
    assert masks[0].dtype == np.bool_
    assert (masks[0] == masks[1]).mean() > 0.999


def test_a_box_alone_is_a_prompt(model: Path) -> None:
    sam = SamMasks(str(model), memory_store(), camera="top", box=(2, 3, 30, 20), device="cpu")
    assert sam.masks(2, "top").shape == (3, 24, 32)
    assert sam.about == {"sam": str(model), "points": [], "box": [2, 3, 30, 20]}


def test_the_proposal_of_the_highest_predicted_overlap_is_taken(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sam = SamMasks(str(model), memory_store(), camera="top", points=POINTS, device="cpu")
    seen: list[dict[str, torch.Tensor]] = []

    def proposals(**given: torch.Tensor) -> SimpleNamespace:
        """Left half, top half, right half of the padded square; frame 0 favours the second, frame 1 the third."""
        seen.append(given)
        count = len(given["pixel_values"])
        masks = torch.full((count, 1, 3, 8, 8), -1.0)
        masks[:, :, 0, :, :4] = masks[:, :, 1, :4] = masks[:, :, 2, :, 4:] = 1.0
        scores = torch.tensor([[[0.1, 0.9, 0.2]], [[0.3, 0.1, 0.8]], [[0.9, 0.1, 0.8]]])
        return SimpleNamespace(iou_scores=scores[:count], pred_masks=masks)

    monkeypatch.setattr(sam, "_model", proposals)
    masks = sam.masks(2, "top")
    expected = np.zeros((3, 24, 32), np.bool_)
    expected[0, :16] = expected[1, :, 16:] = expected[2, :, :16] = True
    np.testing.assert_array_equal(masks, expected)
    assert seen[0]["input_points"][0, 0].tolist() == [list(point) for point in POINTS]  # 32 wide: as they are
    assert seen[0]["input_labels"][0, 0].tolist() == [1, 1]


def test_the_command_writes_what_the_model_sees(model: Path, tmp_path: Path) -> None:
    source = write_lerobot(tmp_path / "data")
    command(
        source,
        tmp_path / "out",
        files=None,
        sam=str(model),
        camera=None,
        points=POINTS,
        box=None,
        batch_size=4,
        device="cpu",
    )
    store = open_dataset(tmp_path / "out")
    assert store.cameras == ("top", "wrist", "top_mask")
    expected = SamMasks(str(model), open_dataset(source), camera="top", points=POINTS, batch_size=4, device="cpu")
    kept = binary_mask(store.frames(1, np.arange(7), "top_mask"))
    np.testing.assert_array_equal(kept, expected.masks(1, "top"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "no prompt"),
        ({"points": ((40.0, 2.0),)}, r"--point: found \(40, 2\); expected x from 0 to 32 and y from 0 to 24"),
        ({"box": (0.0, 0.0, 10.0, 30.0)}, r"--box: found \(10, 30\)"),
        ({"box": (10.0, 0.0, 5.0, 20.0)}, "top left corner first"),
        ({"points": POINTS, "camera": "side"}, "'side'"),
        ({"points": POINTS, "batch_size": 0}, "--batch-size: found 0"),
        ({"points": POINTS, "device": "toaster"}, "--device: found 'toaster'"),
    ],
)
def test_bad_prompts(given: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        SamMasks("unused", memory_store(), **{"camera": "top", **given})


def test_a_model_that_cannot_be_loaded(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs the extra `text`")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BadInputError, match="no model that can be loaded"):
        SamMasks(str(tmp_path), memory_store(), camera="top", points=POINTS)


def test_another_kind_of_model_is_refused_instead_of_filled_with_random_weights(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs the extra `text`")
    (tmp_path / "config.json").write_text('{"model_type": "dinov2"}')
    with pytest.raises(BadInputError, match="a model of the kind 'dinov2'"):
        SamMasks(str(tmp_path), memory_store(), camera="top", points=POINTS)


def test_damaged_weights_are_one_message(model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model, tmp_path / "sam")
    (folder / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(BadInputError, match="no model that can be loaded"):
        SamMasks(str(folder), memory_store(), camera="top", points=POINTS)


def test_the_extra_is_named_where_transformers_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"\[text\]"):
        SamMasks("unused", memory_store(), camera="top", points=POINTS)
