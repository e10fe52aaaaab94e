"""Images enter a tower of open_clip or timm as that library's own transform makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from counterpoint.encoders import DualEncoder, EncoderConfig
from counterpoint.encoders.dual import preprocess
from counterpoint.encoders.towers import as_trained
from counterpoint.errors import BadInputError

open_clip = pytest.importorskip("open_clip", reason="needs the extra `clip`")
timm = pytest.importorskip("timm", reason="needs the extra `clip`")

VIT = EncoderConfig(image="open_clip", image_model="ViT-S-32-alt", image_size=64, text="open_clip")
LEVELS = {"bilinear": (1.1, 1.1), "bicubic": (1.3, 25.0)}
"""Levels of 255 by which a pixel may differ, in `SMOOTH` and in `NOISE`. Pillow rounds to whole levels after each of
its two passes; we never do. It also cuts off bicubic overshoots after the first pass, which are common in noise."""
MEAN = 0.4
"""The same, as a mean over all pixels."""

_y, _x = np.mgrid[:93, :131]
SMOOTH = 127 + 60 * np.stack([np.sin(_x / 5 + _y / 9), np.cos(_x / 11 - _y / 4), np.sin(_x * _y / 400)], axis=-1)
SMOOTH = SMOOTH.astype(np.uint8)
NOISE = np.random.default_rng(0).integers(0, 256, SMOOTH.shape).astype(np.uint8)


def assert_alike(transform: Callable[[Image.Image], Tensor], recorded: Mapping[str, Any], size: int) -> None:
    """Compare two images under a library's own transform and under ours, made of the same record."""
    tower = as_trained(nn.Identity(), 1, size, recorded, EncoderConfig())
    fitting: Any = {"fit": tower.fit, "short_side": tower.short_side, "resample": tower.resample}
    mean, std = torch.tensor(tower.mean), torch.tensor(tower.std)
    for picture, most in zip((SMOOTH, NOISE), LEVELS[recorded["interpolation"]], strict=True):
        made = preprocess(torch.from_numpy(picture), size=size, mean=mean, std=std, **fitting)[0]
        theirs = transform(Image.fromarray(picture))
        assert made.shape == theirs.shape
        levels = (made - theirs).abs() * torch.tensor(recorded["std"])[:, None, None] * 255
        assert levels.max() < most, recorded
        assert levels.mean() < MEAN, recorded


def open_clip_records() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every way in which a tag of open_clip prepares images, with one model and tag each, without weights."""
    known = set()
    for name, tag in open_clip.list_pretrained():
        record = asdict(open_clip.transform.PreprocessCfg())
        own = open_clip.get_pretrained_cfg(name, tag)
        record |= {key: own[key] for key in record if own.get(key) is not None}
        record["size"] = min(open_clip.get_model_config(name)["vision_cfg"]["image_size"], 256)
        key = str({**record, "size": None})
        if key not in known:
            known.add(key)
            yield f"{name}-{tag}", record


def timm_records() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every way in which timm prepares square images, with one model each."""
    known = set()
    for name in timm.list_pretrained():
        own = timm.models.get_pretrained_cfg(name)
        record = timm.data.resolve_data_config(pretrained_cfg=own.to_dict())
        key = str({**record, "input_size": None})
        if key not in known and record["input_size"][1] == record["input_size"][2] <= 256:
            known.add(key)
            yield name, record


@pytest.mark.parametrize("record", [pytest.param(record, id=name) for name, record in open_clip_records()])
def test_open_clip_s_images_enter_as_its_own_transform_makes_them(record: dict[str, Any]) -> None:
    transform = open_clip.transform.image_transform_v2(open_clip.transform.PreprocessCfg(**record), is_train=False)
    assert_alike(transform, record, record["size"])


@pytest.mark.slow
def test_timm_s_images_enter_as_its_own_transform_makes_them() -> None:
    refused, compared = set(), 0
    for _, record in timm_records():
        transform = timm.data.create_transform(**record, is_training=False)
        try:
            assert_alike(transform, record, record["input_size"][-1])
            compared += 1
        except BadInputError:
            refused.add((record["crop_mode"], record["crop_pct"] == 1))
    assert compared > 30
    assert refused <= {("squash", False), ("border", True)}


