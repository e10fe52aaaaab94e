"""Stores of features: computed once, continued, keyed by the backbone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from counterpoint.data.augment import Jitter, ResizedCrop, Transform
from counterpoint.data.sampler import Sampler
from counterpoint.encoders import DualEncoder, EncoderConfig
from counterpoint.encoders.features import features_of
from counterpoint.objectives.decisionnce import DecisionNCET
from counterpoint.progress import ProgressBar
from tests.formats.made import memory_store

pytest.importorskip("timm", reason="needs the extra `vision`")

CONFIG = EncoderConfig(image="timm", image_model="test_resnet", freeze_image=True, image_size=64, embed_dim=8)
CHANGES: dict[str, Transform] = {"frames.crop": ResizedCrop((0.5, 0.9)), "frames.jitter": Jitter(0.3)}


@pytest.fixture(scope="module")
def encoder() -> DualEncoder:
    torch.manual_seed(0)
    return DualEncoder(CONFIG).eval()


def test_every_frame_has_its_features(encoder: DualEncoder, tmp_path: Path) -> None:
    source = memory_store()
    store = features_of(encoder, source, root=tmp_path)
    assert store.episodes == source.episodes
    for episode, info in enumerate(source.episodes):
        frames = source.frames(episode, np.arange(info.length))
        found = store.features(episode)
        assert found is not None
        expected = encoder.features(torch.from_numpy(frames)).numpy()
        np.testing.assert_allclose(found[:, 0], expected, atol=1e-5)
    assert store.column("features").shape[0] == source.lengths.sum()


def test_a_second_call_computes_nothing(encoder: DualEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = features_of(encoder, memory_store(), root=tmp_path)
    monkeypatch.setattr(DualEncoder, "features", None)
    assert features_of(encoder, memory_store(), root=tmp_path).fingerprint == first.fingerprint


def test_another_backbone_has_another_store(encoder: DualEncoder, tmp_path: Path) -> None:
    first = features_of(encoder, memory_store(), root=tmp_path)
    other = DualEncoder(CONFIG.model_copy(update={"fit": "stretch"}))
    other.load_state_dict(encoder.state_dict())
    assert features_of(other, memory_store(), root=tmp_path).fingerprint != first.fingerprint


def test_an_interrupted_call_continues(encoder: DualEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, seen, counted_from = memory_store(), [], []
    real = DualEncoder.features

    def bar(*given: Any, done: int = 0) -> ProgressBar:
        counted_from.append(done)
        return ProgressBar(*given, done=done)

    def stops(self: DualEncoder, frames: Tensor) -> Tensor:
        seen.append(len(frames))
        if len(seen) == 3:
            raise KeyboardInterrupt
        return real(self, frames)

    monkeypatch.setattr(DualEncoder, "features", stops)
    monkeypatch.setattr("counterpoint.data.cache.ProgressBar", bar)
    with pytest.raises(KeyboardInterrupt):
        features_of(encoder, source, root=tmp_path)
    assert not any((path / "store.json").exists() for path in tmp_path.iterdir())
    store = features_of(encoder, source, root=tmp_path)
    assert sum(seen) == source.lengths.sum() + seen[2]  # the interrupted episode alone was computed twice
    assert counted_from == [0, seen[0] + seen[1]]  # the rate is that of what is computed now
    monkeypatch.undo()
    for number, info in enumerate(source.episodes):
        expected = encoder.features(torch.from_numpy(source.frames(number, np.arange(info.length)))).numpy()
        found = store.features(number)
        assert found is not None
        np.testing.assert_allclose(found[:, 0], expected, atol=1e-5)
    assert [path for path in tmp_path.iterdir() if path.suffix == ".parts"] == []


def test_augmented_rows_differ_from_the_plain_one(encoder: DualEncoder, tmp_path: Path) -> None:
    plain = features_of(encoder, memory_store(), root=tmp_path)
    store = features_of(encoder, memory_store(), rows=3, transforms=CHANGES, root=tmp_path)
    found, alone = store.features(0), plain.features(0)
    assert found is not None
    assert alone is not None
    assert found.shape == (len(alone), 3, alone.shape[2])
    assert np.array_equal(found[:, 0], alone[:, 0])
    assert not np.allclose(found[:, 1], found[:, 0], atol=1e-3)
    assert not np.allclose(found[:, 1], found[:, 2], atol=1e-3)
    again = features_of(encoder, memory_store(), rows=3, transforms=CHANGES, root=tmp_path / "again").features(0)
    assert again is not None
    assert np.array_equal(found, again)


def test_an_objective_trains_on_features_as_on_frames(encoder: DualEncoder, tmp_path: Path) -> None:
    source, objective = memory_store(), DecisionNCET(encoder)
    store = features_of(encoder, source, root=tmp_path)
    spec = objective.sampling()
    on_frames = Sampler(source, spec.bind(source), batch_size=4, seed=0)[3]
    on_features = Sampler(store, spec.on_features(1).bind(store), batch_size=4, seed=0)[3]
    assert torch.equal(on_frames["clip.indices"], on_features["clip.indices"])
    torch.testing.assert_close(objective(on_frames).loss, objective(on_features).loss, atol=1e-4, rtol=1e-4)


def test_a_sample_has_one_row_of_all_its_frames(encoder: DualEncoder, tmp_path: Path) -> None:
    objective = DecisionNCET(encoder)
    store = features_of(encoder, memory_store(), rows=3, transforms=CHANGES, root=tmp_path)
    batch = Sampler(store, objective.sampling().on_features(3).bind(store), batch_size=8, seed=0)[0]
    rows = batch["features.row"]
    assert set(rows.tolist()) == {0, 1, 2}
    picked = torch.stack([features[:, row] for features, row in zip(batch["features"], rows, strict=True)])
    torch.testing.assert_close(objective.embed(batch), encoder.embed_features(picked))
