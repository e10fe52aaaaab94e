from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from pydantic import ValidationError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from counterpoint.data.spec import Spec
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.encoders.observation_networks import DrQConvNet, FilmResNet18, SpatialSoftmax, ViTConfig, drq_weights
from counterpoint.encoders.towers import ResNet18
from counterpoint.errors import BadInputError, MissingExtraError
from tests.encoders.weights import assert_orthogonal
from tests.objectives.steps import step_batch


def test_the_papers_size_has_the_papers_number_of_parameters() -> None:
    # Appendix C: "around 3.95 million". 32 channels of 35 x 35 go into the trunk.
    net = DrQConvNet(9, 84, 100)
    convolutions = (9 * 9 + 1) * 32 + 3 * (32 * 9 + 1) * 32
    trunk = 32 * 35 * 35 * 100 + 100 + 2 * 100
    assert sum(parameter.numel() for parameter in net.parameters()) == convolutions + trunk == 3_950_668


def test_the_initial_weights_are_drq_v2s() -> None:
    encoder = ObservationEncoder(ObservationConfig(size=24))
    layers = [module for module in encoder.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    assert [type(layer) for layer in layers] == [nn.Conv2d] * 4 + [nn.Linear]
    for layer in layers:
        assert_orthogonal(layer.weight, math.sqrt(2) if isinstance(layer, nn.Conv2d) else 1.0)
        assert layer.bias is not None
        assert not bool(layer.bias.any())
    weight = layers[1].weight
    before = weight.clone()
    encoder.apply(drq_weights)  # over weights in channels-last memory
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not torch.equal(weight, before)
    assert_orthogonal(weight, math.sqrt(2))


def test_other_encoders_keep_their_own_initial_weights() -> None:
    torch.manual_seed(0)
    ours = ObservationEncoder(ObservationConfig(kind="resnet18", size=32, stack=1)).body
    torch.manual_seed(0)
    assert torch.equal(ours.state_dict()["head.weight"], ResNet18(512, channels=3).head.weight)


@torch.no_grad()
def test_a_fresh_encoder_separates_the_states_of_a_window() -> None:
    """Two states three steps apart lie .19 of their length apart with the authors' weights, .03 with torch's."""

    def apart(encoder: ObservationEncoder) -> float:
        views = step_batch(Spec.steps((0, 3), 0, stack=3), size=48, batch=32)["frames"]
        first, later = (encoder(views[:, number]) for number in (0, 1))
        return float(((first - later).norm(dim=1) / first.norm(dim=1)).mean())

    torch.manual_seed(0)
    encoder = ObservationEncoder(ObservationConfig(size=48))
    as_theirs = apart(encoder)
    for module in encoder.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.reset_parameters()
    assert as_theirs > 3 * apart(encoder)


@pytest.mark.parametrize("size", [15, 42, 64, 84])
def test_any_size_and_every_output_within_one(size: int) -> None:
    torch.manual_seed(0)
    out = DrQConvNet(3, size, 7, width=4)(torch.randn(2, 3, size, size) * 10)
    assert out.shape == (2, 7)
    assert out.abs().max() <= 1


IMAGES = torch.randn(4, 6, 32, 32, generator=torch.Generator().manual_seed(0))
TOLD = torch.randn(4, 384, generator=torch.Generator().manual_seed(1))


def built(*, keypoints: bool) -> FilmResNet18:
    torch.manual_seed(0)
    return FilmResNet18(6, 8, keypoints=keypoints).eval()


@pytest.mark.parametrize("keypoints", [False, True])
def test_every_block_is_scaled_and_shifted_by_its_share_of_the_text(keypoints: bool) -> None:
    net = built(keypoints=keypoints)
    rows = net.language.projection(TOLD)
    hidden, start = net.stem(IMAGES), 0
    for block, width in zip(net.blocks, (64, 64, 128, 128, 256, 256, 512, 512), strict=False):
        beta, gamma = rows[:, start : start + width], rows[:, start + width : start + 2 * width]
        hidden = (1 + gamma[:, :, None, None]) * block(hidden) + beta[:, :, None, None]
        start += 2 * width
    assert start == rows.shape[1]
    assert hidden.shape[1] == (128 if keypoints else 512)
    torch.testing.assert_close(net(IMAGES, TOLD), net.head(net.pool(hidden)))


def test_a_text_that_says_nothing_leaves_the_plain_resnet() -> None:
    net = built(keypoints=False)
    with torch.no_grad():
        net.get_parameter("language.projection.bias").zero_()
    plain = ResNet18(8, channels=6)
    plain.stem.load_state_dict(net.stem.state_dict())
    plain.stages.load_state_dict(net.blocks.state_dict())
    plain.head.load_state_dict(net.head.state_dict())
    torch.testing.assert_close(net(IMAGES, torch.zeros(1, 384)), plain(IMAGES), rtol=1e-4, atol=1e-5)


def test_texts_and_their_embeddings_agree_and_each_serves_a_run_of_observations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = built(keypoints=True)
    texts = ["open the drawer", "close the microwave"]
    vectors = TOLD[:2]
    known = dict(zip(texts, vectors, strict=True))
    # The sentence encoder itself has its own tests, and takes seconds to import.
    monkeypatch.setattr(net.language, "embed", known.__getitem__)
    embedded = net(IMAGES, texts)
    torch.testing.assert_close(net(IMAGES, vectors), embedded)
    torch.testing.assert_close(net(IMAGES, [texts[0], texts[0], texts[1], texts[1]]), embedded)
    assert not torch.allclose(net(IMAGES, texts[::-1]), embedded)


@pytest.mark.parametrize(
    "instruction", [[], ["a", "b", "c"], "open", torch.zeros(4, 12), torch.zeros(3, 384), torch.zeros(0, 384)]
)
def test_instructions_that_do_not_fit_are_refused(instruction: list[str] | str | Tensor) -> None:
    with pytest.raises(BadInputError, match=r"instruction: found .* for 4 observations"):
        built(keypoints=True)(IMAGES, instruction)


def test_without_the_sentence_encoder_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"\[text\]"):
        FilmResNet18(3, 8)


