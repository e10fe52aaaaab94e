from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision import transforms

from counterpoint.encoders import DualEncoder
from counterpoint.encoders.convert import Method, convert_checkpoint
from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.errors import BadInputError
from counterpoint.rewards import RewardModel
from tests.encoders.released_files import as_the_authors_embed, write_released
from tests.marks import quick
from tests.reference.openai_clip import OpenAIClip, released_clip

open_clip = pytest.importorskip("open_clip", reason="needs the extra `clip`")

TEXTS = ["open the drawer", "pick up the red cup and put it in the sink"]


@pytest.fixture(scope="module")
def reference() -> OpenAIClip:
    return released_clip(0)


@pytest.fixture
def room() -> Iterator[Path]:
    """A folder emptied at once: each checkpoint is 400 MB."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def coarse_images(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    blocks = torch.randint(0, 256, (count, 4, 4, 3), dtype=torch.uint8, generator=generator)
    return blocks.repeat_interleave(56, dim=1).repeat_interleave(56, dim=2)


def as_clip_sees(frames: Tensor) -> Tensor:
    mean = torch.tensor([0.48145466, 0.4578275, 0.40821073])
    std = torch.tensor([0.26862954, 0.26130258, 0.27577711])
    return ((frames / 255 - mean) / std).permute(0, 3, 1, 2)


def cut_by_the_authors(method: Method, frames: Tensor) -> Tensor:
    """DecisionNCE and AcTOL read images by CLIP's own transform; LIV's example gives tensors, `antialias=None`."""
    mode = transforms.InterpolationMode.BILINEAR if method == "liv" else transforms.InterpolationMode.BICUBIC
    images = frames.permute(0, 3, 1, 2).float() / 255
    resized = transforms.functional.resize(images, 224, mode, antialias=None if method == "liv" else True)
    cut: Tensor = transforms.functional.center_crop(resized.clamp(0, 1), 224)
    return cut.permute(0, 2, 3, 1)


@pytest.mark.release
@pytest.mark.parametrize(
    ("method", "outer", "prefix", "half"),
    [
        ("decisionnce", "model", "model.", False),
        ("actol", "", "model.", True),
        ("liv", "liv", "module.model.", True),
        ("liv", "liv", "model.", False),
    ],
    ids=["outer", "half", "liv", "liv-snapshot"],
)
def test_converted_encoders_embed_as_the_authors_model_does(
    reference: OpenAIClip, room: Path, method: Method, outer: str, prefix: str, half: bool
) -> None:
    weights = {
        name: value.half() if half and value.is_floating_point() else value
        for name, value in reference.released().items()
    }
    wrapped: dict[str, object] = {f"{prefix}{name}": value for name, value in weights.items()}
    more = {"epoch": 19, "args": argparse.Namespace(lr=1e-5)}
    torch.save({outer: wrapped, **more} if outer else wrapped, room / "authors.pt")
    assert convert_checkpoint(method, room / "authors.pt", room / "ours") == room / "ours"
    encoder = DualEncoder.from_pretrained(room / "ours")
    assert (encoder.embed_dim, encoder.image_size) == (1024, 224)
    if half:
        reference = OpenAIClip().eval()
        reference.load_state_dict({name: weights[name] for name in reference.state_dict()})
    frames, tokens = coarse_images(2), open_clip.get_tokenizer("RN50")(TEXTS)
    with torch.no_grad():
        images, texts = reference.encode_image(as_clip_sees(frames)), reference.encode_text(tokens)
        # Different inputs must differ by far more than the tolerance, or the comparison would show nothing.
        assert (images[0] - images[1]).abs().mean() > 1e-2
        assert (texts[0] - texts[1]).abs().mean() > 1e-2
        torch.testing.assert_close(encoder.encode_image(frames), images, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(encoder.encode_text(TEXTS), texts, rtol=1e-5, atol=1e-5)
        # The authors' preprocessing of a frame of EPIC-KITCHENS: the short side to 224 pixels, the centre cut out.
        wide = coarse_images(1).repeat(1, 2, 3, 1)[:, :256, 100:556]
        tensors = wide.permute(0, 3, 1, 2).float() / 255
        expected = reference.encode_image(as_clip_sees(255 * cut_by_the_authors(method, wide)))
        torch.testing.assert_close(encoder.encode_image(wide), expected, rtol=1e-4, atol=1e-4)
        squeezed = transforms.functional.resize(tensors, [224, 224]).permute(0, 2, 3, 1)
        assert (reference.encode_image(as_clip_sees(255 * squeezed)) - expected).abs().mean() > 1e-2
        noise = torch.randint(0, 128, (5, 448, 672, 3), dtype=torch.uint8)
        video = coarse_images(5).repeat(1, 2, 3, 1) // 2 + noise
        cut = cut_by_the_authors(method, video)
        curve = functional.cosine_similarity(reference.encode_image(as_clip_sees(255 * cut)), texts[:1])
    assert curve.std() > 1e-4
    rewards = RewardModel.from_pretrained(room / "ours").reward(video, TEXTS[0])
    torch.testing.assert_close(rewards, curve, rtol=1e-3, atol=1e-5)
    card = (room / "ours" / "README.md").read_text()
    titles = {"decisionnce": "Implicit Preference", "actol": "Provable Ordering", "liv": "Language-Image"}
    assert titles[method] in card
    assert "the authors' released checkpoint" in card


RESNETS = ("vip", "r3m", "r3m-34", "r3m-18")


@pytest.mark.parametrize("side", [(60, 100), (224, 224)], ids=["resized", "as it is"])
@pytest.mark.parametrize("method", quick(["vip", "r3m-18"], RESNETS))
def test_vip_and_r3m_reward_nearness_to_a_goal_image_as_the_authors_do(
    method: Method, side: tuple[int, int], tmp_path: Path
) -> None:
    network = write_released(method, tmp_path / "model.pt")
    ours = convert_checkpoint(method, tmp_path / "model.pt", tmp_path / "ours")
    model = RewardModel.from_pretrained(ours)
    coarse = torch.randint(0, 256, (4, 4, 4, 3), dtype=torch.uint8)
    frames = functional.interpolate(coarse.permute(0, 3, 1, 2), side).permute(0, 2, 3, 1).contiguous()
    expected = as_the_authors_embed(network, frames)
    assert isinstance(model.encoder, DualEncoder)
    assert model.encoder.embed_dim == expected.shape[1] == {"vip": 1024, "r3m": 2048}.get(method, 512)
    with torch.no_grad():
        torch.testing.assert_close(model.encoder.encode_image(frames), expected, rtol=1e-4, atol=1e-4)
    curve = -torch.linalg.norm(expected - expected[-1], dim=-1)
    assert curve.std() > 1e-2
    torch.testing.assert_close(model.reward(frames, goal=frames[-1]), curve, rtol=1e-4, atol=1e-3)
    with pytest.raises(BadInputError, match="found an instruction; expected a goal image"):
        model.reward(frames, "open the drawer")
    assert f"license: {'cc-by-nc-4.0' if method == 'vip' else 'mit'}" in (ours / "README.md").read_text()


@pytest.mark.parametrize(
    ("given", "method", "message"),
    [
        ("r3m-18", "vip", "found the entries global_step, r3m; expected a state dict under 'vip'"),
        ("r3m-18", "r3m-34", r"lacks backbone\.layer1\.2"),
        ("r3m-18", "liv", "found 0 tensors"),
    ],
)
def test_the_file_of_another_method_is_refused(given: str, method: Method, message: str, tmp_path: Path) -> None:
    write_released(given, tmp_path / "model.pt")
    with pytest.raises(BadInputError, match=message):
        convert_checkpoint(method, tmp_path / "model.pt", tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@pytest.mark.slow
def test_files_that_are_something_else_are_refused(reference: OpenAIClip, room: Path) -> None:
    released = {f"model.{name}": value for name, value in reference.released().items()}
    files: dict[str, object] = {
        "bare.pt": {"visual.conv1.weight": torch.zeros(1)},
        "list.pt": [1, 2],
        "empty.pt": {"model": {}},
        "partial.pt": {name: value for name, value in released.items() if "layer" not in name},
    }
    for name, content in files.items():
        torch.save(content, room / name)
    (room / "short.pt").write_bytes((room / "partial.pt").read_bytes()[:100_000])
    found = {
        "bare.pt": "1 tensors",
        "list.pt": "found list",
        "empty.pt": "0 tensors",
        "partial.pt": r"lacks image\.layer1",
        "short.pt": "100000 bytes",
        "absent.pt": "no such file",
    }
    for name, message in found.items():
        with pytest.raises(BadInputError, match=message) as caught:
            convert_checkpoint("actol", room / name, room / "ours")
        assert name in caught.value.where
    assert not (room / "ours").exists()


class PremierTACOEncoder(nn.Module):
    """Listing 1 of the paper, written from it."""

    def __init__(self, channels: int, embed_dim: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(channels, 32, 3, stride=2), nn.ReLU()]
        for _ in range(3):
            layers += [nn.Conv2d(32, 32, 3, stride=1), nn.ReLU()]
        self.convnet = nn.Sequential(*layers)
        self.trunk = nn.Sequential(nn.Linear(32 * 35 * 35, embed_dim), nn.LayerNorm(embed_dim), nn.Tanh())

    def forward(self, images: Tensor) -> Tensor:
        embedded: Tensor = self.trunk(self.convnet(images / 255.0 - 0.5).flatten(1))
        return embedded


def test_premier_tacos_encoder_embeds_as_the_authors_network_does(tmp_path: Path) -> None:
    torch.manual_seed(0)
    authors = PremierTACOEncoder(9, 50).eval()
    torch.save(authors.state_dict(), tmp_path / "encoder.pt")
    encoder = ObservationEncoder.from_pretrained(convert_checkpoint("premier_taco", tmp_path / "encoder.pt", tmp_path))
    authors, encoder = authors.double(), encoder.double()  # sums of 39,200 products round in single precision
    assert (encoder.config.stack, encoder.config.size, encoder.embed_dim) == (3, 84, 50)
    frames = torch.randint(0, 256, (2, 3, 84, 84, 3), dtype=torch.uint8)
    stacked = torch.cat([*frames.double().permute(1, 0, 4, 2, 3)], 1)  # channels of the oldest frame first
    with torch.no_grad():
        embedded = authors(stacked)
        assert (embedded[0] - embedded[1]).abs().mean() > 1e-2
        torch.testing.assert_close(encoder(frames), embedded, rtol=0, atol=1e-6)
    assert "Few-Shot Policy Learner" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(
    ("drop", "message"), [("convnet.", "trunk.0.bias"), ("trunk.1.bias", "lacks"), ("", "other shapes")]
)
def test_other_files_than_premier_tacos_are_refused(drop: str, message: str, tmp_path: Path) -> None:
    weights = PremierTACOEncoder(9, 50).state_dict()
    kept = {name: value for name, value in weights.items() if not (drop and name.startswith(drop))}
    if not drop:
        kept["trunk.0.weight"] = torch.zeros(50, 10)
    torch.save(kept, tmp_path / "encoder.pt")
    with pytest.raises(BadInputError, match=message):
        convert_checkpoint("premier_taco", tmp_path / "encoder.pt", tmp_path / "ours")
    assert not (tmp_path / "ours").exists()
