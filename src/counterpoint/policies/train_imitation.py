"""`counterpoint train icon_diff_c-robosuite` and its like: demonstrations become a diffusion policy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.config import override, read_recipe, recipe_names, validate
from counterpoint.data.cache import cached
from counterpoint.data.cameras import camera_names
from counterpoint.data.formats import split_names
from counterpoint.data.masks import mask_camera, picture_cameras
from counterpoint.data.prepared import validation_split
from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError
from counterpoint.policies.command import DEMONSTRATIONS, CloneDataConfig, chosen_demonstrations
from counterpoint.policies.diffusion_policy import DiffusionPolicy
from counterpoint.policies.imitate import imitate
from counterpoint.policies.imitation_config import ImitationConfig
from counterpoint.training.checkpoint import write_atomically

__all__ = ["ImitationRunConfig", "is_imitation", "prepared_demonstrations", "train_imitation"]


class ImitationRunConfig(ImitationConfig):
    """Everything a recipe of imitation says.

    Attributes:
        data: Which demonstrations.
    """

    data: CloneDataConfig = CloneDataConfig()


def is_imitation(name: str) -> bool:
    """Whether `counterpoint train NAME` trains a diffusion policy: a recipe with a `[diffusion]` section."""
    known = name.endswith(".toml") or name in recipe_names()
    return known and "diffusion" in read_recipe(name)


def train_imitation(
    name: str, data: str | None, out: Path, overrides: Mapping[str, Any], *, start_from: str | None = None
) -> Path:
    """Train a diffusion policy on demonstrations; running it again continues where it stopped.

    Args:
        name: A recipe's name or the path of a TOML file.
        data: A data set of demonstrations with actions, and with masks where ICon is asked for.
        out: The run's folder.
        overrides: Dotted keys and their values.
        start_from: A run whose policy is fine-tuned; random weights without.

    Returns:
        The folder of the policy, `out/policy`.

    Raises:
        BadInputError: When the configuration, the demonstrations or the run's folder cannot be used.
    """
    if data is None:
        raise BadInputError("--data", found="nothing", expected="demonstrations", mend="name a data set")
    config = validate(ImitationRunConfig, override(read_recipe(name), overrides), f"train {name}")
    source = chosen_demonstrations(Path(data), config.data)
    cameras = camera_names(config.data.camera, picture_cameras(source.cameras), config.encoder.cameras)
    store = prepared_demonstrations(source, cameras, config)
    held_out = validation_split(Path(data), "val")
    validation = None
    if config.train.eval_every and held_out is not None and held_out in split_names(Path(data)):
        chosen = config.data.model_copy(update={"split": held_out, "episodes": None})
        validation = prepared_demonstrations(chosen_demonstrations(Path(data), chosen), cameras, config)
    start = None if start_from is None else DiffusionPolicy.from_pretrained(start_from)
    height, width = source.frames(0, np.zeros(1, np.int64), cameras[0]).shape[1:3]
    imitate(
        config,
        store,
        run=out,
        camera=cameras,
        validation=validation,
        start_from=start,
        recorded=(height, width),
        about={"start_from": None if start_from is None else str(Path(start_from).resolve())},
    )
    about = {"path": str(Path(data).resolve()), "cameras": cameras}
    write_atomically(out / DEMONSTRATIONS, json.dumps(about, indent=1) + "\n")
    return out / "policy"


def prepared_demonstrations(
    source: EpisodeStore, cameras: tuple[str, ...], config: ImitationRunConfig
) -> EpisodeStore:
    """The training store of these cameras at the policy's frame size, with their masks where ICon wants them."""
    masks = tuple(mask_camera(camera) for camera in cameras) if config.icon is not None else ()
    kept = (*cameras, *(mask for mask in masks if mask in source.cameras))
    root = Path(config.data.cache) if config.data.cache else None
    return cached(source, size=config.frame, root=root, cameras=kept)
