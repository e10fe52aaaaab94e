"""Tiny logged control: a dot that its actions move, in memory or as a LeRobot data set; and a tiny recipe for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.data.episode import Episode
from counterpoint.data.store import MemoryStore
from counterpoint.formats.lerobot.writer import LeRobotWriter
from tests.data.reading import read_episode
from tests.made_once import made_once

__all__ = ["SIZE", "control_store", "write_control_set", "write_recipe", "write_two_tasks"]

SIZE = 16
DOT = 4  # pixels a side


def control_store(
    episodes: int = 4,
    *,
    action_dim: int | None = 2,
    rewards: bool = False,
    ground: int = 40,
    length: int = 14,
    seed: int = 0,
    instruction: str = "move the dot",
) -> MemoryStore:
    """Episodes of two instructions on a ground of about the given grey; without actions where A is `None`."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(episodes):
        actions = rng.uniform(-1, 1, (length, action_dim or 2)).astype(np.float32)
        frames = rng.integers(ground, ground + 20, (length, SIZE, SIZE, 3)).astype(np.uint8)
        places = np.zeros((length, 2), int)
        place = rng.uniform(0, SIZE - DOT, 2)
        for step, action in enumerate(actions):
            places[step] = x, y = np.rint(place).astype(int)
            frames[step, y : y + DOT, x : x + DOT] = (255, 128, 0)
            place = np.clip(place + 4 * action[:2], 0, SIZE - DOT)
        made.append(
            Episode(
                frames={"front": frames},
                instruction=f"{instruction} {number % 2}",
                timestamps=np.arange(length) / 10,
                actions=None if action_dim is None else actions,
                state=places.astype(np.float32),
                rewards=(places[:, 0] / SIZE).astype(np.float32) if rewards else None,
            )
        )
    return MemoryStore(made)


def write_control_set(root: Path, splits: Mapping[str, MemoryStore]) -> Path:
    """The splits' episodes, one split after the other, as a LeRobot data set with lossless images."""
    first = next(iter(splits.values()))
    actions = first.actions(0)
    writer = LeRobotWriter(
        root,
        fps=10,
        cameras={"front": (SIZE, SIZE)},
        action_dim=None if actions is None else actions.shape[1],
        state_dim=2,
        robot_type="toy",
        image_cameras=("front",),
    )
    ranges, done = {}, 0
    for name, store in splits.items():
        for episode in range(len(store.episodes)):
            writer.add_episode(read_episode(store, episode))
        ranges[name] = f"{done}:{done + len(store.episodes)}"
        done += len(store.episodes)
    writer.finalize(ranges)
    return root


@made_once
def write_two_tasks(root: Path) -> None:
    """Instructions "move the dot 0" and "move the dot 1" in turns: 5 episodes to train on, 2 more."""
    write_control_set(root, {"train": control_store(5), "val": control_store(2, ground=200, seed=1)})


def write_recipe(path: Path, objective: str, settings: Mapping[str, Any] | None = None) -> Path:
    """A recipe of a narrow encoder and four steps for the objective.

    Args:
        path: Where it goes.
        objective: Name of a `StepObjective`.
        settings: Of its `[objective]` section, values that JSON and TOML write alike.
    """
    own = "".join(f"{key} = {json.dumps(value)}\n" for key, value in (settings or {}).items())
    path.write_text(
        f'kind = "transitions"\n[objective]\nname = "{objective}"\nshift = 1\n{own}'
        f"[encoder]\nsize = {SIZE}\nstack = 2\nembed_dim = 8\nwidth = 4\ncentre = true\n"
        "[optimizer]\nlr = 1e-3\n"
        "[train]\nsteps = 4\nbatch_size = 8\nlog_every = 2\neval_every = 2\neval_batches = 1\n"
        f"save_every = 2\ntrackers = []\n[data]\ncache = {json.dumps(str(path.parent / 'cache'))}\n"
    )
    return path
