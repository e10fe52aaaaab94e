"""Trained policies in LeRobot's evaluation: do they succeed as often as in this library's own rollouts?

    python -m studies.lerobot_policies --out runs/lerobot_policies

The study needs LeRobot and its Meta-World (`make interchange`). LeRobot's environment renders at 480 pixels with
shadows, reflections and anti-aliasing; this library's environment renders without them. The same seed gives the same
scene in both.

1. The scripted expert's actions are computed in this library's environment and executed in LeRobot's, where half of the
   demonstrations are recorded. As a gate, every demonstration must solve its scene there. The other half is recorded in
   this library's environment.
2. A cloned policy and a diffusion policy are trained on both halves.
3. Each policy is saved for LeRobot, loaded by LeRobot's factories, and evaluated by LeRobot's `eval_policy`. It is also
   rolled out in this library on the same seeds.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, PositiveInt

import counterpoint
from counterpoint.config import FrozenConfig
from counterpoint.data.episode import Array, Episode
from counterpoint.data.resize import resize
from counterpoint.data.store import MemoryStore
from counterpoint.envs.metaworld.env import CAMERAS, CONTROL_HZ, MetaWorldEnv, resolve_tasks
from counterpoint.envs.rendering import choose_backend
from counterpoint.errors import require
from counterpoint.evaluation.rollout import episode_seed, rollout
from counterpoint.evaluation.statistics import wilson
from studies.harness import Rows, Study, Tree, Trial, estimate, main, markdown

THEIRS, OURS = "LeRobot", "here"
SIZE, RENDER = 64, 240
"""Side in pixels of the policies' images, and of this library's renders before they are resized."""
CLONED: Tree = {
    "encoder.size": SIZE,
    "encoder.stack": 1,
    "encoder.width": 12,
    "encoder.embed_dim": 64,
    "cloning.hidden": 256,
    "cloning.use_state": True,
    "cloning.shift": 2,
    "optimizer.lr": 1e-3,
    "optimizer.schedule": "cosine",
    "train.batch_size": 64,
}
DIFFUSION: Tree = {
    "frame": SIZE,
    "encoder.kind": "drq",
    "encoder.size": SIZE - 4,
    "encoder.cameras": 1,
    "encoder.width": 12,
    "encoder.embed_dim": 64,
    "diffusion.down_dims": [64, 128],
    "diffusion.step_dim": 64,
    "diffusion.prediction": "sample",
    "optimizer.lr": 1e-3,
    "optimizer.warmup_steps": 50,
    "train.batch_size": 32,
    "train.eval_every": 0,
}
POLICIES: dict[str, tuple[str, Tree]] = {"cloned": ("cloning", CLONED), "diffusion": ("diff_c-robosuite", DIFFUSION)}


class LerobotPoliciesConfig(FrozenConfig):
    """Demonstrations, policies and their evaluation.

    Attributes:
        task: A Meta-World task.
        demonstrations: Number of scenes recorded in LeRobot's environment, and of other scenes recorded in this
            library's environment.
        steps: Number of gradient steps of a policy.
        episodes: Number of scenes of an evaluation; their seeds begin with `seed`.
        horizon: Control steps of an episode. LeRobot's own limit is 500, but on a CPU it renders four images per
            second.
        seed: The first seed of an evaluation; LeRobot's default.
    """

    task: str = "coffee-button-v3"
    demonstrations: PositiveInt = 20
    steps: PositiveInt = 1200
    episodes: PositiveInt = 10
    horizon: int = Field(default=120, ge=1, le=500)
    seed: int = 1000


def lerobot_policies_study(config: LerobotPoliciesConfig, out: Path) -> Tree:
    """Record, train and evaluate in both places; write `lerobot_policies.json`, its table and `results.parquet`."""
    choose_backend()
    study = Study("policies in LeRobot", out, config, free=())
    (out / "data").mkdir(exist_ok=True)
    study.run([Trial(f"data-{where}", partial(record, config, out, where), 100) for where in (OURS, THEIRS)])
    gate = study.read(f"data-{THEIRS}")["solved"]
    require(all(gate), "the expert in LeRobot", f"{sum(gate)} of {len(gate)} solved", "all", "compare versions")
    trials = []
    for name in POLICIES:
        about: Tree = {"policy": name}
        trials.append(Trial(f"train-{name}", partial(learn, config, out, name), config.steps, about))
        for where, evaluate in ((OURS, in_ours), (THEIRS, in_lerobot)):
            call = partial(evaluate, config, out, name)
            trials.append(Trial(f"{name}-{where}", call, config.episodes, {**about, "where": where}))
    study.run(trials)
    found = summary(study.rows())
    return study.finish("lerobot_policies", found, table(found) + "\n")


# Demonstrations


def record(config: LerobotPoliciesConfig, out: Path, where: str) -> Tree:
    """Record the scripted expert in one of the two environments, and keep its episodes in `OUT/data`."""
    ours = MetaWorldEnv(config.task, cameras=CAMERAS[:1], size=SIZE, render=RENDER, steps=config.horizon)
    theirs = lerobot_env(config)[1] if where == THEIRS else None
    ours.look = theirs is None
    kept: Tree = {}
    solved, apart = [], 0.0
    for number in range(config.demonstrations):
        episode = demonstrate(ours, episode_seed(config.seed, 0 if theirs is None else 1, number))
        if theirs is not None:
            images, done, distance = replay(theirs, episode)
            episode["images"], apart = images, max(apart, distance)
            solved.append(done)
        else:
            solved.append(episode["solved"])
        kept |= {f"{name}{number}": episode[name] for name in ("images", "actions", "state")}
    ours.close()
    if theirs is not None:
        theirs.close()
    np.savez_compressed(out / "data" / f"{where}.npz", **kept)
    return {"solved": solved, "state_difference": apart}


def demonstrate(env: MetaWorldEnv, seed: int) -> Tree:
    """Return the scripted expert's images, states and actions until it succeeds."""
    seen, _ = env.reset(seed=seed)
    kept: dict[str, list[Any]] = {"images": [], "state": [], "actions": []}
    solved = False
    while not solved and len(kept["actions"]) < env.horizon:
        action = env.expert()
        for name, value in zip(kept, (seen[CAMERAS[0]], seen["state"], action), strict=True):
            kept[name].append(value)
        seen, _, _, _, info = env.step(action)
        solved = bool(info["is_success"])
    return {"seed": seed, "solved": solved, **{name: np.stack(values) for name, values in kept.items()}}


