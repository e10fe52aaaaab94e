"""Train an agent that reaches goals in a maze, and measure it.

It learns from recorded episodes, without a reward. To record a maze (minutes
on two cores):

    python examples/reach_goals.py --out runs/reach_goals

On a Minari data set with goals:

    python examples/reach_goals.py --data D4RL/pointmaze/umaze-v2 --out RUN

Needs the extras `sim` and `minari`.
"""

import argparse
import json
from pathlib import Path

import counterpoint
from counterpoint.envs.goal.collect import PointMazeCollect, collect_pointmaze
from counterpoint.evaluation.evaluate import evaluate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a data set with goals; by default one is recorded")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--agent", default="gcbc", help="gcbc, td_infonce, contrastive_rl, qrl, ...")
    parser.add_argument("--episodes", type=int, default=100, help="episodes to record")
    parser.add_argument("--steps", type=int, default=4000, help="updates of the agent")
    parser.add_argument("--rollouts", type=int, default=20, help="episodes to measure in")
    given = parser.parse_args()

    data = given.data
    if data is None:  # a waypoint controller walks through the maze; an interrupted recording is continued
        maze = PointMazeCollect(out=given.out / "data", episodes=given.episodes, val_episodes=5)
        data = collect_pointmaze(maze)

    small = {
        "agent.hidden": [256, 256],
        "train.batch_size": 256,
        "train.steps": given.steps,
        "train.eval_every": given.steps,
    }
    run = counterpoint.train(given.agent, [data], given.out / given.agent, overrides=small)

    result = json.loads(evaluate(run.folder, episodes=given.rollouts).read_text())
    success = result["success"]
    print(f"reached {success['value']:.0%} [{success['low']:.0%}, {success['high']:.0%}] of {success['n']} goals")


if __name__ == "__main__":  # simulators and decoders run in processes that import this file again
    main()
