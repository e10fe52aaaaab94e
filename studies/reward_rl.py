"""Reinforcement learning from a reward of images and words, compared with sparse, dense, constant and random rewards.

    python -m studies.reward_rl --data=runs/demo-data --out runs/reward_rl

Stable-Baselines3's SAC learns one Meta-World task. The policy reads the simulator's state; only the reward reads
images. A row of the table is a reward: the suite's `sparse` or `dense` reward, a `constant`, or `LanguageReward` of an
encoder. The encoder is random, or trained by DecisionNCE-T on scripted experts, whose tasks include or exclude the task
of SAC. Every reward is divided by its largest value in one episode of the scripted expert, so that the same settings of
SAC suit all rewards.
"""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from pydantic import Field, PositiveInt

from counterpoint.config import FrozenConfig
from counterpoint.data.episode import Array
from counterpoint.data.store import EpisodeStore
from counterpoint.data.store_views import SubsetStore
from counterpoint.encoders.dual import DualEncoder
from counterpoint.envs.base import CameraEnv
from counterpoint.envs.make import make_env
from counterpoint.envs.metaworld.env import INSTRUCTIONS
from counterpoint.errors import import_extra, require
from counterpoint.evaluation.statistics import wilson
from counterpoint.rewards import RewardForm, RewardModel
from counterpoint.rewards.gym import LanguageReward, Reading
from counterpoint.training.train import train
from studies.harness import Rows, Study, Tree, Trial, file_name, main, over_seeds
from studies.metaworld_rewards import RECIPE, demo_recipe, split_store
from studies.plots import COLOURS, curve, legend, panels, plain, save

EXPERT_SEED, TEST_SEED = 10**6, 10**6 + 1
"""Seed of the expert's episode, and first seed of the evaluations; training uses smaller seeds."""


class Row(FrozenConfig):
    """A reward.

    Attributes:
        kind: Kind of reward; `language` is this library's.
        encoder: For `language`: random weights, or weights trained on demonstrations of all tasks or all other tasks.
        form: For `language`: the form of the reward. DecisionNCE's planners use the potential (Appendix E.6): a
            transition is a direction, which the first steps of any motion may already have.
        reading: For `language`: see `LanguageReward`.
    """

    kind: Literal["sparse", "dense", "constant", "language"]
    encoder: Literal["random", "all tasks", "other tasks"] = "random"
    form: RewardForm = "potential"
    reading: Reading = "gain"


class RewardRLConfig(FrozenConfig):
    """The configuration of the study.

    Attributes:
        data: A data set of scripted experts on Meta-World with a split `train`.
        rows: The rewards by name.
        task: The Meta-World task to learn.
        seeds: Random seeds of SAC and of the scenes.
        steps: Number of actions that SAC takes.
        repeat: Number of control steps per action.
        horizon: Number of control steps of an episode.
        size: Height and width of the images that the reward reads, in pixels.
        every: Number of actions between evaluations.
        episodes: Number of episodes of an evaluation, in scenes that training does not use.
        pretraining: Number of training steps of DecisionNCE-T.
        sac: Further arguments of `stable_baselines3.SAC`.
        processes: Number of trials that run in parallel.
    """

    data: str
    rows: dict[str, Row]
    task: str
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    steps: PositiveInt = 5000
    repeat: PositiveInt = 5
    horizon: PositiveInt = 200
    size: int = Field(default=64, ge=16)
    every: PositiveInt = 1000
    episodes: PositiveInt = 10
    pretraining: PositiveInt = 1500
    sac: dict[str, Any] = Field(default={})
    processes: PositiveInt = 1


