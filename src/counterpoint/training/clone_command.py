"""`counterpoint train cloning`: demonstrations become a policy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from counterpoint.config import FrozenConfig, override, read_recipe, validate
from counterpoint.data.cache import cached
from counterpoint.data.formats import open_dataset, split_names
from counterpoint.data.store import EpisodeStore, SubsetStore, camera_names
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.errors import BadInputError
from counterpoint.files import write_atomically
from counterpoint.training.clone import CloneConfig, clone
from counterpoint.training.pretrain_steps import CENTRE_FRAMES, evenly_spaced_frames

__all__ = ["CloneDataConfig", "CloneRunConfig", "chosen_demonstrations", "is_cloning", "train_policy"]

NAME = "cloning"
"""What `counterpoint train` calls it, under the paper's defaults."""

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
        The folder of the policy, `out/model`.

    Raises:
        BadInputError: When the configuration, the demonstrations or the run's folder cannot be used.
    """
    if data is None:
        raise BadInputError("--data", "nothing", "demonstrations", "name a data set")
    tree = {} if name == NAME else read_recipe(name)
    config = validate(CloneRunConfig, override(tree, overrides), f"train {name}")
    start = ObservationEncoder.from_pretrained(encoder) if encoder else _fresh(config.encoder, config.clone.seed)
    source = chosen_demonstrations(Path(data), config.data)
    cameras = camera_names(config.data.camera, source.cameras, start.config.cameras)
    root = Path(config.data.cache) if config.data.cache else None
    store = cached(source, size=start.config.size, root=root, cameras=cameras)
    if start.config.centre and not encoder:  # on the only frames it will be given
        start.centre_on(evenly_spaced_frames(store, CENTRE_FRAMES, cameras))
    height, width = source.frames(0, np.zeros(1, np.int64), cameras[0]).shape[1:3]
    clone(start, store, config.clone, camera=cameras, frame=(height, width), run=out)
    about = {"path": str(Path(data).resolve()), "cameras": cameras}
    write_atomically(out / DEMONSTRATIONS, json.dumps(about, indent=1) + "\n")
    return out / "model"


def _fresh(config: ObservationConfig, seed: int) -> ObservationEncoder:
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return ObservationEncoder(config)


def chosen_demonstrations(path: Path, config: CloneDataConfig) -> EpisodeStore:
    """The demonstrations that a configuration means, decoded when asked for.

    Raises:
        BadInputError: When there are not as many.
    """
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
            f"{len(chosen)} demonstrations" + (f" of {config.instruction!r}" if config.instruction else ""),
            f"{wanted or 1} or more; its instructions are {known[:5]}",
            "choose another instruction, or ask for fewer",
        )
    return SubsetStore(source, chosen[:wanted])