def replay(env: Any, episode: Tree) -> tuple[Array, bool, float]:
    """Execute an episode's actions in LeRobot's environment.

    Returns:
        The resized images, True if the actions solve the scene, and the maximum difference between the states of the
        two environments.
    """
    seen, _ = env.reset(seed=[episode["seed"]])
    images, done, apart = [], False, 0.0
    for action, state in zip(episode["actions"], episode["state"], strict=True):
        images.append(resize(seen["pixels"], SIZE)[0])
        apart = max(apart, float(np.abs(seen["agent_pos"][0] - state).max()))
        seen, _, ended, _, _ = env.step(action[None])
        done = done or bool(ended[0])
    return np.stack(images), done, apart


def lerobot_env(config: LerobotPoliciesConfig) -> tuple[Any, Any]:
    """Return LeRobot's configuration of the task and its vector environment of one row."""
    from lerobot.envs.configs import MetaworldEnv

    (task,) = resolve_tasks([config.task])
    made = MetaworldEnv(task=task)
    (env,) = made.create_envs(1)[task].values()
    env.set_attr("_max_episode_steps", config.horizon)
    return made, env


# Policies


def learn(config: LerobotPoliciesConfig, out: Path, name: str) -> Tree:
    """Train one policy on all demonstrations."""
    episodes = []
    for where in (OURS, THEIRS):
        with np.load(out / "data" / f"{where}.npz") as data:
            for number in range(config.demonstrations):
                images, actions, state = (data[f"{key}{number}"] for key in ("images", "actions", "state"))
                times = np.arange(len(actions)) / CONTROL_HZ
                episodes.append(Episode({"image": images}, config.task, times, actions=actions, state=state))
    recipe, settings = POLICIES[name]
    overrides = {**settings, "train.steps": config.steps, "train.trackers": []}
    run = counterpoint.train(recipe, MemoryStore(episodes), out / name, overrides=overrides)
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    errors = {key: [line[key] for line in lines if key in line] for key in ("action_error", "imitation")}
    kept = {key: {"first": values[0], "last": values[-1]} for key, values in errors.items() if values}
    return {"errors": kept, "frames": sum(len(episode.timestamps) for episode in episodes)}


def in_ours(config: LerobotPoliciesConfig, out: Path, name: str) -> Tree:
    """Roll a policy out in this library's environment."""
    options: Tree = {"cameras": CAMERAS[:1], "size": SIZE, "render": RENDER, "steps": config.horizon}
    seeds = range(config.seed, config.seed + config.episodes)
    make = partial(MetaWorldEnv, config.task, **options)
    results = rollout(counterpoint.load(out / name), make, seeds, envs=1, stop_at_success=True)
    return {"solved": [bool(result.success) for result in results]}


def in_lerobot(config: LerobotPoliciesConfig, out: Path, name: str) -> Tree:
    """Save a policy for LeRobot, load it by LeRobot's factories, and evaluate it by LeRobot's loop."""
    from lerobot.configs import PreTrainedConfig
    from lerobot.policies import make_policy, make_pre_post_processors
    from lerobot.scripts.lerobot_eval import eval_policy

    from counterpoint.policies.lerobot_plugin import CounterpointPolicy

    folder = out / f"{name}-lerobot"
    CounterpointPolicy.of(counterpoint.load(out / name)).save_pretrained(folder)
    env_config, env = lerobot_env(config)
    saved = PreTrainedConfig.from_pretrained(folder)
    saved.pretrained_path = folder
    policy = make_policy(saved, env_cfg=env_config)
    steps = (*env_config.get_env_processors(), *make_pre_post_processors(saved, str(folder)))
    found = eval_policy(env, policy, *steps, n_episodes=config.episodes, start_seed=config.seed)
    env.close()
    return {"solved": [bool(episode["success"]) for episode in found["per_episode"]]}


def summary(rows: Rows, about: Tree | None = None) -> Tree:
    """Return the success of every policy in both places, with Wilson's intervals, and the number of equal outcomes."""
    solved = {(row["policy"], row["where"]): row["solved"] for row in rows if row.get("where")}
    shares = {key: wilson(sum(value), len(value)).as_json() for key, value in solved.items()}
    both = [name for name in POLICIES if (name, OURS) in solved and (name, THEIRS) in solved]
    return {
        name: {
            OURS: shares[name, OURS],
            THEIRS: shares[name, THEIRS],
            "alike": sum(a == b for a, b in zip(solved[name, OURS], solved[name, THEIRS], strict=True)),
        }
        for name in both
    }


def table(found: Tree) -> str:
    """Return the success in both places."""
    rows = [
        [name, estimate(one[OURS], share=True), estimate(one[THEIRS], share=True), one[OURS]["n"], one["alike"]]
        for name, one in found.items()
        if name in POLICIES
    ]
    head = ["policy", "this library's roll-outs", "LeRobot's evaluation", "scenes", "scenes with equal outcome"]
    return markdown(head, rows)


if __name__ == "__main__":
    main("lerobot_policies")
