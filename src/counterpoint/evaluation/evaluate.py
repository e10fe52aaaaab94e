"""`counterpoint evaluate`: run a trained agent or policy in an environment and write `evaluation.json`."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import numpy as np
from pydantic import Field
from tyro.conf import Positional

from counterpoint.agents import SavedAgent
from counterpoint.config import FrozenConfig, validate
from counterpoint.data.episode import Spaces
from counterpoint.encoders.card import write_results
from counterpoint.encoders.hub import load, saved_kind
from counterpoint.envs.goal.env import EnvConfig, in_another_env, make_goal_env, matched, spaces_of
from counterpoint.envs.make import SUITES, Maker, as_maker, make_env
from counterpoint.envs.metaworld.env import CONTROL_HZ
from counterpoint.envs.vector import Env, VectorEnv
from counterpoint.errors import require, usable_device
from counterpoint.evaluation.rollout import evaluation_seeds, report, rollout
from counterpoint.files import write_atomically
from counterpoint.formats.hdf5.dialects import CONTROL_HZ as ROBOSUITE_HZ
from counterpoint.formats.video import encode_video
from counterpoint.parameter_types import Decimal, Device, Environment, Model, Number, Typed
from counterpoint.policies.diffusion_policy import DiffusionPolicy
from counterpoint.policies.encoded import EncodedPolicy
from counterpoint.policies.networks import Sampler
from counterpoint.progress import ProgressBar
from counterpoint.provenance import provenance

RATES = {"metaworld": CONTROL_HZ, "libero": ROBOSUITE_HZ, "robomimic": ROBOSUITE_HZ, "robosuite": ROBOSUITE_HZ}
"""Actions per second of suites. dm_control is left out: its rates differ between tasks, and DrQ-v2's replays do not
record them."""
RATE_ROUNDING = 0.5
"""Rates that differ by at most this many actions per second count as equal: data sets store whole frames per second."""
UNTIL_SOLVED = ("robosuite", "rlbench")
"""Suites whose episodes end when the task is solved. In other suites they continue, so that returns are comparable."""

AnyEnv = Env | Callable[[], Env] | str


class EvaluationConfig(FrozenConfig):
    """Settings of an evaluation: numbers of episodes, parallel environments and videos, and the episodes' seed."""

    episodes: int = Field(ge=1)
    envs: int = Field(ge=1)
    seed: int = Field(ge=0)
    video: int = Field(ge=0)


