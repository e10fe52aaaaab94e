from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from counterpoint.errors import BadInputError
from counterpoint.rewards.embedding import check_frames, check_instructions, embed_frames, embed_text


class Watched(nn.Module):
    """Notes how it is called."""

    embed_dim = 4

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5))
        self.batches: list[int] = []

    def encode_image(self, frames: Tensor) -> Tensor:
        assert not self.training
        assert not torch.is_grad_enabled()
        self.batches.append(len(frames))
        pixels = frames.float() / 255 if frames.dtype == torch.uint8 else frames
        embeddings: Tensor = self.head(pixels.mean((1, 2)))
        return embeddings

    def encode_text(self, text: Sequence[str]) -> Tensor:
        embeddings: Tensor = self.head(torch.tensor([[float(len(t)), 1.0, 2.0] for t in text]))
        return embeddings


def frames(count: int = 5) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(0).integers(0, 256, (count, 6, 8, 3)).astype(np.uint8)


def test_frames_are_encoded_a_few_at_a_time_and_without_gradient() -> None:
    encoder = Watched().train()
    whole = embed_frames(encoder, frames(5), batch_size=5)
    parts = embed_frames(encoder, frames(5), batch_size=2)
    assert encoder.batches == [5, 2, 2, 1]
    np.testing.assert_allclose(whole, parts, atol=1e-6)


def test_every_submodule_gets_its_own_mode_back() -> None:
    encoder = Watched().train()
    encoder.head[1].eval()  # a frozen part of a model that trains
    embed_text(encoder, ["push"])
    assert encoder.training
    assert encoder.head[0].training
    assert not encoder.head[1].training


def test_modes_come_back_after_an_error() -> None:
    encoder = Watched().train()
    encoder.encode_text = None  # type: ignore[assignment, method-assign]
    with pytest.raises(TypeError):
        embed_text(encoder, ["push"])
    assert encoder.training


def test_uint8_and_unit_floats_are_the_same_frames() -> None:
    encoder = Watched()
    unit = (frames() / 255).astype(np.float64)
    np.testing.assert_allclose(embed_frames(encoder, frames()), embed_frames(encoder, unit), atol=1e-6)
    np.testing.assert_allclose(
        embed_frames(encoder, frames()), embed_frames(encoder, torch.from_numpy(frames())), atol=1e-6
    )


def test_colours_may_come_first() -> None:
    assert torch.equal(check_frames(frames().transpose(0, 3, 1, 2)), check_frames(frames()))


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (frames().astype(np.int32), "int32"),
        (frames() > 100, "bool"),
        (torch.from_numpy(frames()).long(), "int64"),
        (frames().astype(np.float32), "255"),
        (frames() / 255 - 1, "-1"),
        (np.full((2, 4, 4, 3), np.nan), "nan"),
        (frames()[0], "[6, 8, 3]"),
        (frames().transpose(0, 2, 3, 1), "[5, 8, 3, 6]"),
        (frames()[:0], "[0, 6, 8, 3]"),
        (frames()[..., :1], "[5, 6, 8, 1]"),
        (list(frames()), "np.stack"),
        (frames().astype(str), "ndarray"),
    ],
)
def test_frames_of_another_kind_are_refused(bad: Any, word: str) -> None:
    with pytest.raises(BadInputError, match="frames") as error:
        check_frames(bad)
    assert word in str(error.value)


@pytest.mark.parametrize("bad", ["", "  ", "\u200b", [], ["open", "\ufeff"], ["open", 3], 3, None, b"open", {"open"}])
def test_other_values_than_instructions_are_refused(bad: Any) -> None:
    with pytest.raises(BadInputError, match="instruction"):
        check_instructions(bad)


def test_one_instruction_becomes_a_list() -> None:
    assert check_instructions("open") == ["open"]
    assert check_instructions(("open", "close")) == ["open", "close"]
