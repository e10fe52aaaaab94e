from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import pytest
import torch
from torch import nn

from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.errors import BadInputError
from counterpoint.objectives.action_prediction import (
    InverseDynamics,
    InverseDynamicsConfig,
    MultitaskCloning,
    MultitaskCloningConfig,
)
from counterpoint.objectives.atc import ATC, ATCConfig
from counterpoint.objectives.base import frozen_copy, soft_update
from counterpoint.objectives.curl import CURL, CURLConfig
from counterpoint.objectives.premier_taco import FutureConfig, FutureHeads, PremierTACO, PremierTACOConfig
from counterpoint.objectives.spr import SPR, SPRConfig
from counterpoint.objectives.steps import StepObjective, TargetObjective, check_actions, perceptron
from counterpoint.objectives.taco import TACO, TACOConfig
from counterpoint.objectives.td3_bc_pretraining import TD3BCPretraining, TD3BCPretrainingConfig
from tests.encoders.weights import assert_orthogonal
from tests.objectives.steps import small_encoder, step_batch


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


def curl(ema: float = 0.05) -> CURL:
    return CURL(small_encoder(size=24), config=CURLConfig(shift=2, ema=ema))


def atc(ema: float = 0.01) -> ATC:
    config = ATCConfig(shift=2, compressed=16, hidden=32, ema=ema)
    return ATC(small_encoder(size=24), config=config)


def spr(ema: float = 0.01) -> SPR:
    return SPR(small_encoder(size=24), 3, SPRConfig(shift=2, hidden=32, projected=16, ema=ema))


@pytest.mark.parametrize(
    "make",
    [
        lambda e: PremierTACO(e, 3, PremierTACOConfig(hidden=32)),
        lambda e: PremierTACO(e, 3, PremierTACOConfig(hidden=32, heads="released")),
        lambda e: TACO(e, 3, TACOConfig(hidden=32, rewards=True)),
        lambda e: InverseDynamics(e, 3, InverseDynamicsConfig(hidden=32)),
        lambda e: MultitaskCloning(e, 3, MultitaskCloningConfig(hidden=32)),
        lambda e: CURL(e),
        lambda e: ATC(e, config=ATCConfig(compressed=16, hidden=32)),
        lambda e: SPR(e, 3, SPRConfig(hidden=32, projected=16)),
        lambda e: TD3BCPretraining(e, 3, TD3BCPretrainingConfig(hidden=32)),
    ],
)
def test_all_layers_start_with_the_authors_weights(make: Callable[[ObservationEncoder], StepObjective]) -> None:
    objective = make(small_encoder(size=24))
    layers = [module for module in objective.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    assert len(layers) > 5
    for layer in layers:
        assert_orthogonal(layer.weight, math.sqrt(2) if isinstance(layer, nn.Conv2d) else 1.0)
        assert layer.bias is None or not bool(layer.bias.any())
    for name, value in objective.state_dict().items():  # targets start as copies of what they follow
        if name.startswith("target_"):
            assert torch.equal(value, objective.state_dict()[name.removeprefix("target_")])
        if name.startswith("target.0."):
            assert torch.equal(value, objective.encoder.state_dict()[name.removeprefix("target.0.")])


BEHIND = pytest.mark.parametrize(("make", "behind"), [(curl, []), (atc, ["compress"]), (spr, ["project"])])


@BEHIND
def test_targets_follow_the_encoder_and_the_map_behind_it(
    make: Callable[[float], TargetObjective], behind: list[str]
) -> None:
    objective = make(0.25)
    old = [p.clone() for p in objective.target.parameters()]
    online = [p for name in ("encoder", *behind) for p in objective.get_submodule(name).parameters()]
    with torch.no_grad():
        for parameter in online:
            parameter.add_(1)
    objective.encoder.mean_image.fill_(0.25)
    objective.after_step()
    for value, before, now in zip(objective.target.parameters(), old, online, strict=True):
        torch.testing.assert_close(value, 0.75 * before + 0.25 * now)
    assert torch.equal(objective.target.get_buffer("0.mean_image"), objective.encoder.mean_image)


@BEHIND
def test_targets_are_kept_but_not_trained(make: Callable[[], TargetObjective], behind: list[str]) -> None:
    objective = make()
    batch = step_batch(objective.sampling(), size=24)
    assert not objective.encode(batch).rows["future"].requires_grad
    torch.autograd.backward([objective(batch).loss])
    online = {id(p) for name, p in objective.named_parameters() if not name.startswith("target.")}
    assert {id(p) for group in objective.param_groups().values() for p in group} == online
    assert all((p.grad is None) == name.startswith("target.") for name, p in objective.named_parameters())
    assert any(name.startswith("target.") for name in objective.state_dict())
    assert list(objective.exports()) == ["encoder"]
