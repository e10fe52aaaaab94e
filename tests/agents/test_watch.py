from __future__ import annotations

from pathlib import Path

import pytest
import torch

from counterpoint.agents import AGENTS, SavedAgent, make_agent
from counterpoint.agents.base import Watch
from counterpoint.data.draws import Spaces
from counterpoint.errors import BadInputError
from counterpoint.objectives.base import NonFiniteError

SPACES = Spaces(observation=(4,), goal=(2,), action=3, success_distance=0.1)


def test_the_watch_names_the_loss_that_is_not_finite() -> None:
    watch = Watch()
    watch({"critic": torch.tensor(1.0), "actor": torch.tensor(-1e30)})
    with pytest.raises(NonFiniteError, match="actor = nan"):
        watch({"critic": torch.tensor(1.0), "actor": torch.tensor(torch.nan)})
    watch({"critic": torch.tensor(1.0)})  # and may be used again


def test_losses_that_no_update_waited_for_are_told_on_demand() -> None:
    watch = Watch(every=3)
    losses = [torch.tensor(1.0), torch.tensor(torch.inf), torch.tensor(2.0)]
    # As a GPU's: on the meta device there is nothing to read, so the sum is put in by hand.
    watch({"critic": losses[0].to("meta")})
    watch._sum, watch._latest = torch.stack(losses).sum(), {"critic": losses[2]}
    with pytest.raises(NonFiniteError, match="not finite: critic = 2"):
        watch.look()
    watch.look()


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
    if hasattr(agent, "_finite"):
        agent._finite.fill_(False)  # as an update on a GPU leaves it
    else:
        agent._watch._sum = torch.tensor(torch.inf)
    with pytest.raises(NonFiniteError):
        agent.exports()
    agent.state()  # parameters were untouched
