from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn import functional

from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.encoders.observation_networks import DrQConvNet, FilmResNet18
from counterpoint.encoders.towers import ResNet18
from counterpoint.errors import BadInputError
from tests.encoders.saved_kinds import write_digests

DRQ = ObservationConfig(size=24, stack=2, embed_dim=10, width=8)
RESNET = ObservationConfig(kind="resnet18", size=32, stack=2, embed_dim=12)
FILM = ObservationConfig(kind="libero", size=32, stack=2, embed_dim=8)
KINDS = pytest.mark.parametrize("config", [DRQ, RESNET, FILM], ids=["drq", "resnet18", "libero"])


def built(config: ObservationConfig) -> ObservationEncoder:
    torch.manual_seed(0)
    return ObservationEncoder(config)


def frames(N: int, config: ObservationConfig) -> Tensor:
    shape = (N, config.cameras * config.stack, config.size, config.size, 3)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def called(encoder: ObservationEncoder, observations: Tensor) -> Tensor:
    """Embed, under one sentence embedding for all where an instruction is asked for."""
    told = torch.linspace(-1, 1, 384)[None] if encoder.takes_instruction else None
    embedded: Tensor = encoder(observations, told)
    return embedded


def test_defaults_are_the_papers() -> None:
    encoder = ObservationEncoder(ObservationConfig())
    assert encoder.embed_dim == encoder.config.embed_dim == 100
    assert sum(parameter.numel() for parameter in encoder.parameters()) == 3_950_668
    assert ObservationEncoder(ObservationConfig(kind="resnet18")).embed_dim == 512


def test_drq_is_listing_1_on_bytes_over_255_less_one_half() -> None:
    encoder = built(DRQ)
    plain = DrQConvNet(6, 24, 10, width=8)
    plain.load_state_dict(encoder.body.state_dict())
    batch = frames(5, DRQ)
    stacked = torch.cat([batch[:, 0], batch[:, 1]], -1).permute(0, 3, 1, 2)  # the oldest frame's colours first
    torch.testing.assert_close(encoder(batch), plain(stacked / 255 - 0.5), rtol=1e-5, atol=1e-5)


def test_resnet18_is_the_librarys_on_stacked_channels() -> None:
    encoder = built(RESNET)
    plain = ResNet18(12, channels=6)
    plain.load_state_dict(encoder.body.state_dict())
    batch = frames(3, RESNET)
    stacked = torch.cat([batch[:, 0], batch[:, 1]], -1).permute(0, 3, 1, 2)
    torch.testing.assert_close(encoder(batch), plain(stacked / 255 - 0.5), rtol=1e-4, atol=1e-4)


def test_libero_gets_the_instruction() -> None:
    encoder = built(FILM)
    assert isinstance(encoder.body, FilmResNet18)
    batch, told = frames(2, FILM), torch.randn(2, 384)
    stacked = torch.cat([batch[:, 0], batch[:, 1]], -1).permute(0, 3, 1, 2)
    torch.testing.assert_close(encoder(batch, told), encoder.body(stacked / 255 - 0.5, told), rtol=1e-4, atol=1e-4)


