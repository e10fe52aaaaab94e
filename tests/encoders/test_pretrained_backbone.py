from __future__ import annotations

import sys

import pytest
import torch

from counterpoint.encoders import pretrained
from counterpoint.encoders.pretrained import PRETRAINED
from counterpoint.errors import MissingExtraError

pytest.importorskip("torchvision", reason="needs the extra `clip`")
# A large ViT takes seconds to build even without memory.
OWN = [name for name in PRETRAINED if not name.startswith("clip") and "vitl" not in name]


def test_the_large_vits_differ_in_numbers_alone() -> None:
    for name in ("vc1-vitl", "mvp-vitl-256"):
        assert pretrained._VITS[PRETRAINED[name].architecture] == (PRETRAINED[name].width, 24, 16)


@pytest.mark.parametrize("name", OWN)
def test_every_model_gives_the_width_it_states(name: str) -> None:
    model = PRETRAINED[name]
    with torch.device("meta"):  # shapes alone: no memory, no arithmetic
        backbone = pretrained.build(model).eval()
        assert backbone(torch.zeros(2, 3, model.size, model.size)).shape == (2, model.width)


@pytest.mark.parametrize("name", [name for name in PRETRAINED if name.startswith("clip")])
def test_the_clip_models_are_open_clips_and_have_its_widths(name: str) -> None:
    open_clip = pytest.importorskip("open_clip", reason="needs the extra `clip`")
    model = PRETRAINED[name]
    config = open_clip.get_model_config(model.architecture)
    assert config["embed_dim"] == model.width
    assert config["vision_cfg"]["image_size"] == model.size == model.resize
    assert "openai" in open_clip.list_pretrained_tags_by_model(model.architecture)
    assert config["quick_gelu"]


def test_the_vits_of_mae_have_its_heads_and_its_small_constant() -> None:
    with torch.device("meta"):
        small = pretrained.build(PRETRAINED["mvp"])
        base = pretrained.build(PRETRAINED["vc1"])
    assert small.get_submodule("blocks.0.attn").num_heads == 12
    assert base.get_submodule("blocks.0.attn").num_heads == 12
    for name in ("norm", "blocks.0.norm1"):
        assert small.get_submodule(name).eps == 1e-6


@pytest.mark.parametrize(
    ("name", "package"), [("r3m", "torchvision.models"), ("mvp", "timm.models.vision_transformer")]
)
def test_without_its_library_the_extra_is_named(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"counterpoint\[clip\]"):
        pretrained.build(PRETRAINED[name])
