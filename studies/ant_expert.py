"""The expert of AntMaze's data: SAC learns to walk in a given direction, as OGBench's expert did.

    python -m studies.ant_expert --preset cpu --out runs/ant_expert
    counterpoint collect ogbench --dataset antmaze-medium-stitch --expert runs/ant_expert/expert-0.safetensors --out OUT

OGBench's `data_gen_scripts/main_sac.py` trains SAC for 400,000 steps on `online-ant-xy-v0`: the reward is the ant's way
in a direction, which is drawn anew every 100 steps. Its settings are those of `impls/agents/sac.py`. Here
Stable-Baselines3 trains; it has no small initial weights of the policy's last layer (.01 of the usual scale there).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from pydantic import PositiveInt

from counterpoint.config import FrozenConfig
from counterpoint.envs.goal.ogbench_oracles import Walker
from counterpoint.errors import import_extra
from counterpoint.evaluation.statistics import mean_bca
from counterpoint.files import read_object, write_atomically
from studies.harness import Rows, Study, Tree, Trial, file_name, main, markdown, over_seeds

DIRECTION_STEPS = 100
"""Number of steps between directions."""


class AntExpertConfig(FrozenConfig):
    """Steps and seeds.

    Attributes:
        steps: Number of actions, each followed by an update after the first `random_steps`.
        random_steps: Number of random actions at the start.
        every: Number of steps between evaluations, after each of which the run is saved.
        episodes: Number of episodes of an evaluation.
        hidden: Widths of the hidden layers.
        batch_size: Number of transitions of an update.
        seeds: Random seeds.
        processes: Number of trials that run in parallel.
    """

    steps: PositiveInt = 400_000
    random_steps: PositiveInt = 10_000
    every: PositiveInt = 50_000
    episodes: PositiveInt = 20
    hidden: tuple[PositiveInt, ...] = (256, 256)
    batch_size: PositiveInt = 256
    seeds: tuple[int, ...] = (0,)
    processes: PositiveInt = 1


def ant_expert_study(config: AntExpertConfig, out: Path) -> Tree:
    """Train the expert and write `expert-SEED.safetensors`, `ant_expert.json` and `results.parquet`."""
    import_extra("stable_baselines3", "rl")
    import_extra("ogbench", "sim")
    study = Study("an ant that walks in a direction", out, config)
    trials = [
        Trial(file_name("ant", seed), partial(learn, config, seed, out), config.steps, {"seed": seed})
        for seed in config.seeds
    ]
    study.run(trials, config.processes)
    return study.finish("ant_expert", summary(study.rows()))


def make_ant() -> gymnasium.Env[Any, Any]:
    """Return OGBench's `online-ant-xy-v0`; its directions come from NumPy's global generator."""
    import ogbench.online_locomotion  # noqa: F401  registers the environment
    from ogbench.online_locomotion.wrappers import GymXYWrapper

    made: gymnasium.Env[Any, Any] = GymXYWrapper(gymnasium.make("online-ant-v0"), resample_interval=DIRECTION_STEPS)
    return made


def learn(config: AntExpertConfig, seed: int, out: Path) -> Tree:
    """Train one expert, from its last saved step if there is one, and return its returns.

    Returns:
        `curve`: after each evaluation its `step` and the `returns` of its episodes. `random`: the returns of random
        actions.
    """
    import torch
    from stable_baselines3 import SAC

    folder = out / "runs" / str(seed)
    folder.mkdir(parents=True, exist_ok=True)
    note, env = folder / "curve.json", make_ant()
    curve: list[Tree] = read_object(note, "a curve", "remove it")["curve"] if note.exists() else []
    np.random.seed(seed + len(curve))
    if curve:
        model = SAC.load(folder / "model", env=env)
        model.load_replay_buffer(folder / "buffer")
    else:
        policy = {"net_arch": list(config.hidden), "activation_fn": partial(torch.nn.GELU, approximate="tanh")}
        model = SAC(
            "MlpPolicy",
            env,
            learning_rate=1e-4,
            buffer_size=1_000_000,
            learning_starts=config.random_steps,
            batch_size=config.batch_size,
            tau=0.005,
            gamma=0.99,
            target_entropy=-0.5 * int(np.prod(env.action_space.shape or ())),
            policy_kwargs=policy,
            seed=seed,
        )
    while model.num_timesteps < config.steps:
        model.learn(min(config.every, config.steps - model.num_timesteps), reset_num_timesteps=False)
        walker = exported(model)
        found = [episode_return(env, walker, 10_000 + number) for number in range(config.episodes)]
        curve.append({"step": model.num_timesteps, "returns": found})
        print(f"step {model.num_timesteps}: return {np.mean(found):.1f}", flush=True)
        walker.save(out / f"expert-{seed}.safetensors")
        model.save(folder / "model")
        model.save_replay_buffer(folder / "buffer")
        write_atomically(note, json.dumps({"curve": curve}))
    random = [episode_return(env, None, 10_000 + number) for number in range(config.episodes)]
    return {"curve": curve, "random": random}


def exported(model: Any) -> Walker:
    """Return the mean of SAC's policy as a walker."""
    import torch

    actor = model.policy.actor
    layers = [layer for layer in (*actor.latent_pi, actor.mu) if isinstance(layer, torch.nn.Linear)]
    return Walker(
        tuple(tuple(one.detach().cpu().numpy() for one in (layer.weight, layer.bias)) for layer in layers)  # type: ignore[misc]
    )


def episode_return(env: gymnasium.Env[Any, Any], walker: Walker | None, seed: int) -> float:
    """Return the sum of rewards (metres in the wanted direction) of an episode; `None` acts at random."""
    np.random.seed(seed)
    env.action_space.seed(seed)
    seen, _ = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        # A walker's observation begins with the position, which this environment leaves out.
        action = env.action_space.sample() if walker is None else walker(np.append([0.0, 0.0], seen[:-2]), seen[-2:])
        seen, reward, terminated, truncated, _ = env.step(action)
        total, over = total + float(reward), terminated or truncated
    return total


def summary(rows: Rows, _: Tree | None = None) -> Tree:
    """Return the mean return of the trained expert and of random actions over seeds, and the number of steps."""
    last = [row["curve"][-1] for row in rows]
    return {
        "steps": last[0]["step"],
        "expert": over_seeds([float(np.mean(one["returns"])) for one in last]),
        "random": over_seeds([float(np.mean(row["random"])) for row in rows]),
    }


def table(rows: Rows) -> str:
    """Return a table of the expert's return at each evaluation of its training, beside that of random actions."""
    cells = []
    for row in rows:
        cells.append(["0 (random actions)", _cell(row["random"])])
        cells += [[f"{one['step']:,}", _cell(one["returns"])] for one in row["curve"]]
    return markdown(["steps", "return, metres in the wanted direction"], cells)


def _cell(returns: Sequence[float]) -> str:
    found = mean_bca(np.array(returns))
    return f"{found.value:.1f} [{found.low:.1f}, {found.high:.1f}]"


if __name__ == "__main__":
    main("ant_expert")