def test_keypoints_are_where_the_maps_lie() -> None:
    pool = SpatialSoftmax(2, 2)
    with torch.no_grad():
        pool.maps.weight.copy_(50 * torch.eye(2)[:, :, None, None])
        pool.get_parameter("maps.bias").zero_()
    images = torch.zeros(1, 2, 5, 9)
    images[0, 0, 4, 2] = 1  # bottom row, a quarter of the way
    images[0, 1, 1, 8] = 1  # second row, right edge
    torch.testing.assert_close(pool(images), torch.tensor([[-0.5, 1.0, 1.0, -0.5]]))
    torch.manual_seed(0)
    images = torch.randn(3, 2, 5, 9)
    attention = functional.softmax(pool.maps(images).flatten(2), -1).view(3, 2, 5, 9)
    expected = torch.zeros(3, 4)
    for row in range(5):
        for column in range(9):
            expected[:, :2] += attention[:, :, row, column] * (column / 4 - 1)
            expected[:, 2:] += attention[:, :, row, column] * (row / 2 - 1)
    torch.testing.assert_close(pool(images), expected, rtol=1e-4, atol=1e-5)


SMALL = ViTConfig(model="vit_tiny_patch16_224", patch=8, embed_dim=24, depth=2, heads=3)


def config(**changes: object) -> ObservationConfig:
    return ObservationConfig.model_validate({"kind": "vit", "size": 32, "stack": 1, "vit": SMALL, **changes})


def images(n: int, views: int = 1) -> torch.Tensor:
    return torch.randint(0, 256, (n, views, 32, 32, 3), dtype=torch.uint8)


