"""Simulated actions and plans per second of planning in the kitchen, and the gain from rendering only last images.

    python benchmarks/planning.py [--rounds 5] [--out FILE]

64 plans of 20 actions from one state, as in `counterpoint plan`, are rolled out in three ways: by a loop that steps one
environment, by `KitchenDynamics` in the calling thread, and by two threads. The same plans are then scored by a reward
of images at 112 pixels in two equal ways: as the sum of the rewards of all steps, and as the difference between the
values of the last and the first image.

Then whole rounds of MPPI are timed, as in `counterpoint plan --threads N --workers N`, for N = 1, 2 and 4, and for two
threads with one process. A round simulates the 64 plans, renders and encodes their last images, and scores them; the
encoder has as many threads as the simulation. The processes that render are started beforehand.

Times are wall-clock seconds; candidates take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from typing import Any

import numpy as np
import torch

from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from counterpoint.envs.kitchen.dynamics import KitchenDynamics, render_pool
from counterpoint.envs.kitchen.env import KitchenEnv
from counterpoint.planning import MPPI, MPPIConfig
from counterpoint.rewards.model import RewardModel
from measuring import in_turns, parser, write

PLANS, STEPS, LOOPED, SIZE = 64, 20, 4, 112
COUNTS = ((1, 1), (2, 1), (2, 2), (4, 4))
"""Numbers of threads that simulate and encode, and of processes that render."""
STAGES = ("simulate", "render", "encode")


def seconds(run: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


class Round:
    """A round of MPPI whose stages are timed.

    Args:
        env: The task.
        model: The reward.
        threads: Number of threads that simulate and encode.
        renderers: Processes that render; `None` renders in the calling process.
    """

    def __init__(self, env: KitchenEnv, model: RewardModel, threads: int, renderers: Any) -> None:
        self._env, self._model, self._threads = env, model, threads
        self._dynamics = KitchenDynamics(env, threads=threads, renderers=renderers)
        self._planner = MPPI(self._score, env.action_dim, MPPIConfig(horizon=STEPS, samples=PLANS))

    def run(self) -> dict[str, float]:
        """Plan one round from the present state; return the seconds of the whole and of its stages."""
        torch.set_num_threads(self._threads)
        self._planner.reset(0)
        self.spent: dict[str, float] = {}
        whole = seconds(self._planner.improve)
        torch.set_num_threads(1)
        return {"whole": whole, **self.spent}

    def _score(self, plans: Any) -> Any:
        states = self._timed("simulate", lambda: self._dynamics.roll(plans)[:, -1])
        images = self._timed("render", lambda: self._dynamics.images(states))
        return self._timed("encode", lambda: self._model.reward(images, self._env.instruction, form="potential"))

    def _timed(self, stage: str, run: Callable[[], Any]) -> Any:
        found: list[Any] = []
        self.spent[stage] = seconds(lambda: found.append(run()))
        return found[0]


def rounds_of_mppi(env: KitchenEnv, model: RewardModel, rounds: int) -> dict[str, Any]:
    """Return the table of plans a second for `COUNTS`, and the seconds of every round."""
    with ExitStack() as stack:
        pools = {workers: stack.enter_context(render_pool(env, workers)) for _, workers in COUNTS}
        runs = {f"{threads}, {workers}": Round(env, model, threads, pools[workers]).run for threads, workers in COUNTS}
        timed = in_turns(rounds, runs, lambda run: run())
    rows = []
    for name, found in timed.items():
        speeds = [before["whole"] / one["whole"] for before, one in zip(timed["1, 1"], found, strict=True)]
        shares = [median(one[stage] / one["whole"] for one in found) for stage in STAGES]
        rate = median(PLANS / one["whole"] for one in found)
        gain = f"{median(speeds):.2f}x ({min(speeds):.2f} to {max(speeds):.2f})"
        rows.append([*name.split(", "), f"{rate:.1f}", gain, *(f"{100 * share:.0f} %" for share in shares)])
    head = ["threads", "processes that render", "plans a second", "speed / the first row's", *STAGES]
    return {"table": {"head": head, "rows": rows}, "seconds": timed}


def main() -> None:
    """Measure and write `benchmarks/results/planning.json`."""
    options = parser(5).parse_args()
    torch.manual_seed(0)
    env = KitchenEnv("sdoor_open", size=SIZE)
    env.reset(seed=0)
    env.look = False
    plans = np.random.default_rng(0).uniform(-1, 1, (PLANS, STEPS, 9))
    backbone = EncoderConfig(image="timm", image_model="tf_efficientnet_lite0", image_size=SIZE, embed_dim=256)
    model = RewardModel(DualEncoder(backbone).eval())
    one, two = KitchenDynamics(env), KitchenDynamics(env, threads=2)

    def loop() -> None:
        for plan in plans[:LOOPED]:
            env.reset(seed=0)
            for action in plan:
                env.step(action)

    def last() -> None:
        model.reward(one.images(one.roll(plans)[:, -1]), env.instruction, form="potential")

    def every() -> None:
        states = one.roll(plans)
        frames = one.images(states.reshape(-1, states.shape[-1]))
        model.reward(frames, env.instruction, form="potential")

    timed = in_turns(
        options.rounds,
        {"loop": loop, "one": lambda: one.roll(plans), "two": lambda: two.roll(plans), "last": last, "every": every},
        seconds,
    )
    titles = {"loop": "a loop of one environment", "one": "one thread", "two": "two threads"}
    actions = {"loop": LOOPED * STEPS, "one": PLANS * STEPS, "two": PLANS * STEPS}
    rates = {name: [count / spent for spent in timed[name]] for name, count in actions.items()}
    rows: list[list[Any]] = []
    for name, title in titles.items():
        over = [own / base for own, base in zip(rates[name], rates["loop"], strict=True)]
        rows.append([title, f"{median(rates[name]):.0f}", f"{median(over):.2f}x ({min(over):.2f} to {max(over):.2f})"])
    saved = [whole / part for whole, part in zip(timed["every"], timed["last"], strict=True)]
    whole = rounds_of_mppi(env, model, options.rounds)
    found = {
        "n": options.rounds,
        "interval": "lowest and highest of the rounds",
        "renderer": env.renderer.device,
        "seconds": timed,
        "seconds_of_rounds": whole["seconds"],
        "last_image_saves": {"median": median(saved), "low": min(saved), "high": max(saved)},
        "tables": {
            "planning": {"head": ["plans rolled out by", "actions a second", "speed / the loop's"], "rows": rows},
            "rounds": whole["table"],
        },
    }
    write("planning", found, options.out)


if __name__ == "__main__":
    main()
