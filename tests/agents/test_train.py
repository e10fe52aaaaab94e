from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from counterpoint.agents import AGENTS, make_agent
from counterpoint.cli import main
from counterpoint.data.episode import Episode
from counterpoint.data.sampler import Sampler
from counterpoint.data.store import MemoryStore
from counterpoint.encoders.hub import load
from counterpoint.envs.goal.collect import PointMazeCollect, collect_pointmaze
from counterpoint.errors import BadInputError
from counterpoint.evaluation.evaluate import evaluate
from counterpoint.formats.minari.reader import replay_from_store
from counterpoint.formats.video import probe_video
from counterpoint.training.agent import AgentRecipe, DeviceSampler, OfflineDataConfig, open_replay
from counterpoint.training.recipe import load_recipe
from counterpoint.training.train import train
from tests.marks import quick

pytestmark = pytest.mark.sim

ONLINE = {
    "agent.hidden": [16],
    "env.max_episode_steps": 10,
    "online.envs": 1,
    "online.steps": 60,
    "online.warmup": 20,
    "online.batch_size": 8,
    "online.capacity": 100,
    "online.eval_every": 0,
    "online.eval_episodes": 1,
    "online.save_every": 20,
    "online.trackers": [],
}
OFFLINE = {
    "agent.hidden": [16],
    "env.max_episode_steps": 10,
    "train.steps": 6,
    "train.batch_size": 8,
    "train.eval_every": 3,
    "train.save_every": 3,
    "train.trackers": [],
    "data.eval_episodes": 1,
    "data.eval_envs": 1,
}


