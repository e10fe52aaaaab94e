"""Label every frame of a LeRobot data set with its progress in [0, 1].

LeRobot's RA-BC reads the labels. On toy videos, converted to LeRobot v3 (some
minutes on two cores):

    python examples/label_lerobot.py --out runs/label

On your own data set, into which `run_progress.parquet` is written:

    python examples/label_lerobot.py --data MY_LEROBOT_SET --out runs/label

Needs the extras `vision` and `text`.
"""

import argparse
from pathlib import Path

import pyarrow.parquet

import counterpoint
from counterpoint.cli.data.convert import convert
from counterpoint.rewards.label import label
from toy_videos import write_toy_videos


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a LeRobot data set; by default toy videos are converted to one")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--steps", type=int, default=600, help="updates")
    given = parser.parse_args()
    data = given.data or given.out / "lerobot"
    if not data.exists():
        convert(write_toy_videos(given.out / "videos"), data)

    steps = {"train.steps": given.steps, "train.eval_every": given.steps}
    run = counterpoint.train("decisionnce_p-videos", [data], given.out / "run", overrides=steps)
    labels = label(data, model=run.folder)

    table = pyarrow.parquet.read_table(labels)
    print(table.select(["episode_index", "frame_index", "progress_sparse"]).slice(0, 10).to_pandas())
    print(f"in LeRobot: --sample_weighting.type=rabc --sample_weighting.progress_path={labels}")


if __name__ == "__main__":  # videos are decoded in processes that import this file again
    main()
