"""One recorded episode: made by `record`, kept by `Staging` until the whole data set is there."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from counterpoint.data.draws import sample_rng
from counterpoint.data.episode import Array, Episode
from counterpoint.data.robot_masks import mask_camera, mask_frames
from counterpoint.envs.base import CameraEnv
from counterpoint.errors import BadInputError, require
from counterpoint.files import Beside, lock, read_object
from counterpoint.formats.video import encode_video


@dataclass(frozen=True, slots=True)
class Recording:
    """One recorded episode.

    Attributes:
        actions: float32 [T, A], as carried out, noise included, or as intended; over `stride` steps their mean.
        state: float32 [T, P], proprioception at each frame.
        rewards: float32 [T]; over `stride` steps their sum.
        success: True when the task was solved at any moment; `None` where a suite has rewards alone.
        frames: Camera -> uint8 [T, size, size, 3].
        masks: Camera -> bool [T, size, size], true on the robot; empty without masks.
        extra: Further arrays by name, such as `environment_state`.
    """

    actions: Array
    state: Array
    rewards: Array
    success: bool | None
    frames: Mapping[str, Array] = field(default_factory=dict)
    masks: Mapping[str, Array] = field(default_factory=dict)
    extra: Mapping[str, Array] = field(default_factory=dict)


class NoisyExpert:
    """An expert with Gaussian noise on its actions, which are then clipped.

    Args:
        expert: A function that returns the expert's next action, float32 [A].
        noise: Standard deviation of the noise.
        exact: Numbers at the end of an action that have none: a gripper that is opened or closed.

    Attributes:
        intended: The expert's last action, before noise.
    """

    intended: Array

    def __init__(self, expert: Callable[[], Array], noise: float, *, exact: int = 0) -> None:
        self._expert, self._noise, self._exact = expert, noise, exact

    def reset(self, seed: int) -> None:
        """Begin an episode; the environment has been reset."""
        self._rng = sample_rng(seed, 0, "expert noise")

    def act(self) -> Array:
        """Return the next action: float32 [A] in [-1, 1]."""
        action = self.intended = self._expert()
        if self._noise > 0:
            noise = self._noise * self._rng.standard_normal(len(action) - self._exact)
            action = np.clip(action + np.append(noise, np.zeros(self._exact)), -1.0, 1.0).astype(np.float32)
        return action


def record(
    env: CameraEnv,
    actor: NoisyExpert,
    seed: int,
    *,
    steps: int,
    after_success: int = 0,
    stride: int = 1,
    intended: bool = False,
    masks: Sequence[str] = (),
    simulator: bool = False,
) -> Recording:
    """Let an actor act in the scene of a seed until the task is solved or the steps are used up.

    Args:
        env: The environment, whose horizon is not shorter than `steps`.
        actor: The expert that acts.
        seed: Random seed of the scene and the actor's noise.
        steps: The most steps.
        after_success: Frames that still show the task solved.
        stride: Steps a frame.
        intended: Keep the actor's intended actions instead of those that were carried out.
        masks: Cameras whose robot masks are kept.
        simulator: Keep the simulator's whole state at each frame, as robomimic does.

    Raises:
        ArithmeticError: When actions, states or rewards are not finite.
    """
    env.look = False
    env.reset(seed=seed)
    actor.reset(seed)
    kept: dict[str, list[Any]] = defaultdict(list)
    success, ended, shown, taken = False, False, 0, 0
    while taken < steps and not ended and not (success and shown >= after_success):
        kept["images"].append(env.images())
        kept["state"].append(env.state())
        if env.environment_dim:
            kept["environment_state"].append(env.environment_state())
        if masks:
            kept["masks"].append(env.masks())  # type: ignore[attr-defined]
        if simulator:
            kept["simulation"].append(env.simulator_state())  # type: ignore[attr-defined]
        shown += success
        carried: list[Array] = []
        earned = 0.0
        for _ in range(min(stride, steps - taken)):
            action = actor.act()
            _, reward, ended, _, info = env.step(_finite("action", action))
            earned, success = earned + reward, success or info.get("is_success", False)
            carried.append(actor.intended if intended else action)
        taken += len(carried)
        kept["actions"].append(np.stack(carried).mean(axis=0))
        kept["rewards"].append(earned)
    return Recording(
        actions=np.stack(kept["actions"]).astype(np.float32),
        state=_finite("state", np.stack(kept["state"])),
        rewards=_finite("reward", np.array(kept["rewards"], np.float32)),
        success=success if env.has_success else None,
        frames={camera: np.stack([shot[camera] for shot in kept["images"]]) for camera in env.cameras},
        masks={camera: np.stack([shot[camera] for shot in kept["masks"]]) for camera in masks},
        extra={name: _finite(name, np.stack(kept[name])) for name in ("environment_state", "simulation") if kept[name]},
    )


def _finite(name: str, values: Array) -> Array:
    if not np.isfinite(values).all():
        raise ArithmeticError(f"{name} that is not finite")
    return values


NOTE = "collect.json"
"""The file of a recording's identity."""
_IMAGES, _MASKS, _ARRAYS = "images.npz", "masks.npz", "arrays.npz"


