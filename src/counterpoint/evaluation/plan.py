"""`counterpoint plan`: act in the kitchen by planning with the true dynamics and a reward.

DecisionNCE (Li et al., ICML 2024, section 5.3, Appendix E.6) plans with MPPI, which samples plans and weights them by
their rewards. The reward of a step is S(o_n+1, l) - S(o_n, l), with S the similarity of an image o and instruction l.
With a discount of 1, the sum over a plan is S(o_H, l) - S(o_0, l), so only the image at the plan's end is rendered.
R3M's reward of o_0, o_n and the instruction also needs only that image.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
from pydantic import Field
from torch import nn
from tyro.conf import Positional, arg

from counterpoint.config import FrozenConfig, bound, free
from counterpoint.data.episode import Array
from counterpoint.encoders.calibration import RewardForm
from counterpoint.encoders.hub import is_foreign
from counterpoint.encoders.weights import digest_of
from counterpoint.envs.kitchen.dynamics import KitchenDynamics, render_pool
from counterpoint.envs.kitchen.env import KitchenEnv
from counterpoint.envs.make import make_env
from counterpoint.errors import BadInputError, require, suggestion
from counterpoint.evaluation.rollout import episode_seed, with_interval
from counterpoint.evaluation.statistics import mean_bca, wilson
from counterpoint.files import write_atomically
from counterpoint.parameter_types import Computes
from counterpoint.planning.shooting import MPPI, MPPIConfig
from counterpoint.progress import ProgressBar
from counterpoint.provenance import provenance
from counterpoint.rewards.model import RewardModel
from counterpoint.rewards.sources import FunctionReward, open_function
from counterpoint.workers import IN_PROCESS, Foreign


class PlanConfig(FrozenConfig):
    """The settings of planning.

    Attributes:
        env: The environment's task and camera, as kitchen/TASK@CAMERA.
        reward: The reward to plan for: a run or model, a model of others (the folder of a LeRobot reward model, or
            module:function), `distance` for the true reward, or `constant` for 0.
        size: Height and width of the images, in pixels.
        horizon: Number of actions in a plan; 50 in Table 8, the whole episode. Plans are cut at the episode's end, so
            they have at most 25 actions after the 25 opening actions.
        samples: Number of plans per round; 64 in Table 8.
        rounds: Number of rounds before each action; 1 in Table 8.
        temperature: Temperature of the plans' weights, in standard deviations of the returns. Table 8 has 10, but as a
            factor that multiplies normalised returns.
        noise: Maximum standard deviation of the disturbances, in action units; this library's choice.
        knots: Number of points along the horizon at which disturbances are drawn, interpolated linearly in between;
            this library's choice.
        prefix: Number of opening actions of an episode, which bring the hand near the handle (Appendix E.6). They are
            an expert's actions from another scene, unchanged.
        episodes: Number of episodes, each in a different scene.
        seed: Random seed of scenes and plans.
        threads: Number of threads that simulate.
        workers: Number of processes that render the images at the ends of plans; 1 renders in this process. Results do
            not depend on threads and workers; both help up to the number of cores.
    """

    env: Positional[Annotated[str, arg(metavar="kitchen/TASK@CAMERA")]] = "kitchen/micro_open@left"
    reward: Annotated[str, arg(metavar="RUN|distance|constant")] = "distance"
    size: int = Field(default=112, ge=16)
    horizon: int = Field(default=50, ge=1)
    samples: int = Field(default=64, ge=2)
    rounds: int = Field(default=1, ge=1)
    temperature: float = Field(default=0.1, gt=0)
    noise: float = Field(default=0.5, gt=0)
    knots: int = Field(default=12, ge=1)
    prefix: int = Field(default=25, ge=0)
    episodes: int = free(10, ge=1)
    seed: int = Field(default=0, ge=0)
    threads: int = free(1, ge=1)
    workers: int = free(1, ge=1)


Reward = Callable[[Array], Array]
"""A function that maps the states [B, N] at the ends of plans to rewards, float64 [B]."""


def distance_reward(env: KitchenEnv, dynamics: KitchenDynamics) -> Reward:
    """Return the true reward: the joint's progress minus the hand's distance from the handle in metres."""

    def reward(states: Array) -> Array:
        progress = np.minimum(env.progress_of(dynamics.joints(states)), 1.0)
        return np.asarray(progress - dynamics.gaps(states))

    return reward


def language_reward(env: KitchenEnv, dynamics: KitchenDynamics, model: RewardModel | FunctionReward) -> Reward:
    """Return the reward of the final images under the task's instruction.

    An R3M model uses R3M's reward; other models of this library, including DecisionNCE-T, use S(phi(o), psi(l))
    (Appendix E.6). A model of others scores the video of two frames, the first and the final image.
    """
    first = env.images()[env.cameras[0]]

    def reward(states: Array) -> Array:
        images = dynamics.images(states)
        if isinstance(model, FunctionReward):
            pairs = [{"": np.stack([first, image])} for image in images]
            return np.array([model.predict(pair, env.instruction).progress[-1] for pair in pairs])
        frames, form = np.concatenate([first[None], images]), _form(model)
        return np.asarray(model.reward(frames, env.instruction, form=form)[1:], np.float64)

    return reward


def _form(model: RewardModel) -> RewardForm:
    return "language" if model.form == "language" else "potential"


def constant_reward(env: KitchenEnv, dynamics: KitchenDynamics) -> Reward:
    """Return a reward of 0 for every plan."""
    return lambda states: np.zeros(len(states))


def plan(config: PlanConfig, out: Path, *, device: Computes = "cpu", foreign: Foreign = IN_PROCESS) -> dict[str, Any]:
    """Act by planning with the simulator's dynamics and a reward, and write the result of every episode.

    An interrupted call resumes if it is repeated.

    Time on two cores: 410 actions are simulated per second, so that an episode with the default settings takes about a
    minute; a model's reward also renders and embeds an image of every plan. Disk: some kilobytes per episode.

    Args:
        config: The settings.
        out: File of the result, written after every episode.
        device: Device that computes rewards, such as cuda.
        foreign: How a model of others runs.

    Returns:
        `success` and `solved` with Wilson's interval; `progress` and `best` with a bootstrap interval over scenes;
        `actions_a_second`, the number of actions simulated per second; and `episodes`.

    Raises:
        BadInputError: If the task is not a kitchen task, a model has no reward for instructions, or the file exists but
            is not a result of these settings and weights.
    """
    env, make_reward, identity = prepared(config, device, foreign)
    episodes = _begun(out, identity)[: config.episodes]
    opening = opening_actions(env, config)
    each = _planned(config, env.horizon, len(opening))
    total, done = config.episodes * each, len(episodes) * each
    bar = ProgressBar("Planning", total, "simulated actions", done=done, shorten="--episodes")
    with bar, render_pool(env, config.workers) as renderers:
        for number in range(len(episodes), config.episodes):
            seed, note = episode_seed(config.seed, 3, number), f"episode {number + 1}"
            tell = partial(bar.advance, note=note)
            episode = plan_episode(env, config, make_reward, seed, opening, tell, renderers)
            episodes.append({"seed": seed, **episode})
            result = {"identity": identity, **_result(episodes), "provenance": provenance()}
            write_atomically(out, json.dumps(result, indent=1) + "\n")
    found = _result(episodes)
    rate = f"{found['actions_a_second']:.0f} actions simulated a second"
    progress, success = (with_interval(found[key]) for key in ("progress", "success"))
    print(f"Wrote {out}: progress {progress}, success {success}, {rate}")
    return found


def prepared(
    config: PlanConfig, device: str = "cpu", foreign: Foreign = IN_PROCESS
) -> tuple[KitchenEnv, Callable[..., Reward], dict[str, Any]]:
    """Return the environment, a function that makes the reward, and the facts that must be equal to resume a result.

    Raises:
        BadInputError: See `plan`, except for errors of the file.
    """
    identity = bound(config)
    if config.reward in WITHOUT_MODEL:
        make_reward: Callable[..., Reward] = WITHOUT_MODEL[config.reward]
    else:
        if not Path(config.reward).exists() and (hint := suggestion(config.reward, WITHOUT_MODEL)):
            expected = f"{', '.join(WITHOUT_MODEL)}, a run, a folder of saved weights or a Hub id"
            raise BadInputError("--reward", repr(config.reward), expected, hint)
        if is_foreign(config.reward):
            function = open_function(config.reward, device=device, foreign=foreign)
            make_reward, identity["weights"] = partial(language_reward, model=function), function.files
        else:
            model = RewardModel.from_pretrained(config.reward, device=device)
            model.check_form(_form(model), instructed=True)
            make_reward = partial(language_reward, model=model)
            parts = [part for part in (model.encoder, model.language_reward) if part is not None]
            identity["weights"] = digest_of(nn.ModuleList(cast(list[nn.Module], parts)))
    env = make_env(config.env, size=config.size)
    hint = "its dynamics are the only ones that plans are rolled out in here; `counterpoint.planning` takes any"
    require(isinstance(env, KitchenEnv), f"task {config.env!r}", "a task of another simulator", "kitchen/TASK", hint)
    assert isinstance(env, KitchenEnv)
    most = f"the episode's {env.horizon} actions"
    require(config.horizon <= env.horizon, "--horizon", config.horizon, f"at most {most}", "look less far ahead")
    require(config.prefix < env.horizon, "--prefix", config.prefix, f"fewer than {most}", "leave actions to plan")
    return env, make_reward, identity


def _result(episodes: list[dict[str, Any]]) -> dict[str, Any]:
    shares = {key: wilson(sum(one[key] for one in episodes), len(episodes)).as_json() for key in ("success", "solved")}
    means = {key: mean_bca(np.array([one[key] for one in episodes])).as_json() for key in ("progress", "best")}
    rate = sum(one["planned"] for one in episodes) / sum(one["seconds"] for one in episodes)
    return {**shares, **means, "actions_a_second": rate, "episodes": episodes}


def _begun(out: Path, identity: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the finished episodes of a file with equal settings and weights; create the folder if there is no file."""
    out.parent.mkdir(parents=True, exist_ok=True)
    if not out.exists():
        return []
    try:
        before = json.loads(out.read_text())
        episodes = list(before["episodes"]) if before["identity"] == identity else None
    except (ValueError, KeyError, TypeError):
        episodes = None
    expected = "no file, or plans of these settings and weights"
    require(episodes is not None, out, "something else, or other settings", expected, "choose another --out")
    return cast(list[dict[str, Any]], episodes)


