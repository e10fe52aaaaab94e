"""`counterpoint train cloning`, and `evaluate` of what it trained: demonstrations become a policy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from counterpoint.config import FrozenConfig, override, read_recipe, validate
from counterpoint.data.cache import cached
from counterpoint.data.formats import open_dataset, split_names
from counterpoint.data.store import EpisodeStore, SubsetStore
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.envs.control import make_task
from counterpoint.errors import BadInputError
from counterpoint.evaluation.control_rollouts import roll_out
from counterpoint.evaluation.statistics import mean_bca, wilson
from counterpoint.policies.clone import CloneConfig, clone
from counterpoint.policies.cloned import ClonedPolicy
from counterpoint.provenance import provenance
from counterpoint.training.checkpoint import write_atomically

__all__ = ["CloneDataConfig", "CloneRunConfig", "evaluate_policy", "is_cloning", "train_policy"]

NAME = "cloning"
"""What `counterpoint train` calls it, under the paper's defaults."""

EVALUATION_STREAM = 1
"""Keeps the seeds of evaluation apart from those any data set is recorded with."""


class CloneDataConfig(FrozenConfig):
    """Which demonstrations.

    Attributes:
        camera: Which camera; the data's first by default.
        split: Which split, where the data have splits; `None` takes everything.
        instruction: Only demonstrations of this instruction.
        episodes: N, how many of them; all by default.
        cache: Folder of training stores; by default the user's cache folder.
    """

    camera: str | None = None
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
    store = _demonstrations(Path(data), config.data, start.config.size)
    clone(start, store, config.clone, camera=config.data.camera, run=out)
    return out / "policy"


def evaluate_policy(run: Path, *, env: str | None, episodes: int, envs: int, seed: int) -> Path:
    """Roll a cloned policy out and write `run/evaluation.json`: success and return, each with its interval.

    Args:
        run: The run's folder, with `policy/` in it.
        env: SUITE/TASK, such as `metaworld/bin-picking`; a camera may follow an @.
        episodes: How many.
        envs: Simulations side by side.
        seed: Of the episodes.

    Returns:
        The file written.

    Raises:
        BadInputError: When there is no policy, no environment, or one of other actions.
    """
    if env is None:
        raise BadInputError(
            run,
            found="no environment",
            expected="SUITE/TASK",
            mend="say --env metaworld/bin-picking, for one",
        )
    policy = ClonedPolicy.from_pretrained(run / "policy")
    name, _, camera = env.partition("@")
    make = partial(make_task, name, camera=camera or None, size=policy.encoder.config.size)
    sequence = np.random.SeedSequence([seed, EVALUATION_STREAM])
    seeds = [int(word) for word in sequence.generate_state(episodes)]
    results = roll_out(policy, make, seeds, envs=envs, stop_at_success=False)
    rate = wilson(sum(result.success for result in results), len(results))
    returns = mean_bca(np.array([result.total_reward for result in results]))
    found = {
        "env": env,
        "seed": seed,
        "success": {
            "value": rate.value,
            "low": rate.low,
            "high": rate.high,
            "n": rate.n,
            "method": rate.method,
        },
        "return": {"value": returns.value, "low": returns.low, "high": returns.high, "n": returns.n},
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


def _demonstrations(path: Path, config: CloneDataConfig, size: int) -> EpisodeStore:
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
            found=f"{len(chosen)} demonstrations of {config.instruction!r}",
            expected=f"{wanted or 1} or more; its instructions are {known[:5]}",
            mend="choose another instruction, or ask for fewer",
        )
    cameras = (config.camera,) if config.camera else source.cameras[:1]
    root = Path(config.cache) if config.cache else None
    return cached(SubsetStore(source, chosen[:wanted]), size=size, root=root, cameras=cameras)