class Staging:
    """The folder `OUT.partial`: `collect.json` with the identity, and a folder an episode, named by its index.

    An episode is `episode.json` (seed, success and so on), `arrays.npz`, a video a camera or, without loss,
    `images.npz`, and `masks.npz` where there are masks.
    """

    def __init__(self, out: Path) -> None:
        self.folder = out.with_name(f"{out.name}.partial")
        self._lock: IO[str] | None = None

    def open(self, identity: Mapping[str, Any]) -> None:
        """Make the folder, or continue the one that is there, and take it for this process.

        Raises:
            BadInputError: When the folder is not ours, is another process's now, or holds episodes recorded otherwise;
                the key is named.
        """
        note = self.folder / NOTE
        if not self.folder.exists():
            with Beside(self.folder) as folder:
                made = Path(folder) / "staging"
                made.mkdir()
                (made / NOTE).write_text(json.dumps(identity, indent=2))
                made.rename(self.folder)
        hint = f"set it as it was to continue, or remove {self.folder} to start anew"
        found = f"a folder without {NOTE}"
        require(note.is_file(), self.folder, found, "nothing, or a recording to continue", "choose another --out")
        again = f"remove {self.folder} to start anew"
        begun = read_object(note, "the settings of the recording", again)
        require_same(self.folder, begun, identity, "episodes recorded", hint)
        self._lock = lock(self.folder, "records")
        for unfinished in self.folder.glob(".*"):
            if unfinished.is_dir():
                shutil.rmtree(unfinished)

    def close(self) -> None:
        """Let other processes have the folder."""
        if self._lock is not None:
            self._lock.close()

    def finished(self) -> set[int]:
        """Return the indices of the episodes that are there."""
        return {int(folder.name) for folder in self.folder.iterdir() if folder.name.isdigit()}

    def add(
        self, place: int, recording: Recording, about: Mapping[str, Any], fps: float, *, lossless: bool = False
    ) -> None:
        """Store an episode at its index, with notes as JSON values."""
        made = self.folder / f".{place:06d}.{os.getpid()}"
        made.mkdir()
        if lossless:
            np.savez_compressed(made / _IMAGES, **recording.frames)  # type: ignore[arg-type]
        else:
            for camera, frames in recording.frames.items():
                encode_video(made / f"{camera}.mp4", frames, fps)
        if recording.masks:
            np.savez_compressed(made / _MASKS, **recording.masks)  # type: ignore[arg-type]
        vectors = {"actions": recording.actions, "state": recording.state, "rewards": recording.rewards}
        np.savez(made / _ARRAYS, **vectors, **recording.extra)  # type: ignore[arg-type]
        (made / "episode.json").write_text(json.dumps({**about, "success": recording.success}))
        try:
            made.rename(self.folder / f"{place:06d}")
        except OSError:
            if place not in self.finished():
                raise
            shutil.rmtree(made)  # a worker of a killed run was faster with the same episode

    def about(self, place: int) -> dict[str, Any]:
        """Return the notes of an episode."""
        with self._reading(place):
            return dict(json.loads((self._at(place) / "episode.json").read_text()))

    def arrays(self, place: int, name: str = _ARRAYS) -> dict[str, Array]:
        """Return an episode's arrays by name; none where there is no such file."""
        path = self._at(place) / name
        if not path.is_file():
            return {}
        with self._reading(place), np.load(path) as arrays:
            return dict(arrays)

    def videos(self, place: int) -> dict[str, Path]:
        """Return an episode's videos by camera."""
        return {video.stem: video for video in sorted(self._at(place).glob("*.mp4"))}

    def episode(self, place: int, instruction: str, fps: float) -> Episode:
        """Return an episode without the frames that are kept as video."""
        arrays = self.arrays(place)
        masks = {mask_camera(name): mask_frames(mask) for name, mask in self.arrays(place, _MASKS).items()}
        return Episode(
            frames=self.arrays(place, _IMAGES) | masks,
            instruction=instruction,
            timestamps=np.arange(len(arrays["actions"])) / fps,
            actions=arrays["actions"],
            state=arrays["state"],
            success=self.about(place)["success"],
            rewards=arrays["rewards"],
            environment_state=arrays.get("environment_state"),
        )

    @contextmanager
    def _reading(self, place: int) -> Iterator[None]:
        """Raise what a damaged episode raises as a `BadInputError`."""
        try:
            yield
        except (ValueError, KeyError, EOFError, FileNotFoundError, zipfile.BadZipFile, zlib.error) as error:
            where, found = self._at(place), f"a damaged episode ({type(error).__name__}: {error})"
            raise BadInputError(where, found, "a whole one", "remove its folder: it is recorded again") from None

    def _at(self, place: int) -> Path:
        return self.folder / f"{place:06d}"


def first_difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """Return the first key, dotted, at which two trees differ, with both values; `None` if they are equal."""
    for key in [*now, *(key for key in then if key not in now)]:
        old, new = then.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            if inner := first_difference(old, new):
                return f"{key}.{inner[0]}", *inner[1:]
        elif old != new:
            return key, old, new
    return None


def require_same(where: Path, then: Mapping[str, Any], now: Mapping[str, Any], found: str, hint: str) -> None:
    """Raise a `BadInputError` that names the first key at which two identities differ, if they do."""
    key, old, new = first_difference(then, now) or (None, None, None)
    require(key is None, where, f"{found} with {key} = {old}", f"{key} = {new}", hint)
