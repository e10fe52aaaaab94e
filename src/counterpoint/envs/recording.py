"""One recorded episode: `record` makes it, and `Staging` stores it until the whole data set is complete."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np

from counterpoint.data.draws import sample_rng
from counterpoint.data.episode import Array, Episode, task_of
from counterpoint.data.robot_masks import mask_camera, mask_frames
from counterpoint.envs.base import CameraEnv
from counterpoint.files import Beside
from counterpoint.folder import check_part, claim, digests_of, read_part, seal
from counterpoint.formats.video import encode_video


@dataclass(frozen=True, slots=True)
class Recording:
    """One recorded episode.

    Attributes:
        actions: float32 [T, A], executed actions with noise, or intended actions without; mean over `stride` steps.
        state: float32 [T, P], proprioception at each frame.
        rewards: float32 [T], the sum over `stride` steps.
        success: True if the task was solved at any step; `None` if the suite has only rewards.
        frames: Images by camera, uint8 [T, size, size, 3].
        masks: Masks by camera, bool [T, size, size], True on the robot; empty if no masks are recorded.
        extra: Further arrays by name: `environment_state`, the simulator's state `simulation`, and the task that is
            carried out, `part`, int64 [T], of several.
    """

    actions: Array
    state: Array
    rewards: Array
    success: bool | None
    frames: Mapping[str, Array] = field(default_factory=dict)
    masks: Mapping[str, Array] = field(default_factory=dict)
    extra: Mapping[str, Array] = field(default_factory=dict)


class NoisyExpert:
    """An expert whose actions get Gaussian noise and are then clipped.

    Args:
        expert: A function that returns the expert's next action, float32 [A].
        noise: Standard deviation of the noise.
        exact: Number of action dimensions at the end of an action that get no noise, such as a gripper's command.

    Attributes:
        intended: The expert's last action, before noise.
    """

    intended: Array

    def __init__(self, expert: Callable[[], Array], noise: float, *, exact: int = 0) -> None:
        self._expert, self._noise, self._exact = expert, noise, exact

    def reset(self, seed: int) -> None:
        """Begin an episode, after the environment was reset."""
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
    parts: int = 1,
) -> Recording:
    """Record an episode: the actor acts in the scene of a seed until the task is solved or the steps are used up.

    Args:
        env: The environment; its horizon must be at least `steps`.
        actor: The expert that acts.
        seed: Random seed of the scene and the actor's noise.
        steps: Maximum number of steps.
        after_success: Number of frames recorded after the task is solved.
        stride: Number of steps per frame.
        intended: Record the actor's intended actions instead of the executed ones.
        masks: Cameras whose robot masks are recorded.
        simulator: Record the simulator's whole state at each frame, as robomimic does.
        parts: Number of tasks that the environment carries out; with several, `env.part` is recorded at each frame.

    Raises:
        ArithmeticError: If actions, states or rewards are not finite.
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
        if parts > 1:
            kept["part"].append(env.part)  # type: ignore[attr-defined]
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
        extra={name: _finite(name, np.stack(kept[name])) for name in _EXTRA if kept[name]},
    )


def _finite(name: str, values: Array) -> Array:
    if not np.isfinite(values).all():
        raise ArithmeticError(f"{name} that is not finite")
    return values


NOTE = "collect.json"
"""The file with the identity of the data set to record: the settings that determine it."""
_EXTRA = ("environment_state", "simulation", "part")
_ABOUT, _IMAGES, _MASKS, _ARRAYS = "episode.json", "images.npz", "masks.npz", "arrays.npz"
_HINT = "remove its folder: the episode is recorded again"


class Staging:
    """The folder `OUT.partial`, which stores finished episodes until the data set is complete.

    It holds `collect.json` with the data set's identity, and one folder per episode, named by the episode's index. An
    episode's folder holds `episode.json` (seed, success and so on), `arrays.npz`, the images, `masks.npz` if masks are
    recorded, and the digests of these files. Images are one video per camera or, if lossless, `images.npz`. Reading a
    damaged episode raises an error.
    """

    def __init__(self, out: Path) -> None:
        self.folder = out.with_name(f"{out.name}.partial")
        self._lock: IO[str] | None = None

    def open(self, identity: Mapping[str, Any]) -> None:
        """Create the folder, or resume with an existing one, and lock it for this process.

        Raises:
            BadInputError: If the folder is not a staging folder, is in use by another process, or has episodes recorded
                with other settings; the message names the setting that differs.
        """
        hint = f"set it as it was to continue, or remove {self.folder} to start anew"
        self._lock = claim(self.folder, NOTE, identity, what="episodes recorded", does="records", hint=hint)

    def close(self) -> None:
        """Release the folder to other processes."""
        if self._lock is not None:
            self._lock.close()

    def finished(self) -> set[int]:
        """Return the indices of the stored episodes."""
        return {int(folder.name) for folder in self.folder.iterdir() if folder.name.isdigit()}

    def add(
        self, place: int, recording: Recording, about: Mapping[str, Any], fps: float, *, lossless: bool = False
    ) -> None:
        """Store an episode at its index `place`, with the JSON values `about`."""
        final = self._at(place)
        with Beside(final) as beside:
            made = Path(beside) / final.name
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
            (made / _ABOUT).write_text(json.dumps({**about, "success": recording.success}))
            seal(made, [path.name for path in made.iterdir()])
            try:
                made.rename(final)
            except OSError:
                if place not in self.finished():  # a worker of a killed run stored it first
                    raise

    def about(self, place: int) -> dict[str, Any]:
        """Return the JSON values stored with an episode."""
        return dict(json.loads(read_part(self._at(place), _ABOUT, _HINT)))

    def arrays(self, place: int, name: str = _ARRAYS) -> dict[str, Array]:
        """Return the arrays in an episode's file `name`; empty if the episode does not have this file."""
        folder = self._at(place)
        if name != _ARRAYS and name not in self._names(place):
            return {}
        with np.load(BytesIO(read_part(folder, name, _HINT))) as arrays:
            return dict(arrays)

    def videos(self, place: int) -> dict[str, Path]:
        """Return an episode's videos by camera."""
        names = sorted(name for name in self._names(place) if name.endswith(".mp4"))
        return {Path(name).stem: check_part(self._at(place), name, _HINT) for name in names}

    def episode(self, place: int, instructions: Sequence[str], fps: float) -> Episode:
        """Return an episode with the instructions of its parts; frames that are stored as video are left out."""
        arrays = self.arrays(place)
        starts = np.unique(arrays["part"], return_index=True)[1].tolist() if "part" in arrays else [0]
        segments = list(zip(starts, instructions, strict=False))  # a failed episode may lack its last parts
        masks = {mask_camera(name): mask_frames(mask) for name, mask in self.arrays(place, _MASKS).items()}
        return Episode(
            frames=self.arrays(place, _IMAGES) | masks,
            instruction=task_of([(0, words) for words in instructions]),
            segments=tuple(segments) if len(segments) > 1 else (),
            timestamps=np.arange(len(arrays["actions"])) / fps,
            actions=arrays["actions"],
            state=arrays["state"],
            success=self.about(place)["success"],
            rewards=arrays["rewards"],
            environment_state=arrays.get("environment_state"),
        )

    def _names(self, place: int) -> set[str]:
        """Return the names of files that exist or have a digest; reading a file that lacks either raises an error."""
        folder = self._at(place)
        return {*digests_of(folder), *(path.name for path in folder.iterdir())}

    def _at(self, place: int) -> Path:
        return self.folder / f"{place:06d}"
