from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from counterpoint.errors import BadInputError, MissingExtraError

timm = pytest.importorskip("timm", reason="needs the extra `clip`")

FRAMES = torch.randint(0, 256, (2, 2, 40, 40, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
VIT = EncoderConfig(image="timm", image_model="test_vit", image_size=64, embed_dim=24)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("test_vit", 64),
        ("test_resnet", 64),
        ("test_efficientnet", 64),
        ("vit_tiny_patch16_224", 64),
        ("test_vit", None),
    ],
)
def test_any_model_at_any_size(name: str, size: int | None) -> None:
    encoder = DualEncoder(EncoderConfig(image="timm", image_model=name, image_size=size, embed_dim=24)).eval()
    assert encoder.image_size == (size or 160)
    embedded = encoder.encode_image(FRAMES)
    assert embedded.shape == (2, 2, 24)
    assert encoder.encode_text(["open"]).shape == (1, 24)
    assert torch.equal(embedded, encoder.encode_image(FRAMES))


@pytest.mark.slow
def test_normalisation_is_that_of_the_tag_and_survives_saving(tmp_path: Path) -> None:
    encoder = DualEncoder(EncoderConfig(image="timm", image_model="vit_tiny_patch16_224.augreg_in21k", image_size=32))
    assert encoder.config.mean == encoder.config.std == (0.5, 0.5, 0.5)
    dino = DualEncoder(EncoderConfig(image="timm", image_model="vit_small_patch14_dinov2.lvd142m", image_size=28))
    assert dino.config.mean == (0.485, 0.456, 0.406)
    encoder.eval().save_pretrained(tmp_path)
    twin = DualEncoder.from_pretrained(tmp_path)
    assert twin.config == encoder.config
    assert torch.equal(twin.encode_image(FRAMES), encoder.encode_image(FRAMES))


def test_gradient_reaches_the_first_layer() -> None:
    encoder = DualEncoder(VIT)
    encoder.encode_image(FRAMES).square().sum().backward()  # type: ignore[no-untyped-call]
    gradients = {name: parameter.grad for name, parameter in encoder.image.named_parameters()}
    assert all(gradient is not None and gradient.abs().max() > 0 for gradient in gradients.values())
    assert "backbone.patch_embed.proj.weight" in gradients


@pytest.mark.parametrize("classifier", [True, False])
def test_a_local_file_is_loaded_with_or_without_its_classifier(tmp_path: Path, classifier: bool) -> None:
    torch.manual_seed(3)
    model = timm.create_model("test_vit", num_classes=1000 if classifier else 0)
    torch.save(model.state_dict(), tmp_path / "vit.pt")
    start = f"r160_in1k:{tmp_path / 'vit.pt'}"
    encoder = DualEncoder(VIT.model_copy(update={"pretrained": start, "image_size": None}))
    loaded = encoder.image.state_dict()["backbone.patch_embed.proj.weight"]
    assert torch.equal(loaded, model.state_dict()["patch_embed.proj.weight"])
    # Position embeddings are resampled after loading, so a file of the model's own size serves any size.
    assert DualEncoder(VIT.model_copy(update={"pretrained": start})).image_size == 64


def test_a_fresh_resnet_starts_with_every_gamma_at_one_as_torchvisions() -> None:
    encoder = DualEncoder(EncoderConfig(image="timm", image_model="resnet18", image_size=32, embed_dim=24))
    norms = [part for part in encoder.image.modules() if isinstance(part, torch.nn.BatchNorm2d)]
    assert len(norms) == 20
    assert all(bool((norm.weight == 1).all()) and not norm.bias.any() for norm in norms)


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    torch.save(timm.create_model("test_resnet").state_dict(), tmp_path / "resnet.pt")
    with pytest.raises(BadInputError, match=r"resnet\.pt: found lacks"):
        DualEncoder(VIT.model_copy(update={"pretrained": f"r160_in1k:{tmp_path / 'resnet.pt'}"}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image_model": "vit_tiny_patch16"}, "such as vit_tiny_patch16_"),
        ({"image_model": "test_vit.nope"}, "tag 'nope'"),
        ({"pretrained": "nope"}, "tag 'nope'"),
        ({"image_model": "vit_tiny_patch16_224.augreg_in21k", "pretrained": "augreg_in21k_ft_in1k"}, "the same"),
        ({"pretrained": "r160_in1k:/no/such/file.pt"}, "no such file"),
        ({"pretrained": "/no/such/file.pt"}, "the tag of its weights"),
    ],
)
def test_unknown_names_are_refused(fields: dict[str, str], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        DualEncoder(VIT.model_copy(update=fields))


def test_a_tag_is_asked_of_the_hub_and_its_absence_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bool]] = []

    def create(name: str, *, pretrained: bool, num_classes: int) -> None:
        asked.append((name, pretrained))
        raise OSError("no route to the Hub\nretry")

    monkeypatch.setattr(timm, "create_model", create)
    with pytest.raises(BadInputError, match=r"test_vit\.r160_in1k that cannot be fetched \(no route to the Hub\)"):
        DualEncoder(VIT.model_copy(update={"pretrained": "r160_in1k"}))
    assert asked == [("test_vit.r160_in1k", True)]


def test_without_timm_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtraError, match=r"timm.*\[vision\]"):
        DualEncoder(VIT)
