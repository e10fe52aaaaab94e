"""Record OGBench's data sets without a download: `counterpoint collect ogbench --dataset cube-single-play`.

Park et al., "OGBench: Benchmarking Offline Goal-Conditioned RL", ICLR 2025; numbers of episodes, lengths and noise are
those of its repository's `data_gen_scripts/commands.sh` (commit 1d41409).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import gymnasium
import numpy as np
from pydantic import Field, field_validator, model_validator

from counterpoint.data.episode import Array
from counterpoint.envs.collect import CollectConfig, Collection, Slot, collect
from counterpoint.envs.goal.ogbench_oracles import Protocol, load_walker, recorded
from counterpoint.envs.goal.tasks import PREFIX, remove_model_file
from counterpoint.envs.recording import NOTE, Recording, Staging
from counterpoint.envs.rendering import import_mujoco
from counterpoint.errors import import_extra, suggestion
from counterpoint.files import Beside
from counterpoint.parameter_types import File


def _protocols() -> dict[str, Protocol]:
    found = {}
    for maze in ("medium", "large", "giant", "teleport"):
        env, long = f"pointmaze-{maze}", maze == "giant"
        found[f"{env}-navigate"] = Protocol(f"{env}-v0", "navigate", 500 if long else 1000, 2001 if long else 1001, 0.5)
        found[f"{env}-stitch"] = Protocol(f"{env}-v0", "stitch", 5000, 201, 0.5)
        ant = f"antmaze-{maze}"
        found[f"{ant}-navigate"] = Protocol(f"{ant}-v0", "navigate", 500 if long else 1000, 2001 if long else 1001, 0.2)
        found[f"{ant}-stitch"] = Protocol(f"{ant}-v0", "stitch", 5000, 201, 0.2)
        if not long:
            found[f"{ant}-explore"] = Protocol(f"{ant}-v0", "explore", 10_000, 501, 1.0)
    sizes = {"cube-single": 1000, "cube-double": 1000, "cube-triple": 3000, "cube-quadruple": 5000, "scene": 1000}
    sizes |= {"puzzle-3x3": 1000, "puzzle-4x4": 1000, "puzzle-4x5": 3000, "puzzle-4x6": 5000}
    for env, episodes in sizes.items():
        found[f"{env}-play"] = Protocol(f"{env}-v0", "play", episodes)
        share = 0.2 if env.startswith("puzzle") else 0.1
        found[f"{env}-noisy"] = Protocol(f"{env}-v0", "noisy", episodes, random=share)
    for level in ("easy", "medium", "hard"):
        found[f"powderworld-{level}-play"] = Protocol(f"powderworld-{level}-v0", "play", noise=0.0, random=0.5)
    return found


PROTOCOLS: Mapping[str, Protocol] = _protocols()
"""OGBench's data sets by name."""