@pytest.fixture(scope="module")
def maze(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("maze") / "data"
    return collect_pointmaze(PointMazeCollect(out=out, episodes=4, val_episodes=1, steps=100))


@pytest.fixture(scope="module")
def online_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("online") / "run"
    train_agent("gcbc", out, ONLINE, env="PointMaze_UMaze-v3")
    return out


def _arguments(settings: dict[str, Any]) -> list[str]:
    own: list[str] = []
    for key, value in settings.items():
        own += [f"--{key}", *map(str, value if isinstance(value, list) else [value])]
    return own


def train_agent(
    agent: str, out: Path, overrides: dict[str, Any], *, env: str | None = None, data: str | None = None
) -> Path:
    return train(agent, data, out, env, overrides=overrides).model


def load_agent_config(name: str, overrides: dict[str, Any], *, offline: bool = False) -> AgentRecipe:
    found = load_recipe(name, overrides, data=[None] if offline else [])
    assert isinstance(found, AgentRecipe)
    return found


def test_online_through_the_command_line_then_longer_then_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    command = ["train", "td_infonce", "--env", "FetchReach-v4", "--out", str(out)]
    main([*command, *_arguments(ONLINE)])
    main([*command, *_arguments(ONLINE | {"online.steps": 80})])
    assert "Resumed from" in capsys.readouterr().out
    assert json.loads((out / "result.json").read_text())["steps"] == 80
    main(["evaluate", str(out), "--episodes", "2", "--envs", "1"])
    found = json.loads((out / "evaluation.json").read_text())
    assert len(found["episodes"]) == found["success"]["n"] == 2
    assert found["success"]["low"] <= found["success"]["value"] <= found["success"]["high"]
    assert found["provenance"]["packages"]["mujoco"]


@pytest.mark.parametrize(
    "form", [pytest.param({"env.observations": "image"}, marks=pytest.mark.slow), {"env.goals": "state"}]
)
def test_images_and_whole_states_train_online(form: dict[str, Any], tmp_path: Path) -> None:
    train_agent("td_infonce", tmp_path / "run", ONLINE | form, env="FetchPush-v4")
    saved = load(tmp_path / "run")
    assert saved.agent.spaces.goal == saved.agent.spaces.observation
    assert saved.env is not None
    assert saved.env["name"] == "FetchPush-v4"


@pytest.mark.release
def test_the_final_evaluation_does_not_depend_on_the_number_of_environments(online_run: Path) -> None:
    found = [json.loads(evaluate(online_run, episodes=3, envs=envs, seed=5).read_text()) for envs in (1, 2)]
    assert found[0]["closest_distance"] == found[1]["closest_distance"]
    assert found[0]["episodes"] == found[1]["episodes"]


@pytest.mark.slow
def test_instances_and_functions_are_evaluated_in_and_filmed(online_run: Path) -> None:
    settings: dict[str, Any] = {"episodes": 2, "seed": 5}
    by_name = json.loads(evaluate(online_run, **settings, envs=1, video=1).read_text())
    assert probe_video(online_run / "videos" / "episode-000.mp4").frames == 11
    maze: dict[str, Any] = {"max_episode_steps": 10, "continuing_task": True, "reset_target": False}
    make = partial(gymnasium.make, "gymnasium_robotics:PointMaze_UMaze-v3", **maze)
    for env, name in ((make, "given"), (make(), "PointMaze_UMaze-v3")):
        found = json.loads(evaluate(online_run, env, **settings).read_text())
        assert found["episodes"] == by_name["episodes"]
        assert found["env"]["name"] == name


QUICK = ("td_infonce", "gcbc", "decision_transformer")
"""Agents whose offline data differ: transitions, relabelled goals, sequences."""


@pytest.mark.parametrize("name", quick(QUICK, AGENTS))
def test_every_agent_trains_on_recorded_data(name: str, maze: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train_agent(name, out, OFFLINE, data=str(maze), env="PointMaze_UMaze-v3")
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["split"] == "eval"] == [3, 6]
    saved = load(out)
    assert saved.agent.name == name
    assert saved.env is not None
    assert saved.env["name"] == "PointMaze_UMaze-v3"


def assert_same_agents(one: Path, other: Path) -> None:
    a, b = (load(run).agent for run in (one, other))
    for name, module in a.modules.items():
        for key, value in module.state_dict().items():
            assert torch.equal(value, b.modules[name].state_dict()[key]), f"{name}/{key}"


def test_an_offline_run_that_was_stopped_ends_like_one_that_was_not(maze: Path, tmp_path: Path) -> None:
    for out, steps in ((tmp_path / "a", (6,)), (tmp_path / "b", (3, 6))):
        for each in steps:
            train_agent("td_infonce", out, OFFLINE | {"train.steps": each}, data=str(maze))
    assert_same_agents(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_batches_of_data_on_the_device_are_the_same(name: str, maze: Path) -> None:
    buffer = open_replay(maze, OfflineDataConfig())
    bound = make_agent({"name": name}, buffer.spaces).sampling().bind(buffer)
    plain = Sampler(buffer, bound, batch_size=16, seed=3)
    kept = DeviceSampler(buffer, bound, torch.device("cpu"), batch_size=16, seed=3)
    for one, other in zip(plain.batches(2, 5), kept.batches(2, 5), strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(value, other[key]) and value.dtype == other[key].dtype for key, value in one.items())


def test_a_run_on_data_on_the_device_is_the_same_run(maze: Path, tmp_path: Path) -> None:
    for kept in (False, True):
        train_agent("td_infonce", tmp_path / str(kept), OFFLINE | {"train.on_device": kept}, data=str(maze))
    assert_same_agents(tmp_path / "False", tmp_path / "True")


def test_data_that_do_not_fit_on_the_gpu_are_refused(maze: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (1000, 2000))
    buffer = open_replay(maze, OfflineDataConfig())
    bound = make_agent({"name": "gcbc"}, buffer.spaces).sampling().bind(buffer)
    with pytest.raises(BadInputError, match=r"train\.on_device: found data of .* leave it out"):
        DeviceSampler(buffer, bound, torch.device("cuda"), batch_size=16, seed=3)


def test_the_recorder_s_own_evaluation_is_taken(maze: Path, tmp_path: Path) -> None:
    settings = {key: value for key, value in OFFLINE.items() if not key.startswith("env.")}
    train_agent("gcbc", tmp_path / "run", settings | {"train.eval_every": 0}, data=str(maze))
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["env"]["name"] == "PointMaze_UMaze-v3"


Call = Callable[[Path, Path], object]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda out, maze: train_agent("gcbc", out, {}), "neither an environment nor a data set"),
        (lambda out, maze: train_agent("nobody", out, {}, env="FetchReach-v4"), "no such agent or recipe"),
        (lambda out, maze: train_agent("gcbc", out, {}, env="CartPole-v1"), "without goals"),
        (lambda out, maze: train_agent("gcbc", out, {}, env="FetchRaech-v4"), "did you mean 'FetchReach"),
        (lambda out, maze: train_agent("gcbc", out, {"agent.hiden": [1]}, env="FetchReach-v4"), "'hidden'"),
        (lambda out, maze: train_agent("gcbc", out, {}, data=str(maze), env="FetchReach-v4"), "as in the env"),
        (lambda out, maze: train_agent("gcbc", out, {}, data=str(out / "nothing")), "nothing"),
        (
            lambda out, maze: train_agent(
                "gcbc", out, ONLINE | {"online.capacity": 10**13}, env="FetchReach-v4"
            ),
            "capacity",
        ),
        (lambda out, maze: train_agent("gcbc", out, ONLINE | {"online.capacity": 3}, env="FetchReach-v4"), "3"),
        (lambda out, maze: evaluate(out, episodes=1, envs=1, seed=0), "no such file"),
    ],
)  # fmt: skip
def test_bad_input_is_one_message(call: Call, message: str, maze: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInputError) as caught:
        call(tmp_path / "run", maze)
    assert message in str(caught.value)


