from __future__ import annotations

import copy
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import cycle
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import counterpoint
from counterpoint.agents import AGENTS, SavedAgent, agent_config, make_agent
from counterpoint.agents.base import Agent, FiniteCheck, descend
from counterpoint.agents.contrastive import ContrastiveAgent
from counterpoint.agents.ogbench.td_infonce import OGBenchTDInfoNCE
from counterpoint.data.episode import Spaces
from counterpoint.errors import BadInputError
from counterpoint.objectives.base import NonFiniteError
from tests.agents.baseline_batches import SMALL, STATE, WHOLE, acted, batch_of, context, parameters, situations
from tests.agents.point_world import AGENTS as CONTRASTIVE
from tests.agents.point_world import point_batch, small_agent

SETTINGS: dict[str, dict[str, Any]] = {
    "gcbc": {},
    "ddpg_her": {},
    "qrl": {"latent": 16, "projector": 32, "components": 8, "component_width": 4},
    "td3_bc": {},
    "iql": {},
    "decision_transformer": {"context": 4, "width": 16, "layers": 1},
}


def test_a_step_takes_every_gradient_before_it_changes_anything() -> None:
    one, other = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    optimizers = {"one": torch.optim.SGD(one.parameters(), 0.1), "other": torch.optim.SGD(other.parameters(), 0.1)}
    before = one.weight.item(), other.weight.item()
    losses = {"one": (one.weight * other.weight.detach()).sum(), "other": (other.weight * one.weight.detach()).sum()}
    descend(losses, optimizers)
    assert one.weight.item() == pytest.approx(before[0] - 0.1 * before[1])
    assert other.weight.item() == pytest.approx(before[1] - 0.1 * before[0])
    descend({"one": 100 * one.weight.sum()}, optimizers, clip_norm=0.5)
    assert one.weight.item() == pytest.approx(before[0] - 0.1 * before[1] - 0.05, abs=1e-6)


@pytest.mark.parametrize("name", list(SETTINGS))
def test_bfloat16_products_change_losses_a_little_and_parameters_stay_float32(name: str) -> None:
    sizes = {} if name == "decision_transformer" else {"hidden": [32, 32]}
    losses = []
    for bf16 in (False, True):
        agent = make_agent({"name": name, "bf16": bf16} | sizes | SETTINGS[name], STATE)
        batch = batch_of(STATE, K=context(agent))
        losses.append(agent.evaluate(batch)["loss"])
        assert agent.update(batch, 0)["loss"].dtype == torch.float32
        assert all(p.dtype == torch.float32 for module in agent.modules.values() for p in module.parameters())
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.03)


@pytest.mark.parametrize("spaces", [STATE, WHOLE], ids=["coordinates", "whole state"])
@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_has_one_value_for_each_goal_or_none_at_all(name: str, spaces: Spaces) -> None:
    agent = make_agent({"name": name, "hidden": (16,)}, spaces)
    situation = agent.tensors(*situations(spaces))
    found, comparable = agent.value(*situation), agent.comparable_value(*situation, situation[1])
    assert (found is None) == (not agent.value_name) == (name in ("gcbc", "ogbench_gcbc", "decision_transformer"))
    if found is not None:
        assert found.shape == (6,)
        assert found.isfinite().all()
        assert len(set(found.tolist())) == 6
        assert comparable is not None
        free = isinstance(agent, ContrastiveAgent | OGBenchTDInfoNCE)
        assert torch.equal(found, comparable) != free


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


@pytest.mark.parametrize("name", AGENTS)
def test_chance_depends_on_the_seed_and_the_step_alone(name: str) -> None:
    one, other = (make_agent({"name": name, "hidden": SMALL}, STATE, seed=5) for _ in range(2))
    batch = batch_of(STATE, K=context(one))
    other.evaluate(batch)
    acted(other, *situations(STATE), explore=True)
    assert (one.acts, other.acts) == (0, 1)
    for agent in (one, other):
        agent.update(batch, 3)
    assert all(torch.equal(value, parameters(other)[key]) for key, value in parameters(one).items())
    draws = [torch.rand(4, generator=one.generator(*key)) for key in (("update", 3), ("update", 4), ("act", 3))]
    assert len({tuple(draw.tolist()) for draw in draws}) == 3


@pytest.mark.parametrize(("name", "hidden"), list(zip(AGENTS, cycle([[], [64, 0], [-3]]), strict=False)))
def test_hidden_layers_must_exist(name: str, hidden: list[int]) -> None:
    with pytest.raises(BadInputError, match="hidden"):
        agent_config({"name": name, "hidden": hidden}, "agent")


@pytest.mark.parametrize("name", [name for name in AGENTS if name != "decision_transformer"])
@pytest.mark.parametrize(
    ("shapes", "told"),
    [
        ({"observation": (6, 40, 3), "goal": (2,)}, "6 x 40 pixels"),
        ({"observation": (64, 64), "goal": (2,)}, r"observations: found shape \(64, 64\)"),
        ({"observation": (4,), "goal": ()}, r"goals: found shape \(\)"),
    ],
)
def test_what_is_seen_must_be_a_state_or_an_image_of_some_size(name: str, shapes: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInputError, match=told):
        make_agent({"name": name, "hidden": [8]}, Spaces(**shapes, action=2, success_distance=0.1))


def test_the_smallest_image() -> None:
    shape = (36, 36, 3)
    make_agent({"name": "gcbc", "hidden": [8]}, Spaces(observation=shape, goal=shape, action=2))