def test_the_paper_s_encoder_is_vit_s_with_196_tokens() -> None:
    encoder = ObservationEncoder(ObservationConfig(kind="vit", size=224, stack=1))
    vit: Any = encoder.vits[0]
    assert encoder.embed_dim == 384
    assert sum(p.numel() for p in vit.parameters()) == 21_665_664  # ViT-S/16 without a classifier
    assert vit.patch_embed.num_patches == 196
    # Weights begin as the authors' do: timm's, N(0, .02) but for patches, which are torch's uniform of a convolution.
    for weight in (vit.pos_embed, vit.blocks[0].attn.qkv.weight, vit.blocks[11].mlp.fc2.weight):
        assert float(weight.detach().std()) == pytest.approx(0.02, rel=0.02)
    assert float(vit.cls_token.detach().std()) == pytest.approx(1e-6, rel=0.2)
    assert float(vit.patch_embed.proj.weight.detach().abs().max()) == pytest.approx(768**-0.5, rel=1e-3)
    assert not vit.blocks[0].attn.qkv.bias.detach().any()


def test_it_is_timm_s_model_on_images_in_minus_one_to_one() -> None:
    torch.manual_seed(0)
    encoder = ObservationEncoder(config()).eval()
    frames = images(3)
    expected = frames[:, 0].permute(0, 3, 1, 2) / 255 * 2 - 1
    torch.testing.assert_close(encoder(frames), encoder.vits[0](expected))
    torch.testing.assert_close(encoder(frames), encoder(frames / 255), rtol=1e-5, atol=1e-6)


def test_each_camera_has_its_own() -> None:
    encoder = ObservationEncoder(config(cameras=2)).eval()
    assert len(encoder.vits) == 2
    assert encoder.embed_dim == 48
    frames = images(3, 2)
    together = encoder(frames)
    frames[:, 1] = 0
    assert torch.equal(encoder(frames)[:, :24], together[:, :24])
    assert not torch.equal(encoder(frames)[:, 24:], together[:, 24:])


def test_a_stack_s_frames_are_channels() -> None:
    encoder = ObservationEncoder(config(stack=3))
    vit: Any = encoder.vits[0]
    assert vit.patch_embed.proj.in_channels == 9
    assert encoder(images(2, 3)).shape == (2, 24)


def test_models_without_a_class_token_pool_as_timm_does() -> None:
    encoder = ObservationEncoder(
        config(vit=ViTConfig(model="vit_base_patch16_siglip_224", embed_dim=24, depth=1, heads=3))
    )
    assert encoder(images(2)).shape == (2, 24)


def test_saved_and_loaded(tmp_path: Path) -> None:
    encoder = ObservationEncoder(config(cameras=2)).eval()
    encoder.save_pretrained(tmp_path)
    again = ObservationEncoder.from_pretrained(tmp_path)
    frames = images(2, 2)
    assert torch.equal(encoder(frames), again(frames))
    assert again.config == encoder.config


def test_weights_from_a_file(tmp_path: Path) -> None:
    model = timm.create_model(
        "vit_tiny_patch16_224", num_classes=0, img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3
    )
    save_file(model.state_dict(), tmp_path / "vit.safetensors")
    encoder = ObservationEncoder(config(checkpoint=str(tmp_path / "vit.safetensors")))
    for mine, theirs in zip(encoder.vits[0].parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vit": ViTConfig(model="vit_of_no_kind")}, "vit: found vit_of_no_kind"),
        ({"vit": ViTConfig(model="resnet18")}, "vit: found resnet18"),
        ({"embed_dim": 100}, "found 100; expected 24"),
    ],
)
def test_what_cannot_be_built_is_one_message(changes: dict[str, object], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        ObservationEncoder(config(**changes))


def test_settings_of_other_kinds_are_refused() -> None:
    with pytest.raises(ValidationError, match="centre is for kind"):
        config(centre=True)
    with pytest.raises(ValidationError, match="vit is for kind 'vit'"):
        ObservationConfig(vit=SMALL)
    with pytest.raises(BadInputError, match="which has no tokens"):
        _ = ObservationEncoder(ObservationConfig()).vits