def test_an_agent_s_bare_name_means_its_offline_defaults_where_there_are_data() -> None:
    online, offline = load_agent_config("td_infonce", {}), load_agent_config("td_infonce", {}, offline=True)
    assert (online.agent.actor_goals, online.agent.behaviour_cloning) == ("random", 0.0)
    assert (offline.agent.actor_goals, offline.agent.behaviour_cloning) == ("future", 0.1)


def test_the_cells_of_one_maze_are_not_taken_to_the_next() -> None:
    same = load_agent_config("td_infonce-antmaze", {"env.name": "AntMaze_UMaze-v4"})
    other = load_agent_config("td_infonce-antmaze", {"env.name": "AntMaze_Large-v4"})
    assert same.env is not None
    assert other.env is not None
    assert same.env.goal_cells
    assert not other.env.goal_cells
    assert not other.env.start_cells


@pytest.mark.slow
def test_other_data_under_the_same_name_is_not_gone_on_with(tmp_path: Path) -> None:
    for seed, episodes in ((0, 2), (1, 3)):
        out = tmp_path / f"data-{seed}"
        collect_pointmaze(PointMazeCollect(out=out, episodes=episodes, val_episodes=0, steps=10, seed=seed))
    (tmp_path / "data").symlink_to(tmp_path / "data-0")
    train_agent("gcbc", tmp_path / "run", OFFLINE, data=str(tmp_path / "data"))
    (tmp_path / "data").unlink()
    (tmp_path / "data").symlink_to(tmp_path / "data-1")
    with pytest.raises(BadInputError, match=r"another \[fingerprint\]"):
        train_agent("gcbc", tmp_path / "run", OFFLINE, data=str(tmp_path / "data"))


def test_an_agent_that_needs_rewards_refuses_data_without(tmp_path: Path) -> None:
    store = MemoryStore(
        [
            Episode(
                frames={},
                instruction="",
                timestamps=np.arange(5.0),
                actions=np.random.default_rng(0).uniform(-3, 3, (5, 2)).astype(np.float32),
                state=np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32),
            )
        ]
    )
    buffer = replay_from_store(store)
    assert not buffer.rewards_differ()
    assert {name for name, entry in AGENTS.items() if entry.agent.needs_reward} == {
        "td3_bc", "iql", "decision_transformer"
    }  # fmt: skip


@pytest.mark.parametrize("settings", [{"episodes": 0}, {"envs": 0}, {"seed": -1}])
def test_an_evaluation_of_nothing_is_refused(settings: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="greater than or equal"):
        evaluate(tmp_path, **settings)  # type: ignore[arg-type]


def test_a_task_for_policies_is_refused_for_an_agent(online_run: Path) -> None:
    with pytest.raises(BadInputError, match=r"--env metaworld/hammer: .*expected a goal environment"):
        evaluate(online_run, "metaworld/hammer")


def test_a_run_with_another_agent_is_refused(online_run: Path) -> None:
    with pytest.raises(BadInputError, match=r"another \[agent\]: agent.name = "):
        train_agent("td_infonce", online_run, ONLINE, env="PointMaze_UMaze-v3")


def test_defaults_are_the_paper_s() -> None:
    config, bare = load_agent_config("td_infonce-fetch", {}), load_agent_config("td_infonce", {})
    assert config.agent.hidden == (512, 512, 512, 512)
    assert config.agent.actor_lr == 5e-5
    assert bare.agent == config.agent
