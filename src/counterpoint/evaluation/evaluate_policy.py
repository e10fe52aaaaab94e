"""`counterpoint evaluate` of a run that trained a policy: it is rolled out in a control task."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from counterpoint.data.formats.hdf5.files import CONTROL_HZ as ROBOSUITE_HZ
from counterpoint.encoders.hub import load
from counterpoint.envs.base import CameraEnv
from counterpoint.envs.make import make_env
from counterpoint.envs.metaworld.env import CONTROL_HZ
from counterpoint.errors import BadInputError
from counterpoint.evaluation.rollout import EpisodeResult, rollout
from counterpoint.evaluation.statistics import Estimate, mean_bca, wilson
from counterpoint.files import write_atomically
from counterpoint.policies.cloned import ClonedPolicy
from counterpoint.policies.demonstrations import Demonstrations
from counterpoint.policies.diffusion_policy import DiffusionPolicy
from counterpoint.provenance import provenance

__all__ = ["evaluate_policy"]

EVALUATION_STREAM = 1
"""Keeps the seeds of evaluation apart from those any data set is recorded with."""

RATES = {"metaworld": CONTROL_HZ, "libero": ROBOSUITE_HZ, "robomimic": ROBOSUITE_HZ, "robosuite": ROBOSUITE_HZ}
"""Actions a second; dm_control's differ from task to task, and DrQ-v2's replays of them do not tell."""

RATE_ROUNDING = 0.5
"""A second: data sets keep whole frames a second."""

REWARDS_ALONE = ("dmc",)
"""Suites that do not say when a task is solved."""

UNTIL_SOLVED = ("robosuite", "rlbench")
"""Suites whose episodes end when their task is solved; the others run on, and their returns are comparable."""


def evaluate_policy(run: Path, *, env: str | None, episodes: int, envs: int, seed: int) -> Path:
    """Roll a policy out and write `run/evaluation.json`: success and return, each with its interval.

    Frames are drawn as large as those of the demonstrations were and come to the policy's size as they did, and an
    action lasts as long as theirs (on Meta-World; the other suites have one rate). `success`
    is null in dm_control, which has rewards alone; an interval's end is null where one episode cannot tell. An episode
    whose simulator raised has failed, holds the `error`, and is counted under `raised`.

    Args:
        run: The run's folder, with `model/` in it.
        env: SUITE/TASK, such as `metaworld/bin-picking`; a camera, or several with commas, may follow an @. A policy
            that knows the names of its cameras needs none.
        episodes: How many.
        envs: Simulations side by side.
        seed: Of the episodes.

    Returns:
        The file written.

    Raises:
        BadInputError: When there is no policy, no environment or one of other actions or cameras, no episode is asked
            for, the suite cannot be had at the demonstrations' rate or shape of picture, or the simulator raises in
            more than a tenth of the episodes.
    """
    if env is None:
        raise BadInputError(run, "no environment", "SUITE/TASK", "say --env metaworld/bin-picking, for one")
    if episodes < 1:
        raise BadInputError("--episodes", f"{episodes}", "1 or more", "50 is a good start")
    policy: ClonedPolicy | DiffusionPolicy = load(run, map_location="cuda" if torch.cuda.is_available() else "cpu")
    name, _, named = env.partition("@")
    suite = name.partition("/")[0]
    make = partial(
        _fitting_task,
        policy,
        name,
        cameras=_cameras(policy, env, tuple(named.split(",")) if named else ()),
        size=policy.frame if isinstance(policy, DiffusionPolicy) else policy.encoder.config.size,
        render=_drawn_size(name, policy.demonstrations),
        repeat=_repeat(name, policy.demonstrations),
    )
    sequence = np.random.SeedSequence([seed, EVALUATION_STREAM])
    seeds = [int(word) for word in sequence.generate_state(episodes)]
    results = rollout(policy, make, seeds, envs=envs, stop_at_success=suite in UNTIL_SOLVED)
    rate = _reported(wilson(sum(bool(result.success) for result in results), len(results)))
    returns = _reported(mean_bca(np.array([result.total_reward for result in results])))
    found = {
        "env": env,
        "seed": seed,
        "success": None if suite in REWARDS_ALONE else rate,
        "return": returns,
        "raised": sum(result.error is not None for result in results),
        "episodes": [_told(result) for result in results],
        "provenance": provenance(),
    }
    path = run / "evaluation.json"
    write_atomically(path, json.dumps(found, indent=1) + "\n")
    return path


def _cameras(policy: ClonedPolicy | DiffusionPolicy, env: str, named: tuple[str, ...]) -> tuple[str, ...] | None:
    """Those to draw; `None` for the suite's usual one."""
    known = policy.cameras if isinstance(policy, DiffusionPolicy) else ()
    if known and named and [_plain(one) for one in named] != [_plain(one) for one in known]:
        raise BadInputError(
            f"--env {env}",
            f"cameras {', '.join(named)}",
            f"{', '.join(known)}, which the policy was trained with, in this order",
            "leave them out: the policy knows its cameras",
        )
    cameras = named or tuple(_plain(one) for one in known)
    wanted = policy.encoder.config.cameras
    if wanted != max(1, len(cameras)):
        raise BadInputError(
            f"--env {env}",
            f"{len(cameras)} cameras" if cameras else "the usual camera",
            f"{wanted}, as many as the policy sees through",
            "name them in the encoder's order, such as --env SUITE/TASK@FIRST,SECOND",
        )
    return cameras or None