def test_a_way_that_is_not_ours_is_refused_until_one_is_chosen() -> None:
    record = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "interpolation": "bicubic", "crop_mode": "border", "crop_pct": 1.0}
    config = EncoderConfig(image="timm", image_model="some_net")
    for change, found in (
        ({}, "'border'"),
        ({"crop_mode": "squash", "crop_pct": 0.9}, "'squash' and then a crop of 90%"),
        ({"crop_mode": "center", "interpolation": "lanczos"}, "'lanczos'"),
    ):
        with pytest.raises(BadInputError, match=f"preprocessing of some_net: found {found}"):
            as_trained(nn.Identity(), 8, 32, record | change, config)
        chosen = config.model_copy(update={"fit": "stretch", "resample": "bilinear"})
        assert as_trained(nn.Identity(), 8, 32, record | change, chosen).fit == "stretch"


def test_a_crop_needs_a_side_as_long_as_itself() -> None:
    with pytest.raises(BadInputError, match=r"short_side: found 40 px.*encoder\.short_side = 64"):
        DualEncoder(EncoderConfig(fit="crop", short_side=40))


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file for a tag of the smallest open_clip model, prepared as SigLIP's images are."""
    from safetensors.torch import save_file

    model = open_clip.create_model("ViT-S-32-alt", force_image_size=64, force_custom_text=True)
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    made = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "interpolation": "bicubic", "resize_mode": "squash"}
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "ViT-S-32-alt", {"made": {"hf_hub": "some/model/", **made}})
    fetch = lambda *_, **__: str(tmp_path / "weights.safetensors")  # noqa: E731
    monkeypatch.setattr(open_clip.factory, "download_pretrained", fetch)
    monkeypatch.setattr(open_clip.pretrained, "download_pretrained_from_hf", fetch)
    return tmp_path / "weights.safetensors"


@pytest.mark.slow
def test_a_tag_a_revision_and_a_file_have_one_preprocessing(weights: Path, tmp_path: Path) -> None:
    ways = ({"pretrained": "made"}, {"pretrained": "made", "revision": "abc"}, {"pretrained": f"made:{weights}"})
    for way in ways:
        encoder = DualEncoder(VIT.model_copy(update=way))
        config = encoder.config
        assert (config.mean, config.std, config.fit, config.resample) == ((0.5,) * 3, (0.5,) * 3, "stretch", "bicubic")
    encoder.save_pretrained(tmp_path / "saved")
    assert DualEncoder.from_pretrained(tmp_path / "saved").config == encoder.config


def test_a_file_without_its_tag_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"tag of its weights \(webli\).*TAG:\./weights\.pt"):
        DualEncoder(EncoderConfig(image="open_clip", image_model="ViT-B-16-SigLIP", pretrained="./weights.pt"))


@pytest.mark.slow
def test_a_file_needs_no_tag_where_all_is_set(weights: Path) -> None:
    told = {"mean": (0.1,) * 3, "std": (0.2,) * 3, "fit": "crop", "resample": "bilinear", "pretrained": str(weights)}
    config = DualEncoder(VIT.model_copy(update=told)).config
    assert (config.mean, config.std, config.fit, config.resample) == ((0.1,) * 3, (0.2,) * 3, "crop", "bilinear")


@pytest.mark.slow
def test_squares_alone_enter(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = timm.data.resolve_model_data_config
    monkeypatch.setattr(
        timm.data, "resolve_model_data_config", lambda model: resolve(model) | {"input_size": (3, 64, 48)}
    )
    tall = EncoderConfig(image="timm", image_model="test_vit")
    with pytest.raises(BadInputError, match=r"48 x 64 px.*encoder\.image_size = 48"):
        DualEncoder(tall)
    assert DualEncoder(tall.model_copy(update={"image_size": 48})).image_size == 48


def test_the_ways_of_liv_vip_and_r3m() -> None:
    functions = pytest.importorskip("torchvision").transforms.functional
    plain: dict[str, Any] = {"size": 48, "mean": torch.zeros(3), "std": torch.ones(3)}
    frames = torch.from_numpy(NOISE)[None]
    pixels = frames.permute(0, 3, 1, 2) / 255
    liv = functions.center_crop(functions.resize(pixels, 48, antialias=None), 48)
    torch.testing.assert_close(preprocess(frames, fit="crop", resample="bilinear_aliased", **plain), liv)
    cut = preprocess(frames, fit="crop", short_side=64, **plain)
    torch.testing.assert_close(preprocess(frames, fit="crop_others", short_side=64, **plain), cut)
    square = pixels[..., :48, :48]
    torch.testing.assert_close(preprocess(square, fit="crop_others", short_side=64, **plain), square)
    assert not torch.equal(preprocess(square, fit="crop", short_side=64, **plain), square)
