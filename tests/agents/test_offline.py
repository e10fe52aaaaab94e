from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from counterpoint.agents import AGENTS
from counterpoint.envs.goal.env import EnvConfig
from counterpoint.errors import BadInputError
from counterpoint.training import agent
from counterpoint.training.agent import recorded_evaluation
from counterpoint.training.plan import Given, named
from tests.training.step_data import control_store


def _recorded(folder: Path, note: bytes, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(agent, "is_minari", lambda path: path == folder / "train")
    (folder / "collect.json").write_bytes(note)
    return str(folder)


def test_the_recorder_s_environment_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = _recorded(tmp_path, b'{"evaluation": {"name": "PointMaze_UMaze-v3"}}', monkeypatch)
    assert recorded_evaluation(data) == {"name": "PointMaze_UMaze-v3"}
    assert recorded_evaluation(f"{data}/train") == {"name": "PointMaze_UMaze-v3"}
    assert recorded_evaluation(str(tmp_path / "train" / "data")) == {}


@pytest.mark.parametrize(
    "note", [b"", b'{"evaluat', b"\xff\xfe", b"{}", b"[]", b"null", b'{"evaluation": 3}', b'{"evaluation": "x"}']
)
def test_a_damaged_note_is_one_message(note: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = _recorded(tmp_path, note, monkeypatch)
    with pytest.raises(BadInputError, match=r"collect.json: found no environment .* --env"):
        recorded_evaluation(data)


class Two:
    """An accelerator of two processes."""

    num_processes = 2
    device = torch.device("cpu")


class One(Two):
    """An accelerator of one process."""

    num_processes = 1


def recipe(env: EnvConfig | None = None, **settings: Any) -> agent.AgentRecipe:
    chosen = named(AGENTS["gcbc"].config, "gcbc").model_validate({"name": "gcbc", **settings})
    return agent.AgentRecipe(agent=chosen, **({"env": env} if env else {}))


def test_several_processes_train_offline_and_uncompiled() -> None:
    given = Given(data=(control_store(3),))
    assert recipe().plan(given, Two()).identity["fingerprint"]
    with pytest.raises(BadInputError, match=r"agent\.compile: found true in 2 processes"):
        recipe(compile=True).plan(given, Two())


def test_a_cuda_graph_needs_a_gpu_and_one_process() -> None:
    given = Given(data=(control_store(3),))
    with pytest.raises(BadInputError, match=r"agent\.cuda_graph: found true without a GPU"):
        recipe(cuda_graph=True).plan(given, One())
    with pytest.raises(BadInputError, match=r"agent\.cuda_graph: found true in 2 processes"):
        recipe(cuda_graph=True).plan(given, Two())


def test_a_compiled_agent_needs_a_compiler_on_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(BadInputError, match=r"agent\.compile: found true without a C\+\+ compiler"):
        recipe(compile=True).plan(Given(data=(control_store(3),)), One())
