from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from counterpoint.errors import BadInputError
from counterpoint.training.recipe import load_recipe
from studies.goal_reaching import flags
from studies.harness import load_preset, presets
from studies.ogbench.run import (
    AGENTS,
    OURS,
    THEIRS,
    OGBenchConfig,
    as_theirs,
    hyperparameters,
    less,
    ogbench_study,
    pooled,
    summary,
    table,
)

SMALL = {
    "agent.hidden": [16, 16],
    "train.steps": 2,
    "train.batch_size": 8,
    "train.eval_every": 2,
    "train.save_every": 2,
    "train.trackers": [],
    "env.max_episode_steps": 5,
}


@pytest.mark.parametrize("agent", AGENTS)
def test_recipes_take_the_hyperparameters_and_hold_those_of_manipulation(agent: str) -> None:
    recipe: Any = load_recipe(f"{agent}-ogbench", hyperparameters("antmaze-medium-stitch", agent))
    assert recipe.agent.actor_goals.random == (0.0 if agent == "gcbc" else 0.5)
    own: Any = load_recipe(f"{agent}-ogbench", {})
    same = load_recipe(f"{agent}-ogbench", hyperparameters("cube-single-play", agent))
    assert same.model_dump() == own.model_dump()


EXPECTED = (
    ("pointmaze-medium-navigate", {"gcivl": 10, "gciql": 0.003, "qrl": 0.0003, "crl": 0.03, "hiql": 3}),
    ("antmaze-large-stitch", {"gcivl": 10, "gciql": 0.3, "qrl": 0.003, "crl": 0.1, "hiql": 3}),
    ("antmaze-medium-explore", {"gcivl": 10, "gciql": 0.01, "qrl": 0.001, "crl": 0.003, "hiql": 10}),
    ("puzzle-3x3-play", {"gcivl": 10, "gciql": 1, "qrl": 0.3, "crl": 3, "hiql": 3}),
    ("cube-single-noisy", {"gcivl": 10, "gciql": 0.03, "qrl": 0.03, "crl": 0.1, "hiql": 3}),
)
"""Lines of OGBench's `hyperparameters.sh`."""


@pytest.mark.parametrize(("dataset", "alphas"), EXPECTED)
def test_alphas_are_those_of_ogbench(dataset: str, alphas: dict[str, float]) -> None:
    assert {agent: hyperparameters(dataset, agent)["agent.alpha"] for agent in alphas} == alphas
    assert hyperparameters(dataset, "td_infonce")["agent.alpha"] == alphas["crl"]
    assert hyperparameters(dataset, "hiql")["agent.subgoal_steps"] == (25 if "maze" in dataset else 10)
    assert hyperparameters(dataset, "gcbc") == {}


def test_goals_and_discounts_are_those_of_ogbench() -> None:
    for dataset, random in (("pointmaze-medium-stitch", 0.5), ("antmaze-large-explore", 1.0)):
        found = hyperparameters(dataset, "qrl")
        assert (found["agent.actor_goals.random"], found["agent.actor_goals.future"]) == (random, 1 - random)
    assert hyperparameters("antmaze-giant-navigate", "gciql") == {"agent.alpha": 0.3, "agent.discount": 0.995}
    assert hyperparameters("antmaze-giant-navigate", "gcbc") == {}


