from __future__ import annotations

import copy
import pickle
import sys
from pathlib import Path

import pytest
import torch

from counterpoint.encoders import DualEncoder, EncoderConfig
from counterpoint.errors import BadInputError, MissingExtraError
from tests.marks import quick

open_clip = pytest.importorskip("open_clip", reason="needs the extra `clip`")

FRAMES = torch.randint(0, 256, (2, 40, 40, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
TEXTS = ["open the drawer", "pick up the cup"]
VIT = EncoderConfig(image="open_clip", image_model="ViT-S-32-alt", image_size=64, text="open_clip")


@pytest.fixture(scope="module")
def encoder() -> DualEncoder:
    torch.manual_seed(0)
    return DualEncoder(VIT).eval()


def test_both_towers_are_open_clips_own(encoder: DualEncoder) -> None:
    torch.manual_seed(0)
    model = open_clip.create_model("ViT-S-32-alt", force_image_size=64, force_custom_text=True).eval()
    state = model.state_dict()
    state = {name: value for name, value in state.items() if name != "logit_scale"}
    ours = {
        name.replace("text.tower.", "text.", 1) if name.startswith("text.") else f"visual.{name.removeprefix('image.')}"
        for name in encoder.state_dict()
    }
    assert ours == state.keys()
    model.visual.load_state_dict(encoder.image.state_dict())
    tokens = open_clip.get_tokenizer("ViT-S-32-alt")(TEXTS)
    model.text.load_state_dict({k.removeprefix("tower."): v for k, v in encoder.text.state_dict().items()})
    mean, std = torch.tensor(encoder.config.mean), torch.tensor(encoder.config.std)
    square = FRAMES.repeat_interleave(2, dim=1).repeat_interleave(2, dim=2)[:, :64, :64]
    images = ((square.float() / 255 - mean) / std).permute(0, 3, 1, 2)
    with torch.no_grad():
        torch.testing.assert_close(encoder.encode_image(square), model.encode_image(images), rtol=1e-5, atol=1e-5)
        assert torch.equal(encoder.encode_text(TEXTS), model.encode_text(tokens))


def test_dimensions_and_preprocessing_are_the_models_own(encoder: DualEncoder) -> None:
    assert (encoder.embed_dim, encoder.image_size) == (256, 64)
    assert encoder.config.mean == (0.48145466, 0.4578275, 0.40821073)
    assert encoder.encode_image(FRAMES[None]).shape == (1, 2, 256)
    assert encoder.encode_text(TEXTS).shape == (2, 256)


def test_long_texts_are_refused(encoder: DualEncoder) -> None:
    assert encoder.encode_text(["drawer " * 75]).shape == (1, 256)
    with pytest.raises(BadInputError, match="at most 77 tokens"):
        encoder.encode_text(["drawer " * 76])


@pytest.mark.slow
def test_save_copy_and_pickle_round_trips(encoder: DualEncoder, tmp_path: Path) -> None:
    encoder.save_pretrained(tmp_path)
    for twin in (DualEncoder.from_pretrained(tmp_path), copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
        assert torch.equal(twin.encode_image(FRAMES), encoder.encode_image(FRAMES))
        assert torch.equal(twin.encode_text(TEXTS), encoder.encode_text(TEXTS))
    assert "**not** part" not in (tmp_path / "README.md").read_text()


@pytest.mark.slow
def test_both_towers_train() -> None:
    encoder = DualEncoder(VIT)
    loss = encoder.encode_image(FRAMES).square().sum() + encoder.encode_text(TEXTS).square().sum()
    loss.backward()  # type: ignore[no-untyped-call]
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, name


def test_a_frozen_text_tower_stays_as_it_is() -> None:
    encoder = DualEncoder(VIT.model_copy(update={"freeze_text": True})).train()
    assert not any(parameter.requires_grad for parameter in encoder.text.parameters())
    assert not any(module.training for module in encoder.text.modules())
    assert all(parameter.requires_grad for parameter in encoder.image.parameters())
    assert encoder.image.training
    assert not encoder.encode_text(TEXTS).requires_grad


def test_the_image_tower_alone_takes_sentences() -> None:
    encoder = DualEncoder(VIT.model_copy(update={"text": "minilm"}))
    assert encoder.encode_text(TEXTS).shape == (2, 256)
    assert sorted({name.split(".")[0] for name in encoder.state_dict()}) == ["image", "text"]
    assert [name for name in encoder.state_dict() if name.startswith("text.")] == [
        "text.projection.weight",
        "text.projection.bias",
    ]


@pytest.mark.slow
def test_siglip_is_built_at_any_size() -> None:
    encoder = DualEncoder(EncoderConfig(image="open_clip", image_model="ViT-B-16-SigLIP", image_size=32))
    assert encoder.eval().encode_image(FRAMES[:1]).shape == (1, 768)
    assert encoder.image_size == 32


@pytest.mark.parametrize("suffix", quick(["safetensors"], ["pt", "safetensors"]))
def test_a_local_checkpoint_of_open_clip_is_loaded(tmp_path: Path, suffix: str) -> None:
    from safetensors.torch import save_file

    torch.manual_seed(5)
    model = open_clip.create_model("ViT-S-32-alt", force_image_size=64)
    path = tmp_path / f"clip.{suffix}"
    if suffix == "pt":
        torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in model.state_dict().items()}}, path)
    else:
        save_file(model.state_dict(), path)
    encoder = DualEncoder(VIT.model_copy(update={"pretrained": str(path)}))
    tokens = open_clip.get_tokenizer("ViT-S-32-alt")(TEXTS)
    assert torch.equal(encoder.encode_text(TEXTS), model.encode_text(tokens))
    assert torch.equal(encoder.image.state_dict()["conv1.weight"], model.visual.conv1.weight)


@pytest.mark.slow
def test_a_damaged_or_foreign_checkpoint_is_named(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(2)}, tmp_path / "other.pt")
    (tmp_path / "short.pt").write_bytes((tmp_path / "other.pt").read_bytes()[:100])
    (tmp_path / "short.safetensors").write_bytes(b"1234")
    for name in ("other.pt", "short.pt", "short.safetensors", "absent.pt"):
        with pytest.raises(BadInputError, match=name):
            DualEncoder(VIT.model_copy(update={"pretrained": str(tmp_path / name)}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image_model": "ViT-B-31"}, "such as ViT-B-32"),
        pytest.param({"image_model": "coca_ViT-B-32", "image_size": 224}, "a CoCa", marks=pytest.mark.slow),
        ({"embed_dim": 128}, "256, the width"),
        ({"pretrained": "nope"}, "tag 'nope'.*it has none"),
        ({"image_model": "RN50", "pretrained": "openai"}, "use RN50-quickgelu"),
        ({"image_model": "RN50-quickgelu", "pretrained": "laion"}, "openai, yfcc15m, cc12m"),
    ],
)
def test_unknown_or_unfitting_names_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        DualEncoder(VIT.model_copy(update=fields))


def test_a_tag_is_asked_of_open_clip_and_its_absence_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(name: str, *, pretrained: str | None, **_: object) -> None:
        raise RuntimeError(f"Failed to download weights for tag '{pretrained}' of {name}")

    monkeypatch.setattr(open_clip, "create_model", create)
    with pytest.raises(BadInputError, match=r"tag 'openai' of RN50-quickgelu.*local file"):
        DualEncoder(VIT.model_copy(update={"image_model": "RN50-quickgelu", "pretrained": "openai"}))


def test_building_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    DualEncoder(VIT)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_without_open_clip_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(MissingExtraError, match=r"open_clip.*\[clip\]"):
        DualEncoder(VIT)
