from __future__ import annotations

from pathlib import Path

import pytest

from counterpoint.agents import SavedAgent, Spaces, make_agent
from counterpoint.envs.goal.collect import PointMazeCollect, collect_pointmaze
from studies.goal_reaching import summary
from studies.mazes import CONTROLLER, PATHS, controller_trial, in_the_maze, maze_figure
from studies.plots import save

pytestmark = pytest.mark.sim


@pytest.mark.slow
def test_the_gates_and_paths_of_a_maze(tmp_path: Path) -> None:
    data = collect_pointmaze(
        PointMazeCollect(out=tmp_path / "data", suite="stitch", episodes=4, val_episodes=0, steps=20)
    )
    about = controller_trial(str(data), 4)
    assert about["evaluation"]["success"]["value"] == 1.0
    agent = make_agent({"name": "gcbc", "hidden": [8]}, Spaces(observation=(4,), goal=(2,), action=2), seed=0)
    SavedAgent(agent).save_pretrained(tmp_path / "run" / "model")
    found = in_the_maze(str(data), 4, tmp_path / "run")
    assert found["inside"]["success"]["n"] == 4
    assert len(found["paths"]) == min(PATHS, 4)
    assert {len(path["points"]) for path in found["paths"] if not path["reached"]} == {150}  # of 300 steps
    rows = [
        {"row": CONTROLLER, "seed": 0, **about},
        {"row": "td", "seed": 0, "evaluation": about["evaluation"], "curve": [], **found},
    ]
    figure = maze_figure(summary(rows), {"td": "TD InfoNCE"})
    save(figure, tmp_path / "maze.png")
    assert (tmp_path / "maze.png").stat().st_size > 1000
