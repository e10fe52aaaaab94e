from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from counterpoint.data.formats import open_dataset
from counterpoint.data.masks.command import SamMasks, write_masks
from counterpoint.data.masks.robot import binary_mask
from counterpoint.errors import BadInputError, MissingExtraError
from tests.data.made import memory_store, write_lerobot

POINTS = ((20.0, 6.0), (21.0, 7.0))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random model of Segment Anything's form, for pictures of 32 pixels in 8 x 8 patches."""
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
def test_masks_of_the_pictures_size_whatever_the_batch(
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
    write_masks(
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
    with pytest.raises(MissingExtraError, match=r"counterpoint\[text\]"):
        SamMasks("unused", memory_store(), camera="top", points=POINTS)
