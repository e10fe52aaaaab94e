from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from counterpoint.encoders.observation import FilmResNet18, SpatialSoftmax
from counterpoint.encoders.towers import ResNet18
from counterpoint.errors import BadInputError, MissingExtraError

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
    with pytest.raises(MissingExtraError, match=r"counterpoint\[text\]"):
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
