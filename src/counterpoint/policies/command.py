"""`counterpoint train cloning`, and `evaluate` of what it trained: demonstrations become a policy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from counterpoint.config import FrozenConfig, override, read_recipe, validate
from counterpoint.data.cache import cached
from counterpoint.data.cameras import camera_names
from counterpoint.data.formats import open_dataset, split_names
from counterpoint.data.formats.hdf5_layout import CONTROL_HZ as ROBOSUITE_HZ
from counterpoint.data.store import EpisodeStore, SubsetStore
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.envs.control import ControlTask, make_task
from counterpoint.envs.metaworld import CONTROL_HZ
from counterpoint.errors import BadInputError
from counterpoint.evaluation.control_rollouts import roll_out
from counterpoint.evaluation.statistics import Estimate, mean_bca, wilson
from counterpoint.policies.clone import CloneConfig, clone
from counterpoint.policies.cloned import ClonedPolicy
from counterpoint.policies.demonstrations import Demonstrations
from counterpoint.provenance import provenance
from counterpoint.training.checkpoint import write_atomically
from counterpoint.training.pretrain_steps import CENTRE_FRAMES, evenly_spaced_frames

__all__ = ["CloneDataConfig", "CloneRunConfig", "evaluate_policy", "is_cloning", "train_policy"]

NAME = "cloning"
"""What `counterpoint train` calls it, under the paper's defaults."""

EVALUATION_STREAM = 1
"""Keeps the seeds of evaluation apart from those any data set is recorded with."""

RATES = {"metaworld": CONTROL_HZ, "libero": ROBOSUITE_HZ, "robomimic": ROBOSUITE_HZ}
"""Actions a second; dm_control's differ from task to task, and DrQ-v2's replays of them do not tell."""

RATE_ROUNDING = 0.5
"""A second: data sets keep whole frames a second."""

REWARDS_ALONE = ("dmc",)
"""Suites that do not say when a task is solved."""

DEMONSTRATIONS = "demonstrations.json"
"""Of a run: what it was cloned from."""


class CloneDataConfig(FrozenConfig):
    """Which demonstrations.

    Attributes:
        camera: Which camera, or as many as the encoder has, in its order; the data's first by default.
        split: Which split, where the data have splits; `None` takes everything.
        instruction: Only demonstrations of this instruction.
        episodes: N, how many of them; all by default.
        cache: Folder of training stores; by default the user's cache folder.
    """

    camera: str | tuple[str, ...] | None = None
    split: str | None = "train"
    instruction: str | None = None
    episodes: int | None = Field(default=None, ge=1)
    cache: str | None = None


class CloneRunConfig(FrozenConfig):
    """Everything a recipe of cloning says.

    Attributes:
        clone: The policy and how it is trained.
        encoder: What is trained from scratch where no encoder is given.
        data: Which demonstrations.
    """

    clone: CloneConfig = CloneConfig()
    encoder: ObservationConfig = ObservationConfig()
    data: CloneDataConfig = CloneDataConfig()


def is_cloning(name: str) -> bool:
    """Whether `counterpoint train NAME` clones a policy: the plain name, or a recipe with a `[clone]` section."""
    from counterpoint.config import recipe_names

    known = name.endswith(".toml") or name in recipe_names()
    return name == NAME or (known and "clone" in read_recipe(name))


def train_policy(
    name: str, data: str | None, out: Path, overrides: Mapping[str, Any], *, encoder: str | None = None
) -> Path:
    """Clone a policy from demonstrations; running it again continues where it stopped.

    Args:
        name: `cloning`, a recipe's name or the path of a TOML file.
        data: A data set of demonstrations with actions.
        out: The run's folder.
        overrides: Dotted keys and their values.
        encoder: A pretraining run, a folder or a Hub id to start from; random weights without.

    Returns:
        The folder of the policy, `out/policy`.

    Raises:
        BadInputError: When the configuration, the demonstrations or the run's folder cannot be used.
    """
    if data is None:
        raise BadInputError("--data", found="nothing", expected="demonstrations", mend="name a data set")
    tree = {} if name == NAME else read_recipe(name)
    config = validate(CloneRunConfig, override(tree, overrides), f"train {name}")
    start = (
        ObservationEncoder.from_pretrained(encoder) if encoder else _fresh(config.encoder, config.clone.seed)
    )
    source = _demonstrations(Path(data), config.data)
    cameras = camera_names(config.data.camera, source.cameras, start.config.cameras)
    root = Path(config.data.cache) if config.data.cache else None
    store = cached(source, size=start.config.size, root=root, cameras=cameras)
    if start.config.centre and not encoder:  # on the only frames it will be given
        start.centre_on(evenly_spaced_frames(store, CENTRE_FRAMES, cameras))
    height, width = source.frames(0, np.zeros(1, np.int64), cameras[0]).shape[1:3]
    clone(start, store, config.clone, camera=cameras, frame=(height, width), run=out)
    about = {"path": str(Path(data).resolve()), "cameras": cameras}
    write_atomically(out / DEMONSTRATIONS, json.dumps(about, indent=1) + "\n")
    return out / "policy"


