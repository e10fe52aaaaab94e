"""Stop an episode as soon as the camera shows that the task is done.

Each episode of a data set is played here as a camera would deliver it. On a
robot, take the frames from the camera instead, and stop the policy:

    python examples/stop_at_success.py RUN --data DATA
"""

import argparse
from pathlib import Path

import counterpoint

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", type=Path, help="a run of `counterpoint train` with failures among its videos")
parser.add_argument("--data", type=Path, required=True, help="a data set with instructions")
parser.add_argument("--hold", type=int, default=3, help="frames in a row that must show success")


def played(model: counterpoint.RewardModel, store: counterpoint.EpisodeStore, number: int, hold: int) -> int | None:
    """Return the frame at which the episode was stopped; `None` if it ran to its end."""
    stream, seen = model.stream(store.episodes[number].instruction), 0
    for step in range(store.episodes[number].length):
        moment = stream.add(store.frames(number, [step])[0])  # the camera's newest frame
        seen = seen + 1 if moment.success else 0
        if seen == hold:
            return step  # here, stop the policy
    return None


def main() -> None:
    given = parser.parse_args()
    model, store = counterpoint.RewardModel.from_pretrained(given.model), counterpoint.open_dataset(given.data)
    print(f"success from progress {model.check_calibration().success:.2f}")
    for number, info in enumerate(store.episodes):
        step = played(model, store, number, given.hold)
        known = {True: "it succeeds", False: "it fails", None: "its success is not recorded"}[info.success]
        told = "ran to its end" if step is None else f"stopped at frame {step}"
        print(f"episode {number}, {info.instruction!r}: {told} of {info.length} frames; {known}")


if __name__ == "__main__":  # videos are decoded in processes that import this file again
    main()
