from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import nn

from counterpoint.errors import BadInputError
from counterpoint.objectives.premier_taco import FutureConfig, FutureHeads
from counterpoint.objectives.steps import check_actions, frozen_copy, perceptron, soft_update


@pytest.mark.parametrize("widths", [(2, 3, 4), (2, 3, 5, 4)])
def test_perceptron(widths: tuple[int, ...]) -> None:
    layers, x = perceptron(*widths), torch.randn(5, 2)
    *hidden, last = [layer for layer in layers if isinstance(layer, nn.Linear)]
    values = x
    for layer in hidden:
        values = (values @ layer.weight.T + layer.bias).clamp(min=0)
    torch.testing.assert_close(layers(x), values @ last.weight.T + last.bias)
    assert [layer.out_features for layer in (*hidden, last)] == list(widths[1:])


def test_actions_are_embedded_one_by_one() -> None:
    heads, actions = FutureHeads(6, 3, FutureConfig(steps=5, hidden=8)), torch.randn(4, 5, 3)
    assert heads.psi(actions).shape == (4, 15)
    torch.testing.assert_close(heads.psi(actions)[:, 3:6], heads.psi(actions.roll(-1, 1))[:, :3])


@pytest.mark.parametrize("kind", ["paper", "released"])
def test_released_heads_see_the_anchor_projected(kind: Literal["paper", "released"]) -> None:
    heads = FutureHeads(6, 3, FutureConfig(heads=kind, steps=2, hidden=8))
    z, actions = torch.randn(4, 6), torch.randn(4, 2, 3)
    joined = heads.join(z, actions)
    assert joined.shape == (4, 12)
    torch.testing.assert_close(joined[:, :6], heads.H(z) if kind == "released" else z)
    torch.testing.assert_close(heads.project(z, stop=True), heads.H(z))
    assert heads.project(z, stop=True).requires_grad == (kind == "paper")


@pytest.mark.parametrize("shape", [(4, 2, 2), (4, 3, 3), (4, 6)])
def test_action_shapes(shape: tuple[int, ...]) -> None:
    check_actions(torch.zeros(4, 2, 3), 2, 3)
    with pytest.raises(BadInputError, match=r"actions.*\[B, 2, 3\]"):
        check_actions(torch.zeros(shape), 2, 3)


def test_copies_follow() -> None:
    online = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    target = frozen_copy(online)
    assert not any(p.requires_grad for p in target.parameters())
    assert all(p.requires_grad for p in online.parameters())
    start = [p.clone() for p in target.parameters()]
    with torch.no_grad():
        for p in online.parameters():
            p.add_(2)
    online(torch.randn(8, 2))
    for _ in range(2):
        soft_update(target, online, 0.5)
    for now, old in zip(target.parameters(), start, strict=True):
        torch.testing.assert_close(now, old + 1.5)
    for copied, buffer in zip(target.buffers(), online.buffers(), strict=True):
        assert torch.equal(copied, buffer)