def reward_rl_study(config: RewardRLConfig, out: Path) -> Tree:
    """Learn from every reward with every seed and write `reward_rl.json`, `results.parquet` and `reward_rl.png`."""
    import_extra("stable_baselines3", "rl")
    store = split_store(Path(config.data), "train")
    instruction = INSTRUCTIONS[config.task]
    study = Study("rewards for reinforcement learning", out, config)
    trained = {row.encoder for row in config.rows.values() if row.kind == "language"} - {"random"}
    for name in sorted(trained):
        if not (encoder_folder(out, name) / "model").exists():
            pretrain(config, store, instruction, name, out)
    trials = [
        Trial(
            file_name(name, f"seed{seed}"),
            partial(learn, config, row, seed, out),
            config.steps,
            {"row": name, "seed": seed},
        )
        for seed in config.seeds
        for name, row in config.rows.items()
    ]
    study.run(trials, config.processes)
    facts = {
        "task": config.task,
        "instruction": instruction,
        "pretraining": {name: facts_of(store, instruction, name) for name in sorted(trained)},
    }
    rows = study.rows()
    save(figure(rows), out / "reward_rl.png")
    return study.finish("reward_rl", summary(rows), facts=facts)


def encoder_folder(out: Path, name: str) -> Path:
    """Return the run of an encoder."""
    return out / "encoders" / file_name(name)


def episodes_of(store: EpisodeStore, instruction: str, name: str) -> list[int]:
    """Return the episodes that an encoder is trained on."""
    return [n for n, info in enumerate(store.episodes) if name == "all tasks" or info.instruction != instruction]


def facts_of(store: EpisodeStore, instruction: str, name: str) -> Tree:
    """Return the number of episodes and tasks that an encoder is trained on, and True if the task is one of them."""
    texts = [store.episodes[number].instruction for number in episodes_of(store, instruction, name)]
    return {"episodes": len(texts), "tasks": len(set(texts)), "task_in_pretraining": instruction in texts}


def pretrain(config: RewardRLConfig, store: EpisodeStore, instruction: str, name: str, out: Path) -> None:
    """Train DecisionNCE-T's demo recipe on the demonstrations."""
    kept = episodes_of(store, instruction, name)
    require(kept, config.data, "no episode of another task", "several tasks", "collect more")
    overrides = {"train.steps": config.pretraining, "train.trackers": []}
    train(RECIPE, SubsetStore(store, kept), encoder_folder(out, name), overrides=overrides)


