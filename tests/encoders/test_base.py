from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from counterpoint.encoders import DualEncoder, EncoderConfig
from counterpoint.errors import BadInputError

CONVNET = EncoderConfig(image_size=32, embed_dim=16)
RESNET = EncoderConfig(image="resnet18", image_size=32, embed_dim=16)
OWN = pytest.mark.parametrize("config", [CONVNET, RESNET], ids=["convnet", "resnet18"])


def built(config: EncoderConfig) -> DualEncoder:
    torch.manual_seed(0)
    return DualEncoder(config)


def frames(*lead: int, size: int = 32) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (*lead, size, size, 3), dtype=torch.uint8, generator=generator)


def test_defaults_are_resolved_in_the_configuration() -> None:
    encoder = DualEncoder(EncoderConfig())
    assert (encoder.embed_dim, encoder.image_size) == (256, 64)
    assert (encoder.config.embed_dim, encoder.config.image_size) == (256, 64)
    assert encoder.config.mean == (0.485, 0.456, 0.406)
    assert DualEncoder(EncoderConfig(image="resnet18")).image_size == 112


@OWN
def test_leading_dimensions_are_kept(config: EncoderConfig) -> None:
    encoder = built(config).eval()
    clips = frames(2, 3)
    embedded = encoder.encode_image(clips)
    assert embedded.shape == (2, 3, 16)
    torch.testing.assert_close(encoder.encode_image(clips[1, 2]), embedded[1, 2], rtol=1e-4, atol=1e-5)


@OWN
def test_a_frame_depends_on_no_other_frame(config: EncoderConfig) -> None:
    encoder = built(config).train()
    batch = frames(4)
    other = torch.cat([batch[:1], 255 - batch[1:]])
    assert torch.equal(encoder.encode_image(batch)[0], encoder.encode_image(other)[0])


@OWN
def test_training_and_evaluation_compute_the_same(config: EncoderConfig) -> None:
    encoder = built(config)
    training = encoder.train().encode_image(frames(3))
    assert torch.equal(training, encoder.eval().encode_image(frames(3)))
    assert torch.equal(training, encoder.encode_image(frames(3)))


def test_bytes_and_unit_floats_agree_at_any_size() -> None:
    encoder = built(CONVNET)
    for size in (32, 50):
        assert torch.equal(
            encoder.encode_image(frames(2, size=size)), encoder.encode_image(frames(2, size=size).float() / 255)
        )


def test_preprocessing_can_be_set() -> None:
    encoder = built(EncoderConfig(image_size=32, embed_dim=16, mean=(0.0, 0.0, 0.0), std=(0.5, 0.5, 0.5)))
    scaled = built(EncoderConfig(image_size=32, embed_dim=16, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)))
    dark = frames(2) // 4 * 2
    torch.testing.assert_close(encoder.encode_image(dark // 2), scaled.encode_image(dark), rtol=1e-4, atol=1e-5)


@OWN
def test_gradient_reaches_the_whole_image_tower_and_the_text_projection(config: EncoderConfig) -> None:
    encoder = built(config)
    loss = encoder.encode_image(frames(2)).square().sum() + encoder.encode_text(["open the door"]).square().sum()
    loss.backward()  # type: ignore[no-untyped-call]
    for name, parameter in encoder.named_parameters():
        assert parameter.requires_grad, name
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
    assert [name for name, _ in encoder.text.named_parameters()] == ["projection.weight", "projection.bias"]


def test_gradient_reaches_the_pixels() -> None:
    pixels = (frames(1).float() / 255).requires_grad_()
    built(CONVNET).encode_image(pixels).sum().backward()  # type: ignore[no-untyped-call]
    assert pixels.grad is not None
    assert pixels.grad.abs().max() > 0


def test_freezing_is_what_requires_grad_says_and_nothing_else() -> None:
    encoder = built(CONVNET)
    encoder.image.requires_grad_(False)
    assert not encoder.encode_image(frames(1)).requires_grad
    assert encoder.encode_text(["x"]).requires_grad


def test_autocast_gives_single_precision_near_the_exact_values() -> None:
    encoder = built(CONVNET)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        coarse, text = encoder.encode_image(frames(2)), encoder.encode_text(["x"])
    assert coarse.dtype == text.dtype == torch.float32
    torch.testing.assert_close(coarse, encoder.encode_image(frames(2)), rtol=0.1, atol=0.02)


def test_double_precision_is_kept() -> None:
    encoder = built(CONVNET).double()
    assert encoder.encode_image(frames(1)).dtype == torch.float64
    assert encoder.encode_text(["x"]).dtype == torch.float64


def test_copies_compute_the_same_and_share_no_memory() -> None:
    encoder = built(CONVNET)
    expected_image, expected_text = encoder.encode_image(frames(2)), encoder.encode_text(["a", "b"])
    for twin in (copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
        assert torch.equal(twin.encode_image(frames(2)), expected_image)
        assert torch.equal(twin.encode_text(["a", "b"]), expected_text)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.zero_()
        assert twin.config == encoder.config
    assert torch.equal(encoder.encode_image(frames(2)), expected_image)


@pytest.mark.parametrize("texts", ["open the door", [], ["open", None]])
def test_what_is_no_sequence_of_texts_is_refused(texts: list[str]) -> None:
    with pytest.raises(BadInputError, match="texts"):
        built(CONVNET).encode_text(texts)


def test_importing_encoders_needs_no_extra() -> None:
    code = (
        "import sys, counterpoint.encoders\n"
        "extras = {'open_clip', 'timm', 'torchvision', 'sentence_transformers', 'transformers'}\n"
        "sys.exit(str(extras & sys.modules.keys()) if extras & sys.modules.keys() else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
