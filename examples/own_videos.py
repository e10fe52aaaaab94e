"""Turn a folder of your own videos into a reward.

Train on the videos, write the report, and score a video. On toy videos (some
minutes on two cores):

    python examples/own_videos.py --out runs/own_videos

On a folder with a manifest.csv of the columns video and instruction:

    python examples/own_videos.py --data MY_VIDEOS --out RUN

Needs the extras `vision`, `text` and `report`.
"""

import argparse
from pathlib import Path

import counterpoint
from counterpoint.evaluation.report import write_report
from toy_videos import write_toy_videos


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="any data set with instructions; by default toy videos are made")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--steps", type=int, default=600, help="updates")
    given = parser.parse_args()
    data = given.data or write_toy_videos(given.out / "videos")

    steps = {"train.steps": given.steps, "train.eval_every": given.steps}
    run = counterpoint.train("decisionnce_p-videos", [data], given.out / "run", overrides=steps)
    print(f"open {write_report(run.folder)}")

    model = counterpoint.RewardModel.from_pretrained(run.folder)
    store = counterpoint.open_dataset(data)
    own = store.episodes[0].instruction
    other = next(info.instruction for info in store.episodes if info.instruction != own)
    frames = store.frames(0, range(store.episodes[0].length))  # uint8 [T, H, W, 3]: your own video goes here
    right, wrong = model.reward(frames, [own, other])  # one reward a frame for each
    progress = model.progress(frames, own)  # the same, calibrated to [0, 1]
    print(f"at its end: {own!r} {right[-1]:.2f}, {other!r} {wrong[-1]:.2f}; progress {progress[-1]:.0%}")


if __name__ == "__main__":  # videos are decoded in processes that import this file again
    main()
