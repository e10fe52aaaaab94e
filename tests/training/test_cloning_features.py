from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from counterpoint.data.anchors import NearNegatives
from counterpoint.data.sampler import Sampler
from counterpoint.data.spec import Spec
from counterpoint.data.store import EpisodeStore
from counterpoint.data.store_views import MultiTaskStore
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.errors import BadInputError
from counterpoint.objectives.cloning import FEATURES, Cloning, CloningConfig
from counterpoint.training.cloning import embed_store, embedded
from tests.data.sampling import sampler
from tests.policies.demos import demonstrations


def encoder() -> ObservationEncoder:
    torch.manual_seed(0)
    return ObservationEncoder(ObservationConfig(size=24, width=4, embed_dim=16))


def two_domains() -> EpisodeStore:
    return MultiTaskStore([demonstrations(2), demonstrations(3, action_dim=4, length=7, seed=1)], ["a", "b"])


def objective(**settings: Any) -> Cloning:
    torch.manual_seed(1)
    small = {"hidden": 16, "token": 8, "layers": 1, "heads": 2, "freeze": True, "dropout": 0.0}
    return Cloning(encoder(), 4, 3, CloningConfig(**{**small, **settings}))


def of_features(model: Cloning, store: EpisodeStore, **settings: Any) -> Sampler:
    with_features, spec = embedded(model.encoder, store, model.sampling())
    return sampler(with_features, spec, **settings)


@pytest.mark.parametrize("history", [1, 4])
def test_the_same_batches_as_the_loader(history: int) -> None:
    store, model = two_domains(), objective(history=history, use_state=True).eval()
    spec = model.sampling()
    loader = sampler(store, spec, batch_size=16, seed=3)
    source = of_features(model, store, batch_size=16, seed=3)
    assert source.epoch_size == loader.epoch_size
    for pixels, features in zip(loader.batches(2, 5), source.batches(2, 5), strict=True):
        assert set(features) == set(pixels) - {"frames"} | {FEATURES}
        for name in features.keys() & pixels.keys():
            same = features[name] == pixels[name]
            assert same if isinstance(same, bool) else bool(same.all()), name
        torch.testing.assert_close(features[FEATURES], model.embed(pixels["frames"], pixels))


@pytest.mark.parametrize("history", [1, 3])
def test_the_same_losses_as_through_the_encoder(history: int) -> None:
    store = two_domains()
    losses: list[list[float]] = []
    for through_encoder in (True, False):
        model = objective(history=history)
        source = (
            sampler(store, model.sampling(), batch_size=16, seed=0)
            if through_encoder
            else of_features(model, store, batch_size=16, seed=0)
        )
        optimizer = torch.optim.Adam(model.param_groups()["model"], lr=1e-2)
        losses.append([])
        for batch in source.batches(0, 25):
            model.train()
            optimizer.zero_grad()
            loss = model(batch).loss
            torch.autograd.backward([loss])
            optimizer.step()
            losses[-1].append(float(loss.detach()))
    assert losses[0][-1] < losses[0][0]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


def test_brightness_changes_what_the_encoder_sees_and_nothing_else() -> None:
    store = demonstrations(2)
    plain, bright = objective().eval(), objective(brightness=0.5).eval()
    given = next(iter(sampler(store, bright.sampling(), batch_size=16, seed=0).batches(0, 1)))
    factors = given["jitter"][..., 0]
    assert factors.shape == (16, 1)
    assert 0.5 <= float(factors.min()) < 0.8 < 1.2 < float(factors.max()) <= 1.5
    seen = (given["frames"].numpy() * factors.numpy()[..., None, None, None, None]).clip(0, 255).round()
    expected = bright.head(bright.embed(torch.from_numpy(seen.astype(np.uint8)), given), given["frames_valid"])
    torch.testing.assert_close(bright.encode(given).rows["predicted"], expected)
    assert not torch.equal(plain.encode(given | {"jitter": None}).rows["predicted"], expected)
    with pytest.raises(BadInputError, match="embedded once"):
        embedded(bright.encoder, store, bright.sampling())


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = embed_store(encoder(), two_domains())
    monkeypatch.setattr("counterpoint.training.cloning.CHUNK", 5)
    torch.testing.assert_close(embed_store(encoder(), two_domains()), whole)
    assert whole.shape == (2 * 12 + 3 * 7, 16)


@pytest.mark.parametrize(
    "spec", [Spec.steps(offsets=(0,), actions=1, shift=4), Spec.steps((0, 3), 3, near=NearNegatives())]
)
def test_only_observations_as_they_are(spec: Spec) -> None:
    with pytest.raises(BadInputError, match="embedded once"):
        embedded(encoder(), demonstrations(), spec)
