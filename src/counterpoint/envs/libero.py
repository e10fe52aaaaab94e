"""LIBERO's tasks as `CameraEnv`s.

LIBERO needs robosuite 1.4, but other extras need a later version, so install the extra `libero` in a separate Python
environment. The LIBERO package asks questions on the console at its first import, and downloads meshes when the first
task is made.
"""

from __future__ import annotations

import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.base import Options, choose_cameras, seeded_numpy
from counterpoint.envs.rendering import choose_backend
from counterpoint.envs.robomimic import RobosuiteScene, own_context
from counterpoint.errors import BadInputError, MissingExtraError, require, require_known
from counterpoint.formats.hdf5.dialects import CONTROL_HZ

SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_90", "libero_10")
CAMERAS = ("agentview", "robot0_eye_in_hand")
"""The simulator's names of the cameras in LIBERO's data."""
_IN_DATA = {"agentview_rgb": "agentview", "eye_in_hand_rgb": "robot0_eye_in_hand"}

_STATE = ("robot0_gripper_qpos", "robot0_joint_pos")  # `gripper_states` and `joint_states` of LIBERO's data
_PARTS = ("", ".benchmark", ".envs")
_SETTLING = 5  # number of idle steps after a reset, as in LIBERO's evaluation


class LiberoEnv(RobosuiteScene):
    """A LIBERO task; an episode begins in one of the task's fixed initial states.

    The index of the initial state is the seed modulo the number of states. The reward is 1 if the task is solved,
    otherwise 0. Images are upright, as `Hdf5Store` reads them from the data.

    Args:
        task: SUITE/NUMBER or SUITE/NAME, such as `libero_10/2` or `libero_goal/turn_on_the_stove`.
        **options: See `Options`. By default the camera is `agentview`, and an episode has 600 steps, as in LIBERO's
            evaluation. The data's images have 128 pixels. The data's names of cameras (`agentview_rgb`,
            `eye_in_hand_rgb`) work too.
    """

    def __init__(self, task: str, **options: Unpack[Options]) -> None:
        chosen = choose_cameras(options.get("cameras"), CAMERAS[:1])
        options["cameras"] = choose_cameras([_IN_DATA.get(name, name) for name in chosen], (), CAMERAS)
        suite, _, which = task.partition("/")
        hint = "say libero/SUITE/TASK"
        require_known(suite, SUITES, f"libero/{task}", f"suite {suite!r}", hint=hint)
        libero, benchmark, simulation = _import_libero(task)
        tasks = benchmark.get_benchmark_dict()[suite]()
        names = tasks.get_task_names()
        numbered = re.fullmatch(r"\d+", which) and int(which) < len(names)
        if not numbered:
            expected = f"0 to {len(names) - 1}, or one of {{}}"
            require_known(which, names, f"libero/{task}", f"task {which!r}", expected, hint)
        number = int(which) if numbered else names.index(which)
        about = tasks.get_task(number)
        super().__init__(
            f"libero/{suite}/{number}",
            str(about.language),
            action_dim=7,
            state_dim=9,
            control_hz=CONTROL_HZ,
            horizon=600,
            **options,
        )
        folders = (Path(libero.get_libero_path(kind)) / about.problem_folder for kind in ("init_states", "bddl_files"))
        states, scenes = folders
        self._states = read_init_states(states / about.init_states_file)
        scene = str(scenes / about.bddl_file)
        make = simulation.OffScreenRenderEnv
        self._adopt(lambda: make(bddl_file_name=scene, use_camera_obs=False, ignore_done=True))

    def state(self) -> Array:
        """Return gripper joints and joint angles in the order of `Hdf5Store`: float32 [9]."""
        return np.concatenate([self._observed[key] for key in _STATE]).astype(np.float32)

    def _begin(self, seed: int) -> None:
        with own_context(self._env), seeded_numpy(seed):  # `seed` seeds numpy's global generator, which LIBERO uses
            self._env.seed(seed % 2**32)
            self._env.reset()
            self._env.set_init_state(self._states[seed % len(self._states)])
            for _ in range(_SETTLING):
                self._observed, *_ = self._env.step(np.zeros(7))

    def _advance(self, action: Array) -> tuple[float, bool, bool]:
        self._observed, reward, _, _ = self._env.step(action.astype(np.float64).clip(-1.0, 1.0))
        return float(reward), bool(self._env.check_success()), False


def read_init_states(path: Path) -> Array:
    """Read the initial states of a task, float64 [N, n], without running code that the pickle may contain.

    Raises:
        BadInputError: If the file is missing or holds anything but numbers.
    """
    import pickle

    import torch

    # Only the parts of a numeric array may be unpickled. Files written by numpy 1 have the module's old name.
    rebuild: Any = np._core.multiarray._reconstruct  # type: ignore[attr-defined]
    old = (rebuild, "numpy.core.multiarray._reconstruct")
    allowed: list[Any] = [np.ndarray, np.dtype, type(np.dtype(np.float64)), rebuild, old]
    hint = "install LIBERO again, with its init_files"
    try:
        with torch.serialization.safe_globals(allowed):
            states = np.asarray(torch.load(path, weights_only=True), np.float64)
    except (OSError, RuntimeError, ValueError, TypeError, pickle.UnpicklingError) as error:
        found = f"no array of numbers ({type(error).__name__})" if path.is_file() else "no file"
        raise BadInputError(path, found, "LIBERO's initial states", hint) from None
    require(states.ndim == 2 and len(states), path, states.shape, "[N, n], N at least 1", hint)
    return states


def _import_libero(task: str) -> tuple[Any, Any, Any]:
    """Import LIBERO's package, benchmark and simulation.

    If its `config.yaml` is missing, LIBERO asks questions on the console; without a console, this is a `BadInputError`.
    """
    choose_backend()
    config = Path(os.environ.get("LIBERO_CONFIG_PATH", "~/.libero")).expanduser() / "config.yaml"
    try:
        libero, benchmark, simulation = (import_module(f"libero.libero{part}") for part in _PARTS)
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "libero", "libero") from None
    except (EOFError, OSError):
        found, expected = f"LIBERO without its settings in {config}", "the file it writes when first imported"
        hint = "run once: echo n | python -c 'import libero.libero'"
        raise BadInputError(f"libero/{task}", found, expected, hint) from None
    return libero, benchmark, simulation
