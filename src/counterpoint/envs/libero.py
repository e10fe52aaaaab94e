"""LIBERO's tasks behind the face of `ControlTask`.

LIBERO needs robosuite 1.4, the other extras a later one: it lives in an environment of its own, with the extra
`libero`. Its package asks questions when first imported, and fetches its meshes when a first task is made.
"""

from __future__ import annotations

import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.data.store import Cameras
from counterpoint.envs.base import Outcome, draw_each, named_cameras
from counterpoint.envs.rendering import choose_backend
from counterpoint.envs.robomimic import draw_upright
from counterpoint.errors import BadInputError, MissingExtraError

__all__ = ["CAMERAS", "SUITES", "LiberoTask", "read_init_states"]

SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_90", "libero_10")
CAMERAS = ("agentview", "robot0_eye_in_hand")
"""The simulator's names of the cameras that LIBERO's data have."""
_IN_DATA = {"agentview_rgb": "agentview", "eye_in_hand_rgb": "robot0_eye_in_hand"}

_STATE = ("robot0_gripper_qpos", "robot0_joint_pos")  # `gripper_states` and `joint_states` of LIBERO's data
_PARTS = ("", ".benchmark", ".envs")
_SETTLING = 5  # idle steps after a reset, as in LIBERO's evaluation


class LiberoTask:
    """A LIBERO task, begun from one of the initial states that come with it.

    The reward is 1 where the task is solved, else 0. Pictures are upright, as `Hdf5Store` gives those of the data.

    Args:
        task: `SUITE/NUMBER` or `SUITE/NAME`: `libero_10/2`, `libero_goal/turn_on_the_stove`.
        camera: One of `CAMERAS`, or several; `agentview` by default. The data's names (`agentview_rgb`,
            `eye_in_hand_rgb`) will do.
        size: Height and width of the pictures, in pixels; LIBERO's data have 128.
        horizon: Steps of an episode; 600 in LIBERO's evaluation.

    Raises:
        BadInputError: When suite, task or camera is unknown, or LIBERO is not set up.
        MissingExtraError: When LIBERO is not installed.
    """

    action_dim = 7
    state_dim = 9

    def __init__(self, task: str, *, camera: Cameras = None, size: int = 84, horizon: int = 600) -> None:
        names = named_cameras(camera, CAMERAS[0])
        self._cameras, self._size, self.horizon = tuple(_IN_DATA.get(n, n) for n in names), size, horizon
        unknown = [name for name in self._cameras if name not in CAMERAS]
        if unknown:
            raise BadInputError("camera", repr(unknown[0]), f"one of {', '.join(CAMERAS)}", "choose from these")
        suite, _, which = task.partition("/")
        if suite not in SUITES:
            raise _unknown(task, f"suite {suite!r}", f"one of {', '.join(SUITES)}")
        libero, benchmark, simulation = _import_libero(task)
        tasks = benchmark.get_benchmark_dict()[suite]()
        number = _number(task, which, tasks.get_task_names())
        chosen = tasks.get_task(number)
        states, scenes = (
            Path(libero.get_libero_path(kind)) / chosen.problem_folder for kind in ("init_states", "bddl_files")
        )
        self._states = read_init_states(states / chosen.init_states_file)
        self.name, self.instruction = f"libero/{suite}/{number}", str(chosen.language)
        self._env = simulation.OffScreenRenderEnv(
            bddl_file_name=str(scenes / chosen.bddl_file),
            use_camera_obs=False,  # pictures are drawn when asked for
            ignore_done=True,
        )

    def reset(self, seed: int) -> None:
        """Begin from initial state `seed` modulo their number, and let the objects come to rest."""
        before = np.random.get_state()
        try:
            self._env.seed(seed % 2**32)  # numpy's own generator, which LIBERO draws from
            self._env.reset()
            self._env.set_init_state(self._states[seed % len(self._states)])
            for _ in range(_SETTLING):
                self._observation, *_ = self._env.step(np.zeros(self.action_dim))
        finally:
            np.random.set_state(before)

    def draw(self) -> Array:
        """uint8 [size, size, 3], or [C, size, size, 3], upright."""
        return draw_each(lambda camera: draw_upright(self._env.sim, camera, self._size), self._cameras)

    def state(self) -> Array:
        """Gripper joints and joint angles: float32 [9], as `Hdf5Store` gives them."""
        return np.concatenate([self._observation[key] for key in _STATE]).astype(np.float32)

    def step(self, action: Array) -> Outcome:
        """Act for 1/20 s."""
        clipped = np.asarray(action, np.float64).clip(-1.0, 1.0)
        self._observation, reward, _, _ = self._env.step(clipped)
        return Outcome(float(reward), bool(self._env.check_success()))

    def close(self) -> None:
        """Free the graphics context."""
        self._env.close()


def read_init_states(path: Path) -> Array:
    """The initial states of a task: float64 [N, n], read without running what a pickle may hold.

    Raises:
        BadInputError: When the file is not there or holds anything but numbers.
    """
    import pickle

    import torch

    try:
        # Only what an array of numbers is made of may be built. Files written by numpy 1 name its old module.
        rebuild: Any = np._core.multiarray._reconstruct  # type: ignore[attr-defined]
        allowed: list[Any] = [np.ndarray, np.dtype, type(np.dtype(np.float64)), rebuild]
        allowed.append((rebuild, "numpy.core.multiarray._reconstruct"))
        with torch.serialization.safe_globals(allowed):
            states = np.asarray(torch.load(path, weights_only=True), np.float64)
    except (OSError, RuntimeError, ValueError, TypeError, pickle.UnpicklingError) as error:
        raise BadInputError(
            path,
            "no file" if not path.is_file() else f"no array of numbers ({type(error).__name__})",
            "LIBERO's initial states",
            "install LIBERO again, with its init_files",
        ) from None
    if states.ndim != 2 or not len(states):
        raise BadInputError(path, f"{states.shape}", "[N, n], N at least 1", "install LIBERO again")
    return states


def _import_libero(task: str) -> tuple[Any, Any, Any]:
    """The package, which asks on the console where no `config.yaml` is, its benchmark, and its simulation."""
    choose_backend()
    config = Path(os.environ.get("LIBERO_CONFIG_PATH", "~/.libero")).expanduser() / "config.yaml"
    try:
        libero, benchmark, simulation = (import_module(f"libero.libero{part}") for part in _PARTS)
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "libero", "libero") from None
    except (EOFError, OSError):
        raise BadInputError(
            f"libero/{task}",
            f"LIBERO without its settings in {config}",
            "the file it writes when first imported",
            "run once: echo n | python -c 'import libero.libero'",
        ) from None
    return libero, benchmark, simulation


def _number(task: str, which: str, names: list[str]) -> int:
    if re.fullmatch(r"\d+", which) and int(which) < len(names):
        return int(which)
    if which in names:
        return names.index(which)
    raise _unknown(task, f"task {which!r}", f"0 to {len(names) - 1}, or one of {', '.join(names)}")


def _unknown(task: str, found: str, expected: str) -> BadInputError:
    return BadInputError(f"libero/{task}", found, expected, "say libero/SUITE/TASK")
