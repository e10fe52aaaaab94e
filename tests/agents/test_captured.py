from __future__ import annotations

import pytest
import torch

from counterpoint.agents.contrastive_agent import ContrastiveAgent
from tests.agents.point_world import AGENTS, STATES, point_batch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")


def agent_on_gpu(name: str, compile_it: bool) -> ContrastiveAgent:
    kind, config = AGENTS[name]
    return kind(config(hidden=(32, 32), compile=compile_it), STATES, device="cuda")


@pytest.mark.parametrize("name", AGENTS)
def test_recorded_updates_equal_launched_ones_and_resume(name: str) -> None:
    launched, recorded = (agent_on_gpu(name, compile_it) for compile_it in (False, True))
    for step in range(8):
        one, other = (agent.update(point_batch(step), step) for agent in (launched, recorded))
        torch.testing.assert_close(one["loss"], other["loss"], rtol=1e-4, atol=1e-5)
    resumed = agent_on_gpu(name, True)
    resumed.load_state(recorded.state())
    for step in range(8, 16):
        one, other = (agent.update(point_batch(step), step) for agent in (resumed, recorded))
        torch.testing.assert_close(one["loss"], other["loss"], rtol=1e-4, atol=1e-5)
