"""Train several methods on the same videos, and compare their rewards.

The rewards are compared on held-out videos, beside controls. On toy videos
(about five minutes on two cores):

    python examples/compare_methods.py --out runs/compare

On your own videos:

    python examples/compare_methods.py --data MY_VIDEOS --out RUN --seeds 3

Needs the extras `vision`, `text` and `report`.
"""

import argparse
from pathlib import Path

from counterpoint.training.compare import compare
from toy_videos import write_toy_videos


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="any data set with instructions; by default toy videos are made")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--recipes", nargs="+", default=["decisionnce_p-videos", "liv-videos", "clip-videos"])
    parser.add_argument("--seeds", type=int, default=1, help="training seeds of each")
    parser.add_argument("--steps", type=int, default=600, help="updates")
    given = parser.parse_args()
    data = given.data or write_toy_videos(given.out / "videos")

    steps = {"train.steps": given.steps, "train.eval_every": given.steps}
    page = compare(recipes=given.recipes, data=data, out=given.out / "comparison", seeds=given.seeds, overrides=steps)
    print(f"open {page}; the same numbers are in {page.with_suffix('.json')}")
    print("read them beside their controls: a ramp, a constant, wrong words, random weights, one frame alone")


if __name__ == "__main__":  # videos are decoded in processes that import this file again
    main()
