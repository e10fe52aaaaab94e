from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from counterpoint.agents import Agent, make_agent
from counterpoint.data.replay import ReplayBuffer
from counterpoint.envs.vector import VectorEnv
from counterpoint.errors import BadInputError
from counterpoint.evaluation.rollout import episode_seed, means, rollout
from counterpoint.training.loop import fit
from counterpoint.training.online import OnlineConfig, OnlineSource
from counterpoint.training.plan import Recipe
from counterpoint.training.run import Run
from tests.agents.point_env import SPACES, STEPS, make_dying, make_point, make_refusing

ONLINE = OnlineConfig(
    steps=200,
    envs=2,
    warmup=40,
    updates_per_step=0.5,
    batch_size=16,
    capacity=100,
    eval_every=100,
    eval_episodes=2,
    save_every=100,
    log_every=10,
    trackers=(),
)


def _agent(name: str = "td_infonce") -> Agent:
    return make_agent({"name": name, "hidden": [16, 16]}, SPACES)


class PointRecipe(Recipe):
    kind: Literal["point"] = "point"
    online: OnlineConfig = ONLINE

    @property
    def loop(self) -> OnlineConfig:
        return self.online


def _loop(
    run: Path,
    agent: Agent,
    config: OnlineConfig = ONLINE,
    make: Callable[..., Any] = make_point,
    *,
    processes: bool = False,
) -> tuple[Path, OnlineSource]:
    buffer = ReplayBuffer(SPACES, capacity=config.capacity, folder=run / "replay", slack=600)
    return run, OnlineSource(agent, buffer, VectorEnv(make, config.envs, processes=processes), config)


def _train(loop: tuple[Path, OnlineSource], on_evaluation: Callable[[int], object] = lambda steps: None) -> None:
    folder, source = loop
    evaluators, config = VectorEnv(make_point, 1), source.config

    def evaluate(steps: int) -> dict[str, float]:
        results = rollout(
            source.agent, evaluators, [episode_seed(config.seed, 1, number) for number in range(config.eval_episodes)]
        )
        on_evaluation(steps)
        return means(results)

    with evaluators, Run.open(folder, PointRecipe(online=config), {}, loop=config) as run:
        try:
            fit(source.agent, source, run, on_eval=evaluate)
        finally:
            source.close()


def _parameters(agent: Agent) -> dict[str, torch.Tensor]:
    return {
        f"{name}/{key}": value.clone()
        for name, module in agent.modules.items()
        for key, value in module.state_dict().items()
    }


def test_a_run_counts_logs_evaluates_and_learns(tmp_path: Path) -> None:
    agent = _agent()
    before = _parameters(agent)
    loop = _loop(tmp_path, agent)
    told: list[int] = []
    _train(loop, told.append)
    source = loop[1]
    assert source.counters.steps == 200
    # Steps after the warm-up, but for the last vector step, whose updates would come with the next one.
    assert source.counters.updates == (200 - 40 - 2) / 2
    assert source.counters.episodes == 200 / STEPS
    assert source.buffer.transitions == ONLINE.capacity
    assert told == [100, 200]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert {line["split"] for line in lines} == {"train", "eval"}
    assert all(np.isfinite(line["loss"]) for line in lines if line["split"] == "train")
    after = _parameters(agent)
    assert any(not torch.equal(before[name], after[name]) for name in before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Agent]:
    """Agents that trained without a stop."""
    agents = {name: _agent(name) for name in ("td_infonce", "gcbc")}
    for name, agent in agents.items():
        _train(_loop(tmp_path_factory.mktemp(name), agent))
    return agents


@pytest.mark.parametrize("name", ["td_infonce", "gcbc"])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(
    tmp_path: Path, whole: dict[str, Agent], name: str
) -> None:
    first = _agent(name)
    half = ONLINE.model_copy(update={"steps": 120})
    _train(_loop(tmp_path / "parts", first, half))
    second = _agent(name)  # a fresh process would begin from these weights
    loop = _loop(tmp_path / "parts", second)
    _train(loop)
    assert loop[1].counters.steps == 200
    expected, found = _parameters(whole[name]), _parameters(second)
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=0, msg=key)
    assert whole[name].acts == second.acts > 0


@pytest.mark.slow
def test_a_run_killed_after_more_steps_forgets_them(tmp_path: Path, whole: dict[str, Agent]) -> None:
    """The buffer has gone on past the checkpoint, round the ring and over what it held then."""

    class KilledError(Exception):
        pass

    def kill(steps: int) -> None:
        if steps == 200:
            raise KilledError

    killed = _loop(tmp_path / "killed", _agent())
    with pytest.raises(KilledError):
        _train(killed, kill)
    again = _agent()
    loop = _loop(tmp_path / "killed", again)
    _train(loop)
    expected, found = _parameters(whole["td_infonce"]), _parameters(again)
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=0, msg=key)


@pytest.mark.slow
def test_workers_that_keep_dying_end_a_run_that_is_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop = _loop(tmp_path, _agent(), make=make_dying, processes=True)
    with pytest.raises(BadInputError, match="the run is saved"):
        _train(loop)
    assert "environments restarted" in capsys.readouterr().out
    assert (tmp_path / "checkpoints" / "last").exists()


def test_simulations_that_keep_blowing_up_end_a_run_that_is_saved(tmp_path: Path) -> None:
    loop = _loop(tmp_path, _agent(), ONLINE.model_copy(update={"envs": 1}), make=make_refusing)
    with pytest.raises(BadInputError, match="4 rounds in a row"):
        _train(loop)
    assert (tmp_path / "checkpoints" / "last").exists()


@pytest.mark.slow
def test_one_lost_worker_costs_a_round_and_nothing_more(tmp_path: Path) -> None:
    loop = _loop(tmp_path, _agent(), processes=True)
    told: list[int] = []

    def lose_one(steps: int) -> None:
        told.append(steps)
        row: Any = loop[1].envs._rows[0]
        row.process.kill()

    _train(loop, lose_one)
    source = loop[1]
    assert source.counters.steps >= 200
    assert told[0] == 100
    assert source.counters.lost == 0


def test_a_checkpoint_of_another_agent_is_refused(tmp_path: Path) -> None:
    _train(_loop(tmp_path, _agent()))
    with pytest.raises(BadInputError, match="an agent 'td_infonce'"):
        _train(_loop(tmp_path, _agent("gcbc")))


@pytest.mark.slow
def test_an_evaluation_that_failed_comes_again(tmp_path: Path, whole: dict[str, Agent]) -> None:
    def refuse(steps: int) -> None:
        raise BadInputError("environments", "a simulator that died", "one that lives", "start again")

    with pytest.raises(BadInputError, match="died"):
        _train(_loop(tmp_path, _agent()), refuse)
    agent, told = _agent(), list[int]()
    _train(_loop(tmp_path, agent), told.append)
    assert told == [100, 200]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["split"] == "eval"] == [100, 200]
    expected, found = _parameters(whole["td_infonce"]), _parameters(agent)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