def evaluate_policy(run: Path, *, env: str | None, episodes: int, envs: int, seed: int) -> Path:
    """Roll a cloned policy out and write `run/evaluation.json`: success and return, each with its interval.

    Frames are drawn as large as those of the demonstrations were and come to the encoder's size as they did, and an
    action lasts as long as theirs (on Meta-World; the other suites have one rate). `success`
    is null in dm_control, which has rewards alone; an interval's end is null where one episode cannot tell.

    Args:
        run: The run's folder, with `policy/` in it.
        env: SUITE/TASK, such as `metaworld/bin-picking`; a camera, or several with commas, may follow an @.
        episodes: How many.
        envs: Simulations side by side.
        seed: Of the episodes.

    Returns:
        The file written.

    Raises:
        BadInputError: When there is no policy, no environment or one of other actions, no episode is asked for, or
            the suite cannot be had at the demonstrations' rate or shape of picture.
    """
    if env is None:
        raise BadInputError(
            run,
            found="no environment",
            expected="SUITE/TASK",
            mend="say --env metaworld/bin-picking, for one",
        )
    if episodes < 1:
        raise BadInputError(
            "--episodes", found=f"{episodes}", expected="1 or more", mend="50 is a good start"
        )
    policy = ClonedPolicy.from_pretrained(run / "policy")
    name, _, named = env.partition("@")
    cameras, wanted = tuple(named.split(",")) if named else (), policy.encoder.config.cameras
    if wanted != max(1, len(cameras)):
        raise BadInputError(
            f"--env {env}",
            found=f"{len(cameras)} cameras" if cameras else "the usual camera",
            expected=f"{wanted}, as many as the policy sees through",
            mend="name them in the encoder's order, such as --env SUITE/TASK@FIRST,SECOND",
        )
    recorded = policy.demonstrations
    make = partial(
        _fitting_task,
        policy,
        name,
        camera=cameras or None,
        size=policy.encoder.config.size,
        render=_drawn_size(name, recorded),
        repeat=_repeat(name, recorded),
    )
    sequence = np.random.SeedSequence([seed, EVALUATION_STREAM])
    seeds = [int(word) for word in sequence.generate_state(episodes)]
    results = roll_out(policy, make, seeds, envs=envs, stop_at_success=False)
    rate = _reported(wilson(sum(result.success for result in results), len(results)))
    returns = _reported(mean_bca(np.array([result.total_reward for result in results])))
    found = {
        "env": env,
        "seed": seed,
        "success": None if name.partition("/")[0] in REWARDS_ALONE else rate,
        "return": returns,
        "episodes": [
            {"seed": one.seed, "success": one.success, "return": one.total_reward, "steps": one.steps}
            for one in results
        ],
        "provenance": provenance(),
    }
    path = run / "evaluation.json"
    write_atomically(path, json.dumps(found, indent=1) + "\n")
    return path


def _fresh(config: ObservationConfig, seed: int) -> ObservationEncoder:
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return ObservationEncoder(config)


def _drawn_size(name: str, recorded: Demonstrations | None) -> int | None:
    """Height and width of the demonstrations' frames; `None` where that is not known."""
    if recorded is None or recorded.frame is None:
        return None
    height, width = recorded.frame
    if height != width:
        raise BadInputError(
            f"--env {name}",
            found=f"demonstrations with frames of {height} x {width}",
            expected="square ones, as simulations draw them",
            mend="clone from frames cut to a square, or evaluate elsewhere",
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
            found=f"demonstrations with {fps:g} actions a second",
            expected=f"{RATES[suite]:g}" + (" divided by a whole number" if variable else ""),
            mend="record demonstrations at another rate, or evaluate elsewhere",
        )
    return repeat


def _fitting_task(policy: ClonedPolicy, name: str, **settings: Any) -> ControlTask:
    """The task, if the policy can act in it. One cloned under several instructions is told the task's."""
    task = make_task(name, **settings)
    dims = [("action", task.action_dim, policy.head.action_dim)]
    if policy.head.config.use_state:
        dims.append(("state", task.state_dim, policy.head.state_dim))
    for kind, found, expected in dims:
        if found != expected:
            task.close()
            raise BadInputError(
                f"--env {name}",
                found=f"{kind}s of {found} dimensions",
                expected=f"{expected}, as in the demonstrations",
                mend="evaluate where the demonstrations are from",
            )
    policy.instruction = policy.instruction or task.instruction
    return task


def _reported(estimate: Estimate) -> dict[str, Any]:
    """For JSON, which has no `nan`."""
    return {key: None if value != value else value for key, value in asdict(estimate).items()}


def _demonstrations(path: Path, config: CloneDataConfig) -> EpisodeStore:
    source = open_dataset(path, split=config.split if split_names(path) else None)
    chosen = [
        number
        for number, info in enumerate(source.episodes)
        if config.instruction is None or info.instruction == config.instruction
    ]
    wanted = config.episodes or len(chosen)
    if not chosen or len(chosen) < wanted:
        known = sorted({info.instruction for info in source.episodes})
        raise BadInputError(
            path,
            found=f"{len(chosen)} demonstrations"
            + (f" of {config.instruction!r}" if config.instruction else ""),
            expected=f"{wanted or 1} or more; its instructions are {known[:5]}",
            mend="choose another instruction, or ask for fewer",
        )
    return SubsetStore(source, chosen[:wanted])
