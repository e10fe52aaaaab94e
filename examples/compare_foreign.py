"""Compare reward models of others on the same videos, with --python in a Python of their own.

A model that hangs, fails or eats memory costs its own row of the page.

    python examples/compare_foreign.py --data DATA --out RUN --models vlm_reward:progress models/robometer models/sarm
"""

import argparse
from pathlib import Path

from counterpoint.training.compare import compare
from counterpoint.workers import Foreign

if __name__ == "__main__":  # videos are decoded in processes that import this file again
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a data set with instructions")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--models", nargs="+", required=True, help="module:function, or folders of LeRobot models")
    parser.add_argument("--python", type=Path, help="the interpreter that has the models' libraries")
    given = parser.parse_args()
    print(compare(given.models, data=given.data, out=given.out, foreign=Foreign(python=given.python, seconds=600)))
