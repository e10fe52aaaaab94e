"""Train a small diffusion policy on demonstrations, roll it out and film it.

    python examples/diffusion_policy.py --out runs/diffusion
    python examples/diffusion_policy.py --data MY_LEROBOT_SET --out RUN

The first records demonstrations of Meta-World's reach (an hour on two cores).

Needs the extras `sim`, `diffusion` and `clip` (timm).
"""

import argparse
import json
from pathlib import Path

import counterpoint
from counterpoint.envs.metaworld.collect import MetaWorldCollectConfig, collect_metaworld
from counterpoint.evaluation.evaluate import evaluate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="demonstrations with actions and state; by default they are recorded")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--episodes", type=int, default=30, help="demonstrations to record")
    parser.add_argument("--steps", type=int, default=3000, help="updates of the policy")
    parser.add_argument("--rollouts", type=int, default=20, help="episodes to measure in")
    given = parser.parse_args()

    data = given.data or collect_metaworld(
        MetaWorldCollectConfig(out=given.out / "data", tasks=("reach",), episodes=given.episodes, size=96, stride=2)
    )
    small = {
        "frame": 96,
        "encoder.size": 84,
        "encoder.cameras": 1,
        "encoder.vit.patch": 12,
        "encoder.vit.embed_dim": 96,
        "diffusion.down_dims": [64, 128, 256],
        "train.steps": given.steps,
        "train.batch_size": 32,
    }
    run = counterpoint.train("diff_c-robosuite", [data], given.out / "policy", overrides=small)

    if given.data is None:  # a data set of a real robot has no simulator to measure in
        result = json.loads(evaluate(run.folder, "metaworld/reach", episodes=given.rollouts, video=3).read_text())
        success = result["success"]
        print(f"solved {success['value']:.0%} [{success['low']:.0%}, {success['high']:.0%}] of {success['n']} episodes")
        print(f"watch {run.folder / 'videos'}")
    policy = counterpoint.load(run.model)
    print(f"on a robot: counterpoint.load({str(run.model)!r}).select_action(observation), a {type(policy).__name__}")


if __name__ == "__main__":  # simulators and decoders run in processes that import this file again
    main()
