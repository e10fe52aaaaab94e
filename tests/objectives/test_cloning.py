from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from counterpoint.data.anchors import Anchors
from counterpoint.data.spec import Spec
from counterpoint.encoders.dual import SentenceTower
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.errors import BadInputError
from counterpoint.objectives.base import Features
from counterpoint.objectives.cloning import FEATURES, Cloning, CloningConfig
from tests.marks import quick
from tests.objectives.steps import step_batch
from tests.policies.demos import spelled

SMALL = {"hidden": 32, "token": 8, "layers": 1, "heads": 2, "dropout": 0.0}
A, P = 3, 2


def encoder(seed: int = 0) -> ObservationEncoder:
    """A small ConvNet followed by what has running statistics."""
    torch.manual_seed(seed)
    made = ObservationEncoder(ObservationConfig(size=20, width=4, embed_dim=16))
    made.body = nn.Sequential(made.body, nn.BatchNorm1d(16))
    return made


def cloning(**settings: Any) -> Cloning:
    config = CloningConfig(**{**SMALL, **settings})
    return Cloning(encoder(), A, P, config)


def batch(objective: Cloning, **settings: Any) -> dict[str, Any]:
    return step_batch(objective.sampling(), size=20, action_dim=A, **settings)


def train(objective: Cloning, steps: int = 5, lr: float = 3e-3) -> list[float]:
    optimizer = torch.optim.Adam(objective.param_groups()["model"], lr=lr)
    given, losses = batch(objective, batch=16), []
    for _ in range(steps):
        objective.train()
        optimizer.zero_grad()
        output = objective(given)
        torch.autograd.backward([output.loss])
        optimizer.step()
        losses.append(float(output.loss.detach()))
    return losses


def state(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


@pytest.mark.parametrize("history", [1, 3])
def test_fine_tuning_moves_every_tensor_of_the_encoder(history: int) -> None:
    objective = cloning(history=history)
    before = {name: value.clone() for name, value in objective.named_parameters()}
    losses = train(objective, steps=30)
    assert losses[-1] < 0.7 * losses[0]
    still = [name for name, value in objective.named_parameters() if torch.equal(value, before[name])]
    assert not still


@pytest.mark.parametrize("history", quick([3], [1, 3]))
@pytest.mark.parametrize("shift", [0, 4])
def test_a_frozen_encoder_stays_bit_for_bit(history: int, shift: int) -> None:
    objective = cloning(freeze=True, history=history, shift=shift)
    before, head = state(objective.encoder), state(objective.head.mlp)
    losses = train(objective, steps=60)
    assert losses[-1] < 0.98 * losses[0]
    after = state(objective.encoder)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert "body.1.running_mean" in before
    assert not any(torch.equal(value, head[name]) for name, value in objective.head.mlp.state_dict().items())
    assert all(p.grad is None for p in objective.encoder.parameters())
    assert objective.head.training
    assert not any(module.training for module in objective.encoder.modules())


def test_random_shift_only_where_the_encoder_trains() -> None:
    assert CloningConfig().shift == 4
    assert CloningConfig(freeze=True).shift == 0
    assert CloningConfig(freeze=True, shift=4).shift == 4
    for config in (CloningConfig(freeze=True, shift=2), CloningConfig(freeze=True)):
        assert CloningConfig(**config.model_dump()) == config


def test_what_a_sample_holds() -> None:
    spec = cloning(history=10, use_state=True).sampling()
    assert spec == Spec.steps(tuple(range(-9, 1)), 1, stack=3, shift=4, state=True)
    assert isinstance(spec.index, Anchors)
    assert spec.index.reach == 0  # every step of an episode can be an anchor
    assert cloning().sampling() == Spec.steps((0,), 1, stack=3, shift=4)


def test_plain_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    predicted, actions = torch.randn(2, 4, 3, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1]], dtype=torch.bool)
    own = [(b, a) for b in range(4) for a in range(3) if mask[b, a]]
    columns = [[actions[b, a] for b in range(4) if mask[b, a]] for a in range(3)]
    means = [torch.stack(column).mean() for column in columns]
    given = {"actions": actions[:, None], "action_mask": mask}
    found = cloning().loss(Features({"predicted": predicted}), given)
    squared = torch.stack([(predicted[place] - actions[place]) ** 2 for place in own])
    torch.testing.assert_close(found.loss, squared.mean())
    error = torch.stack([(predicted[place] - actions[place]).abs() for place in own])
    torch.testing.assert_close(found.metrics["action_error"], error.mean())
    constant = torch.stack([(means[place[1]] - actions[place]).abs() for place in own])
    torch.testing.assert_close(found.metrics["action_error_constant"], constant.mean())