def evaluate(
    run: Positional[Model],
    env: Annotated[AnyEnv | None, Typed(Environment)] = None,
    *,
    episodes: int = 50,
    envs: int = 2,
    seed: int = 0,
    video: int = 0,
    device: Device = None,
    ensemble: Decimal = None,
    sampler: Sampler | None = None,
    steps: Number = None,
) -> Path:
    """Run a trained agent or policy and write RUN/evaluation.json: success and return, each with its interval.

    By default, an agent runs in the environment that it was trained for. A policy trained on demonstrations gets images
    that are rendered and resized like the images of the demonstrations. On Meta-World, an action lasts as long as in
    the demonstrations; each of the other suites has one rate. `success` is null in dm_control, which has only rewards.
    The ends of an interval are null for a single episode. An episode whose simulator raised an error does not count as
    a success, has an entry `error`, and is counted in `simulator_errors`.

    Time on two cores: about 30 s per episode for a diffusion policy, and about a second for an agent. Disk: some
    kilobytes per episode, and about a megabyte per episode with a video.

    Args:
        run: The run's folder, which contains `model/`.
        env: The environment. For an agent, the id of a goal environment; by default the agent's training environment.
            For a policy, SUITE/TASK, such as metaworld/bin-picking; if the policy has no camera names, add @ and the
            cameras, separated by commas. From Python also a `gymnasium.Env` or a function that makes one.
        episodes: Number of episodes.
        envs: Number of environments that run in parallel; the result does not depend on it.
        seed: Random seed of the episodes, which differ from all training episodes.
        video: Number of episodes to write as `run/videos/episode-NUMBER.mp4`, starting with the first.
        device: Device of the networks; by default a GPU if there is one.
        ensemble: For a diffusion policy, decay of a temporal ensemble (a mean of overlapping plans); ACT uses 0.01.
        sampler: Sampler of a diffusion policy; by default the one that it was trained for.
        steps: Number of sampling steps of a diffusion policy; by default the number that it was trained for.

    Returns:
        The file written.

    Raises:
        BadInputError: If there is no agent or policy, or no environment. If the observations, actions, cameras or rate
            of the environment do not fit. If the simulator fails in more than a tenth of the episodes.
    """
    validate(EvaluationConfig, {"episodes": episodes, "envs": envs, "seed": seed, "video": video}, "evaluate")
    run, kind = Path(run), saved_kind(run)
    acts = kind == "agent" or kind.endswith("_policy")
    require(acts, run, f"a model of kind {kind!r}", "an agent or a policy", "train one: `counterpoint train`")
    model: Any = load(run, map_location=usable_device(device))
    given = {"ensemble": ensemble, "sampler": sampler, "steps": steps}
    acting: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if acting:
        hint = f"leave --{' and --'.join(acting)} out"
        require(isinstance(model, DiffusionPolicy), run, f"a model of kind {kind!r}", "a diffusion policy", hint)
        model = model.acting(**acting)
    make, most, described = _goal_env(model, env, run) if kind == "agent" else _task(model, env, run)
    tasks = EnvConfig.model_validate(described).tasks if kind == "agent" else 1
    seeds = evaluation_seeds(seed, 2, episodes, tasks)
    until_solved = _until_solved(env)
    if video:
        paths = {one: run / "videos" / f"episode-{number:03d}.mp4" for number, one in enumerate(seeds[:video])}
        make = partial(_EpisodeVideos, make, paths)
    count, policy = min(envs, episodes, most), model.agent if kind == "agent" else model
    apart = kind == "agent" and count > 1
    with VectorEnv(make, count, processes=apart) as rows, ExitStack() as begun:
        bar = ProgressBar("Evaluating", episodes, "episodes", shorten="--episodes")
        results = rollout(
            policy,
            rows,
            seeds,
            stop_at_success=until_solved,
            on_start=lambda: begun.enter_context(bar),
            on_episode=lambda result: bar.advance(),
        )
    record = {
        "model": model.agent.name if kind == "agent" else kind,
        "env": described,
        **acting,
        "seed": seed,
        **report(results),
        "episodes": [result.as_row() for result in results],
        "provenance": provenance(),
    }
    write_atomically(run / "evaluation.json", json.dumps(record, indent=1) + "\n")
    write_results(run)
    return run / "evaluation.json"


def _goal_env(saved: SavedAgent, env: AnyEnv | None, run: Path) -> tuple[Maker, int, Any]:
    """Return a function that makes an agent's environment, how many it can make, and the environment's settings."""
    tree, base, most = dict(saved.env or {}), None, 10**6
    if isinstance(env, str):
        expected = "a goal environment, such as FetchReach-v4, since this run is an agent"
        hint = "leave --env out for the environment of its training, or evaluate a policy of demonstrations"
        require(env.partition("/")[0] not in SUITES, f"--env {env}", "a task for policies", expected, hint)
        tree = in_another_env(tree, env)
    elif env is not None:
        base, most = as_maker(env)
        tree = in_another_env(tree, str(getattr(getattr(env, "spec", None), "id", None) or "given"))
    found, expected = "an agent trained on data alone", "an environment to evaluate in"
    require("name" in tree, run, found, expected, "name one with --env")
    config = validate(EnvConfig, tree, f"{run}, [env]")
    make = partial(_matching, partial(make_goal_env, config, base), saved.agent.spaces, str(run))
    return make, most, config.model_dump(mode="json")


def _matching(make: Maker, spaces: Spaces, where: str) -> Env:
    env = make()
    matched(spaces_of(env), spaces, where)
    return env


def _until_solved(env: AnyEnv | None) -> bool:
    return isinstance(env, str) and env.partition("/")[0] in UNTIL_SOLVED


def task_maker(policy: EncodedPolicy, env: str) -> tuple[Maker, bool]:
    """Return a function that makes a policy's environment, and True if episodes end when the task is solved."""
    return _task(policy, env, Path())[0], _until_solved(env)