def test_agents_that_need_rewards_say_so() -> None:
    needing = {name for name, entry in AGENTS.items() if entry.agent.needs_reward}
    assert needing == {"td3_bc", "iql", "decision_transformer"}


@pytest.mark.parametrize("name", ["td_infonce", "ogbench_td_infonce"])
def test_an_update_enters_seven_files_at_most(name: str) -> None:
    agent, batch = make_agent({"name": name, "hidden": SMALL}, STATE), batch_of(STATE)
    agent.update(batch, 0)
    entered: set[str] = set()

    def enter(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(counterpoint.__path__[0]):
            entered.add(frame.f_code.co_filename)

    sys.setprofile(enter)
    try:
        agent.update(batch, 1)
    finally:
        sys.setprofile(None)
    assert 3 <= len(entered) <= 7, sorted(entered)


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")


@pytest.mark.release
@pytest.mark.parametrize("name", AGENTS)
def test_the_losses_are_one_graph_with_the_plain_losses_gradients(name: str) -> None:
    torch._dynamo.reset()  # the compiler counts the agents of one process as recompilations
    agent = make_agent({"name": name, "hidden": SMALL}, STATE)
    if name == "decision_transformer":
        agent.modules["actor"].eval()
    batch = agent._inputs(batch_of(STATE, K=context(agent)), agent.generator("update", 0))
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


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler")
@pytest.mark.slow
def test_updates_compiled_for_the_processor_equal_plain_ones_and_resume() -> None:
    plain, compiled, resumed = (
        make_agent({"name": "gcivl", "hidden": SMALL, "compile": way}, STATE) for way in (False, True, True)
    )
    batch = batch_of(STATE)
    for step in range(3):
        one, other = (agent.update(batch, step) for agent in (plain, compiled))
        torch.testing.assert_close(one["loss"], other["loss"], rtol=1e-3, atol=1e-4)
    resumed.load_state(compiled.state())
    for step in range(3, 6):
        one, other = (agent.update(batch, step) for agent in (resumed, compiled))
        torch.testing.assert_close(one["loss"], other["loss"], rtol=1e-3, atol=1e-4)


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


class StandInGraph:
    """A CUDA graph whose replay runs the recorded update again, with the tensors that it was recorded with."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    def replay(self) -> None:
        (recorded,) = (one for one in self.agent._recorded.values() if id(one.graph) == id(self))
        for name, value in recorded.update(recorded.inputs).items():
            recorded.metrics[name].copy_(value)


class StandInStream:
    def wait_stream(self, other: object) -> None:
        pass


@contextmanager
def recording(graph: StandInGraph) -> Iterator[None]:
    """Undo the update that runs while it is recorded, because a GPU only records it."""
    agent = graph.agent
    modules = {name: copy.deepcopy(module.state_dict()) for name, module in agent.modules.items()}
    optimizers = {name: copy.deepcopy(one.state_dict()) for name, one in agent.optimizers.items()}
    yield
    for name, module in agent.modules.items():
        module.load_state_dict(modules[name])
    for name, one in agent.optimizers.items():
        one.load_state_dict(optimizers[name])


@pytest.mark.parametrize("name", ["ddpg_her", "ogbench_qrl", "td3_bc", "td_infonce"])
def test_recorded_updates_equal_plain_ones_and_are_recorded_again_after_loading(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, recorded = (make_agent({"name": name, "hidden": SMALL}, STATE) for _ in range(2))
    recorded.recording = True
    monkeypatch.setattr("torch.cuda.CUDAGraph", lambda: StandInGraph(recorded))
    monkeypatch.setattr("torch.cuda.graph", recording)
    monkeypatch.setattr("torch.cuda.Stream", StandInStream)
    monkeypatch.setattr("torch.cuda.current_stream", StandInStream)
    monkeypatch.setattr("torch.cuda.stream", nullcontext)
    kept = []
    for step in range(16):
        if step == 7:
            recorded.load_state(copy.deepcopy(recorded.state()))
            assert not recorded._recorded
        batch = {key: value + 0.01 * step if key == "action" else value for key, value in batch_of(STATE).items()}
        one, other = plain.update(batch, step), recorded.update(batch, step)
        kept.append((one, other))
    for one, other in kept:  # a later replay must not change what an earlier update returned
        assert {key: value.item() for key, value in one.items()} == {key: value.item() for key, value in other.items()}
    torch.testing.assert_close(parameters(recorded), parameters(plain), rtol=0, atol=0)
    assert all(one.graph is not None for one in recorded._recorded.values())


@needs_gpu
@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("name", [name for name, entry in AGENTS.items() if entry.agent.recordable])
def test_updates_recorded_on_a_gpu_equal_plain_ones_and_resume(name: str, compile: bool) -> None:
    plain, recorded, resumed = (
        make_agent(
            {"name": name, "hidden": SMALL, "cuda_graph": graph, "compile": graph and compile}, STATE, device="cuda"
        )
        for graph in (False, True, True)
    )
    for step in range(16):
        if step == 8:
            resumed.load_state(copy.deepcopy(recorded.state()))
        one = plain.update(batch_of(STATE), step)
        for agent in (recorded, resumed) if step >= 8 else (recorded,):
            torch.testing.assert_close(agent.update(batch_of(STATE), step)["loss"], one["loss"], rtol=1e-3, atol=1e-4)