def test_masked_dimensions_are_ignored() -> None:
    objective = cloning().eval()
    given = batch(objective)
    given["action_mask"][:, 2] = False
    other = {**given, "actions": given["actions"].clone()}
    other["actions"][..., 2] = 100
    found, again = objective(given), objective(other)
    assert torch.equal(found.loss, again.loss)
    assert found.metrics == again.metrics
    torch.autograd.backward([found.loss])
    last = objective.head.mlp[-1]
    assert isinstance(last, nn.Linear)
    assert last.weight.grad is not None
    assert not last.weight.grad[2].any()
    assert bool(last.weight.grad[:2].any())


def test_metrics_beside_a_constant() -> None:
    objective = cloning().eval()
    given = batch(objective, batch=32)
    actions = given["actions"][:, 0]
    metrics = objective(given).metrics
    torch.testing.assert_close(metrics["action_error_constant"], (actions - actions.mean(0)).abs().mean())
    predicted = objective.encode(given).rows["predicted"]
    torch.testing.assert_close(metrics["action_error"], (actions - predicted).abs().mean())


def test_only_the_newest_action_counts_and_the_padding_does_not() -> None:
    objective = cloning(history=3).eval()
    given = batch(objective)
    given["frames_valid"][:, 0] = False
    other = {**given, "frames": given["frames"].clone()}
    other["frames"][:, 0] = 0
    torch.testing.assert_close(objective(given).loss, objective(other).loss)
    other["frames"][:, 1] = 0
    assert not torch.allclose(objective(given).loss, objective(other).loss)


def test_features_stand_in_for_frames() -> None:
    objective = cloning(freeze=True, history=3).eval()
    given = batch(objective)
    features = {name: value for name, value in given.items() if name != "frames"}
    features[FEATURES] = objective.embed(given["frames"], given)
    torch.testing.assert_close(objective(features).loss, objective(given).loss)


@pytest.mark.parametrize("freeze", [False, True])
def test_the_instruction_reaches_an_encoder_that_takes_one(freeze: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SentenceTower, "embed", spelled)
    torch.manual_seed(0)
    film = ObservationEncoder(ObservationConfig(kind="resnet18_film", size=32, stack=1, embed_dim=8))
    modulation = [p for name, p in film.named_parameters() if "film" in name.lower()]
    with torch.no_grad():
        for parameter in modulation:
            parameter.normal_(std=0.1)
    config = CloningConfig(freeze=freeze, history=2, **SMALL)
    objective = Cloning(film, A, 0, config).eval()
    given = step_batch(objective.sampling(), batch=2, size=32, action_dim=A)
    said = objective.encode(given).rows["predicted"]
    swapped = objective.encode({**given, "instruction": given["instruction"][::-1]}).rows["predicted"]
    assert not torch.allclose(said, swapped, atol=1e-6)


def test_a_camera_each_has_its_token() -> None:
    torch.manual_seed(0)
    pair = ObservationEncoder(ObservationConfig(size=20, width=4, embed_dim=8, cameras=2, stack=1))
    objective = Cloning(pair, A, 0, CloningConfig(history=2, **SMALL)).eval()
    frames = torch.randint(0, 256, (3, 2, 2, 20, 20, 3), dtype=torch.uint8)
    other = frames.clone()
    other[:, :, 1] = 0
    valid = torch.ones(3, 2, dtype=torch.bool)
    first, second = (
        objective.encode({"frames": seen, "frames_valid": valid}).rows["predicted"] for seen in (frames, other)
    )
    assert len(objective.head.camera_tokens) == 2
    assert not torch.allclose(first, second)


def test_missing_actions() -> None:
    objective = cloning()
    given = batch(objective)
    del given["actions"]
    with pytest.raises(BadInputError, match="found no actions"):
        objective(given)


def test_exports_the_policy_and_shares_its_parameters() -> None:
    objective = cloning()
    policy = objective.exports()["policy"]
    own = {id(p) for p in objective.parameters()}
    assert {id(p) for p in policy.parameters()} == own