@pytest.mark.parametrize("dataset", ["powderworld-easy-play", "humanoidmaze-medium-navigate"])
def test_data_sets_without_known_settings_are_refused(dataset: str, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="such as cube-single-play"):
        ogbench_study(OGBenchConfig(data=str(tmp_path), datasets=(dataset,)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_their_names_stand_for_ours() -> None:
    settings = {"agent.alpha": 3, "agent.hidden": [8], "train.steps": 5, "agent.actor_goals.random": 0.5}
    found = as_theirs(settings | {"agent.extraction": "ddpg_bc", "agent.compile": True})
    assert found == {
        "actor_loss": "ddpgbc",
        **dict.fromkeys(("alpha", "high_alpha", "low_alpha"), 3),
        "actor_hidden_dims": [8],
        "value_hidden_dims": [8],
        "actor_p_randomgoal": 0.5,
    }


def test_a_setting_that_ogbench_lacks_is_refused_before_anything_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "gcbc.py").write_text("")
    given = {"datasets": ("cube-single-play",), "agents": ("crl",), "common": {"agent.layer_norm": False}}
    config = OGBenchConfig(data=str(tmp_path / "data"), impls=str(tmp_path), python="python", **given)
    with pytest.raises(BadInputError, match="layer_norm"):
        ogbench_study(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def run(agent: str, by: str, seed: int, *tasks: float) -> dict[str, Any]:
    names = {f"task{number}_success": value for number, value in enumerate(tasks, 1)}
    return {"dataset": "maze", "agent": agent, "by": by, "seed": seed, "steps": 1, "tasks": names}


def test_success_is_the_mean_over_tasks_and_codes_are_compared() -> None:
    rows = [
        run("gcbc", OURS, 0, 1.0, 0.0),
        run("gcbc", OURS, 1, 0.5, 0.5),
        run("gcbc", THEIRS, 1, 0.0, 0.5),
        run("gcbc", THEIRS, 0, 0.0, 0.0),
        run("td_infonce", OURS, 0, 1.0, 1.0),
    ]
    found = summary(rows)
    assert found["cells"]["maze"]["gcbc"][OURS]["values"] == [0.5, 0.5]
    assert found["cells"]["maze"]["gcbc"][OURS]["tasks"] == {"task1_success": 0.75, "task2_success": 0.25}
    assert found["agree"]["maze"]["gcbc"]["value"] == pytest.approx(0.375)
    assert "td_infonce" not in found["agree"]["maze"]
    lines = table(found).splitlines()
    assert lines[2].startswith("| maze | gcbc | 0.50 [0.50, 0.50] | 0.12 ")
    assert lines[3] == "| maze | td_infonce | 1.00 | not run |  | 1.00 | 1.00 |"
    assert less(rows, "maze", ("gcbc", OURS), ("gcbc", THEIRS)).tolist() == [[0.5], [0.25]]
    rows.append(run("gcbc", THEIRS, 2, 1.0, 1.0))  # a seed that only one code has so far
    assert less(rows, "maze", ("gcbc", OURS), ("gcbc", THEIRS)).tolist() == [[0.5], [0.25]]


def test_differences_are_pooled_over_data_sets_and_every_pair_counts_once() -> None:
    first = [run("gcbc", OURS, 0, 1.0), run("gcbc", THEIRS, 0, 0.5), run("td_infonce", OURS, 0, 1.0)]
    again = [*first, run("gcbc", OURS, 1, 0.0), run("gcbc", THEIRS, 1, 0.5)]
    other = [{**run(agent, by, 0, share), "dataset": "cube"} for agent, by, share in OTHER]
    lines = pooled([first, again, other]).splitlines()[2:]
    assert [line.split(" | ")[:2] for line in lines] == [["| gcbc", "3"], ["| hiql", "1"], ["| all agents", "4"]]
    assert lines[0].split(" | ")[2].startswith("0.10 [")  # the mean of .5, -.5 and .3
    assert lines[1].endswith("| -0.20 |")


OTHER = (("gcbc", OURS, 0.5), ("gcbc", THEIRS, 0.2), ("hiql", OURS, 0.2), ("hiql", THEIRS, 0.4))


def test_every_preset_is_valid_and_has_recipes_for_its_settings() -> None:
    for name in presets("ogbench"):
        config = load_preset("ogbench", OGBenchConfig, name, {"data": "DATA"})
        assert isinstance(config, OGBenchConfig)
        for agent in config.agents:
            for chosen in config.variants(agent).values():
                load_recipe(f"{agent}-ogbench", hyperparameters(config.datasets[0], agent) | config.common | chosen)


def test_the_search_has_as_many_settings_for_both_agents() -> None:
    config = load_preset("ogbench", OGBenchConfig, "cpu_search", {"data": "DATA"})
    assert isinstance(config, OGBenchConfig)
    assert len({len(config.variants(agent)) for agent in config.agents}) == 1


def test_a_grid_names_its_settings_and_leaves_the_rest_to_future_goals() -> None:
    grid = {"agent.alpha": (1, 3), "agent.actor_goals.random": (0.5,)}
    config = OGBenchConfig(
        data="DATA", datasets=("cube-single-play",), grid={"crl": (grid, {"agent.discount": (0.97,)})}
    )
    goals = {"agent.actor_goals.random": 0.5, "agent.actor_goals.future": 0.5}
    assert config.variants("crl") == {
        "alpha 1 random 0.5": {"agent.alpha": 1, **goals},
        "alpha 3 random 0.5": {"agent.alpha": 3, **goals},
        "discount 0.97": {"agent.discount": 0.97},
    }
    assert config.variants("gcbc") == {"": {}}


def test_antmaze_needs_an_expert(tmp_path: Path) -> None:
    config = OGBenchConfig(data=str(tmp_path), datasets=("antmaze-medium-navigate",))
    with pytest.raises(BadInputError, match="train one"):
        ogbench_study(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_without_ogbench_s_code_is_refused(tmp_path: Path) -> None:
    config = OGBenchConfig(data=str(tmp_path), datasets=("cube-single-play",), impls=str(tmp_path), python="python")
    with pytest.raises(BadInputError, match="no agents/gcbc"):
        ogbench_study(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.sim
@pytest.mark.slow
def test_the_study_records_trains_and_evaluates_by_both_codes(tmp_path: Path) -> None:
    pytest.importorskip("ogbench")
    impls = tmp_path / "impls"
    write_stand_in(impls)
    config = OGBenchConfig(
        data=str(tmp_path / "data"),
        episodes=2,
        datasets=("pointmaze-medium-navigate",),
        agents=("gcbc", "td_infonce"),
        common=SMALL,
        test_episodes=1,
        impls=str(impls),
        python=sys.executable,
        seeds=1,
        processes=1,
    )
    found = ogbench_study(config, tmp_path / "out")
    cells = found["cells"]["pointmaze-medium-navigate"]
    assert len(cells["gcbc"][OURS]["tasks"]) == 5
    assert cells["gcbc"][THEIRS]["tasks"] == {f"task{number}_success": 1.0 for number in range(1, 6)}
    assert THEIRS not in cells["td_infonce"]
    seen = json.loads((tmp_path / "config.json").read_text())
    assert seen == {"hidden": [16, 16], "batch_size": 8, "seed": 0}
    assert flags({"agent.hidden": [16, 16]}) == ["--agent.hidden", "16", "16"]


def write_stand_in(impls: Path) -> None:
    """Write a package with the functions of OGBench's code that the script calls: its agent does nothing."""
    for name in ("agents", "utils"):
        (impls / name).mkdir(parents=True)
    (impls / "agents" / "__init__.py").write_text(AGENT)
    (impls / "agents" / "gcbc.py").write_text(CONFIG)
    (impls / "utils" / "__init__.py").write_text("")
    (impls / "utils" / "datasets.py").write_text(DATASETS)
    (impls / "utils" / "evaluation.py").write_text(EVALUATION)


AGENT = """
import json, pathlib

class Agent:
    @classmethod
    def create(cls, seed, observations, actions, config):
        seen = {"hidden": list(config["actor_hidden_dims"]), "batch_size": config["batch_size"], "seed": seed}
        pathlib.Path(__file__).parents[2].joinpath("config.json").write_text(json.dumps(seen))
        return cls()

    def update(self, batch):
        return self, {"loss": 0.0}

agents = {"gcbc": Agent}
"""
CONFIG = """
def get_config():
    return {"actor_hidden_dims": (512,), "batch_size": 1024, "dataset_class": "GCDataset"}
"""
DATASETS = """
class Dataset(dict):
    @classmethod
    def create(cls, **fields):
        return cls(fields)

class GCDataset:
    def __init__(self, data, config):
        self.data = data

    def sample(self, size):
        return {key: values[:size] for key, values in self.data.items()}

class HGCDataset(GCDataset):
    pass
"""
EVALUATION = """
def evaluate(agent, env, task_id, config, num_eval_episodes):
    observation, info = env.reset(options={"task_id": task_id})
    assert "goal" in info
    return {"success": 1.0}, [], []
"""
