"""All chance inside a step is a function of (seed, step, name): another seed changes every draw, the same seed none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from counterpoint.agents import AGENTS, make_agent
from counterpoint.data.draws import Clips, sample_seed
from counterpoint.data.episode import Spaces
from counterpoint.data.spec import Spec
from counterpoint.data.store import MemoryStore
from counterpoint.objectives import ClipObjective, StepObjective, objective_class, objective_names
from counterpoint.objectives.base import Objective
from counterpoint.objectives.icon import IConConfig
from counterpoint.training.imitation import build_imitation
from tests.conftest import moving_square_store
from tests.contracts.tiny import TinyEncoder
from tests.data.sampling import sampler
from tests.policies.masked_demos import CAMERAS, SMALL_VIT, masked_demos, small_imitation
from tests.training.step_data import control_store
from tests.training.test_memory import learner, step_objective
from tests.training.toy import NameTheColour

CLIPS, STEPS = sorted(objective_names(ClipObjective)), sorted(objective_names(StepObjective))
RANDOM: dict[str, dict[str, Any]] = {"actol": {"interval": "random"}, "directed_actol": {"interval": "random"}}
"""Settings under which an objective draws all that it can."""


def prepared(name: str) -> tuple[Spec, MemoryStore, dict[str, Any]]:
    """The spec of an objective that augments, a store for it, and the sampler's settings."""
    if name == "policy":
        objective = build_imitation(
            small_imitation(icon=IConConfig(agent_keys=1, environment_keys=1)), masked_demos(), CAMERAS
        )
        return objective.sampling().with_crop(SMALL_VIT.size), masked_demos(), {"camera": CAMERAS}
    if name in STEPS:
        return step_objective(name).sampling(), control_store(12, rewards=True), {}
    kind: Any = objective_class(name, ClipObjective)
    config = kind.config_type(augment=True, augment_jitter=0.2, **RANDOM.get(name, {}))
    return kind(TinyEncoder(), config).sampling(), moving_square_store(), {}


def drawn(spec: Spec) -> set[str]:
    """The keys of a batch that are random."""
    chosen = {"episode", "clip.indices"} if isinstance(spec.index, Clips) else {"episode", "step"}
    beside = {f"{name}.{key}" for name, other in spec.beside.items() for key in drawn(other)}
    return chosen | set(spec.transforms) | beside


def equal(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)


@pytest.mark.parametrize("name", [*CLIPS, *STEPS, "policy"])
def test_another_seed_changes_every_draw_and_the_same_none(name: str) -> None:
    spec, store, settings = prepared(name)
    batches = [sampler(store, spec, batch_size=8, seed=seed, **settings) for seed in (4, 4, 5)]
    batch, same, other, later = batches[0][2], batches[1][2], batches[2][2], batches[0][3]
    assert all(equal(batch[key], same[key]) for key in batch)
    for key in drawn(spec):
        assert not equal(batch[key], other[key]), key
        assert not equal(batch[key], later[key]), key


@pytest.mark.parametrize("name", ["r3m", "vip", "liv", "actol"])
def test_losses_follow_the_numbers_that_were_drawn_and_nothing_else(name: str) -> None:
    kind: Any = objective_class(name, ClipObjective)
    objective: Objective = kind(TinyEncoder(), kind.config_type(**RANDOM.get(name, {}))).double()
    batch = sampler(moving_square_store(), objective.sampling(), batch_size=8, seed=4)[2]
    key = "interval" if name == "actol" else "order"
    torch.manual_seed(0)
    first = objective(batch).loss
    torch.manual_seed(1)
    assert objective(batch).loss == first
    assert objective(batch | {key: 1 - batch[key], "sample": batch["sample"]}).loss != first
    assert objective(batch | {"sample": batch["sample"] + 100}).loss == first


@pytest.mark.parametrize("name", AGENTS)
def test_agents_draw_from_their_seed_and_step(name: str) -> None:
    spaces = Spaces(observation=(4,), goal=(4,), action=2)
    agents = [make_agent({"name": name}, spaces, seed=seed) for seed in (4, 4, 5)]
    for stream in ("update", "act"):
        taken = [(agents[0], 3), (agents[1], 3), (agents[2], 3), (agents[0], 4)]
        numbers = [torch.rand(8, generator=agent.generator(stream, step)) for agent, step in taken]
        assert torch.equal(numbers[0], numbers[1])
        assert not any(torch.equal(numbers[0], another) for another in numbers[2:])


def test_dropout_follows_the_seed_and_the_step(store: MemoryStore) -> None:
    found = []
    for seed, step in ((4, 2), (4, 2), (5, 2), (4, 3)):
        trained = learner(NameTheColour())
        trained._seed = seed
        batch = sampler(store, trained.objective.sampling(), batch_size=6, seed=0)[0]
        torch.manual_seed(7)
        found.append(trained.update(batch, step)["loss"])
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_seeds_are_pure_bounded_and_apart() -> None:
    keys = [(seed, step, name) for seed in (0, 1) for step in (0, 1) for name in ("a", "b")]
    assert len({sample_seed(*key) for key in keys}) == len(keys)
    assert sample_seed(0, 1, "a") == sample_seed(0, 1, "a")
    assert max(sample_seed(0, step, "a", bits=8) for step in range(2000)) == 255
    torch.Generator().manual_seed(max(sample_seed(0, step, "a") for step in range(100)))
    np.random.RandomState(sample_seed(0, 0, "a", bits=32))
