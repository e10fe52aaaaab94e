from __future__ import annotations

import pytest
import torch
from torch import nn

from counterpoint.errors import BadInputError
from counterpoint.objectives.premier_taco import ActionEncoder, FutureHeads
from counterpoint.objectives.steps import check_actions, frozen_copy, soft_update, two_layer


def test_two_layers() -> None:
    layers, x = two_layer(2, 3, 4), torch.randn(5, 2)
    first, last = layers[0], layers[2]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    hidden = (x @ first.weight.T + first.bias).clamp(min=0)
    torch.testing.assert_close(layers(x), hidden @ last.weight.T + last.bias)


def test_actions_are_embedded_one_by_one() -> None:
    encoder, actions = ActionEncoder(3), torch.randn(4, 5, 3)
    assert encoder(actions).shape == (4, 5, 3)
    torch.testing.assert_close(encoder(actions)[:, 2:3], encoder(actions[:, 2:3]))
    heads = FutureHeads("paper", 6, 3, 5, hidden=8)
    torch.testing.assert_close(heads.psi(actions)[:, 3:6], heads.psi(actions[:, 1:2]))


@pytest.mark.parametrize("kind", ["paper", "released"])
def test_released_heads_see_the_anchor_projected(kind: str) -> None:
    heads = FutureHeads("released" if kind == "released" else "paper", 6, 3, 2, hidden=8)
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