class State(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A Meta-World task whose observation is the scene in numbers, in decimetres: float32 [16].

    The numbers are the hand (3, from the middle of the table), the gripper's opening, the object (3), the goal (3), and
    the vectors from the hand to the object and to the goal. Nothing is rendered unless a reward needs it.
    """

    def __init__(self, env: CameraEnv) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(-np.inf, np.inf, (16,), np.float32)
        self.simulation: Any = env
        env.look = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Begin an episode."""
        _, info = self.env.reset(seed=seed, options=options)
        return self._numbers(), info

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Act once."""
        _, reward, terminated, truncated, info = self.env.step(action)
        return self._numbers(), float(reward), terminated, truncated, info

    def _numbers(self) -> Array:
        raw, middle = self.simulation.raw, np.array([0.0, 0.6, 0.2])
        hand, thing, goal = raw[:3], raw[4:7], raw[-3:]
        parts = [hand - middle, 0.1 * raw[3:4], thing - middle, goal - middle, thing - hand, goal - hand]
        return (10 * np.concatenate(parts)).astype(np.float32)


class Rewarded(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment with a row's reward, divided by `scale`."""

    def __init__(self, env: gymnasium.Env[Any, Any], row: Row, scale: float = 1.0) -> None:
        super().__init__(env)
        self._kind, self.scale = row.kind, scale

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Act once."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        known = {"sparse": float(info["is_success"]), "constant": 1.0}
        return observation, known.get(self._kind, float(reward)) / self.scale, terminated, truncated, info


def make(config: RewardRLConfig, row: Row, out: Path, seed: int) -> Rewarded:
    """Return the environment of a row."""
    env: gymnasium.Env[Any, Any] = State(
        make_env(f"metaworld/{config.task}", config.size, repeat=config.repeat, steps=config.horizon)
    )
    if row.kind == "language":
        instruction = INSTRUCTIONS[config.task]
        model = RewardModel(encoder(row, out, seed), form=row.form)
        env = LanguageReward(env, model, instruction, reward=row.reading)
    return Rewarded(env, row)


def encoder(row: Row, out: Path, seed: int) -> DualEncoder:
    """Return the encoder of a row; a random encoder differs between seeds."""
    if row.encoder != "random":
        return DualEncoder.from_pretrained(encoder_folder(out, row.encoder))
    torch.manual_seed(seed)
    return DualEncoder(demo_recipe().encoder).eval()


class Played(NamedTuple):
    """The result of an episode: success at the last step, success at any step, and the row's rewards."""

    end: bool
    ever: bool
    rewards: list[float]


def play(env: Rewarded, policy: Any, seed: int) -> Played:
    """Play the episode of a scene; `policy` maps an observation to an action."""
    observation, _ = env.reset(seed=seed)
    solved, rewards, over = [], [], False
    while not over:
        observation, reward, terminated, truncated, info = env.step(policy(observation))
        solved.append(bool(info["is_success"]))
        rewards.append(reward)
        over = terminated or truncated
    return Played(solved[-1], any(solved), rewards)


def learn(config: RewardRLConfig, row: Row, seed: int, out: Path) -> Tree:
    """Learn the task from one reward with one seed, and evaluate on the way."""
    sb3 = import_extra("stable_baselines3", "rl")
    env, test = make(config, row, out, seed), make(config, SPARSE, out, seed)
    simulation: Any = env.unwrapped
    expert = play(env, lambda _: simulation.expert(), EXPERT_SEED)
    env.scale = max(map(abs, expert.rewards)) or 1.0
    model = sb3.SAC("MlpPolicy", env, seed=seed, device="cpu", **copy.deepcopy(config.sac))
    points: list[Tree] = []
    while model.num_timesteps < config.steps:
        model.learn(min(config.every, config.steps - model.num_timesteps), reset_num_timesteps=False)
        played = [
            play(test, lambda seen: model.predict(seen, deterministic=True)[0], TEST_SEED + number)
            for number in range(config.episodes)
        ]
        shares = {key: float(np.mean([getattr(one, key) for one in played])) for key in ("end", "ever")}
        points.append({"step": model.num_timesteps, **shares})
        print(points[-1], flush=True)
    env.close()
    test.close()
    return {"points": points, "end": points[-1]["end"], "ever": points[-1]["ever"], "expert": expert.rewards}


SPARSE = Row(kind="sparse")
SOLVED = 0.9
"""Minimum success at the last evaluation at which the task counts as solved."""


def summary(rows: Rows, _: Tree | None = None) -> Tree:
    """Return `rows`: by row, the share of seeds that solve the task (Wilson's interval), and success (t over seeds).

    `end` and `ever` are from the last evaluation, and `area` is the mean of `end` over all evaluations.
    """
    found: Tree = {}
    for name in dict.fromkeys(row["row"] for row in rows):
        runs = [row for row in rows if row["row"] == name]
        found[name] = {
            "solved": wilson(sum(run["end"] >= SOLVED for run in runs), len(runs)).as_json(),
            "end": over_seeds([run["end"] for run in runs], share=True),
            "ever": over_seeds([run["ever"] for run in runs], share=True),
            "area": over_seeds([float(np.mean([point["end"] for point in run["points"]])) for run in runs], share=True),
            "seeds": len(runs),
        }
    return {"rows": found}


def figure(rows: Rows) -> Any:
    """Return a figure of success over SAC's actions, with the mean and the range of the seeds."""
    made, ((panel,),) = panels(1, 1, 5.2, 3.2)
    for colour, name in zip(COLOURS, dict.fromkeys(row["row"] for row in rows), strict=False):
        runs = [row["points"] for row in rows if row["row"] == name]
        steps = [point["step"] for point in runs[0]]
        curve(panel, steps, [[point["end"] for point in run] for run in runs], colour, label=f"{name} (n={len(runs)})")
    plain(panel, x="actions", y="success at the end", ylim=(-0.03, 1.03))
    legend(made, panel, columns=2)
    return made


if __name__ == "__main__":
    main("reward_rl")