class OGBenchCollect(CollectConfig):
    """The settings of `collect ogbench`; see `CollectConfig`.

    Attributes:
        out: The folder to write, with `DATASET-v0.npz`, `DATASET-v0-val.npz` and `collect.json`.
        dataset: OGBench's name without its version, such as `cube-single-play` or `pointmaze-medium-stitch`.
        episodes: Number of training episodes; by default OGBench's.
        val_episodes: Number of validation episodes; by default a tenth of the training episodes.
        noise: Standard deviation of the noise on actions; by default OGBench's.
        steps: Number of rows of an episode, one more than its transitions; by default OGBench's.
        expert: For an ant, the file of its expert, as `python -m studies.ant_expert` writes it.
    """

    dataset: str
    expert: File = None
    val_episodes: int | None = Field(default=None, ge=0)  # type: ignore[assignment]
    noise: float | None = Field(default=None, ge=0, le=10)  # type: ignore[assignment]
    steps: int | None = Field(default=None, ge=2)
    episodes: int | None = Field(default=None, ge=0)

    @field_validator("dataset")
    @classmethod
    def _known(cls, dataset: str) -> str:
        if dataset not in PROTOCOLS:
            raise ValueError(f"one of {', '.join(PROTOCOLS)}; {suggestion(dataset, PROTOCOLS)}".rstrip("; "))
        return dataset

    @model_validator(mode="after")
    def _an_ant_has_an_expert(self) -> Self:
        if self.protocol.walks != (self.expert is not None):
            other = "leave it out" if self.expert else "train one by `python -m studies.ant_expert`"
            raise ValueError(f"{self.dataset} needs {'an' if self.protocol.walks else 'no'} --expert: {other}")
        return self

    @model_validator(mode="after")
    def _discrete_actions_have_no_noise(self) -> Self:
        if self.protocol.paints and self.noise:
            raise ValueError(f"{self.dataset} has discrete actions and takes no --noise: leave it out")
        return self

    @model_validator(mode="before")
    @classmethod
    def _as_ogbench(cls, given: Any) -> Any:
        """Fill what is not given with OGBench's values."""
        protocol, own = PROTOCOLS.get(str(given.get("dataset"))), {k: v for k, v in given.items() if v is not None}
        if protocol is None:
            return own
        episodes = own.get("episodes", protocol.episodes)
        filled = {"episodes": episodes, "noise": protocol.noise, "steps": protocol.steps}
        return filled | {"val_episodes": int(episodes) // 10} | own

    @property
    def protocol(self) -> Protocol:
        """OGBench's protocol of the data set, with this configuration's noise and length."""
        known = PROTOCOLS[self.dataset]
        return replace(known, noise=self.noise or 0.0, steps=self.steps or known.steps)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The only task of the data set: the environment's name."""
        return (self.protocol.env,)


def collect_ogbench(config: OGBenchCollect) -> Path:
    """Record one of OGBench's data sets by its published protocol, in its own file format.

    `--data OUT/DATASET-v0.npz` reads the files. Time on two cores: half an hour for a million transitions of cube,
    scene or puzzle. Disk: about 0.2 GB, and as much again until the recording is complete.

    Raises:
        BadInputError: If the folder holds anything but this data set, or the data set is unknown.
        MissingExtraError: If OGBench is not installed.
    """
    import_mujoco()
    import_extra(PREFIX, "sim")
    return collect(_OGBenchCollection(config))


class _OGBenchCollection(Collection):
    config: OGBenchCollect
    packages = ("ogbench", "mujoco", "numpy")
    remedy = ("noise", "episodes in which the cube stays in sight", "less noise")

    @property
    def fps(self) -> float:
        return 10.0  # the files record no rate

    def make(self, task: str) -> Any:
        import_mujoco()
        import_extra(PREFIX, "sim")  # registers the environments
        protocol = self.config.protocol
        if self.config.expert:
            load_walker(self.config.expert)  # a wrong file is refused before anything is recorded
        options: dict[str, Any] = {} if protocol.paints else {"terminate_at_goal": False}
        options |= {} if protocol.in_maze else {"mode": "data_collection"}
        env = gymnasium.make(task, max_episode_steps=protocol.steps, **options)
        remove_model_file(env)
        return env

    def record(self, env: Any, slot: Slot, seed: int) -> Recording | None:
        """Record one episode; drop it if the cube of `scene` leaves the camera's view, as OGBench does."""
        expert = self.config.expert
        arrays = recorded(env, self.config.protocol, seed, load_walker(expert) if expert else None)
        if slot.task.startswith("scene") and not cube_in_sight(arrays["qpos"]):
            return None
        state, actions = arrays.pop("observations"), arrays.pop("actions")
        return Recording(actions, state, np.zeros(len(actions), np.float32), None, extra=arrays)

    def assemble(self, staging: Staging, folder: Path, info: dict[str, Any]) -> None:
        """Write the two files in OGBench's format."""
        splits = info["episodes"]["split"]
        with Beside(folder) as beside:
            made = Path(beside) / folder.name
            made.mkdir()
            for split, ending in (("train", ""), ("val", "-val")):
                episodes = [staging.arrays(place) for place, own in enumerate(splits) if own == split]
                if episodes:
                    np.savez_compressed(made / f"{self.config.dataset}-v0{ending}.npz", **_columns(episodes))  # type: ignore[arg-type]
            (made / NOTE).write_text(json.dumps(info, indent=2))
            made.rename(folder)


def _columns(episodes: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Return the columns of OGBench's file for episodes one after the other."""
    names = [name for name in episodes[0] if name not in ("state", "rewards")]
    columns = {"observations": np.concatenate([episode["state"] for episode in episodes])}
    columns |= {name: np.concatenate([episode[name] for episode in episodes]) for name in names}
    ends = np.cumsum([len(episode["actions"]) for episode in episodes])
    terminals = np.zeros(ends[-1], bool)
    terminals[ends - 1] = True
    return columns | {"terminals": terminals}


def cube_in_sight(qpos: Array) -> bool:
    """Return whether the cube of `scene` stays in view, or in the drawer; OGBench drops other episodes."""
    _, y, z = qpos[:, 14:17].T
    return not ((y >= 0.29).any() or ((y <= -0.3) & ((z < 0.06) | (z > 0.08))).any())