def _plain(camera: str) -> str:
    """robomimic's data say `agentview_image` for the pictures of `agentview`."""
    return camera.removesuffix("_image")


def _drawn_size(name: str, recorded: Demonstrations | None) -> int | None:
    """Height and width of the demonstrations' frames; `None` where that is not known."""
    if recorded is None or recorded.frame is None:
        return None
    height, width = recorded.frame
    if height != width:
        raise BadInputError(
            f"--env {name}",
            f"demonstrations with frames of {height} x {width}",
            "square ones, as simulations draw them",
            "clone from frames cut to a square, or evaluate elsewhere",
        )
    return height


def _repeat(name: str, recorded: Demonstrations | None) -> int:
    """Control steps an action lasts: on Meta-World as in the demonstrations, where their rate is known."""
    fps = recorded.fps if recorded is not None else None
    suite, _, task = name.partition("/")
    if fps is None or suite not in RATES or task.endswith(".hdf5"):  # a robomimic file tells its own rate
        return 1
    variable = suite == "metaworld"
    repeat = round(RATES[suite] / fps) if variable else 1
    if repeat < 1 or abs(RATES[suite] / repeat - fps) > RATE_ROUNDING:
        raise BadInputError(
            f"--env {name}",
            f"demonstrations with {fps:g} actions a second",
            f"{RATES[suite]:g}" + (" divided by a whole number" if variable else ""),
            "record demonstrations at another rate, or evaluate elsewhere",
        )
    return repeat


def _fitting_task(policy: ClonedPolicy | DiffusionPolicy, name: str, **settings: Any) -> CameraEnv:
    """The task, if the policy can act in it. One cloned under several instructions is told the task's."""
    task = make_env(name, **settings)
    dims = [("action", task.action_dim, policy.head.action_dim)]
    if isinstance(policy, DiffusionPolicy):
        uses_state, state_dim = policy.use_state, policy.state_dim
    else:
        uses_state, state_dim = policy.head.config.use_state, policy.head.state_dim
    if uses_state:
        dims.append(("state", task.state_dim, state_dim))
    for kind, found, expected in dims:
        if found != expected:
            task.close()
            raise BadInputError(
                f"--env {name}",
                f"{kind}s of {found} dimensions",
                f"{expected}, as in the demonstrations",
                "evaluate where the demonstrations are from",
            )
    if not isinstance(policy, DiffusionPolicy):
        policy.instruction = policy.instruction or task.instruction
    return task


def _told(result: EpisodeResult) -> dict[str, Any]:
    told = {"seed": result.seed, "success": bool(result.success), "return": result.total_reward, "steps": result.steps}
    return told if result.error is None else told | {"error": result.error}


def _reported(estimate: Estimate) -> dict[str, Any]:
    """For JSON, which has no `nan`."""
    return {key: None if value != value else value for key, value in asdict(estimate).items()}
