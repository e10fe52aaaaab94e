"""Time that a diffusion policy takes for an action, the parts of this time, and how regularly it can act at 20 Hz.

    python benchmarks/policy_latency.py [--recipe diff_c-robosuite] [--threads 1 2] [--ticks 400] [--out FILE]
    python benchmarks/policy_latency.py --device cuda --bf16 --compile

The policy is a recipe's, with random weights: `diff_c-robosuite`, the size of ICon's experiments, or
`diff_c-robosuite-small`, the smallest policy on images. Both read two observations of two cameras and proprioception,
plan 16 actions with 8 steps of DDIM, and execute 8.

- `environments`: medians in milliseconds for `act()` on 1 and on 16 environments, over rounds in which the compared
  cases alternate. On a CPU they are processor time in one thread, which is valid on a busy machine too; on a GPU they
  are wall-clock time.
    - `planning`: a call that makes a plan, including the encoding of two observations of each environment.
    - `executing`: a call that takes the next action of a plan.
    - `per_step`: their mean over the 8 steps of a plan.
    - `stages`: shares of `planning`. `look` crops and stores the images, `encode` is everything up to the conditioning
      of the head, `network` the U-Net, `schedule` the rest of sampling, `rest` everything else.
    - `sample_over_network`: the time of `sample()` divided by the time of the same number of plain calls of the U-Net,
      each with its own conditioning. It may be below 1, because sampling computes the conditioning of all steps at
      once.
- `select_action`: the same of one robot in wall-clock time, for each number of torch's threads.
- `control`: a loop at 20 Hz whose actions come from `select_action` (`waiting for plans`), or from the newest plan of a
  thread that plans meanwhile (`planning in a thread`, as in docs/diffusion_policies.md), or of a process, and for
  comparison a loop that only sleeps until its next tick (`no policy`). torch has one thread. An action is late if it is
  ready more than 5 ms after its tick, and missing if no plan reaches its tick, so that the last action is repeated.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch

from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.policies.diffusion import DiffusionHead
from counterpoint.policies.diffusion_policy import DiffusionPolicy, condition_width
from counterpoint.training.recipe import load_recipe
from counterpoint.workers import worker_pool
from measuring import parser, write

ACTIONS, STATE, BATCHES = 7, 9, (1, 16)
HZ, LATE, TURNS = 20, 0.005, 4
STAGES = ("encode", "network", "schedule", "rest")


@dataclass(frozen=True)
class Settings:
    """The policy that is measured.

    Attributes:
        recipe: The recipe of a diffusion policy.
        device: Where it acts.
        bf16: Run the networks in bfloat16 by autocast.
        compile: Compile the networks, the U-Net on a GPU with CUDA graphs.
    """

    recipe: str
    device: str
    bf16: bool
    compile: bool

    def built(self) -> DiffusionPolicy:
        """Return the policy with random weights."""
        torch.manual_seed(0)
        recipe: Any = load_recipe(self.recipe)
        tower = ObservationEncoder(recipe.encoder)
        head = DiffusionHead(ACTIONS, condition_width(tower, STATE, recipe.state_embed_dim), recipe.diffusion)
        own = {"use_state": recipe.use_state, "state_embed_dim": recipe.state_embed_dim, "frame": recipe.frame}
        policy = DiffusionPolicy(tower, head, state_dim=STATE, **own).to(self.device).eval()
        if self.bf16:
            cast = torch.autocast(self.device.partition(":")[0], torch.bfloat16)
            for part, name in ((tower, "forward"), (head.network, "forward"), (head.network, "conditioning")):
                setattr(part, name, cast(getattr(part, name)))
        if self.compile:
            tower.compile()
            head.network.compile(mode="reduce-overhead" if self.device.startswith("cuda") else "default")
        return policy


def seen(policy: DiffusionPolicy, *lead: int) -> dict[str, Any]:
    """Return a random observation; with a leading size, of several environments."""
    rng, size = np.random.default_rng(0), policy.frame
    cameras = range(policy.encoder.config.cameras)
    images = {f"camera{number}": rng.integers(0, 256, (*lead, size, size, 3), dtype=np.uint8) for number in cameras}
    return {**images, "state": rng.normal(size=(*lead, STATE)).astype(np.float32)}


class Clock:
    """A clock for calls, in milliseconds.

    Args:
        device: On a GPU, the clock waits until the GPU is done.
        wall: Measure wall-clock time on a CPU too, instead of processor time.
    """

    def __init__(self, device: str, *, wall: bool = False) -> None:
        self._gpu, self._wall = device.startswith("cuda"), wall
        self.spent: dict[str, float] = defaultdict(float)

    def now(self) -> float:
        """Return the present time in milliseconds."""
        if self._gpu:
            torch.cuda.synchronize()
        return 1000 * (time.perf_counter() if self._gpu or self._wall else time.process_time())

    def time(self, work: Callable[[], object]) -> float:
        """Time one call."""
        began = self.now()
        work()
        return self.now() - began

    def watch(self, thing: Any, name: str, stage: str) -> Callable[[], None]:
        """Count the time of a method's calls under `stage`; return a function that ends this."""
        method = getattr(thing, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            began = self.now()
            try:
                return method(*arguments, **named)
            finally:
                self.spent[stage] += self.now() - began

        setattr(thing, name, timed)
        return lambda: setattr(thing, name, method)


def measure(policy: DiffusionPolicy, device: str, batch: int, rounds: int) -> dict[str, Any]:
    """Return the times of `act` in several environments, and of sampling beside plain calls of the U-Net."""
    clock, config = Clock(device), policy.head.config
    observation, rows = seen(policy, batch), list(range(batch))
    condition = torch.randn(batch, config.obs_steps, policy.head.condition_dim, device=device)
    noise = torch.randn(batch, config.horizon, ACTIONS, device=device)
    network, steps = policy.head.network, policy.head.schedule.steps

    @torch.no_grad()
    def plain() -> None:
        for step in steps:
            network(noise, network.conditioning(step.expand(batch), condition))

    times: dict[str, list[float]] = defaultdict(list)

    def beside(kept: dict[str, list[float]]) -> None:
        kept["plain"].append(clock.time(plain))
        kept["sample"].append(clock.time(lambda: policy.head.sample(condition)))

    policy.reset(rows)
    found = acted(policy, clock, lambda: policy.act(observation, rows=rows), rounds, times, beside)
    return {
        **found,
        "network_ms": round(median(times["plain"]), 2),
        "sample_ms": round(median(times["sample"]), 2),
        "sample_over_network": round(median(a / b for a, b in zip(times["sample"], times["plain"], strict=True)), 3),
    }


def acted(
    policy: DiffusionPolicy,
    clock: Clock,
    act: Callable[[], object],
    rounds: int,
    times: dict[str, list[float]],
    beside: Callable[[dict[str, list[float]]], None] = lambda _: None,
) -> dict[str, Any]:
    """Return the time of calls that plan and of calls that do not; `beside` measures what alternates with them."""
    executed = policy.head.config.executed
    for number in range(rounds + 2):  # two rounds warm up: the first plan reads one observation, later ones read two
        kept = times if number > 1 else defaultdict(list)
        beside(kept)
        for step in range(executed):
            kept["executing" if step else "planning"].append(clock.time(act))
    planning, executing = median(times["planning"]), median(times["executing"])
    return {
        "planning_ms": round(planning, 2),
        "slowest_ms": round(max(times["planning"]), 2),
        "executing_ms": round(executing, 3),
        "per_step_ms": round((planning + (executed - 1) * executing) / executed, 2),
        "stages": stages(policy, clock, act, rounds),
    }


def stages(policy: DiffusionPolicy, clock: Clock, act: Callable[[], object], rounds: int) -> dict[str, float]:
    """Return each stage's share of planning, from separate rounds, which on a GPU wait for the end of each stage."""
    network = policy.head.network
    ends = [
        clock.watch(*what)
        for what in (
            (policy, "_see", "look"),
            (policy, "_encode", "encode"),
            (policy.head, "sample", "sample"),
            (network, "forward" if network._compiled_call_impl is None else "_compiled_call_impl", "network"),
            (network, "conditioning", "network"),
        )
    ]
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for step in range(policy.head.config.executed):
            clock.spent.clear()
            total, spent = clock.time(act), clock.spent
            if step == 0:
                spent["schedule"] = spent["sample"] - spent["network"]
                spent["rest"] = total - spent["look"] - spent["encode"] - spent["sample"]
                for stage in ("look", *STAGES):
                    found[stage].append(spent[stage] / total)
    for end in ends:
        end()
    return {stage: round(median(shares), 4) for stage, shares in found.items()}


def waiting(act: Callable[[], object], ticks: int) -> tuple[list[float], int]:
    """Act at 20 Hz; return the delay of each action in seconds, and the number of missing actions, which is 0."""
    delays, start = [], time.perf_counter()
    for tick in range(ticks):
        time.sleep(max(0.0, start + tick / HZ - time.perf_counter()))
        act()
        delays.append(time.perf_counter() - start - tick / HZ)
    return delays, 0


_entered: list[DiffusionPolicy] = []
"""The policy that plans for `meanwhile`, in this process or in a worker process."""


def enter(settings: Settings) -> None:
    """Build the policy of a worker process."""
    torch.set_num_threads(1)
    _entered.append(settings.built())


def planned(observations: list[Any]) -> Any:
    """Return a plan [K, A] from the newest observations."""
    policy = _entered[0]
    for earlier in observations[:-1]:
        policy.observe(earlier)
    return policy.predict_action_chunk(observations[-1])


def meanwhile(planner: Executor, policy: DiffusionPolicy, ticks: int) -> tuple[list[float], int]:
    """Act at 20 Hz by the newest plan of a thread or process, which begins the next plan after the executed steps.

    Returns:
        The delay of each action in seconds, and the number of missing actions.
    """
    observation, executed = seen(policy), policy.head.config.executed
    recent = deque([observation], maxlen=policy.history)
    plan, begun, asked, missing = planner.submit(planned, list(recent)).result(), 0, 0, 0
    coming: Future[Any] | None = None
    delays, start = [], time.perf_counter()
    for tick in range(ticks):
        time.sleep(max(0.0, start + tick / HZ - time.perf_counter()))
        recent.append(observation)
        if coming is not None and coming.done():
            plan, begun, coming = coming.result(), asked, None
        missing += tick - begun >= len(plan)
        delays.append(time.perf_counter() - start - tick / HZ)
        if coming is None and tick - begun >= executed:
            asked, coming = tick, planner.submit(planned, list(recent))
    return delays, missing


def loops(settings: Settings, policy: DiffusionPolicy, act: Callable[[], object], ticks: int) -> dict[str, Any]:
    """Return, for each loop at 20 Hz, its late and missing actions and the largest delay; loops take turns."""
    _entered.append(policy)
    delays: dict[str, list[float]] = defaultdict(list)
    missing: dict[str, int] = defaultdict(int)
    with ThreadPoolExecutor(1) as thread, worker_pool(1, enter, settings) as process:
        runs = {
            "no policy": partial(waiting, lambda: None),
            "waiting for plans": partial(waiting, act),
            "planning in a thread": partial(meanwhile, thread, policy),
            "planning in a process": partial(meanwhile, process, policy),
        }
        for _ in range(TURNS):
            for name, run in runs.items():
                policy.reset()
                found, gaps = run(ticks // TURNS)
                delays[name] += found
                missing[name] += gaps
    return {
        name: {
            "ticks": len(found),
            "late": sum(delay > LATE for delay in found),
            "missing": missing[name],
            "most_ms": round(1000 * max(found), 1),
        }
        for name, found in delays.items()
    }


def main() -> None:
    """Measure and write `benchmarks/results/policy_latency.json`."""
    words = parser(7)
    words.add_argument("--recipe", default="diff_c-robosuite", help="the recipe of a diffusion policy")
    words.add_argument("--device", default="cpu")
    words.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="torch's threads for one robot")
    words.add_argument("--ticks", type=int, default=400, help="steps of the loops at 20 Hz")
    words.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    words.add_argument("--compile", action="store_true", help="compile encoder and U-Net")
    options = words.parse_args()
    gpu, rounds = options.device.startswith("cuda"), options.rounds
    settings = Settings(options.recipe, options.device, options.bf16, options.compile)
    torch.set_num_threads(1)
    policy = settings.built()
    parts = (("encoder", policy.encoder), ("network", policy.head.network))
    parameters = {name: sum(value.numel() for value in part.parameters()) for name, part in parts}
    cases = {str(batch): measure(policy, options.device, batch, rounds) for batch in BATCHES}
    alone, act = {}, partial(policy.select_action, seen(policy))
    for threads in options.threads:
        torch.set_num_threads(threads)
        policy.reset()
        alone[str(threads)] = acted(policy, Clock(options.device, wall=True), act, rounds, defaultdict(list))
    torch.set_num_threads(1)
    control = loops(settings, policy, act, options.ticks)
    tables = {
        "policy latency": environments_table(cases),
        "select_action": robot_table(alone),
        "control": control_table(control),
    }
    found = {
        **asdict(settings),
        "device": torch.cuda.get_device_name() if gpu else "cpu",
        "rounds": rounds,
        "parameters": parameters,
        "environments": cases,
        "select_action": alone,
        "control": control,
    }
    name = "policy_latency_small" if options.recipe.endswith("-small") else "policy_latency"
    write(f"{name}_gpu" if gpu else name, found | {"tables": tables}, options.out)


def shares_of(one: dict[str, Any]) -> list[str]:
    """Return the shares of encoder, U-Net, scheduler and everything else."""
    shares = one["stages"] | {"rest": one["stages"]["look"] + one["stages"]["rest"]}
    return [f"{100 * shares[part]:.1f} %" for part in STAGES]


def environments_table(cases: dict[str, Any]) -> dict[str, Any]:
    """Return the table of `act` in several environments."""
    head = ["environments", "a plan, ms", "a step without a plan, ms", "encode", "U-Net", "scheduler", "crop and rest"]
    rows = [
        [batch, f"{one['planning_ms']:.0f}", f"{one['executing_ms']:.2f}", *shares_of(one), f"{ratio:.2f}"]
        for batch, one in cases.items()
        for ratio in [one["sample_over_network"]]
    ]
    return {"head": [*head, "8 DDIM steps / 8 plain calls of the U-Net"], "rows": rows}


def robot_table(alone: dict[str, Any]) -> dict[str, Any]:
    """Return the table of `select_action` for one robot."""
    head = ["threads", "mean of a step, ms", "a step with a plan, ms", "slowest", "a step without a plan, ms"]
    times = {"per_step_ms": 1, "planning_ms": 1, "slowest_ms": 1, "executing_ms": 2}  # with numbers of decimals
    rows = [
        [threads, *(f"{one[key]:.{decimals}f}" for key, decimals in times.items()), *shares_of(one)]
        for threads, one in alone.items()
    ]
    return {"head": [*head, "encode", "U-Net", "scheduler", "crop and rest"], "rows": rows}


def control_table(control: dict[str, Any]) -> dict[str, Any]:
    """Return the table of the loops at 20 Hz."""
    head = ["loop at 20 Hz", "actions", "late by more than 5 ms", "missing", "largest delay, ms"]
    rows = [
        [name, *(str(one[key]) for key in ("ticks", "late", "missing", "most_ms"))] for name, one in control.items()
    ]
    return {"head": head, "rows": rows}


if __name__ == "__main__":
    main()