def _task(policy: EncodedPolicy, env: AnyEnv | None, run: Path) -> tuple[Maker, int, Any]:
    """Return a function that makes a policy's environment, how many it can make, and the environment's name."""
    require(env is not None, run, "no environment", "SUITE/TASK", "name one, such as --env metaworld/bin-picking")
    assert env is not None
    if not isinstance(env, str):
        make, most = as_maker(env)
        return partial(_fitting, policy, make, "env"), most, str(getattr(env, "name", getattr(env, "__name__", "env")))
    name, _, named = env.partition("@")
    frame = policy.demonstrations.frame if policy.demonstrations else None
    found = f"demonstrations with frames of {' x '.join(map(str, frame or ()))}"
    square, hint = "square ones, as simulators render them", "clone from frames cut to a square"
    require(frame is None or frame[0] == frame[1], f"--env {name}", found, square, hint)
    make = partial(
        make_env,
        name,
        cameras=_cameras(policy, env, tuple(named.split(",")) if named else ()),
        size=policy.frame,
        render=frame[0] if frame else None,
        repeat=_repeat(name, policy.demonstrations.fps if policy.demonstrations else None),
    )
    return partial(_fitting, policy, make, f"--env {name}"), 10**6, env


def _cameras(policy: EncodedPolicy, env: str, named: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the cameras to render; `None` for the suite's default camera."""
    # In robomimic's data, images of camera `agentview` are named `agentview_image`.
    known = tuple(one.removesuffix("_image") for one in policy.cameras)
    if known and named:
        expected = f"{', '.join(known)}, which the policy was trained with, in this order"
        plain = tuple(one.removesuffix("_image") for one in named)
        hint = "leave them out: the policy has the names of its cameras"
        require(plain == known, f"--env {env}", f"cameras {', '.join(named)}", expected, hint)
    cameras, wanted = named or known, policy.encoder.config.cameras
    found = f"{len(cameras)} cameras" if cameras else "the usual camera"
    hint = "name them in the encoder's order, such as --env SUITE/TASK@FIRST,SECOND"
    require(wanted in (0, max(1, len(cameras))), f"--env {env}", found, f"{wanted}, as many as the policy reads", hint)
    return cameras or None


def _repeat(name: str, fps: float | None) -> int:
    """Return the control steps per action: on Meta-World as in the demonstrations if their rate is known, else 1."""
    suite, _, task = name.partition("/")
    if fps is None or suite not in RATES or task.endswith(".hdf5"):  # a robomimic file sets the rate
        return 1
    variable = suite == "metaworld"
    repeat = round(RATES[suite] / fps) if variable else 1
    fits = repeat >= 1 and abs(RATES[suite] / repeat - fps) <= RATE_ROUNDING
    expected = f"{RATES[suite]:g}" + (" divided by a whole number" if variable else "")
    hint = "record demonstrations at another rate, or evaluate elsewhere"
    require(fits, f"--env {name}", f"demonstrations with {fps:g} actions a second", expected, hint)
    return repeat


def _fitting(policy: EncodedPolicy, make: Maker, where: str) -> Env:
    """Make the task's environment, and raise an error if the policy cannot act in it.

    A policy with several instructions gets the task's instruction.
    """
    env = make()
    space: Any = env.observation_space
    dims = [("action", env.action_space.shape, policy.config().action_dim)]
    policy.instruction = policy.instruction or str(getattr(env.unwrapped, "instruction", ""))
    for source, dim in policy.state_sources.items():
        dims.append((source, space[source].shape if source in space.spaces else None, dim))
    for kind, shape, expected in dims:
        if shape != (expected,):
            env.close()
        hint, found = "evaluate where the demonstrations are from", f"{kind}s of {(shape or (0,))[0]} dimensions"
        require(shape == (expected,), where, found, f"{expected}, as in the demonstrations", hint)
    return gymnasium.wrappers.ClipAction(env)  # policies act in the units of their data, without limits


class _EpisodeVideos(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that writes videos of the episodes whose seeds are in `paths`, and does not render others."""

    def __init__(self, make: Maker, paths: dict[int, Path]) -> None:
        super().__init__(env := make())
        found, hint = f"render_mode {env.render_mode!r}", "leave --video out"
        require(env.render_mode == "rgb_array", "--video", found, "an environment that renders", hint)
        self._paths, self._path = paths, None  # type: dict[int, Path], Path | None
        self._images: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._write()
        answer = self.env.reset(seed=seed, options=options)
        self._path = None if seed is None else self._paths.get(seed)
        self._film()
        return answer

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        answer = self.env.step(action)
        self._film()
        if answer[2] or answer[3]:
            self._write()
        return answer

    def close(self) -> None:
        self._write()
        super().close()

    def _film(self) -> None:
        if self._path is not None:
            self._images.append(np.asarray(self.env.render()))

    def _write(self) -> None:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            encode_video(self._path, self._images, float(self.env.metadata.get("render_fps", 30)))
        self._path, self._images = None, []
