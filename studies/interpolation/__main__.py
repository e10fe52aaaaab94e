"""Interpolate representations of TD InfoNCE between a start and a goal in a PointMaze (Appendix E.4).

    python -m studies.interpolation

Records PointMaze_Medium data, trains TD InfoNCE on them (small networks), interpolates between validation states at
least `APART` cells from one another by both of the paper's methods, and writes `studies/results/interpolation.json`
and `docs/assets/interpolation.png`. Encoders that were never trained stand beside the trained one.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import numpy as np

from counterpoint.agents import SavedAgent
from counterpoint.agents.contrastive import ContrastiveAgent
from counterpoint.data.formats.minari.reader import read_minari
from counterpoint.envs.goal.collect import PointMazeCollect, collect_pointmaze
from counterpoint.envs.goal.env import EnvConfig, make_goal_env
from counterpoint.envs.goal.mazes import MazeGrid
from counterpoint.provenance import provenance
from counterpoint.training.train import train
from studies.harness import RESULTS
from studies.interpolation.run import agent_encoder, interpolation_study, untrained

ROOT = Path(__file__).resolve().parents[2]
APART, PAIRS = 6, 30
SETTINGS = {
    "agent.hidden": [256, 256],
    "agent.actor_lr": 3e-4,
    "agent.actor_goals": "future",
    "agent.behaviour_cloning": 0.1,
    "train.steps": 4_000,
    "train.eval_every": 2_000,
    "train.save_every": 2_000,
    "train.trackers": [],
}


def main() -> None:
    """Train, interpolate, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/interpolation"))
    arguments = parser.parse_args()
    data = collect_pointmaze(PointMazeCollect(out=arguments.out / "data", maze="Medium", episodes=300, val_episodes=30))
    run = arguments.out / "run"
    if not (run / "model").exists():
        train("td_infonce", data, run, overrides=SETTINGS)
    agent = SavedAgent.from_pretrained(run).agent
    assert isinstance(agent, ContrastiveAgent)
    env = make_goal_env(EnvConfig(name="PointMaze_Medium-v3"))
    maze = MazeGrid.of(env)
    env.close()
    episodes = list(read_minari(data / "val"))
    states = np.concatenate([episode.observations for episode in episodes]).astype(np.float64)
    goals = np.concatenate([episode.achieved for episode in episodes]).astype(np.float64)
    result = interpolation_study(
        {"trained": agent_encoder(agent), **untrained(agent, (0, 1, 2))},
        states,
        goals,
        far_pairs(goals, maze),
        maze,
        arguments.out / "study",
    )
    record = {
        "command": "python -m studies.interpolation",
        "settings": SETTINGS,
        "pairs": PAIRS,
        "apart": APART,
        "result": result,
        "policy": json.loads((run / "result.json").read_text()),
        "provenance": provenance(),
    }
    path = RESULTS / "interpolation.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    for image in (arguments.out / "study").glob("*.png"):
        shutil.copy(image, ROOT / "docs" / "assets" / image.name)
    print(f"Wrote {path}")


def far_pairs(goals: np.ndarray, maze: MazeGrid) -> list[tuple[int, int]]:
    """Indices of states drawn by chance that are far from one another through the maze."""
    rng = np.random.default_rng(0)
    cells = maze.cells_of(goals)
    pairs: list[tuple[int, int]] = []
    while len(pairs) < PAIRS:
        start, goal = (int(index) for index in rng.integers(len(cells), size=2))
        if maze.distances(cells[start])[cells[goal]] >= APART:
            pairs.append((start, goal))
    return pairs


if __name__ == "__main__":
    main()
