from __future__ import annotations

from pathlib import Path

import pytest
import torch

from counterpoint.agents import AGENTS, make_agent
from tests.agents.baseline_batches import SMALL, STATE, batch_of
from tests.agents.point_world import AGENTS as CONTRASTIVE
from tests.agents.point_world import point_batch, small_agent

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="losses are compiled on GPUs alone")


@pytest.mark.parametrize("name", AGENTS)
def test_the_losses_are_one_graph_with_the_plain_losses_gradients(name: str) -> None:
    torch._dynamo.reset()  # the compiler counts the agents of one process as recompilations
    agent = make_agent({"name": name, "hidden": SMALL}, STATE)
    if name == "decision_transformer":
        agent.modules["actor"].eval()
    batch = agent._inputs(batch_of(STATE, K=agent.sampling().sequence), agent.generator)
    compiled = torch.compile(agent._autocast_losses, backend="aot_eager", fullgraph=True)
    parameters = [p for module in agent.modules.values() for p in module.parameters() if p.requires_grad]
    found, expected = compiled(batch), agent._autocast_losses(batch)
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value)
    for name in agent.optimizers:
        gradients = [
            torch.autograd.grad(
                each[f"{name}/loss"], parameters, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            for each in (found, expected)
        ]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


@needs_gpu
@pytest.mark.parametrize("name", CONTRASTIVE)
def test_compiled_updates_equal_plain_ones_and_resume(name: str, tmp_path: Path) -> None:
    plain, compiled = (small_agent(name, device="cuda", compile=way) for way in (False, True))
    for step in range(8):
        one, other = (agent.update(point_batch(step), step) for agent in (plain, compiled))
        torch.testing.assert_close(one["loss"], other["loss"], rtol=1e-4, atol=1e-5)
    resumed = small_agent(name, device="cuda", compile=True)
    resumed.load_state(compiled.state())
    for step in range(8, 16):
        one, other = (agent.update(point_batch(step), step) for agent in (resumed, compiled))
        torch.testing.assert_close(one["loss"], other["loss"], rtol=1e-4, atol=1e-5)