def _planned(config: PlanConfig, horizon: int, opening: int) -> int:
    """Return the number of actions that are simulated for one episode; plans are cut at its end."""
    return config.samples * config.rounds * sum(min(config.horizon, horizon - at) for at in range(opening, horizon))


def plan_episode(
    env: KitchenEnv,
    config: PlanConfig,
    make_reward: Callable[..., Reward],
    seed: int,
    opening: Array,
    tell: Callable[[int], None] = lambda _: None,
    renderers: ProcessPoolExecutor | None = None,
) -> dict[str, Any]:
    """Plan one episode that begins with its opening actions, float64 [h, A].

    `tell` is called after each round with its number of simulated actions. `renderers` are the processes of
    `render_pool`; by default this process renders.

    Returns:
        A dictionary. The joint's progress, at most 1: `progress` at the end, `best` at its maximum, `opened` after the
        opening actions. `solved`: True if the joint is at its goal at the end. `success`: as defined by the task.
        `planned`: the number of simulated actions. `seconds`: the duration.
    """
    env.look = False
    env.reset(seed=seed)
    dynamics = KitchenDynamics(env, threads=config.threads, renderers=renderers)
    reward, began, planned, success = make_reward(env, dynamics), time.perf_counter(), 0, False
    reached: list[float] = []

    def score(plans: Array) -> Array:
        nonlocal planned
        plans = plans[:, : env.horizon - len(reached)]  # cut at the episode's end
        planned += plans.shape[0] * plans.shape[1]
        rewards = reward(dynamics.roll(plans)[:, -1])
        tell(plans.shape[0] * plans.shape[1])
        return rewards

    settings = config.model_dump(include={"horizon", "samples", "rounds", "temperature", "noise", "knots"})
    planner = MPPI(score, env.action_dim, MPPIConfig(**settings))
    planner.reset(seed)
    for step in range(env.horizon):
        *_, info = env.step(opening[step] if step < len(opening) else planner.act())
        reached.append(min(env.progress, 1.0))
        success |= bool(info["is_success"])
    env.look = True
    spent = {"planned": planned, "seconds": round(time.perf_counter() - began, 3)}
    judged = {"solved": env.solved, "success": success}
    opened = reached[len(opening) - 1] if len(opening) else 0.0
    return {"progress": reached[-1], "best": max(reached), "opened": opened, **judged, **spent}


def opening_actions(env: KitchenEnv, config: PlanConfig) -> Array:
    """Return the first h = `prefix` actions, float64 [h, A], of the scripted expert in a scene that it solves."""
    env.look, solved, number = False, False, 0
    while not solved:
        env.reset(seed=episode_seed(config.seed, 4, number))
        actions = []
        for _ in range(env.horizon):
            actions.append(env.expert())
            solved |= bool(env.step(actions[-1])[4]["is_success"])
        number += 1
    env.look = True
    return np.array(actions, np.float64)[: config.prefix]


WITHOUT_MODEL: dict[str, Callable[..., Reward]] = {"distance": distance_reward, "constant": constant_reward}
"""Rewards that need no model, by name."""
