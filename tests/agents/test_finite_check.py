from __future__ import annotations

from pathlib import Path

import pytest
import torch

from counterpoint.agents import AGENTS, SavedAgent, make_agent
from counterpoint.agents.base import FiniteCheck
from counterpoint.data.draws import Spaces
from counterpoint.errors import BadInputError
from counterpoint.objectives.base import NonFiniteError

SPACES = Spaces(observation=(4,), goal=(2,), action=3, success_distance=0.1)


def test_the_check_names_the_loss_that_is_not_finite() -> None:
    check = FiniteCheck("td3_bc")
    check.add({"critic": torch.tensor(1.0), "actor": torch.tensor(-1e30)}, 1)
    with pytest.raises(NonFiniteError, match="a loss of td3_bc is not finite: critic = 1, actor = nan"):
        check.add({"critic": torch.tensor(1.0), "actor": torch.tensor(torch.nan)}, 2)
    check.add({"critic": torch.tensor(1.0)}, 3)  # and may be used again


def test_losses_that_no_update_waited_for_are_reported_on_demand() -> None:
    check = FiniteCheck("td3_bc")
    check.add({"critic": torch.tensor(torch.nan, device="meta")}, 1)  # like a GPU, this device is not read at once
    check.losses, check.total = {"critic": torch.tensor(2.0)}, torch.tensor([1.0, torch.inf, 2.0]).sum()
    with pytest.raises(NonFiniteError, match="not finite: critic = 2"):
        check.check()
    check.check()


@pytest.mark.parametrize("name", AGENTS)
def test_neither_checkpoint_nor_agent_is_made_of_parameters_that_are_not_finite(name: str, tmp_path: Path) -> None:
    agent = make_agent({"name": name, "hidden": [8, 8]}, SPACES)
    agent.state()
    first = next(iter(agent.modules["actor"].parameters()))
    with torch.no_grad():
        first.view(-1)[0] = torch.nan
    with pytest.raises(NonFiniteError, match=f"the actor of {name}"):
        agent.state()
    with pytest.raises(BadInputError, match=r"not finite.*Hint: lower the learning rates"):
        SavedAgent(agent).save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("name", AGENTS)
def test_neither_is_made_after_a_loss_that_was_not_finite(name: str) -> None:
    agent = make_agent({"name": name, "hidden": [8, 8]}, SPACES)
    agent.finite.total = torch.tensor(torch.inf)  # as an update on a GPU leaves it
    with pytest.raises(NonFiniteError):
        agent.exports()
    agent.state()  # parameters were untouched
