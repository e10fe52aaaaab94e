from __future__ import annotations

import pytest
import torch

from counterpoint.data.statistics import Statistics
from counterpoint.encoders.dual import SentenceTower
from counterpoint.errors import BadInputError
from counterpoint.policies.heads import ActionHead, HeadConfig
from tests.encoders.weights import assert_orthogonal
from tests.policies.demos import spelled

D, A, P = 5, 3, 4


@pytest.fixture(autouse=True)
def _no_language_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SentenceTower, "embed", spelled)


def head(**settings: object) -> ActionHead:
    torch.manual_seed(0)
    made = ActionHead(D, A, P, HeadConfig(**{"hidden": 16, "token": 8, "layers": 2, "heads": 2, **settings}))
    return made.eval()


def inputs(H: int, B: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    valid = torch.ones(B, H, dtype=torch.bool)
    return torch.randn(B, H, D, generator=generator), valid, torch.randn(B, H, P, generator=generator)


@pytest.mark.parametrize("history", [1, 4])
def test_actions_lie_in_the_box(history: int) -> None:
    embedded, valid, _ = inputs(history)
    made = head(history=history)
    predicted = made(100 * embedded, valid)
    actions = made.normalizer.restore(predicted)
    assert actions.shape == (6, A)
    assert bool((actions.abs() <= 1).all())
    inside = predicted.abs() <= 1
    assert torch.equal(actions[inside], predicted[inside])


def test_the_policy_starts_with_the_authors_weights() -> None:
    torch.manual_seed(0)
    for layer in ActionHead(100, 4, 0, HeadConfig()).mlp[::2]:
        assert isinstance(layer, torch.nn.Linear)
        assert_orthogonal(layer.weight, 1.0)
        assert not bool(layer.bias.any())


def test_the_paper_size() -> None:
    made = ActionHead(100, 4, 0, HeadConfig())
    sizes = [tuple(p.shape) for p in made.parameters() if p.ndim == 2]
    assert sizes == [(1024, 100), (1024, 1024), (4, 1024)]
    assert ActionHead(100, 4, 0, HeadConfig(history=10)).mlp[0].weight.shape == (1024, 64)


@pytest.mark.parametrize("history", [1, 4])
def test_state_is_normalised(history: int) -> None:
    embedded, valid, state = inputs(history)
    plain, scaled = head(history=history, use_state=True), head(history=history, use_state=True)
    mean, deviation = (1.0, -2.0, 0.5, 7.0), (2.0, 3.0, 0.1, 0.0)
    scaled.state_normalizer.standardise_by(Statistics(mean=mean, deviation=deviation, low=mean, high=mean))
    spread = torch.tensor([2.0, 3.0, 0.1, 1.0])  # what stands still is centred and not blown up
    torch.testing.assert_close(
        scaled(embedded, valid, state * spread + torch.tensor(mean)), plain(embedded, valid, state)
    )


@pytest.mark.parametrize("history", [1, 4])
def test_state_is_read_only_when_asked_for(history: int) -> None:
    embedded, valid, state = inputs(history)
    blind, seeing = head(history=history), head(history=history, use_state=True)
    assert torch.equal(blind(embedded, valid, state), blind(embedded, valid, state + 1))
    assert not torch.equal(seeing(embedded, valid, state), seeing(embedded, valid, state + 1))


@pytest.mark.parametrize("history", [1, 4])
def test_instructions_are_told_apart(history: int) -> None:
    embedded, valid, _ = inputs(history)
    made = head(history=history, language=True)
    open_, close = (made(embedded, valid, None, [text] * 6) for text in ("open it", "close it"))
    mixed = made(embedded, valid, None, ["open it", "close it"] * 3)
    assert not torch.allclose(open_, close)
    torch.testing.assert_close(mixed[::2], open_[::2])
    torch.testing.assert_close(mixed[1::2], close[1::2])


def test_state_without_state_is_refused() -> None:
    with pytest.raises(BadInputError, match="no proprioception"):
        ActionHead(D, A, 0, HeadConfig(use_state=True))