@KINDS
def test_bytes_and_unit_floats_agree_and_rows_stand_alone(config: ObservationConfig) -> None:
    encoder = built(config).train()
    batch = frames(4, config)
    embedded = called(encoder, batch)
    torch.testing.assert_close(called(encoder, batch.float() / 255), embedded, rtol=1e-4, atol=1e-5)
    other = torch.cat([batch[:1], 255 - batch[1:]])
    torch.testing.assert_close(called(encoder, other)[0], embedded[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(called(encoder.eval(), batch), embedded)


@KINDS
def test_gradient_reaches_every_parameter(config: ObservationConfig) -> None:
    encoder = built(config)
    torch.autograd.backward([called(encoder, frames(3, config)).square().sum()])
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_convolutions_run_channels_last_without_a_copy() -> None:
    encoder = built(DRQ)
    seen: list[Tensor] = []
    encoder.body.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    encoder(frames(4, DRQ))
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    assert encoder.body.get_parameter("convnet.0.weight").is_contiguous(memory_format=torch.channels_last)


def test_a_copy_shares_nothing_and_computes_the_same() -> None:
    encoder = built(DRQ)
    twin = copy.deepcopy(encoder)
    expected = encoder(frames(2, DRQ))
    assert torch.equal(twin(frames(2, DRQ)), expected)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert torch.equal(encoder(frames(2, DRQ)), expected)


def test_autocast_returns_single_precision() -> None:
    encoder = built(DRQ)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        coarse = encoder(frames(2, DRQ))
    assert coarse.dtype == torch.float32
    torch.testing.assert_close(coarse, encoder(frames(2, DRQ)), rtol=0.1, atol=0.05)
    assert built(DRQ).double()(frames(2, DRQ)).dtype == torch.float64


def test_centring_takes_off_the_mean_image_and_divides() -> None:
    encoder = built(DRQ)
    images = frames(40, DRQ)[:, 0]
    encoder.centre_on(images)
    seen: list[Tensor] = []
    encoder.body.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    encoder(images[:, None].expand(-1, 2, -1, -1, -1))
    torch.testing.assert_close(seen[0].mean(0), torch.zeros(6, 24, 24), rtol=0, atol=1e-5)
    torch.testing.assert_close(seen[0].std(), torch.ones(()), rtol=1e-4, atol=1e-4)


def test_centring_on_images_that_never_change_stays_finite() -> None:
    encoder = built(DRQ)
    encoder.centre_on(torch.full((3, 24, 24, 3), 7, dtype=torch.uint8))
    assert encoder(frames(2, DRQ)).isfinite().all()


@pytest.mark.parametrize("shape", [(0, 24, 24, 3), (4, 25, 24, 3), (4, 2, 24, 24, 3)])
def test_images_of_another_size_cannot_centre(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadInputError, match=r"expected \[N, 24, 24, 3\]"):
        built(DRQ).centre_on(torch.zeros(shape, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("observations", "message"),
    [
        (torch.zeros(2, 3, 24, 24, 3, dtype=torch.uint8), r"shape \[2, 3, 24, 24, 3\].*stacks of 2 frames"),
        (torch.zeros(2, 2, 32, 32, 3, dtype=torch.uint8), r"shape \[2, 2, 32, 32, 3\].*of 24 x 24 pixels"),
        (torch.zeros(2, 24, 24, 3, dtype=torch.uint8), r"shape \[2, 24, 24, 3\]; expected \[N, 2, 24, 24, 3\]"),
        (torch.zeros(2, 2, 3, 24, 24, dtype=torch.uint8), "channels last"),
        (torch.zeros(2, 2, 24, 24, 3, dtype=torch.int64), "torch.int64"),
        (torch.full((2, 2, 24, 24, 3), 7.0), r"in \[7, 7\]"),
        (torch.full((2, 2, 24, 24, 3), float("nan")), "nan"),
    ],
)
def test_other_observations_are_refused(observations: Tensor, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        built(DRQ)(observations)


def test_an_instruction_missing_or_not_asked_for_is_told() -> None:
    with pytest.raises(BadInputError, match=r"instruction: found none.*kind 'libero'"):
        built(FILM)(frames(2, FILM))
    with pytest.raises(BadInputError, match=r"instruction: found one.*kind 'drq'"):
        built(DRQ)(frames(2, DRQ), ["open the drawer"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "pretrained"}, "model '' is not one of pvr"),
        ({"kind": "pretrained", "model": "r4m"}, "r3m"),
        ({"kind": "vit", "centre": True}, "centre"),
        ({"model": "r3m"}, "model is for kind 'pretrained', not 'drq'"),
        ({"kind": "resnet18", "width": 16}, "width"),
        ({"text_model": "bert-base-cased"}, "text_model"),
        ({"size": 14}, "15 pixels"),
        ({"stack": 0}, "greater than 0"),
        ({"stak": 3}, "Extra inputs"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ObservationConfig.model_validate(fields)


def two(kind: str) -> ObservationConfig:
    base = {"drq": DRQ, "libero": FILM}[kind]
    return base.model_copy(update={"cameras": 2})


@pytest.mark.parametrize("kind", ["drq", "libero"])
def test_two_cameras_are_two_encoders_side_by_side(kind: str) -> None:
    config = two(kind)
    encoder = built(config)
    assert encoder.embed_dim == 2 * (config.embed_dim or 0)
    batch = frames(3, config)
    embedded = called(encoder, batch)
    one = config.model_copy(update={"cameras": 1})
    for camera, prefix in enumerate(("body.0.", "body.1.")):
        alone = ObservationEncoder(one)
        state = encoder.state_dict().items()
        alone.load_state_dict({k.removeprefix(prefix): v for k, v in state if k.startswith(prefix)})
        expected = called(alone, batch[:, 2 * camera : 2 * camera + 2])
        torch.testing.assert_close(embedded.view(3, 2, -1)[:, camera], expected)
    assert not torch.equal(embedded[:, : alone.embed_dim], embedded[:, alone.embed_dim :])


def test_two_cameras_have_two_mean_images_and_are_counted() -> None:
    encoder = built(two("drq"))
    images = frames(9, DRQ)  # as many images of a moment as DRQ stacks frames: two
    encoder.centre_on(images)
    for camera in (0, 1):
        mean = encoder.get_buffer(f"body.{camera}.mean_image")
        torch.testing.assert_close(mean, images[:, camera].float().mean(0) / 255)
    with pytest.raises(BadInputError, match=r"expected \[N, 4, 24, 24, 3\].*from each of 2 cameras"):
        encoder(frames(2, DRQ))


@pytest.mark.parametrize("config", [DRQ, FILM, two("drq")], ids=["drq", "libero", "two"])
def test_a_saved_encoder_comes_back_bit_for_bit(config: ObservationConfig, tmp_path: Path) -> None:
    encoder = built(config)
    if config.kind == "drq":
        encoder.centre_on(frames(20, config)[:, : config.cameras].squeeze(1))
    encoder.save_pretrained(tmp_path / "model")
    names = sorted(path.name for path in (tmp_path / "model").iterdir())
    assert names == ["README.md", "SHA256SUMS", "config.json", "model.safetensors"]
    for source in (tmp_path / "model", tmp_path):  # the folder itself, and a run that holds it
        twin = ObservationEncoder.from_pretrained(source)
        assert not twin.training
        assert twin.config == encoder.config
        batch = frames(3, config)
        assert torch.equal(called(twin, batch), called(encoder.eval(), batch))


def test_the_card_says_what_it_is(tmp_path: Path) -> None:
    encoder = built(DRQ)
    encoder.save_pretrained(tmp_path, method="Premier-TACO", license="mit")
    card = (tmp_path / "README.md").read_text()
    assert "license: mit" in card
    assert "Premier-TACO" in card
    assert "x / 255 - 0.5" in card
    assert "[N, 2, 24, 24, 3] -> [N, 10]" in card
    assert f"{sum(x.numel() for x in encoder.state_dict().values()):,} numbers" in card
    built(FILM).save_pretrained(tmp_path / "film")
    assert "model(observations, instructions)" in (tmp_path / "film" / "README.md").read_text()


def test_weights_and_configuration_that_disagree_are_named(tmp_path: Path) -> None:
    built(DRQ).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["config"]["stack"] = 3
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_digests(tmp_path)
    with pytest.raises(BadInputError, match=r"model\.safetensors.*convnet\.0\.weight"):
        ObservationEncoder.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"config": {"image": "convnet"}}))
    write_digests(tmp_path)
    with pytest.raises(BadInputError, match=r"config\.json: found unknown key 'image'"):
        ObservationEncoder.from_pretrained(tmp_path)
    with pytest.raises(BadInputError, match="no such file"):
        ObservationEncoder.from_pretrained(tmp_path / "nothing")


def dual(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    DualEncoder(EncoderConfig(image_size=32, embed_dim=8)).save_pretrained(tmp_path / "dual")
    return tmp_path / "dual"


def test_a_dual_encoder_shows_images_beside_the_instruction(tmp_path: Path) -> None:
    saved = dual(tmp_path)
    own = DualEncoder.from_pretrained(saved)
    encoder = ObservationEncoder(ObservationConfig(kind="dual", checkpoint=str(saved), size=32, stack=2)).eval()
    frames = torch.randint(0, 256, (4, 2, 32, 32, 3), dtype=torch.uint8)
    texts = ["open the box", "close the box"]
    with torch.no_grad():
        found = encoder(frames, texts)
        told = functional.normalize(own.encode_text(texts), dim=1).repeat_interleave(2, 0)
        seen = functional.normalize(own.encode_image(frames), dim=2).flatten(1)
        torch.testing.assert_close(found, torch.cat([seen, told], 1))
    encoder.save_pretrained(tmp_path / "policy")
    (saved / "model.safetensors").unlink()  # the saved one does not need it
    twin = ObservationEncoder.from_pretrained(tmp_path / "policy")
    assert encoder.embed_dim == twin.embed_dim == 24
    assert torch.equal(twin(frames, texts), found)
    with pytest.raises(BadInputError, match="instruction: found none"):
        encoder(frames)
    with pytest.raises(BadInputError, match="instruction: found 3 for 4"):
        encoder(frames, ["a", "b", "c"])
    with pytest.raises(BadInputError, match="instruction: found 0 for 4"):
        encoder(frames, [])


def test_a_dual_encoder_is_named() -> None:
    with pytest.raises(BadInputError, match=r"set encoder\.checkpoint"):
        ObservationEncoder(ObservationConfig(kind="dual"))
