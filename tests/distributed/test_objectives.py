"""Every objective that contrasts rows: two and four processes over gloo against one with the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from counterpoint.objectives import ClipObjective, StepObjective, objective_names
from counterpoint.objectives.base import Objective
from counterpoint.training.memory import CAN_SHARD, whole
from tests.conftest import moving_square_store
from tests.data.sampling import sampler
from tests.distributed.ranks import run_ranks
from tests.training.step_data import control_store
from tests.training.test_memory import FAMILIES, clip_objective, learner, step_objective

B = 8
CLIPS, STEPS = sorted(objective_names(ClipObjective)), sorted(objective_names(StepObjective))
WAYS: dict[str, dict[str, Any]] = {"plain": {}, "chunk": {"chunk": 1}, "shard": {"shard": True}}
WAYS["both"] = WAYS["chunk"] | WAYS["shard"]
WAYS = {way: memory for way, memory in WAYS.items() if CAN_SHARD or not memory.get("shard")}


def _objective(name: str) -> Objective:
    return clip_objective(name) if name in CLIPS else step_objective(name)


def _marks(name: str, way: str) -> list[pytest.MarkDecorator]:
    """Every objective trains in both of the extreme ways, and one of each family in all."""
    extreme = way in (next(iter(WAYS)), list(WAYS)[-1])
    if name in FAMILIES:
        return [] if way == list(WAYS)[-1] else [pytest.mark.slow]
    return [pytest.mark.slow if extreme else pytest.mark.release]


CASES = [pytest.param(2, name, way, marks=_marks(name, way)) for name in (*CLIPS, *STEPS) for way in WAYS]
CASES += [pytest.param(4, name, way, marks=pytest.mark.release) for name in (*CLIPS, *STEPS) for way in WAYS]


def _update(name: str, rank: int = 0, world: int = 1, **memory: Any) -> dict[str, Tensor]:
    """The gradients of an update, its numbers, and the parameters after a second one."""
    objective = _objective(name)
    store = moving_square_store() if name in CLIPS else control_store(12, rewards=True)
    batches = sampler(store, objective.sampling(), batch_size=B, seed=0, rank=rank, world_size=world)
    trained = learner(objective, **memory)
    found: dict[str, Tensor] = {}

    def note(*_: Any) -> None:
        kept = {key: p.grad for key, p in trained.objective.named_parameters() if p.grad is not None}
        found.update({f"gradient/{key}": value.clone() for key, value in whole(kept).items()})

    handle = trained.optimizer.register_step_pre_hook(note)
    metrics = trained.update(batches[3], 0)
    handle.remove()
    found |= {f"metric/{key}": torch.tensor(value) for key, value in metrics.items()}
    found["score"] = torch.tensor(trained.evaluate(batches[4])["loss"])
    exported = trained.exports()["encoder"].state_dict()
    return found | {f"exported/{key}": value.clone() for key, value in exported.items()}


def _work(cases: Sequence[tuple[str, str]], number: int, world: int, folder: Path) -> None:
    for name, way in cases:
        found = {key: value.contiguous() for key, value in _update(name, number, world, **WAYS[way]).items()}
        save_file(found, folder / f"{way}-{name}-{number}.safetensors")


@pytest.fixture(scope="module")
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """What groups of processes computed: one group of each size runs the cases of all tests that were selected."""
    chosen = [item.callspec.params for item in request.session.items if item.path == request.path]  # type: ignore[attr-defined]

    @cache
    def folder(world: int) -> Path:
        cases = sorted({(own["name"], own["way"]) for own in chosen if own["world"] == world})
        made = tmp_path_factory.mktemp("objectives")
        run_ranks(partial(_work, cases), world, made)
        return made

    return folder


@cache
def _alone(name: str) -> dict[str, Tensor]:
    return _update(name)


@pytest.mark.parametrize(("world", "name", "way"), CASES)
def test_ranks_train_every_objective_as_one_process_does(
    world: int, name: str, way: str, folders: Callable[[int], Path]
) -> None:
    expected = _alone(name)
    largest = max(float(value.abs().max()) for key, value in expected.items() if key.startswith("gradient/"))
    tolerance = 1e-9 if name in CLIPS else 1e-4  # images of transitions are read in single precision
    ranks = [load_file(path) for path in sorted(folders(world).glob(f"{way}-{name}-?.safetensors"))]
    for of_rank in ranks:
        assert of_rank.keys() == expected.keys()
        for key, value in expected.items():
            if key.startswith("gradient/"):
                torch.testing.assert_close(of_rank[key], value, rtol=tolerance, atol=tolerance * largest, msg=key)
            elif not key.startswith("exported/"):
                torch.testing.assert_close(of_rank[key], value, rtol=1e-4, atol=1e-4, msg=key)
    for key, value in ranks[0].items():
        assert key.startswith("score") or all(torch.equal(value, other[key]) for other in ranks[1:]), key
