from __future__ import annotations

import pytest
import torch

from tests.agents.point_world import AGENTS, point_batch, small_agent

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="losses are compiled on GPUs alone")


@pytest.mark.parametrize("name", AGENTS)
def test_compiled_updates_equal_plain_ones_and_resume(name: str) -> None:
    plain, compiled = (small_agent(name, device="cuda", compile=way) for way in (False, True))
    for step in range(8):
        one, other = (agent.update(point_batch(step), step) for agent in (plain, compiled))
        torch.testing.assert_close(one["loss"], other["loss"], rtol=1e-4, atol=1e-5)
    resumed = small_agent(name, device="cuda", compile=True)
    resumed.load_state(compiled.state())
    for step in range(8, 16):
        one, other = (agent.update(point_batch(step), step) for agent in (resumed, compiled))
        torch.testing.assert_close(one["loss"], other["loss"], rtol=1e-4, atol=1e-5)
