from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from counterpoint.agents import SavedAgent, make_agent
from counterpoint.cli import main
from counterpoint.data.episode import Spaces
from counterpoint.envs.goal.env import EnvConfig, make_goal_env
from counterpoint.errors import BadInputError
from counterpoint.evaluation.agent_report import ValueMap, write_agent_report
from counterpoint.evaluation.report import write_report
from tests.envs.goal.test_ogbench import trained
from tests.evaluation.browser import CHROMIUM, Browser
from tests.evaluation.fake_run import quick_words, write_data, write_run
from tests.evaluation.test_report import Nesting

pytest.importorskip("ogbench")
pytestmark = pytest.mark.sim

TASKS = ["task1", "task2", "task3", "task4", "task5"]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained("gcivl", tmp_path_factory.mktemp("agent"))


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "run")


def another(run: Path, name: str, **changes: Any) -> Path:
    """Copy a run; `success` changes its last evaluation, other changes its configuration."""
    copy = shutil.copytree(run, run.with_name(name))
    success = changes.pop("success", None)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | changes))
    lines = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if success is not None and line["split"] == "eval":
            line["success"] = success
    (copy / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return copy


def test_the_page_has_success_tasks_curves_and_the_value_over_the_maze(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["report", str(run)])
    report = json.loads((run / "report.json").read_text())
    assert f"{report['verdict']}\nWrote {run / 'report.html'}" in capsys.readouterr().out
    result = json.loads((run / "result.json").read_text())
    assert report["evaluation"]["success"] == result["success"]
    assert report["tasks"] == {task: result[f"{task}_success"] for task in TASKS}
    (curve,) = report["curves"]["success"]
    assert curve == {"run": str(run), "points": [[2, result["success"]["value"]]]}
    assert list(report["curves"]) == ["success", "value/loss", "actor/loss"]
    assert report["about"]["evaluation"] == "result.json"
    value = report["value"]
    assert value["name"] == "V(s, g), mean over twins"
    assert value["low"] < value["high"]
    image = Image.open(run / "value.png")
    image.load()
    assert min(image.size) > 500
    text = (run / "report.html").read_text()
    for heading in ("How run reaches goals", "Success by task", "Learning curves", "Value over the maze"):
        assert heading in text
    assert all(f'<th scope="row">{task}</th>' in text for task in TASKS)
    assert text.count('class="line c0"') == 3
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text
    nesting = Nesting()
    nesting.feed(text)
    assert nesting.wrong == []
    assert nesting.open == []


def test_the_numbers_are_those_of_the_last_evaluation_and_reach_the_card(run: Path) -> None:
    evaluated = json.loads((run / "result.json").read_text())
    evaluated["success"] |= {"value": 0.75, "low": 0.5, "high": 0.9, "n": 20}
    (run / "evaluation.json").write_text(json.dumps({"model": "gcivl", **evaluated}))
    text = write_report(run).read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert "The goal was reached in 75 % of 20 episodes (95 % interval: 50 to 90 %)." in text
    assert json.loads((run / "report.json").read_text())["about"]["evaluation"] == "evaluation.json"
    card = (run / "model" / "README.md").read_text()
    assert "By `counterpoint evaluate`." in card
    assert card.count("| success |") == 1


def test_other_seeds_are_drawn_and_averaged(run: Path) -> None:
    others = tuple(another(run, f"seed-{number}", success=success) for number, success in enumerate((0.5, 1.0)))
    own = json.loads((run / "result.json").read_text())["success"]["value"]
    text = write_report(run, others=others).read_text()
    report = json.loads((run / "report.json").read_text())
    (mean,) = report["results"].values()
    assert mean["value"] == pytest.approx((own + 1.5) / 3)
    assert (mean["n"], mean["method"]) == (3, "t over seeds")
    assert [curve["points"] for curve in report["curves"]["success"]] == [[[2, own]], [[2, 0.5]], [[2, 1.0]]]
    assert text.count('class="line rest"') == 6
    assert text.count(">2 other runs</span>") == 3
    assert "Over 3 runs, the mean success at step 2 is <b>" in text
    assert "| success, mean over 3 runs at step 2 |" in (run / "model" / "README.md").read_text()


def test_a_run_that_was_never_evaluated_has_its_losses_alone(run: Path) -> None:
    (run / "result.json").unlink()
    log = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("".join(f"{line}\n" for line in log if '"train"' in line))
    text = write_report(run).read_text()
    report = json.loads((run / "report.json").read_text())
    assert "The run was not evaluated" in text
    assert "Success by task" not in text
    assert (report["evaluation"], report["tasks"], report["results"]) == ({}, {}, {})
    assert list(report["curves"]) == ["value/loss", "actor/loss"]


def near(agent: object, observation: Tensor, goal: Tensor) -> Tensor:
    """A value that is right: minus the distance between the places."""
    apart: Tensor = torch.linalg.vector_norm(observation[:, :2] - goal[:, :2], dim=1)
    return -apart


def saved_run(folder: Path, agent: str, spaces: Spaces, env: dict[str, Any]) -> Path:
    """An agent that learned nothing, in an environment."""
    SavedAgent(make_agent({"name": agent, "hidden": (8,)}, spaces), env).save_pretrained(folder / "model")
    config = {"kind": "agent", "agent": {"name": agent}, "env": env}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def cells(name: str) -> list[tuple[Any, bool]]:
    """The middle of every cell of a maze, by the simulator, and whether the cell is a wall."""
    env = make_goal_env(EnvConfig(name=name))
    world: Any = env.unwrapped
    inside = hasattr(world, "maze_map")
    rows = world.maze_map if inside else world.maze.maze_map
    place = world.ij_to_xy if inside else world.maze.cell_rowcol_to_xy
    env.close()
    return [(place(np.array([i, j])), cell == 1) for i, row in enumerate(rows) for j, cell in enumerate(row)]


@pytest.mark.parametrize(("name", "width"), [("ogbench:pointmaze-medium-v0", 2), ("PointMaze_Medium-v3", 4)])
def test_the_value_is_largest_at_the_goal_and_walls_are_blank(
    name: str, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maps: list[ValueMap] = []

    def draw(found: ValueMap) -> bytes:
        maps.append(found)
        return b"drawn"

    monkeypatch.setattr("counterpoint.agents.ogbench.gcivl.GCIVL.value", near)
    monkeypatch.setattr("counterpoint.evaluation.agent_report._draw", draw)
    env = {"name": name, "corruption": 0.5}
    write_agent_report(saved_run(tmp_path, "gcivl", Spaces((width,), (2,), 2), env), seed=3)
    (found,) = maps
    (left, right, bottom, top), (rows, columns) = found.edges, found.values.shape

    def at(place: Any) -> tuple[int, int]:
        row, column = (top - place[1]) / (top - bottom) * rows, (place[0] - left) / (right - left) * columns
        return int(row), int(column)

    best = np.unravel_index(np.nanargmax(found.values), found.values.shape)
    assert np.abs(np.subtract(best, at(found.goal))).max() <= 1
    assert found.values[at(found.start)] == pytest.approx(-np.hypot(*np.subtract(found.start, found.goal)), abs=0.5)
    assert all(np.isnan(found.values[at(place)]) == wall for place, wall in cells(name))
    assert (tmp_path / "value.png").read_bytes() == b"drawn"


def test_only_values_over_states_in_mazes_are_mapped(tmp_path: Path) -> None:
    images = {"name": "PointMaze_UMaze-v3", "observations": "image"}
    for name, agent, spaces, env in (
        ("no maze", "gcivl", Spaces((10,), (3,), 4), {"name": "FetchReach-v4"}),
        ("no value", "ogbench_gcbc", Spaces((2,), (2,), 2), {"name": "ogbench:pointmaze-medium-v0"}),
        ("images", "gcivl", Spaces((64, 64, 3), (64, 64, 3), 2), images),
    ):
        run = saved_run(tmp_path / name, agent, spaces, env)
        assert "Value over the maze" not in write_agent_report(run).read_text()
        assert not (run / "value.png").exists()
        assert json.loads((run / "report.json").read_text())["value"] is None


def test_options_of_rewards_are_refused_for_an_agent(run: Path) -> None:
    with pytest.raises(BadInputError, match=r"kind 'agent'; expected a reward model\. Hint: leave --embedding out"):
        write_report(run, embedding=True)
    with pytest.raises(BadInputError, match="leave --data and --split and --dialect out"):
        write_report(run, run, split="val", dialect="libero")
    assert not (run / "report.html").exists()


def test_other_runs_are_refused_for_a_reward(tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_words(monkeypatch)
    reward = write_run(tmp_path / "reward", write_data(tmp_path / "data"))
    with pytest.raises(BadInputError, match=r"kind 'dual_encoder'; expected an agent\. Hint: leave --others out"):
        write_report(reward, others=(run,))


def test_others_must_have_the_same_agent_and_environment(run: Path) -> None:
    own = "gcivl in ogbench:pointmaze-medium-v0"
    for name, changes, found in (
        ("hiql", {"agent": {"name": "hiql"}}, "hiql in ogbench:pointmaze-medium-v0"),
        ("large", {"env": {"name": "ogbench:pointmaze-large-v0"}}, "gcivl in ogbench:pointmaze-large-v0"),
        ("reward", {"agent": None, "env": None}, "no agent in no environment"),
    ):
        other = another(run, name, **changes)
        with pytest.raises(BadInputError, match=rf"--others .*{name}: found {found}; expected {own}"):
            write_report(run, others=(other,))
    with pytest.raises(BadInputError, match="a run that is given twice"):
        write_report(run, others=(run,))
    assert not (run / "report.html").exists()


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.slow
@pytest.mark.parametrize("phone", [True, False])
def test_the_page_opens_without_complaint_and_fits_the_screen(run: Path, tmp_path: Path, phone: bool) -> None:
    pytest.importorskip("websocket", reason="websocket-client is not installed")
    page = write_report(run, others=(another(run, "seed-1"),))
    (tmp_path / "profile").mkdir()
    with Browser(tmp_path / "profile") as browser:
        browser.size(390 if phone else 1100, 900, phone=phone, dark=phone)
        browser.open(page)
        assert browser.complaints == []
        assert browser.run("document.querySelectorAll('.charts .line').length") == 6
        assert browser.run("document.documentElement.scrollWidth") <= (390 if phone else 1100)
        assert browser.run("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
