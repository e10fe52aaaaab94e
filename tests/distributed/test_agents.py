"""Every agent: processes that share the rows of a batch against one that computes all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from counterpoint.agents import AGENTS, make_agent
from counterpoint.agents.base import Agent
from counterpoint.agents.networks import EnsembleMLP
from counterpoint.data.episode import Spaces
from counterpoint.training.distributed import RowSharing
from tests.agents.baseline_batches import CHOICE, IMAGE, STATE, WHOLE, batch_of, context
from tests.agents.test_base import SETTINGS
from tests.distributed.ranks import run_ranks

SPACES: dict[str, Spaces] = {"states": STATE, "whole states": WHOLE, "images": IMAGE, "choices": CHOICE}
CASES = [
    *((name, "whole states" if name == "qrl" else "states") for name in AGENTS),
    *(("td_infonce", "images"), ("gcbc", "images"), ("td_infonce", "choices"), ("gcbc", "choices")),
]


def _update(name: str, spaces: Spaces, rows: int, processes: RowSharing | None = None) -> dict[str, Tensor]:
    """The gradients and the numbers of an update, and the parameters after it; states in double precision."""
    sizes = {} if name == "decision_transformer" else {"hidden": [16, 16]}
    agent: Agent = make_agent({"name": name} | sizes | SETTINGS.get(name, {}), spaces)
    agent.processes, batch = processes, batch_of(spaces, rows, K=context(agent))
    before = torch.get_default_dtype()
    if len(spaces.observation) == 1:
        torch.set_default_dtype(torch.float64)
        batch = {key: value.double() if value.is_floating_point() else value for key, value in batch.items()}
        for module in agent.modules.values():
            module.double()
    try:
        found = {f"metric/{key}": value for key, value in agent.update(batch, 1).items()}
    finally:
        torch.set_default_dtype(before)
    for key, module in agent.modules.items():
        found |= {f"gradient/{key}.{n}": p.grad for n, p in module.named_parameters() if p.grad is not None}
        found |= {f"parameter/{key}.{n}": value for n, value in module.state_dict().items()}
    return {key: value.detach().clone().contiguous() for key, value in found.items()}


def _work(number: int, world: int, folder: Path) -> None:
    for name, spaces in CASES:
        for rows in (8, 7):  # no number of processes divides 7
            save_file(_update(name, SPACES[spaces], rows, RowSharing()), folder / f"{name}-{spaces}-{rows}-{number}")


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("agents")
    run_ranks(_work, request.param, made)
    return made


@pytest.mark.parametrize("rows", [8, 7])
@pytest.mark.parametrize(("name", "spaces"), CASES)
def test_processes_train_every_agent_as_one_does(name: str, spaces: str, rows: int, folder: Path) -> None:
    expected = _update(name, SPACES[spaces], rows)
    tolerance = 1e-4 if spaces == "images" else 1e-6  # images are read in single precision
    largest = max(float(value.abs().max()) for key, value in expected.items() if key.startswith("gradient/"))
    ranks = [load_file(path) for path in sorted(folder.glob(f"{name}-{spaces}-{rows}-?"))]
    assert len(ranks) > 1
    for found in ranks:
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            if key.startswith("parameter/"):  # Adam divides a gradient by its size, so that rounding counts
                assert torch.equal(found[key], ranks[0][key])
            else:
                torch.testing.assert_close(found[key], value, rtol=tolerance, atol=tolerance * largest)


def test_networks_compute_their_own_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoint.training.distributed.world_size", lambda: 2)
    monkeypatch.setattr("counterpoint.training.distributed.rank", lambda: 1)
    monkeypatch.setattr("counterpoint.training.distributed._gather", lambda rows: rows)
    network, inputs = EnsembleMLP(2, (3, 4)), torch.randn(6, 3)
    plain = network(inputs)
    with RowSharing().sharing([network]):
        torch.testing.assert_close(network(inputs), plain[:, 3:])
        torch.testing.assert_close(network(inputs[:5]), plain[:, :5])  # which two do not divide
    torch.testing.assert_close(network(inputs), plain)
