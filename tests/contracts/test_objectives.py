"""Tests of every objective: the properties that trainer, checkpoint and process group rely on."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from counterpoint.config import FrozenConfig
from counterpoint.data.draws import Clips
from counterpoint.data.episode import Episode
from counterpoint.data.store import MemoryStore
from counterpoint.errors import BadInputError
from counterpoint.objectives import ClipObjective, objective_class, objective_names
from counterpoint.objectives.base import LossOutput, Objective
from counterpoint.training.distributed import gather_batch
from tests.conftest import moving_square_store
from tests.contracts.tiny import TinyEncoder
from tests.data.sampling import sampler

B = 6
NAMES = sorted(objective_names(ClipObjective))
INFONCE_METRICS = {"categorical_accuracy", "logits_pos", "logits_neg"}
NOT_INFONCE = {"vip"}


def _objective(name: str, seed: int = 0) -> Objective:
    kind: Any = objective_class(name, ClipObjective)
    torch.manual_seed(seed)
    objective: Objective = kind(TinyEncoder(seed=seed), kind.config_type())
    return objective


def _batch(objective: Objective, store: MemoryStore | None = None, step: int = 0) -> dict[str, Any]:
    loader = sampler(store or moving_square_store(), objective.sampling(), batch_size=B, seed=0)
    return loader[step]


def _gradients(objective: Objective, loss: Tensor) -> dict[str, Tensor | None]:
    named = {name: p for name, p in objective.named_parameters() if p.requires_grad}
    grads = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return dict(zip(named, grads, strict=True))


pytestmark = pytest.mark.parametrize("name", NAMES)


def test_the_spec_is_plain_data_and_the_loader_serves_it(name: str) -> None:
    objective = _objective(name)
    spec = objective.sampling()
    assert spec == _objective(name).sampling()
    assert pickle.loads(pickle.dumps(spec)) == spec
    batch = _batch(objective)
    assert isinstance(spec.index, Clips)
    for key in spec.reads:
        assert batch[key].shape[:2] == (B, spec.index.pick.count)


def test_forward_is_the_loss_of_what_encode_returns(name: str) -> None:
    objective = _objective(name)
    batch = _batch(objective)
    output = objective(batch)
    apart = objective.loss(objective.encode(batch), batch)
    assert isinstance(output, LossOutput)
    torch.testing.assert_close(output.loss, apart.loss)
    assert output.metrics.keys() == apart.metrics.keys()


def test_features_are_rows_of_the_batch(name: str) -> None:
    objective = _objective(name)
    features = objective.encode(_batch(objective))
    assert features.rows
    assert all(len(value) == B for value in features.rows.values())


def test_the_loss_is_a_finite_scalar_and_metrics_are_detached(name: str) -> None:
    objective = _objective(name)
    output = objective(_batch(objective))
    assert output.loss.shape == ()
    assert output.loss.requires_grad
    assert torch.isfinite(output.loss)
    for value in output.metrics.values():
        assert value.shape == ()
        assert not value.requires_grad
        assert torch.isfinite(value)


def test_infonce_objectives_log_the_same_three(name: str) -> None:
    objective = _objective(name)
    metrics = objective(_batch(objective)).metrics
    assert (name in NOT_INFONCE) != (metrics.keys() >= INFONCE_METRICS)
    if name not in NOT_INFONCE:
        assert 0 <= metrics["categorical_accuracy"] <= 1


def test_the_batch_is_not_mutated(name: str) -> None:
    objective = _objective(name)
    batch = _batch(objective)
    before = copy.deepcopy(batch)
    objective(batch)
    assert batch.keys() == before.keys()
    for key, value in before.items():
        assert torch.equal(batch[key], value) if isinstance(value, Tensor) else batch[key] == value


def test_a_gradient_reaches_every_trainable_parameter(name: str) -> None:
    objective = _objective(name)
    groups = objective.param_groups()
    trainable = {id(p) for p in objective.parameters() if p.requires_grad}
    grouped = [id(p) for group in groups.values() for p in group]
    assert sorted(grouped) == sorted(trainable)
    gradients = _gradients(objective, objective(_batch(objective)).loss)
    # One without a gradient would stop DistributedDataParallel at the next step.
    assert [key for key, grad in gradients.items() if grad is None] == []
    by_id = {id(p): gradients[key] for key, p in objective.named_parameters() if p.requires_grad}
    for group in groups.values():
        assert any(grad is not None and bool(grad.abs().sum() > 0) for grad in (by_id[id(p)] for p in group))


def test_training_lowers_the_loss_on_a_fixed_batch(name: str) -> None:
    objective = _objective(name)
    batch = _batch(objective)
    start = {key: value.clone() for key, value in objective.state_dict().items()}
    optimizer = torch.optim.Adam([p for group in objective.param_groups().values() for p in group], lr=3e-3)
    losses = []
    for _ in range(20):
        loss = objective(batch).loss
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        for p, grad in zip(
            (p for p in objective.parameters() if p.requires_grad), _gradients(objective, loss).values(), strict=True
        ):
            p.grad = grad
        optimizer.step()
        objective.after_step()
    assert losses[-1] < losses[0]
    moved = [key for key, value in objective.state_dict().items() if not torch.equal(value, start[key])]
    assert any(key.startswith("encoder.image") for key in moved)


def test_the_same_seed_gives_the_same_loss_and_another_batch_another(name: str) -> None:
    first, second = _objective(name), _objective(name)
    assert torch.equal(first(_batch(first)).loss, second(_batch(second)).loss)
    assert not torch.equal(first(_batch(first)).loss, first(_batch(first, step=1)).loss)


def test_the_order_of_samples_does_not_matter(name: str) -> None:
    objective = _objective(name)
    batch = _batch(objective)
    order = torch.randperm(B, generator=torch.Generator().manual_seed(1))
    moved = {
        key: value[order] if isinstance(value, Tensor) else [value[i] for i in order.tolist()]
        for key, value in batch.items()
    }
    torch.testing.assert_close(objective(moved).loss, objective(batch).loss)


def test_the_loss_reads_only_what_is_gathered_across_processes(name: str) -> None:
    objective = _objective(name)
    batch = _batch(objective)
    features = objective.encode(batch)
    gathered = gather_batch(batch)
    assert "frames" not in gathered
    torch.testing.assert_close(objective.loss(features, gathered).loss, objective(batch).loss)


def test_still_videos_give_finite_gradients(name: str) -> None:
    objective = _objective(name)
    batch = _batch(objective)
    batch["frames"] = torch.zeros_like(batch["frames"])
    output = objective(batch)
    assert torch.isfinite(output.loss)
    for grad in _gradients(objective, output.loss).values():
        assert grad is not None
        assert torch.isfinite(grad).all()


def test_the_shortest_episodes_it_accepts_work_and_shorter_ones_are_refused(name: str) -> None:
    objective = _objective(name)
    index = objective.sampling().index
    assert isinstance(index, Clips)
    least = index.pick.min_length
    assert torch.isfinite(objective(_batch(objective, _store(least))).loss)
    if least > 1:
        with pytest.raises(BadInputError):
            _batch(objective, _store(least - 1))


def _store(length: int) -> MemoryStore:
    rng = np.random.default_rng(0)
    return MemoryStore(
        [
            Episode(
                frames={"front": rng.integers(0, 256, (length, 8, 8, 3)).astype(np.uint8)},
                instruction=f"task {number % 3}",
                timestamps=np.arange(length) / 10,
            )
            for number in range(B)
        ]
    )


def test_half_precision_autocast_stays_finite(name: str) -> None:
    objective = _objective(name)
    batch = _batch(objective)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = objective(batch)
    assert output.loss.dtype == torch.float32
    assert torch.isfinite(output.loss)
    assert all(grad is not None for grad in _gradients(objective, output.loss).values())


def test_exports_hold_the_encoder_and_share_its_weights(name: str) -> None:
    objective = _objective(name)
    exports = objective.exports()
    assert isinstance(exports["encoder"], TinyEncoder)
    own = {id(p) for p in objective.parameters()}
    for module in exports.values():
        assert isinstance(module, nn.Module)
        assert {id(p) for p in module.parameters()} <= own


def test_the_state_carries_the_loss(name: str) -> None:
    objective, other = _objective(name), _objective(name, seed=1)
    batch = _batch(objective)
    assert not torch.equal(other(batch).loss, objective(batch).loss)
    other.load_state_dict(objective.state_dict())
    assert torch.equal(other(batch).loss, objective(batch).loss)


def test_the_configuration_is_frozen_and_knows_its_keys(name: str) -> None:
    kind = objective_class(name, ClipObjective).config_type
    assert issubclass(kind, FrozenConfig)
    with pytest.raises(ValueError, match="temperatur"):
        kind.model_validate({"temperatur": 1})
    config = kind()
    with pytest.raises(ValueError, match="frozen"):
        config.augment = True  # type: ignore[misc]
