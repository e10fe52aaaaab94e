"""What is told of instructions before long work begins: distances, those that are one, and unknown pieces."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from counterpoint.encoders import DualEncoder, EncoderConfig
from counterpoint.rewards import instructions
from counterpoint.rewards.instructions import instructions_in_words

RED, BLUE = "open \N{LARGE RED SQUARE}", "open \N{LARGE BLUE SQUARE}"


class Words:
    """An encoder that knows the 26 letters: tokens are letters, and an embedding counts them."""

    def __init__(self) -> None:
        self.text: Words | None = self

    def tokens(self, text: str) -> tuple[int | None, ...]:
        return tuple(ord(letter) if "a" <= letter <= "z" else None for letter in text.lower() if letter != " ")

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        return torch.tensor([[float(text.lower().count(chr(97 + n))) for n in range(26)] for text in texts])

    def encode_image(self, frames: Tensor) -> Tensor:
        raise NotImplementedError


def test_distances_between_instructions_are_told() -> None:
    found = "3 instructions: cosines of their embeddings 0.000 to 0.500, median 0.500"
    assert instructions_in_words(Words(), ["ab", "cd", "ac"]) == found
    assert instructions_in_words(Words(), ["ab", "ab"]) == instructions_in_words(Words(), []) == ""


def test_instructions_that_are_one_to_the_encoder_are_told() -> None:
    words = instructions_in_words(Words(), ["Lift", "lift", "stop", "post", "drop"])
    assert "One and the same to the text encoder: 'Lift' = 'lift' (equal tokens)" in words
    assert "'stop' = 'post' (equal embeddings)" in words
    assert "drop" not in words


def test_pieces_that_the_encoder_does_not_know_are_told_with_a_few_examples() -> None:
    assert instructions_in_words(Words(), [RED, BLUE, "open"]).splitlines()[1:] == [
        f"One and the same to the text encoder: {RED!r} = {BLUE!r} (equal tokens), {RED!r} = 'open' (equal embeddings)",
        f"With pieces that the text encoder does not know: {RED!r}, {BLUE!r}",
    ]
    many = [f"{chr(97 + n)}\u6253" for n in range(8)]
    assert instructions_in_words(Words(), many).endswith(" and 3 more")


def test_of_many_instructions_some_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructions, "_COMPARED", 2)
    assert instructions_in_words(Words(), ["a", "ab", "abc"]).startswith("3 instructions, 2 of them compared: ")


def test_an_encoder_that_tells_no_tokens_is_compared_by_its_embeddings() -> None:
    encoder = Words()
    encoder.text = None
    assert instructions_in_words(encoder, ["stop", "post"]).endswith("'stop' = 'post' (equal embeddings)")


@pytest.mark.slow
def test_the_default_sentence_encoder_has_one_token_for_all_emoji() -> None:
    encoder = DualEncoder(EncoderConfig(image_size=32, embed_dim=64)).eval()
    words = instructions_in_words(encoder, [RED, BLUE, "Sort it", "sort it", "sort it."])
    assert "'Sort it' = 'sort it' (equal tokens)" in words
    assert f"{RED!r} = {BLUE!r} (equal tokens)" in words
    assert "'sort it.'" not in words
    assert words.endswith(f"does not know: {RED!r}, {BLUE!r}")


@pytest.mark.slow
def test_clip_s_tokens_come_without_padding() -> None:
    pytest.importorskip("open_clip", reason="needs the extra `clip`")
    config = EncoderConfig(image="open_clip", image_model="ViT-S-32-alt", image_size=64, text="open_clip")
    encoder = DualEncoder(config)
    assert len(encoder.text.tokens("open it")) == 4  # type: ignore[operator]
    assert "'Open  it' = 'open it' (equal tokens)" in instructions_in_words(encoder, ["Open  it", "open it", "it"])


def test_placeholders_are_told_with_the_command_that_replaces_them() -> None:
    told = "Placeholders, which name no task: 'none', 'N/A'; to replace them: counterpoint data convert DATA OUT"
    assert f"{told} --instruction TEXT" in instructions_in_words(Words(), ["none", "open", "N/A", "none"]).splitlines()
    assert instructions_in_words(Words(), ["none"]).startswith("Placeholders")
    assert "Placeholders" not in instructions_in_words(Words(), ["open", "stop"])
